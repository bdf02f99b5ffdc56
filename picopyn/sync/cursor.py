"""A cursor of a connection that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from picopyn.engine import failures
from picopyn.sync.guarding import Guard
from picopyn.sync.wire import Wire


class Cursor:
    """Rows of a query that come as they are asked for, inside a transaction.

    Iterate over it, or call `fetch`, `fetchrow` and `forward`: what asyncpg does for `async for` and for `await`.

    Args:
        wire: Its connection.
        factory: asyncpg's cursor factory.
        guard: Is asked before anything is sent.
        query: The text.
    """

    __slots__ = ("_factory", "_guard", "_opened", "_query", "_wire")

    def __init__(self, wire: Wire, factory: Any, guard: Guard, query: str) -> None:
        self._wire = wire
        self._factory = factory
        self._guard = guard
        self._query = query
        self._opened: Any = None

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a cursor")

    def __iter__(self) -> Iterator[Any]:
        self._guard.alive("cursor")
        return self._rows(self._factory.__aiter__())

    def fetch(self, n: int, *, timeout: float | None = None) -> list[Any]:
        """The next `n` rows, fewer at the end."""
        with self._guard.use("fetch", self._query, timeout=timeout):
            rows: list[Any] = self._wire.run(self._open().fetch(n, timeout=timeout))
            return rows

    def fetchrow(self, *, timeout: float | None = None) -> Any:
        """The next row, or None at the end."""
        with self._guard.use("fetchrow", self._query, timeout=timeout):
            return self._wire.run(self._open().fetchrow(timeout=timeout))

    def forward(self, n: int, *, timeout: float | None = None) -> int:
        """Skip `n` rows; how many were skipped."""
        with self._guard.use("forward", self._query, timeout=timeout):
            skipped: int = self._wire.run(self._open().forward(n, timeout=timeout))
            return skipped

    def _rows(self, iterator: Any) -> Iterator[Any]:
        rows = self._wire.rows(iterator)
        end = object()
        while True:
            with self._guard.use("cursor", self._query):
                row = next(rows, end)
            if row is end:
                return
            yield row

    def _open(self) -> Any:
        if self._opened is None:
            self._opened = self._wire.run(_awaited(self._factory))
        return self._opened


async def _awaited(factory: Any) -> Any:
    return await factory
