"""A prepared statement of a connection that blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from picopyn.sync.cursor import Cursor
from picopyn.sync.interrupting import Rows
from picopyn.sync.wire import Wire


class PreparedStatement:
    """asyncpg's `PreparedStatement` without `await`.

    Args:
        wire: Its connection.
        prepared: asyncpg's statement.
    """

    __slots__ = ("_prepared", "_wire")

    def __init__(self, wire: Wire, prepared: Any) -> None:
        self._wire = wire
        self._prepared = prepared

    def fetch(self, *args: Any, timeout: float | None = None) -> list[Any]:
        """All rows."""
        return self._wire.run_prepared(self._prepared, args, 0, timeout)

    def fetchrow(self, *args: Any, timeout: float | None = None) -> Any:
        """The first row, or None."""
        rows = self._wire.run_prepared(self._prepared, args, 1, timeout)
        return rows[0] if rows else None

    def fetchval(self, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """One value of the first row, or None."""
        row = self.fetchrow(*args, timeout=timeout)
        return None if row is None else row[column]

    def fetchmany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> list[Any]:
        """The rows of one execution for each row of arguments."""
        with Rows(args) as rows:
            found: list[Any] = self._wire.run(self._prepared.fetchmany(rows, timeout=timeout))
            return found

    def executemany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """One execution for each row of arguments."""
        with Rows(args) as rows:
            self._wire.run(self._prepared.executemany(rows, timeout=timeout))

    def explain(self, *args: Any, analyze: bool = False) -> Any:
        """The server's plan, from JSON."""
        return self._wire.run(self._prepared.explain(*args, analyze=analyze))

    def cursor(self, *args: Any, prefetch: int | None = None, timeout: float | None = None) -> Cursor:
        """A cursor over its rows, inside a transaction."""
        return Cursor(self._wire, self._prepared.cursor(*args, prefetch=prefetch, timeout=timeout))

    def get_name(self) -> str:
        """Its name at the server."""
        return str(self._prepared.get_name())

    def get_query(self) -> str:
        """Its text."""
        return str(self._prepared.get_query())

    def get_statusmsg(self) -> str | None:
        """The status of its last execution."""
        status: str | None = self._prepared.get_statusmsg()
        return status

    def get_parameters(self) -> tuple[Any, ...]:
        """The types of its parameters."""
        return tuple(self._prepared.get_parameters())

    def get_attributes(self) -> tuple[Any, ...]:
        """Its columns."""
        return tuple(self._prepared.get_attributes())
