"""Rows that are awaited, for a load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any

from picopyn.engine.row_sources import RowSource


class AwaitedRows(RowSource):
    """Rows of an asynchronous iterable.

    Args:
        rows: The iterable.
        now: A clock.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: AsyncIterable[Any], now: Callable[[], float]) -> None:
        super().__init__(now)
        self._rows = aiter(rows)

    async def _fill(self, taken: list[Any], count: int, late: float) -> None:
        async for row in self._rows:
            taken.append(row)
            if len(taken) == count or self._now() >= late:
                return
        self.ended = True

    async def close(self) -> None:
        """Nobody reads any more."""
        if isinstance(self._rows, AsyncGenerator):
            await self._rows.aclose()
