"""Rows that are awaited, for a load."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any

from picopyn.engine.row_sources import LINGER


class AwaitedRows:
    """Rows of an asynchronous iterable.

    Args:
        rows: The iterable.
        now: A clock.

    Attributes:
        ended: There are no more.
    """

    __slots__ = ("_now", "_rows", "_trouble", "ended")

    def __init__(self, rows: AsyncIterable[Any], now: Callable[[], float]) -> None:
        self.ended = False
        self._rows = aiter(rows)
        self._now = now
        self._trouble: Exception | None = None

    async def read(self, count: int) -> list[Any]:
        """The next rows; see `RowSource`."""
        if self._trouble is not None:
            raise self._trouble
        taken: list[Any] = []
        late = self._now() + LINGER
        try:
            async for row in self._rows:
                taken.append(row)
                if len(taken) == count or self._now() >= late:
                    return taken
        except Exception as error:
            if not taken:
                raise
            self._trouble = error
            return taken
        self.ended = True
        return taken

    async def close(self) -> None:
        """Nobody reads any more."""
        if isinstance(self._rows, AsyncGenerator):
            await self._rows.aclose()
