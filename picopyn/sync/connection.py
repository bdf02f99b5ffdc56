"""`Connection`: one connection to one server, used without `await`.

Its methods have asyncpg's names and give asyncpg's values and errors, because asyncpg's own code answers the call, in
the calling thread.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from picopyn.asynchronous.brought_rows import CopiedRows, Rows
from picopyn.errors import UsageError
from picopyn.settings import check_timeout
from picopyn.sync import copying
from picopyn.sync.cursor import Cursor
from picopyn.sync.guarding import Free, Guard
from picopyn.sync.statement import PreparedStatement
from picopyn.sync.transaction import Transaction
from picopyn.sync.wire import Wire


class Connection:
    """A connection that blocks; [`connect`][picopyn.sync.connect] opens one.

    One thread at a time may call it: a second one gets an `asyncpg.InterfaceError`. Only `terminate` may be called at
    any time, also while another thread waits for an answer, which then ends with an error. A call that is interrupted
    (`KeyboardInterrupt`) leaves a closed connection.

    Callbacks are called in the thread that is just waiting for the server; no call can be made from one.

    Args:
        wire: What it is made of.
        guard: Is asked by what is made on it; None: nobody lends it.
    """

    __slots__ = ("__weakref__", "_guard", "_wire")

    def __init__(self, wire: Wire, guard: Guard | None = None) -> None:
        self._wire = wire
        self._guard: Guard = Free(wire) if guard is None else guard
        wire.show_as(self)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            self.close()
        else:
            self.terminate()

    def __repr__(self) -> str:
        host, port = self._wire.endpoint
        return f"<Connection {host}:{port}{' closed' if self.is_closed() else ''}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError("a connection can be neither copied nor sent to another process; open one there")

    # statements

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Execute a statement, or several in one text without arguments.

        Args:
            query: Text with `$1`, `$2`, … for the arguments.
            *args: Arguments.
            timeout: Limit (seconds), or None.

        Returns:
            The server's status of the last statement, like `"INSERT 0 1"`.
        """
        if not args:
            return self._wire.simple_query(query, timeout)
        _, status, _ = self._wire.request(query, args, 0, timeout, with_status=True)
        return str(status.decode())

    def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """Execute a statement once for each row of arguments, all or none of them."""
        with Rows(args) as rows:
            self._wire.run_many(self._wire.executemany(command, rows, timeout=timeout))

    def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Any]:
        """Run a query; all its rows."""
        rows: list[Any] = self._wire.request(query, args, 0, timeout, record_class=record_class)
        return rows

    def fetchrow(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> Any:
        """Run a query; its first row, or None."""
        rows = self._wire.request(query, args, 1, timeout, record_class=record_class)
        return rows[0] if rows else None

    def fetchval(self, query: str, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """Run a query; one value of its first row, or None."""
        rows = self._wire.request(query, args, 1, timeout)
        return rows[0][column] if rows else None

    def fetchmany(
        self, query: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None, record_class: Any = None
    ) -> list[Any]:
        """Run a query once for each row of arguments; the rows of all."""
        with Rows(args) as rows:
            found: list[Any] = self._wire.run_many(
                self._wire.fetchmany(query, rows, timeout=timeout, record_class=record_class)
            )
            return found

    def prepare(
        self, query: str, *, name: str | None = None, timeout: float | None = None, record_class: Any = None
    ) -> PreparedStatement:
        """Prepare a statement."""
        prepared = self._wire.run(self._wire.prepare(query, name=name, timeout=timeout, record_class=record_class))
        return PreparedStatement(self._wire, prepared, self._guard, query)

    def cursor(
        self,
        query: str,
        *args: Any,
        prefetch: int | None = None,
        timeout: float | None = None,
        record_class: Any = None,
    ) -> Cursor:
        """A cursor over the rows of a query, inside a transaction: `for row in …`, or `fetch`, `fetchrow`, `forward`.

        Args:
            query: The query.
            *args: Its arguments.
            prefetch: Rows per round trip of the iteration.
            timeout: Limit of each round trip (seconds).
            record_class: Class of the rows.
        """
        check_timeout(timeout)
        self._guard.atomic("cursor")
        factory = self._wire.cursor(query, *args, prefetch=prefetch, timeout=timeout, record_class=record_class)
        return Cursor(self._wire, factory, self._guard, query)

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Transaction:
        """A transaction, or a savepoint inside one: `with connection.transaction(): …`.

        Args:
            isolation: `"serializable"`, `"repeatable_read"`, `"read_uncommitted"` or `"read_committed"`.
            readonly: It only reads.
            deferrable: It may wait for a snapshot that needs no checks.
        """
        self._guard.atomic("transaction")
        made = self._wire.transaction(isolation=isolation, readonly=readonly, deferrable=deferrable)
        return Transaction(self._wire, made, self._guard)

    # COPY

    def copy_from_table(self, table_name: str, *, output: Any, timeout: float | None = None, **options: Any) -> str:
        """Copy a table to a path, a file, or a function that gets the bytes.

        Args:
            table_name: The table.
            output: Where to.
            timeout: Limit (seconds).
            **options: `columns`, `schema_name`, and the options of COPY; see asyncpg.
        """
        return self._wire.copy_out(self._wire.copy_from_table, table_name, output=output, timeout=timeout, **options)

    def copy_from_query(self, query: str, *args: Any, output: Any, timeout: float | None = None, **options: Any) -> str:
        """Copy the rows of a query; see `copy_from_table`."""
        return self._wire.copy_out(self._wire.copy_from_query, query, *args, output=output, timeout=timeout, **options)

    def copy_to_table(self, table_name: str, *, source: Any, timeout: float | None = None, **options: Any) -> str:
        """Copy into a table from a path, a file, a `bytearray`, or an iterable of bytes.

        Args:
            table_name: The table.
            source: Where from.
            timeout: Limit (seconds).
            **options: `columns`, `schema_name`, and the options of COPY; see asyncpg.
        """
        return str(
            self._wire.run_within(
                timeout, self._wire.copy_to_table, table_name, source=copying.source(source), **options
            )
        )

    def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[Any]],
        columns: Sequence[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
        where: str | None = None,
    ) -> str:
        """Copy rows of values into a table, in the binary format."""
        options: dict[str, Any] = {"columns": columns, "schema_name": schema_name, "where": where}
        with CopiedRows(records) as rows:
            options["records"] = records if isinstance(records, AsyncIterable) else rows  # those are awaited inside
            return str(self._wire.run_within(timeout, self._wire.copy_records_to_table, table_name, **options))

    # what the server says unasked

    def add_listener(self, channel: str, callback: Callable[..., Any]) -> None:
        """Listen: `callback(connection, pid, channel, payload)` is called during the calls to come, and by `listen`."""
        self._wire.run(self._wire.add_listener(channel, _plain(callback)))

    def remove_listener(self, channel: str, callback: Callable[..., Any]) -> None:
        """Stop listening."""
        self._wire.run(self._wire.remove_listener(channel, callback))

    def listen(self, timeout: float | None = None) -> bool:
        """Wait until the server says something unasked: a notification, or a notice. Callbacks have run by then.

        Args:
            timeout: How long to wait (seconds); 0: only what is there; None: for ever.

        Returns:
            Whether it has.

        Raises:
            asyncpg.InterfaceError: The connection is closed, or was meanwhile.
        """
        return self._wire.run(self._wire.wait_for_word(timeout))

    def add_log_listener(self, callback: Callable[..., Any]) -> None:
        """Have `callback(connection, message)` called with every notice of the server."""
        self._wire.add_log_listener(_plain(callback))

    def remove_log_listener(self, callback: Callable[..., Any]) -> None:
        """Undo it."""
        self._wire.remove_log_listener(callback)

    def add_termination_listener(self, callback: Callable[..., Any]) -> None:
        """Have `callback(connection)` called when it is known to be closed."""
        self._wire.add_termination_listener(_plain(callback))

    def remove_termination_listener(self, callback: Callable[..., Any]) -> None:
        """Undo it."""
        self._wire.remove_termination_listener(callback)

    def add_query_logger(self, callback: Callable[..., Any]) -> None:
        """Have `callback(record)` called after every query; see asyncpg."""
        self._wire.add_query_logger(_plain(callback))

    def remove_query_logger(self, callback: Callable[..., Any]) -> None:
        """Undo it."""
        self._wire.remove_query_logger(callback)

    def query_logger(self, callback: Callable[..., Any]) -> Any:
        """The same for a `with` block."""
        return self._wire.query_logger(_plain(callback))

    # types and the session

    def set_type_codec(
        self,
        typename: str,
        *,
        schema: str = "public",
        encoder: Callable[[Any], Any],
        decoder: Callable[[Any], Any],
        format: str = "text",
    ) -> None:
        """Convert a type your own way."""
        self._wire.run(
            self._wire.set_type_codec(typename, schema=schema, encoder=encoder, decoder=decoder, format=format)
        )

    def reset_type_codec(self, typename: str, *, schema: str = "public") -> None:
        """Undo it."""
        self._wire.run(self._wire.reset_type_codec(typename, schema=schema))

    def set_builtin_type_codec(
        self, typename: str, *, schema: str = "public", codec_name: str, format: str | None = None
    ) -> None:
        """Use one of asyncpg's codecs for a type."""
        self._wire.run(self._wire.set_builtin_type_codec(typename, schema=schema, codec_name=codec_name, format=format))

    def reload_schema_state(self) -> None:
        """Forget what is known about types and statements."""
        self._wire.run(self._wire.reload_schema_state())

    def reset(self, *, timeout: float | None = None) -> None:
        """Clear the session: roll back, forget settings, listeners, locks and cursors."""
        self._wire.run(self._wire.reset(timeout=timeout))

    def get_reset_query(self) -> str:
        """What `reset` says to the server."""
        return str(self._wire.get_reset_query())

    def get_server_pid(self) -> int:
        """Number of the server process, as the server told it."""
        return int(self._wire.get_server_pid())

    def get_server_version(self) -> Any:
        """Version of the server, as asyncpg's `ServerVersion`."""
        return self._wire.get_server_version()

    def get_settings(self) -> Any:
        """Parameters of the session that the server reports."""
        return self._wire.get_settings()

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._wire.is_in_transaction()

    # its end

    def is_closed(self) -> bool:
        """Whether it is known to be closed; that the server has closed it is seen without asking."""
        return self._wire.is_closed()

    def close(self, *, timeout: float | None = None) -> None:
        """Say goodbye and close it. A second call does nothing.

        Args:
            timeout: How long the goodbye may take (seconds), or None.

        Raises:
            TimeoutError: It took longer; the connection is closed.
        """
        self._wire.run(self._wire.close(timeout=timeout))

    def terminate(self) -> None:
        """Drop it at once; any thread may do that."""
        self._wire.terminate()


def _plain(callback: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(callback):
        raise UsageError("a callback of a connection that blocks is an ordinary function, not a coroutine function")
    return callback
