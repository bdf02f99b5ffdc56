"""A connection on loan: asyncpg's surface until it is given back, a clear refusal afterwards.

It decides nothing about pools and servers; what an error means, and what becomes of the connection, the engine's
[`Loan`][picopyn.engine.loan.Loan] knows.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final

import asyncpg

from picopyn.asynchronous.borrowed import CursorFactory, PreparedStatement, Transaction
from picopyn.asynchronous.brought_rows import Rows
from picopyn.asynchronous.connection import Connection
from picopyn.dialects.base import Capability
from picopyn.engine.loan import Loan, Use, no_transactions
from picopyn.errors import NotSupported, UsageError
from picopyn.settings import check_timeout
from picopyn.topology import Node

#: What a borrower may use. A connection has more, which is its pool's: how it is lent, cancelled, let go of.
_SURFACE: Final = frozenset(dir(asyncpg.Connection))


class AcquiredConnection:
    """A connection that belongs to one borrower until it is released.

    It has every method of [`asyncpg.Connection`](https://magicstack.github.io/asyncpg/current/api/index.html), with the
    same arguments and results; the main ones are described here, the others are passed on. What differs:

    - After `release` everything raises `UsageError`: the connection, and the statements, cursors and transactions made
      on it.
    - It serves one call at a time. A second one, of another task, is refused with `UsageError` before anything is sent.
    - A `timeout=` must be above 0; anything else is a `ValueError`, and nothing is sent.
    - A lost connection is a `ConnectionLost`, a call that ran into its `timeout=` a `CallTimeout`; where the statement
      may have taken effect, both are an `OutcomeUnknown` too. Inside a transaction nothing has taken effect.
    - Errors of the server are asyncpg's own, with a note that names the node.
    - `transaction()` and `cursor()` are refused where the server has no transactions (Picodata).

    What runs here is not routed, and never sent twice.
    """

    __slots__ = ("__weakref__", "_connection", "_loan", "_loop", "_origin", "_pool")

    def __init__(self, loan: Loan, pool: object, origin: traceback.StackSummary | None = None) -> None:
        connection: Any = loan.link
        self._loan = loan
        self._connection: Connection = connection
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._origin = origin
        connection.show_as(self)

    def __repr__(self) -> str:
        state = "released" if self._loan.released else "held"
        return f"<AcquiredConnection to {self.node.name} ({self.node.address}), {state}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _SURFACE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        attribute: Any = getattr(self._mine(), name)
        return self._passed_on(name, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError("a connection on loan can be neither copied nor sent to another process; acquire one there")

    def __del__(self) -> None:
        loan: Loan | None = getattr(self, "_loan", None)
        if loan is None or loan.released or self._connection.inherited:
            return
        closed = self._connection.is_closed()
        if not self._loop.is_closed():  # this may be any thread
            self._loop.call_soon_threadsafe(_give_back_leaked, loan)
        if closed:
            return
        if self._origin is None:
            where = "; with debug=True, or in asyncio's debug mode, this tells where it was acquired"
        else:
            where = "; it was acquired here:\n" + "".join(self._origin.format()).rstrip()
        text = f"{self!r} was never given back to its pool{where}"
        warnings.warn(text, ResourceWarning, source=self, stacklevel=2)  # last: it may be made an error

    # the loan

    @property
    def node(self) -> Node:
        """The node it leads to."""
        return self._loan.pool.node

    def is_released(self) -> bool:
        """Whether it was given back."""
        return self._loan.released

    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self._mine().is_closed())

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._mine().is_in_transaction())

    def release(self) -> None:
        """Give the connection back. A call of another task that still runs on it is not disturbed.

        Raises:
            UsageError: It was given back before, or this is another event loop or process.
        """
        self._mine()
        self._loan.release()

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection instead of giving it back for others; it has to be released all the same.

        Args:
            timeout: Limit for the goodbye (seconds).
        """
        with self._use("close", timeout=timeout):
            self._loan.leave()
            await self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        """Drop the connection at once; it has to be released all the same."""
        connection = self._mine()
        self._loan.leave()
        connection.terminate()

    # statements

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Execute a statement, or several in one text without arguments.

        Args:
            query: Text with `$1`, `$2`, … for the arguments.
            *args: Arguments.
            timeout: Limit (seconds); None: the pool's `command_timeout`.

        Returns:
            The server's status of the last statement, like `"INSERT 0 1"`.
        """
        with self._use("execute", query, timeout=timeout):
            status: str = await self._connection.execute(query, *args, timeout=timeout)
            return status

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Execute a statement once per row of arguments, pipelined; all or nothing where there are transactions."""
        with self._use("executemany", command, timeout=timeout), Rows(args) as given:
            await self._connection.executemany(command, given, timeout=timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Any]:
        """Run a query and return all rows."""
        with self._use("fetch", query, timeout=timeout):
            rows: list[Any] = await self._connection.fetch(query, *args, timeout=timeout, record_class=record_class)
            return rows

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> Any:
        """Run a query and return its first row, or None."""
        with self._use("fetchrow", query, timeout=timeout):
            return await self._connection.fetchrow(query, *args, timeout=timeout, record_class=record_class)

    async def fetchval(self, query: str, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """Run a query and return one value of its first row, or None."""
        with self._use("fetchval", query, timeout=timeout):
            row = await self._connection.fetchrow(query, *args, timeout=timeout)
            return None if row is None else row[column]

    async def fetchmany(
        self, query: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None, record_class: Any = None
    ) -> list[Any]:
        """Run a query once per row of arguments and return the rows of all."""
        with self._use("fetchmany", query, timeout=timeout), Rows(args) as given:
            options = {"timeout": timeout, "record_class": record_class}
            rows: list[Any] = await self._connection.fetchmany(query, given, **options)
            return rows

    async def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: Any = None
    ) -> PreparedStatement:
        """Prepare a statement; it can be used until the connection is released."""
        with self._use("prepare", timeout=timeout):
            made = await self._connection.prepare(query, name=name, timeout=timeout, record_class=record_class)
        return PreparedStatement(self, made, query)

    def cursor(
        self,
        query: str,
        *args: Any,
        prefetch: int | None = None,
        timeout: float | None = None,
        record_class: Any = None,
    ) -> CursorFactory:
        """A cursor over the rows of a query: `async for row in …`, or `await` it for one that fetches and skips.

        Args:
            query: The query.
            *args: Its arguments.
            prefetch: Rows per round trip of the iteration.
            timeout: Limit of each round trip (seconds).
            record_class: Class of the rows.

        Raises:
            NotSupported: The server has no transactions, and cursors live in one.
        """
        check_timeout(timeout)
        self._need_transactions("cursor")
        made = self._alive("cursor").cursor(query, *args, prefetch=prefetch, timeout=timeout, record_class=record_class)
        return CursorFactory(self, made, query)

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False, deferrable: bool = False
    ) -> Transaction:
        """A transaction, or a savepoint inside one: `async with connection.transaction(): …`.

        Inside, a statement that ends the transaction (COMMIT, END, ROLLBACK, ABORT, PREPARE TRANSACTION; not ROLLBACK
        TO) is refused with a `UsageError` and not sent. Where one ended it all the same, as part of a longer text, that
        call says so, and nothing is sent after it.

        Args:
            isolation: `"serializable"`, `"repeatable_read"`, `"read_uncommitted"` or `"read_committed"`.
            readonly: It only reads.
            deferrable: It may wait for a snapshot that needs no checks.

        Raises:
            NotSupported: The server accepts BEGIN and COMMIT but means nothing by them.
        """
        self._need_transactions("transaction")
        made = self._alive("transaction").transaction(isolation=isolation, readonly=readonly, deferrable=deferrable)
        return Transaction(self, made)

    # COPY

    async def copy_from_table(
        self, table_name: str, *, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """Copy a table to a file, a path, or a coroutine function that gets the bytes.

        Args:
            table_name: The table.
            output: Where to.
            timeout: Limit (seconds).
            **options: `columns`, `schema_name`, and the options of COPY; see asyncpg.
        """
        with self._use("copy_from_table", timeout=timeout):
            status: str = await self._connection.copy_from_table(table_name, output=output, timeout=timeout, **options)
            return status

    async def copy_from_query(
        self, query: str, *args: Any, output: Any, timeout: float | None = None, **options: Any
    ) -> str:
        """Copy the rows of a query; see `copy_from_table`."""
        with self._use("copy_from_query", query, timeout=timeout):
            status: str = await self._connection.copy_from_query(
                query, *args, output=output, timeout=timeout, **options
            )
            return status

    async def copy_to_table(self, table_name: str, *, source: Any, timeout: float | None = None, **options: Any) -> str:
        """Copy into a table from a file, a path, or an asynchronous iterable of bytes.

        Args:
            table_name: The table.
            source: Where from.
            timeout: Limit (seconds).
            **options: `columns`, `schema_name`, and the options of COPY; see asyncpg.
        """
        with self._use("copy_to_table", "", timeout=timeout):
            status: str = await self._connection.copy_to_table(table_name, source=source, timeout=timeout, **options)
            return status

    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[Any]] | AsyncIterable[Sequence[Any]],
        columns: Sequence[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        where: str | None = None,
    ) -> str:
        """Copy rows of values into a table, in the binary format."""
        with self._use("copy_records_to_table", "", timeout=timeout):
            status: str = await self._connection.copy_records_to_table(
                table_name, records=records, columns=columns, schema_name=schema_name, timeout=timeout, where=where
            )
            return status

    # listeners, codecs, the session

    async def add_listener(self, channel: str, callback: Callable[..., Any]) -> None:
        """Listen until the release: `callback(connection, pid, channel, payload)`, plain or a coroutine function."""
        with self._use("add_listener"):
            await self._connection.add_listener(channel, callback)

    async def remove_listener(self, channel: str, callback: Callable[..., Any]) -> None:
        """Stop listening."""
        with self._use("remove_listener"):
            await self._connection.remove_listener(channel, callback)

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        encoder: Callable[[Any], Any],
        decoder: Callable[[Any], Any],
        format: str = "text",
    ) -> None:
        """Convert a type your own way. The connection is closed at release; put what all need into `after_connect`."""
        with self._use("set_type_codec"):
            await self._connection.set_type_codec(
                typename, schema=schema, encoder=encoder, decoder=decoder, format=format
            )

    async def reset_type_codec(self, typename: str, *, schema: str = "public") -> None:
        """Undo `set_type_codec`."""
        with self._use("reset_type_codec"):
            await self._connection.reset_type_codec(typename, schema=schema)

    async def set_builtin_type_codec(
        self, typename: str, *, schema: str = "public", codec_name: str, format: str | None = None
    ) -> None:
        """Use a codec of asyncpg's for a type; see `set_type_codec`."""
        with self._use("set_builtin_type_codec"):
            await self._connection.set_builtin_type_codec(typename, schema=schema, codec_name=codec_name, format=format)

    async def reset(self, *, timeout: float | None = None) -> None:
        """Clear the session now: roll back, forget settings, listeners, locks and cursors."""
        with self._use("reset", timeout=timeout):
            await self._connection.reset(timeout=timeout)

    def get_server_pid(self) -> int:
        """Number of the server process, as the server told it."""
        pid: int = self._alive("get_server_pid").get_server_pid()
        return pid

    def get_server_version(self) -> Any:
        """Version of the server, as asyncpg's `ServerVersion`."""
        return self._mine().get_server_version()

    def get_settings(self) -> Any:
        """Parameters of the session that the server reports."""
        return self._alive("get_settings").get_settings()

    # inside

    def _mine(self) -> Connection:
        """The connection, if this caller may use it."""
        self._loan.check()
        connection = self._connection
        if connection.inherited:
            raise UsageError("this connection was acquired in another process, before a fork; open a pool in this one")
        if asyncio._get_running_loop() is not self._loop and not self._loop.is_closed():
            raise UsageError(
                "this connection works only in the event loop it was acquired in; acquire one in this loop"
            )
        return connection

    def _alive(self, name: str) -> Connection:
        """The same, for methods that need an open connection and send nothing."""
        connection = self._mine()
        self._loan.check_alive(name)
        return connection

    def _use(self, name: str, query: str | None = None, *, decides: bool = False, timeout: float | None = None) -> Use:
        """One call, for a `with` statement; see `Loan.use`."""
        self._mine()
        return self._loan.use(name, query, decides=decides, timeout=timeout)

    def _passed_on(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._use(name, "", timeout=kwargs.get("timeout")):
                return await method(*args, **kwargs)

        return call

    def _need_transactions(self, name: str) -> None:
        if not self._loan.can(Capability.TRANSACTIONS):
            raise NotSupported(no_transactions(name))


class Acquiring:
    """The result of `Pool.acquire`: await it, or use it with `async with`.

    Args:
        acquire: Takes the connection.
    """

    __slots__ = ("_acquire", "_acquired")

    def __init__(self, acquire: Callable[[], Awaitable[AcquiredConnection]]) -> None:
        self._acquire = acquire
        self._acquired: AcquiredConnection | None = None

    def __await__(self) -> Generator[Any, None, AcquiredConnection]:
        return self._acquire().__await__()

    async def __aenter__(self) -> AcquiredConnection:
        if self._acquired is not None:
            raise UsageError("this acquire() is already in use; call it again for a second connection")
        self._acquired = await self._acquire()
        return self._acquired

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        acquired, self._acquired = self._acquired, None
        if acquired is not None and not acquired.is_released():
            acquired.release()


def _give_back_leaked(loan: Loan) -> None:
    if not loan.released:
        loan.release()
