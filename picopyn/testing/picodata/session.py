"""One client connection: the protocol's state machine.

Decides the order of messages, what an error skips, and what is sent when. Must not know where statements
run: that is its `Backend`'s affair.

*Source*: `picodata-protocol.md` section 8; `picodata-recorded.md` section 5; recorded sections "startup",
"auth", "messages".
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from picopyn.testing.picodata import portals, wire
from picopyn.testing.picodata.auth import BadExchange, Exchange
from picopyn.testing.picodata.planner.accent import Accent
from picopyn.testing.picodata.planner.errors import ServerError, sbroad
from picopyn.testing.picodata.planner.statement import Deallocate, Statement
from picopyn.testing.picodata.portals import Desk, Portal, Result
from picopyn.testing.picodata.startup import StartUp, TurnedAway, read_start_up

_PARAMETERS = {
    "server_version": "15.0",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "integer_datetimes": "on",
    "TimeZone": "UTC",
}
_HELLO = b"".join(
    [wire.AUTHENTICATION_OK, *(wire.parameter_status(name, value) for name, value in _PARAMETERS.items())]
)
_MOST_PARAMETERS = 7498
_FLUSH_AT = 65536


class Backend(Protocol):
    """The instance behind a session."""

    @property
    def accent(self) -> Accent:
        """The version whose answers are given."""
        ...

    def exchange(self, user: str) -> Exchange | None:
        """How this user proves who they are; None: cannot log in at all."""
        ...

    def note_login(self, user: str, proven: bool) -> bool:
        """Count an attempt; gives whether the user is let in."""
        ...

    def prepare(self, text: str, oids: tuple[int, ...]) -> Statement:
        """Plan a text; raises ServerError."""
        ...

    def check_fresh(self, name: str, statement: Statement, start: StartUp) -> None:
        """Raise ServerError if a prepared statement is stale and this connection wants to know."""
        ...

    def execute(self, statement: Statement, values: tuple[object, ...], start: StartUp) -> asyncio.Task[Result]:
        """Run a statement; the task goes on when the session is gone."""
        ...

    def follow(self, session: Session, start: StartUp) -> list[str]:
        """What a client that asked for it is told of the topology now; `tell` is called with what comes later.

        Raises ServerError or TurnedAway where whoever asks is not let in.
        """
        ...

    def joined(self, session: Session) -> None:
        """A session began."""
        ...

    def left(self, session: Session) -> None:
        """A session ended."""
        ...


class Session(asyncio.Protocol):
    """One client. Its transport belongs to it; the instance may `hold`, `release` or `cut` it."""

    def __init__(self, backend: Backend, number: int) -> None:
        self._backend = backend
        self._desk = Desk(number)
        self._framer = wire.Framer()
        self._transport: asyncio.Transport | None = None
        self._start: StartUp | None = None
        self._exchange: Exchange | None = None
        self._phase: Callable[[], bool] = self._start_up
        self._out: list[bytes] = []
        self._busy = False
        self._held = False
        self._skipping = False
        self._group = False

    # life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._backend.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; what it started goes on."""
        self._transport = None
        self._backend.left(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._framer.feed(data)
        self._go()

    def hold(self) -> None:
        """Freeze: read nothing, send nothing."""
        self._held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Thaw. A client that left meanwhile is dropped with everything it had sent but we had not read."""
        self._held = False
        if self._transport is None:
            return
        if _hung_up(self._transport):
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._flush()
        self._go()

    def cut(self) -> None:
        """End the connection with a reset, as a killed process does."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def end(self) -> None:
        """End the connection in an orderly way, without a message."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def tell(self, texts: list[str]) -> None:
        """Send notices that nothing in this session caused."""
        self._send(*map(wire.notice_response, texts))
        self._flush()

    # flow

    def _go(self) -> None:
        """Work through what has arrived, until a statement has to be waited for."""
        try:
            while not self._busy and not self._held and self._alive() and self._phase():
                pass
        except (wire.ProtocolViolation, BadExchange, TurnedAway):
            self.end()
        if sum(map(len, self._out)) > _FLUSH_AT:
            self._flush()

    def _alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _send(self, *messages: bytes) -> None:
        self._out.extend(messages)

    def _flush(self) -> None:
        if self._out and not self._held and self._transport is not None:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    # start

    def _start_up(self) -> bool:
        packet = self._framer.start_up()
        if packet is None:
            return False
        code = int.from_bytes(packet[:4], "big")
        if code == wire.SSL_REQUEST:
            self._send(b"N")
            self._flush()
            return True
        if code >> 16 != 3:
            raise TurnedAway(f"request {code}")
        self._start = read_start_up(packet[4:], self._backend.accent)
        self._exchange = self._backend.exchange(self._start.user)
        if self._exchange is None:
            self._refuse(self._start.user)
            return False
        self._phase = self._authenticate
        self._send(self._exchange.open())
        self._flush()
        return True

    def _authenticate(self) -> bool:
        message = self._framer.next_message()
        if message is None:
            return False
        if not isinstance(message, wire.Password) or self._exchange is None or self._start is None:
            raise wire.ProtocolViolation("not a password")
        self._send(self._exchange.answer(message.body))
        if self._exchange.verdict is not None:
            if not self._backend.note_login(self._start.user, self._exchange.verdict):
                self._refuse(self._start.user)
                return False
            try:
                told = self._backend.follow(self, self._start)
            except ServerError as error:
                self._send(wire.error_response(error.sqlstate, error.message))
                self.end()
                return False
            self._phase = self._converse
            self._send(_HELLO, *map(wire.notice_response, told), wire.READY)
        self._flush()
        return True

    def _refuse(self, user: str) -> None:
        self._send(wire.error_response("28P01", f"authentication failed for user '{user}'"))
        self.end()

    # conversation

    def _converse(self) -> bool:
        message = self._framer.next_message()
        if message is None:
            return False
        if self._skipping and message is not wire.SYNC and message is not wire.TERMINATE:
            return True
        try:
            self._take(message)
        except ServerError as error:
            self._fail(error)
        return True

    def _take(self, message: wire.Message) -> None:
        match message:
            case wire.Query(text):
                self._query(text)
            case wire.Bare(name):
                self._bare(name)
            case wire.CopyData(shown):
                raise ServerError("0A000", f"feature is not supported: {shown}")
            case wire.Password():
                raise wire.ProtocolViolation("password out of turn")
            case _:
                self._group = True
                self._extended(message)

    def _extended(self, message: wire.Message) -> None:
        match message:
            case wire.Parse():
                self._parse(message)
            case wire.Bind():
                statement = self._desk.statement(message.statement)
                self._backend.check_fresh(message.statement, statement, self._started)
                self._desk.bind(message, statement)
                self._send(wire.BIND_COMPLETE)
            case wire.Describe("S", name):
                self._describe(self._desk.statement(name))
            case wire.Describe(_, name):
                portal = self._desk.portal(name)
                self._send(_columns(portal.statement, portal.formats))
            case wire.Execute(name, limit):
                self._execute(self._desk.portal(name), limit)
            case wire.Close(kind, name):
                self._desk.close(kind, name)
                self._send(wire.CLOSE_COMPLETE)

    @property
    def _started(self) -> StartUp:
        assert self._start is not None
        return self._start

    def _bare(self, name: str) -> None:
        if name == "sync":
            self._skipping = self._group = False
            self._desk.portals.clear()
            self._send(wire.READY)
        if name == "terminate":
            self.end()
        self._flush()

    def _fail(self, error: ServerError) -> None:
        self._send(wire.error_response(error.sqlstate, error.message))
        self._skipping = True
        self._flush()

    def _parse(self, message: wire.Parse) -> None:
        self._desk.check_free(message.name)
        statement = self._backend.prepare(message.text, message.oids)
        if statement.kind == "empty":
            raise sbroad("invalid plan: plan tree top is None")
        self._desk.close("S", message.name)
        self._desk.statements[message.name] = statement
        if self._started.query_metadata:
            self._send(wire.notice_response(_metadata(statement)))
        self._send(wire.PARSE_COMPLETE)

    def _describe(self, statement: Statement) -> None:
        oids = statement.parameter_oids
        if len(oids) > _MOST_PARAMETERS and not self._backend.accent.since_26_2:
            raise wire.ProtocolViolation("ParameterDescription too long")
        formats = (0,) * len(statement.columns or ())
        self._send(wire.parameter_description(oids), _columns(statement, formats))

    def _execute(self, portal: Portal, limit: int) -> None:
        if portal.done:
            raise sbroad("Can't execute portal in state Done")
        if portal.result is not None:
            self._send(*portal.send(limit))
            return

        def send(result: Result) -> None:
            portal.result = result
            self._send(*portal.send(limit))

        self._run(portal.statement, portal.values, send)

    def _run(self, statement: Statement, values: tuple[object, ...], then: Callable[[Result], None]) -> None:
        if isinstance(statement.ddl, Deallocate):
            self._desk.deallocate(statement.ddl.name)
            then(Result((), 0))
            return
        self._busy = True
        task = self._backend.execute(statement, values, self._started)
        task.add_done_callback(lambda done: self._ran(done, then))

    def _ran(self, task: asyncio.Task[Result], then: Callable[[Result], None]) -> None:
        if task.cancelled() or not self._alive():
            if not task.cancelled():
                task.exception()  # looked at, so that nobody reports it as lost
            return
        self._busy = False
        try:
            then(task.result())
        except Exception as error:
            self._answer_failure(error)
        self._go()

    def _answer_failure(self, error: Exception) -> None:
        fault = error if isinstance(error, ServerError) else ServerError("XX000", f"embedded cluster: {error!r}")
        if self._group:
            self._fail(fault)
        else:
            self._send(wire.error_response(fault.sqlstate, fault.message), wire.READY)
            self._flush()

    # simple protocol

    def _query(self, text: str) -> None:
        """Run one text. After a failure ReadyForQuery follows, unless an extended group is open."""
        self._desk.close("S", "")
        try:
            self._query_planned(self._backend.prepare(text, ()))
        except ServerError as error:
            self._answer_failure(error)
            self._flush()

    def _query_planned(self, statement: Statement) -> None:
        if statement.kind == "empty":
            self._send(wire.EMPTY_QUERY, wire.READY)
            self._flush()
            return
        values = portals.read_values(wire.Bind("", "", (), (), ()), statement)

        def send(result: Result) -> None:
            formats = (0,) * len(statement.columns or ())
            if statement.columns is not None:
                self._send(wire.row_description(statement.columns, formats))
                self._send(*portals.encode_rows(statement, result.rows, formats))
            self._send(wire.command_complete(portals.tag(statement, result)), wire.READY)
            self._flush()

        self._run(statement, values, send)


def _columns(statement: Statement, formats: tuple[int, ...]) -> bytes:
    return wire.NO_DATA if statement.columns is None else wire.row_description(statement.columns, formats)


def _metadata(statement: Statement) -> str:
    """The text of the metadata notice. *Source*: `picodata-protocol.md` section 4."""
    fields = {
        "type": "PreparedStatementMetadata",
        "query": statement.text,
        "tier": statement.tier,
        "dk_meta": [list(pair) for pair in statement.dk_meta],
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client closed its end, even if unread bytes still wait."""
    connection = transport.get_extra_info("socket")
    if connection is None or not hasattr(select, "POLLRDHUP"):
        return False
    watch = select.poll()
    watch.register(connection.fileno(), select.POLLRDHUP)
    return bool(watch.poll(0))
