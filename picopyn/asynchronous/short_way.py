"""A short way to statements that are prepared already: from the call straight to asyncpg's protocol.

Between `fetch` and the protocol asyncpg makes four coroutines, a closure and a guard for each call, about 3 µs
(`docs/adr/0002`). What they do for a statement that lies in the connection's cache fits in a few lines here;
everything else goes asyncpg's way: a first use, a `record_class`, a query logger, a connection that is closed. A pool
`ask`s, which makes no coroutine at all, and decides itself what to do about a statement that is outdated, or whose time
is over.

It leans on asyncpg's internals: the entries of the statement cache, which are closed with the connection,
`bind_execute`, which refuses a connection that is lost, and which errors make it prepare again.
`tests/postgres/test_short_way.py` runs every case both ways and compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.exceptions import (
    ConnectionDoesNotExistError,
    DataError,
    InvalidCachedStatementError,
    OutdatedSchemaCacheError,
)
from asyncpg.protocol import NO_TIMEOUT

from picopyn.asynchronous.outdated_types import give_up, is_refusal

T = TypeVar("T")

#: Method → how many rows it wants (0: all), and whether it wants the status.
SHAPES: Final = {"fetch": (0, False), "fetchrow": (1, False), "execute": (0, True)}
#: The server, or asyncpg, says that what is known of a statement is outdated.
OUTDATED = (InvalidCachedStatementError, OutdatedSchemaCacheError)


class ShortWayConnection(asyncpg.Connection):
    """asyncpg's connection, whose calls of known statements cost less."""

    __slots__ = ("_entries", "_find", "_row_class", "_touch")

    _protocol: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entries: Any = self._stmt_cache._entries
        self._find: Callable[[Any], Any] = self._entries.get  # asked for at every call, Python would bind them anew
        self._touch: Callable[[Any], None] = self._entries.move_to_end
        self._row_class: Any = self._protocol.get_record_class()

    def ask(self, method: str, query: str, args: Sequence[Any], deadline: float | None) -> Awaitable[Any]:
        """Send what a pool's method has to send; see the engine's `Link`."""
        key = query, self._row_class, False  # what `_known` does, and less: a connection that is lost has no entries
        find, touch = self._find, self._touch
        entry = find(key)
        shape = SHAPES.get(method)
        if entry is None or shape is None or not args or self._query_loggers:
            return self._ask_anew(method, query, args, deadline)
        touch(key)
        limit, with_status = shape
        timeout = None if deadline is None else NO_TIMEOUT  # the engine looks at the clock
        answer: Awaitable[Any] = self._protocol.bind_execute(entry._statement, args, "", limit, with_status, timeout)
        return answer

    async def _ask_anew(self, method: str, query: str, args: Sequence[Any], deadline: float | None) -> Any:
        timeout = None if deadline is None else max(deadline - self._loop.time(), 0.001)
        try:
            answer = await getattr(self, method)(query, *args, timeout=timeout)
        except AttributeError as error:
            told = self.explained(error)
            if told is error:
                raise
            raise told from error
        if method != "fetchrow":
            return answer
        return [] if answer is None else [answer]

    def explained(self, error: Exception) -> Exception:
        """What an error says; see the engine's `Link`. asyncpg goes on with what is gone with its connection."""
        if isinstance(error, AttributeError) and self.is_closed():
            lost: Exception = ConnectionDoesNotExistError("the connection was closed in the middle of a call")
            return lost
        return error

    def heed(self, error: BaseException, query: str) -> bool:
        """Forget what an error says is outdated; see the engine's `Link`."""
        if is_refusal(error):
            entry = self._entries.get((query, self._row_class, False))
            return entry is not None and give_up(self, entry._statement)
        if isinstance(error, OutdatedSchemaCacheError):  # it was executed, but its answer cannot be read
            self._drop_global_type_cache()
        if isinstance(error, OUTDATED):
            self._drop_global_statement_cache()
        return isinstance(error, InvalidCachedStatementError)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> Any:
        """See asyncpg."""
        known = None if record_class is not None else self._known(query)
        if known is None:
            return await self._all_within(timeout, super().fetch, query, *args, record_class=record_class)
        began = 0.0 if timeout is None else self._loop.time()
        try:
            return await self._protocol.bind_execute(known, args, "", 0, False, timeout)
        except OUTDATED as error:
            await self._renew(error)
        except DataError as error:
            if not is_refusal(error) or not give_up(self, known):
                raise
        return await self._all_within(self._rest(timeout, began), super().fetch, query, *args)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> Any:
        """See asyncpg."""
        known = None if record_class is not None else self._known(query)
        if known is None:
            return await self._all_within(timeout, super().fetchrow, query, *args, record_class=record_class)
        began = 0.0 if timeout is None else self._loop.time()
        try:
            rows = await self._protocol.bind_execute(known, args, "", 1, False, timeout)
        except OUTDATED as error:
            await self._renew(error)
        except DataError as error:
            if not is_refusal(error) or not give_up(self, known):
                raise
        else:
            return rows[0] if rows else None
        return await self._all_within(self._rest(timeout, began), super().fetchrow, query, *args)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """See asyncpg."""
        known = self._known(query) if args else None
        if known is None:
            if not args and self._may_wait_for_sync():
                answer = await self._all_within(timeout, self._execute, query, (), 0, return_status=True)
                return str(answer[1].decode())
            return str(await self._all_within(timeout, super().execute, query, *args))
        began = 0.0 if timeout is None else self._loop.time()
        try:
            result = await self._protocol.bind_execute(known, args, "", 0, True, timeout)
        except OUTDATED as error:
            await self._renew(error)
        except DataError as error:
            if not is_refusal(error) or not give_up(self, known):
                raise
        else:
            return str(result[1].decode())
        return str(await self._all_within(self._rest(timeout, began), super().execute, query, *args))

    def _may_wait_for_sync(self) -> bool:
        """Whether the server may leave a text that fails, sent as a simple query, without the end of its answer."""
        return False

    async def fetchval(self, query: str, *args: Any, column: Any = 0, timeout: float | None = None) -> Any:
        """See asyncpg."""
        row = await self.fetchrow(query, *args, timeout=timeout)
        return None if row is None else row[column]

    async def executemany(self, command: str, args: Any, *, timeout: float | None = None) -> None:
        """See asyncpg."""
        await self._all_within(timeout, super().executemany, command, args)

    async def _all_within(self, timeout: float | None, call: Callable[..., Awaitable[T]], *args: Any, **kw: Any) -> T:
        """A call asyncpg's way, which may be several requests: each of them would get all of the time."""
        async with asyncio.timeout(self._limit_of(timeout)):
            return await call(*args, timeout=timeout, **kw)

    def _limit_of(self, timeout: Any) -> float | None:
        """Seconds that a call may take, by its own limit or the connection's."""
        if self._protocol is None or timeout is NO_TIMEOUT:
            return None
        limit: float | None = self._protocol._get_timeout(timeout)
        return limit

    def _rest(self, timeout: float | None, began: float) -> float | None:
        return None if timeout is None else max(timeout - (self._loop.time() - began), 0.001)

    def _known(self, query: str) -> Any:
        """The prepared statement of a text, or None where the short way is not open: what `_stmt_cache.get` does."""
        key = query, self._row_class, False
        entry = self._entries.get(key)
        if entry is None or entry._statement.closed or self._aborted or self._query_loggers:
            return None
        self._entries.move_to_end(key)
        return entry._statement

    async def _renew(self, error: Exception) -> None:
        """Forget what is outdated; returns when the call may be made again, as nothing was executed."""
        if isinstance(error, OutdatedSchemaCacheError):  # it was executed, but its answer cannot be read
            await self.reload_schema_state()
            raise error
        self._drop_global_statement_cache()
        if self._protocol.is_in_transaction():
            raise error
