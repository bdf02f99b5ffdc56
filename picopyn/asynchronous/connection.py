"""One connection to one node: asyncpg's connection, with notices that arrive in time.

What this file leans on in asyncpg is guarded by `tests/asynchronous/test_connection.py`: the hook for server messages,
the statement cache, the closing of outdated statements, the count of requests, the look-up of types. The classes that
it is made of (`copying`, `lendable`, `short_way`) say for themselves what they lean on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

from picopyn.asynchronous.buffered import read_less_at_once
from picopyn.asynchronous.copying import CopyingConnection
from picopyn.asynchronous.early_notices import ListeningLoop
from picopyn.asynchronous.known_types import known_arrays
from picopyn.asynchronous.last_byte import seconds_since_last_byte
from picopyn.asynchronous.sending import Sending
from picopyn.asynchronous.tapping import tapped
from picopyn.engine.row_acks import RowAcks
from picopyn.errors import UsageError

#: Stands for the statement of a look-up that was not needed: it has a name, so it has replaced no unnamed one.
_NOT_ASKED = SimpleNamespace(name="-")


class Connection(CopyingConnection):
    """A connection with asyncpg's whole surface: `fetch`, `fetchrow`, `fetchval`, `execute`, `prepare`, `close`, ….

    Besides what its base classes change, five things differ. A notice is delivered to `on_notice` synchronously,
    before the request that caused it completes (asyncpg schedules its log listeners for later, which would be too
    late for statement metadata). `forget_statements` makes every statement be prepared again. A call's `timeout`
    covers all of it: before a call, asyncpg closes the statements that have left its cache, and waits for the
    server without any limit. And no query is sent about arrays of built-in types, nor any at all to a server that
    has no catalogue of types.

    And a text without arguments is not sent to such a server as a simple query while a Parse may be without its Sync:
    when it failed, Picodata would wait for that Sync, and the caller for the end of the answer, for ever. asyncpg only
    flushes a Parse; the Sync comes with the arguments, which may be refused here, or come never.

    Attributes:
        on_notice: Called with the text of every notice of the server, or None.
        endpoint: (host, port) that was dialled.
        has_catalog: Whether the server can be asked about types; else unknown ones travel as text.

    *Source*: `picodata-protocol.md` section 8 (simple protocol); `picodata-recorded.md` section 5 (driver corners).
    """

    __slots__ = ("_limit", "_owes_sync", "_sending", "endpoint", "has_catalog", "on_notice")

    def __init__(self, protocol: Any, transport: Any, loop: Any, *args: Any, **kwargs: Any) -> None:
        listening = loop if isinstance(loop, ListeningLoop) else None
        super().__init__(protocol, transport, listening.behind if listening else loop, *args, **kwargs)
        self._limit: float | None = None
        self._owes_sync = False
        self._sending: Sending | None = None
        self.on_notice: Callable[[str], None] | None = listening.on_notice if listening else None
        self.endpoint: tuple[str, int] = ("", 0)
        self.has_catalog = True

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError("a connection can be neither copied nor sent to another process; open one there")

    def _process_log_message(self, fields: dict[str, str], last_query: str | None) -> None:
        if self.on_notice is not None:
            self.on_notice(fields.get("M", ""))
        super()._process_log_message(fields, last_query)

    def _get_statement(self, query: str, timeout: float | None, **options: Any) -> Any:
        self._limit = timeout
        self._owes_sync = True
        return super()._get_statement(query, timeout, **options)

    async def _do_execute(self, *args: Any, **options: Any) -> Any:
        answer = await super()._do_execute(*args, **options)
        self._owes_sync = False
        return answer

    def _may_wait_for_sync(self) -> bool:
        return self._owes_sync and not self.has_catalog

    async def _cleanup_stmts(self) -> None:
        async with asyncio.timeout(self._limit):
            await super()._cleanup_stmts()

    def read_less_at_once(self) -> bool:
        """Read replies into less memory than the event loop would take for each.

        Returns:
            Whether it does from now on.
        """
        return read_less_at_once(getattr(self, "_transport", None), getattr(self, "_protocol", None))

    def watch_sending(self) -> None:
        """The hand-shake is done: see to it that who waits until he may write on does not wait for ever."""
        if self._protocol is not None:
            self._sending = Sending(self._protocol, self.abort)

    def _call_termination_listeners(self) -> None:
        if self._sending is not None:
            self._sending.end()
        super()._call_termination_listeners()

    def requests(self) -> int:
        """How many requests were made on it so far; a further one means that the one before has ended."""
        protocol = getattr(self, "_protocol", None)
        return -1 if protocol is None else int(protocol.queries_count)

    def peer(self) -> str | None:
        """The address it leads to; None where that is no address, or not known any more."""
        transport = getattr(self, "_transport", None)
        peer = None if transport is None else transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    def silence(self) -> float | None:
        """Seconds since the last byte came from the server, as the kernel knows; None where it does not tell."""
        transport = getattr(self, "_transport", None)
        return None if transport is None or self.is_closed() else seconds_since_last_byte(transport)

    def forget_statements(self) -> None:
        """Prepare every statement again at its next use; those at the server are closed with the next one."""
        self._drop_local_statement_cache()

    async def executemany_freshly(
        self, query: str, rows: Sequence[Any], acks: RowAcks | None = None, *, timeout: float | None = None
    ) -> None:
        """`executemany` with a statement that is prepared for this call and not kept, for servers without transactions.

        A kept one may turn out to be outdated after some rows were executed; one just prepared hardly does.

        Args:
            query: The statement.
            rows: Rows of arguments.
            acks: Counts the rows that the server acknowledges, also when the call fails.
            timeout: Limit for all of it (seconds).
        """
        deadline = None if timeout is None else self._loop.time() + timeout
        statement = await self.prepare(query, name="", timeout=timeout)
        with tapped(self._transport, (acks or RowAcks()).feed):
            await statement.executemany(rows, timeout=deadline and max(deadline - self._loop.time(), 0.001))

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> tuple[list[Any], Any]:
        """What is known about types that have no codec yet; asks the server only about what differs between servers."""
        arrays = known_arrays(typeoids)
        rest = set(typeoids) - {array["oid"] for array in arrays}
        protocol: Any = self._protocol
        for oid in sorted(rest if not self.has_catalog else rest & {0}):  # 0: the server does not say
            protocol.get_settings().set_builtin_type_codec(oid, f"oid {oid}", "", "scalar", "text", "text")
            rest.discard(oid)
        if not rest:
            return arrays, _NOT_ASKED
        found, statement = await super()._introspect_types(rest, timeout)
        return [*arrays, *found], statement


class NamelessConnection(Connection):
    """A connection that keeps nothing in its session, for poolers that give every transaction another one.

    asyncpg prepares without a name when its cache is off, with two exceptions that are none here: the statements of
    cursors, and the switching of JIT around a look-up of types.
    """

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server_caps: Any = self._server_caps._replace(jit=False)  # type: ignore[misc]

    def _get_statement(self, query: str, timeout: float | None, *, named: Any = False, **options: Any) -> Any:
        return super()._get_statement(query, timeout, named="" if named is True else named, **options)
