"""A prepared statement of a connection that blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from picopyn.asynchronous.brought_rows import Rows
from picopyn.engine import failures
from picopyn.settings import check_timeout
from picopyn.sync.cursor import Cursor
from picopyn.sync.guarding import Guard
from picopyn.sync.wire import Wire


class PreparedStatement:
    """asyncpg's `PreparedStatement` without `await`.

    Args:
        wire: Its connection.
        prepared: asyncpg's statement.
        guard: Is asked before anything is sent.
        query: The text.
    """

    __slots__ = ("_guard", "_prepared", "_query", "_wire")

    def __init__(self, wire: Wire, prepared: Any, guard: Guard, query: str) -> None:
        self._wire = wire
        self._prepared = prepared
        self._guard = guard
        self._query = query

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a prepared statement")

    def fetch(self, *args: Any, timeout: float | None = None) -> list[Any]:
        """All rows."""
        return self._run("fetch", args, 0, timeout)

    def fetchrow(self, *args: Any, timeout: float | None = None) -> Any:
        """The first row, or None."""
        rows = self._run("fetchrow", args, 1, timeout)
        return rows[0] if rows else None

    def fetchval(self, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """One value of the first row, or None."""
        rows = self._run("fetchval", args, 1, timeout)
        return rows[0][column] if rows else None

    def fetchmany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> list[Any]:
        """The rows of one execution for each row of arguments."""
        with self._guard.use("fetchmany", self._query, timeout=timeout), Rows(args) as rows:
            found: list[Any] = self._wire.run_many(self._prepared.fetchmany(rows, timeout=timeout))
            return found

    def executemany(self, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """One execution for each row of arguments."""
        with self._guard.use("executemany", self._query, timeout=timeout), Rows(args) as rows:
            self._wire.run_many(self._prepared.executemany(rows, timeout=timeout))

    def explain(self, *args: Any, analyze: bool = False) -> Any:
        """The server's plan, from JSON."""
        with self._guard.use("explain"):
            return self._wire.run(self._prepared.explain(*args, analyze=analyze))

    def cursor(self, *args: Any, prefetch: int | None = None, timeout: float | None = None) -> Cursor:
        """A cursor over its rows, inside a transaction."""
        check_timeout(timeout)
        self._guard.atomic("cursor")
        made = self._prepared.cursor(*args, prefetch=prefetch, timeout=timeout)
        return Cursor(self._wire, made, self._guard, self._query)

    def get_name(self) -> str:
        """Its name at the server."""
        return str(self._alive("get_name").get_name())

    def get_query(self) -> str:
        """Its text."""
        return str(self._alive("get_query").get_query())

    def get_statusmsg(self) -> str | None:
        """The status of its last execution."""
        status: str | None = self._alive("get_statusmsg").get_statusmsg()
        return status

    def get_parameters(self) -> tuple[Any, ...]:
        """The types of its parameters."""
        return tuple(self._alive("get_parameters").get_parameters())

    def get_attributes(self) -> tuple[Any, ...]:
        """Its columns."""
        return tuple(self._alive("get_attributes").get_attributes())

    def _run(self, name: str, args: tuple[Any, ...], limit: int, timeout: float | None) -> list[Any]:
        with self._guard.use(name, self._query, timeout=timeout):
            return self._wire.run_prepared(self._prepared, args, limit, timeout)

    def _alive(self, name: str) -> Any:
        self._guard.alive(name)
        return self._prepared
