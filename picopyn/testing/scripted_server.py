"""`ScriptedServer`: a server that plays what a test wrote down, message by message, for corners no real
server shows on demand.

Decides nothing by itself. A script is a function from one client message to the answer, or a list of steps
played in order. The server runs in a thread of its own, so it serves blocking clients and clients on any
event loop.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar

from picopyn.testing.picodata import wire

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expect:
    """The next message must be of this class of `wire`, or its bare message of this name."""

    what: type[Any] | str


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the test opens this gate."""

    gate: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing more, read nothing more."""


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """End the connection; with `reset` as a killed process would."""

    reset: bool = False


Step = Expect | Send | Wait | Hang | CloseConnection


class Script(Protocol):
    """Plays one connection after the start-up packet was read and login was granted."""

    async def play(self, talk: Talk) -> None:
        """Play until the connection ends."""


class UnexpectedMessage(AssertionError):  # noqa: N818 - it is what happened
    """The client sent something else than the script expects."""


class Talk:
    """One connection as a script sees it."""

    def __init__(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ScriptedServer
    ) -> None:
        self.number = number
        self._reader = reader
        self._writer = writer
        self._server = server
        self._framer = wire.Framer()

    async def start_up(self) -> bytes:
        """The start-up packet's keys and values, after refusing TLS."""
        while True:
            packet = self._framer.start_up()
            if packet is None:
                await self._more()
            elif int.from_bytes(packet[:4], "big") == wire.SSL_REQUEST:
                self.send(b"N")
            else:
                return packet[4:]

    async def receive(self) -> wire.Message:
        """The next message.

        Raises:
            EOFError: The client left.
        """
        while (message := self._framer.next_message()) is None:
            await self._more()
        return message

    async def _more(self) -> None:
        data = await self._reader.read(65536)
        if not data:
            raise EOFError
        self._framer.feed(data)

    def send(self, *messages: bytes) -> None:
        """Send messages."""
        self._writer.write(b"".join(messages))

    async def gate(self, name: str) -> None:
        """Wait until the test opens a gate."""
        await self._server.gate(name).wait()

    def close(self, *, reset: bool = False) -> None:
        """End the connection."""
        if reset:
            connection = self._writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()


@dataclass(frozen=True)
class Steps:
    """A script that is a list of steps, played in order."""

    steps: Sequence[Step]

    async def play(self, talk: Talk) -> None:
        """Play them."""
        for step in self.steps:
            await _play_step(talk, step)


async def _play_step(talk: Talk, step: Step) -> None:
    match step:
        case Expect(what):
            message = await talk.receive()
            fits = message == wire.Bare(what) if isinstance(what, str) else isinstance(message, what)
            if not fits:
                raise UnexpectedMessage(f"expected {what}, got {message}")
        case Send(data):
            talk.send(data)
        case Wait(gate):
            await talk.gate(gate)
        case Hang():
            await asyncio.Event().wait()
        case CloseConnection(reset):
            talk.close(reset=reset)


@dataclass
class Invalidating:
    """A script that knows any statement and fails those prepared before the last `change` with 42999.

    Statements take `$n` as int8 and return one int8 row with the number of changes seen at Parse. May be
    shared by connections.

    Attributes:
        always: Fail every Bind, also right after a fresh Parse.
        changes: Number of schema changes so far.
        parses: Parse messages by text.
        invalidated: How many Binds failed.
    """

    always: bool = False
    changes: int = 0
    parses: Counter[str] = field(default_factory=Counter)
    invalidated: int = 0

    def change(self) -> None:
        """The schema changes: everything prepared until now is stale."""
        self.changes += 1

    async def play(self, talk: Talk) -> None:
        """Answer until the client leaves."""
        prepared: dict[str, tuple[str, int]] = {}
        bound = ("", 0)
        skipping = False
        while (message := await talk.receive()) != wire.TERMINATE:
            if skipping and message != wire.SYNC:
                continue
            match message:
                case wire.Parse(name, text, _):
                    self.parses[text] += 1
                    prepared[name] = (text, self.changes)
                    talk.send(wire.PARSE_COMPLETE)
                case wire.Describe("S", name):
                    talk.send(_parameters(prepared[name][0]), _ROW)
                case wire.Bind(_, name):
                    bound = prepared[name]
                    skipping = not self._bind(talk, name, bound[1])
                case wire.Execute():
                    talk.send(wire.data_row([struct.pack("!q", bound[1])]), wire.command_complete("SELECT 1"))
                case wire.Close(_, name):
                    prepared.pop(name, None)
                    talk.send(wire.CLOSE_COMPLETE)
                case _ if message == wire.SYNC:
                    skipping = False
                    talk.send(wire.READY)

    def _bind(self, talk: Talk, name: str, planned: int) -> bool:
        if self.always or planned != self.changes:
            self.invalidated += 1
            talk.send(wire.error_response("42999", f"prepared statement {name} has been invalidated"))
            return False
        talk.send(wire.BIND_COMPLETE)
        return True


_ROW = wire.row_description([("changes", 20)], [0])


def _parameters(text: str) -> bytes:
    return wire.parameter_description((20,) * max((int(n) for n in re.findall(r"\$(\d+)", text)), default=0))


class ScriptedServer:
    """Owner: whoever starts it; ends with `with` or `close`.

    Args:
        scripts: One script for every connection, or a function from the connection's number (from 0) to its
            script.
        greet: Whether start-up and login are played before the script begins (anybody is let in).

    Attributes:
        problems: What went against a script; `close` raises the first one.
    """

    def __init__(self, scripts: Script | Callable[[int], Script], *, greet: bool = True) -> None:
        self._scripts = scripts
        self._greet = greet
        self.host = "127.0.0.1"
        self.port = 0
        self.start_ups: list[bytes] = []
        self.problems: list[BaseException] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> ScriptedServer:
        """Start to listen on a free port of 127.0.0.1."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="picopyn-scripted-server", daemon=True)
        self._thread.start()
        self._do(self._listen())
        return self

    def close(self) -> None:
        """End every connection.

        Raises:
            UnexpectedMessage: A client did not follow its script.
        """
        if self._loop is None or self._thread is None:
            return
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None
        if self.problems:
            raise self.problems[0]

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.problems.clear()
        self.close()

    @property
    def dsn(self) -> str:
        """URI of the server."""
        return f"postgresql://admin@{self.host}:{self.port}/picodata"

    def open_gate(self, name: str) -> None:
        """Let the scripts that wait at this gate go on, and those that come later."""

        async def open_it() -> None:
            self.gate(name).set()

        self._do(open_it())

    def gate(self, name: str) -> asyncio.Event:
        """The gate of that name; for scripts, on the server's own loop."""
        return self._gates.setdefault(name, asyncio.Event())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _shut(self) -> None:
        if self._server is not None:
            await _accept_no_more(self._server)
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _turns()  # what was closed is let go of

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        talk = Talk(len(self.start_ups), reader, writer, self)
        try:
            self.start_ups.append(await talk.start_up())
            if self._greet:
                talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", "15.0"), wire.READY)
            script = self._scripts(talk.number) if callable(self._scripts) else self._scripts
            await script.play(talk)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            self._tasks.discard(task)
            writer.close()

    def _do(self, step: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            step.close()
            raise RuntimeError("the server is not started")
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()


async def _accept_no_more(server: asyncio.Server) -> None:
    """Let connections that were accepted just now begin: asyncio loses those that find their server closed."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await _turns()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
