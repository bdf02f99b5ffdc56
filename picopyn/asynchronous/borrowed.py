"""What is made on a held connection and ends with it: prepared statements, cursors, transactions.

Each is asyncpg's own behind a guard that refuses with `UsageError` once the connection was given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import asyncpg

from picopyn.engine import failures
from picopyn.errors import UsageError
from picopyn.settings import check_timeout

if TYPE_CHECKING:
    from picopyn.asynchronous.acquired import AcquiredConnection

#: How long the rollback of a block that ends with an error may take before the connection is dropped, which rolls back
#: as well (seconds).
ROLLBACK_TIMEOUT = 1.0


class PreparedStatement:
    """A prepared statement on a held connection; see asyncpg's `PreparedStatement`.

    Args:
        holder: The connection.
        statement: asyncpg's statement.
        query: The text.
    """

    __slots__ = ("_holder", "_query", "_statement")

    def __init__(self, holder: AcquiredConnection, statement: Any, query: str) -> None:
        self._holder = holder
        self._statement = statement
        self._query = query

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a prepared statement")

    def get_name(self) -> str:
        """Name at the server."""
        name: str = self._alive("get_name").get_name()
        return name

    def get_query(self) -> str:
        """The text."""
        query: str = self._alive("get_query").get_query()
        return query

    def get_statusmsg(self) -> str | None:
        """Status of its last execution to the end."""
        status: str | None = self._alive("get_statusmsg").get_statusmsg()
        return status

    def get_parameters(self) -> tuple[Any, ...]:
        """Types of the parameters, as asyncpg's `Type`."""
        types: tuple[Any, ...] = self._alive("get_parameters").get_parameters()
        return types

    def get_attributes(self) -> tuple[Any, ...]:
        """Columns of the result, as asyncpg's `Attribute`."""
        attributes: tuple[Any, ...] = self._alive("get_attributes").get_attributes()
        return attributes

    async def fetch(self, *args: Any, timeout: float | None = None) -> list[Any]:
        """Execute it and return all rows."""
        with self._use("fetch", timeout):
            rows: list[Any] = await self._statement.fetch(*args, timeout=timeout)
            return rows

    async def fetchrow(self, *args: Any, timeout: float | None = None) -> Any:
        """Execute it and return the first row, or None."""
        with self._use("fetchrow", timeout):
            return await self._statement.fetchrow(*args, timeout=timeout)

    async def fetchval(self, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """Execute it and return one value of the first row, or None."""
        with self._use("fetchval", timeout):
            row = await self._statement.fetchrow(*args, timeout=timeout)
            return None if row is None else row[column]

    async def fetchmany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> list[Any]:
        """Execute it once per row of arguments and return the rows of all."""
        with self._use("fetchmany", timeout):
            rows: list[Any] = await self._statement.fetchmany(args, timeout=timeout)
            return rows

    async def executemany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Execute it once per row of arguments."""
        with self._use("executemany", timeout):
            await self._statement.executemany(args, timeout=timeout)

    async def explain(self, *args: Any, analyze: bool = False) -> Any:
        """The server's plan for it, from JSON."""
        with self._use("explain"):
            return await self._statement.explain(*args, analyze=analyze)

    def cursor(self, *args: Any, prefetch: int | None = None, timeout: float | None = None) -> CursorFactory:
        """A cursor over its rows; see `AcquiredConnection.cursor`."""
        check_timeout(timeout)
        self._holder._need_transactions("cursor")
        made = self._alive("cursor").cursor(*args, prefetch=prefetch, timeout=timeout)
        return CursorFactory(self._holder, made, self._query)

    def _alive(self, name: str) -> Any:
        self._holder._alive(name)
        return self._statement

    def _use(self, name: str, timeout: float | None = None) -> Any:
        return self._holder._use(name, self._query, timeout=timeout)


class CursorFactory:
    """What `cursor()` gives: iterate over it, or await it for a [`Cursor`][picopyn.asynchronous.borrowed.Cursor].

    Args:
        holder: The connection.
        cursor: asyncpg's cursor factory.
        query: The text.
    """

    __slots__ = ("_cursor", "_holder", "_query")

    def __init__(self, holder: AcquiredConnection, cursor: Any, query: str) -> None:
        self._holder = holder
        self._cursor = cursor
        self._query = query

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a cursor")

    def __aiter__(self) -> CursorIterator:
        self._holder._alive("cursor")
        return CursorIterator(self._holder, self._cursor.__aiter__(), self._query)

    def __await__(self) -> Generator[Any, None, Cursor]:
        return self._make().__await__()

    async def _make(self) -> Cursor:
        with self._holder._use("cursor", self._query):
            made = await self._cursor
        return Cursor(self._holder, made, self._query)


class CursorIterator:
    """The rows of a cursor, fetched in portions."""

    __slots__ = ("_holder", "_iterator", "_query")

    def __init__(self, holder: AcquiredConnection, iterator: Any, query: str) -> None:
        self._holder = holder
        self._iterator = iterator
        self._query = query

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a cursor")

    def __aiter__(self) -> CursorIterator:
        return self

    async def __anext__(self) -> Any:
        with self._holder._use("cursor", self._query):
            return await self._iterator.__anext__()


class Cursor:
    """An open cursor; see asyncpg's `Cursor`.

    Args:
        holder: The connection.
        cursor: asyncpg's cursor.
        query: The text.
    """

    __slots__ = ("_cursor", "_holder", "_query")

    def __init__(self, holder: AcquiredConnection, cursor: Any, query: str) -> None:
        self._holder = holder
        self._cursor = cursor
        self._query = query

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a cursor")

    async def fetch(self, n: int, *, timeout: float | None = None) -> list[Any]:
        """The next `n` rows, or what is left."""
        with self._holder._use("fetch", self._query, timeout=timeout):
            rows: list[Any] = await self._cursor.fetch(n, timeout=timeout)
            return rows

    async def fetchrow(self, *, timeout: float | None = None) -> Any:
        """The next row, or None."""
        with self._holder._use("fetchrow", self._query, timeout=timeout):
            return await self._cursor.fetchrow(timeout=timeout)

    async def forward(self, n: int, *, timeout: float | None = None) -> int:
        """Skip `n` rows; returns how many there were to skip."""
        with self._holder._use("forward", self._query, timeout=timeout):
            skipped: int = await self._cursor.forward(n, timeout=timeout)
            return skipped


class Transaction:
    """A transaction or savepoint on a held connection: `async with`, or `start` and `commit` or `rollback`.

    A block that ends with an error is rolled back. If that takes longer than a second, or the connection's last call
    was cancelled, the connection is dropped, which rolls back as well. A block in which a statement failed and the
    error was caught does not end silently: such a COMMIT rolls back, and answers as if all were well. COMMIT and
    ROLLBACK as statements are refused inside.

    Args:
        holder: The connection.
        transaction: asyncpg's transaction.
    """

    __slots__ = ("_holder", "_in_block", "_transaction")

    def __init__(self, holder: AcquiredConnection, transaction: Any) -> None:
        self._holder = holder
        self._transaction = transaction
        self._in_block = False

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a transaction")

    async def start(self) -> None:
        """Begin it."""
        with self._holder._use("start"):
            await self._transaction.start()
        if not self._transaction._nested:
            self._holder._loan.began()

    async def commit(self) -> None:
        """Make it last.

        Raises:
            OutcomeUnknown: The connection broke before the server answered.
            asyncpg.InFailedSQLTransactionError: A statement in it failed; all of it was rolled back.
            UsageError: A statement in it has ended it.
        """
        self._not_in_block("commit")
        await self._commit()

    async def rollback(self) -> None:
        """Undo it."""
        self._not_in_block("rollback")
        await self._rollback()

    async def __aenter__(self) -> Transaction:
        if self._in_block:
            raise UsageError("this transaction is already in an `async with` block")
        self._in_block = True
        try:
            await self.start()
        except BaseException:
            self._in_block = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_block = False
        if error is None:
            await self._commit()
        elif self._holder._loan.released or self._holder._connection.is_closed():
            return  # rolled back already; the error says why
        elif not self._holder._loan.sound and not isinstance(error, Exception):
            self._holder.terminate()
        else:
            await self._roll_back_in_time()

    async def _commit(self) -> None:
        holder, outermost = self._holder, not self._transaction._nested
        if outermost and not holder._loan.ending():
            await self._rollback()  # of nothing; asyncpg forgets it, too
            raise failures.transaction_ended("commit() was not sent: a call before it has ended")
        if holder._loan.block.erred:
            with holder._use("commit"):
                await self._check_alive()
        with holder._use("commit", decides=outermost):
            await self._transaction.commit()

    async def _check_alive(self) -> None:
        """A statement failed since it began: COMMIT would roll back, and say nothing about it."""
        try:
            await self._holder._connection.execute("SELECT 1")
        except asyncpg.InFailedSQLTransactionError:
            await self._transaction.rollback()
            raise

    async def _rollback(self) -> None:
        if not self._transaction._nested:
            self._holder._loan.ending()
        with self._holder._use("rollback"):
            await self._transaction.rollback()

    async def _roll_back_in_time(self) -> None:
        try:
            async with asyncio.timeout(ROLLBACK_TIMEOUT):
                await self._rollback()
        except Exception:  # the error that ended the block goes on; dropping the connection rolls back
            if not self._holder._loan.released:
                self._holder.terminate()

    def _not_in_block(self, name: str) -> None:
        if self._in_block:
            raise UsageError(f"{name}() inside of `async with`: leave the block, or raise an error to roll back")
