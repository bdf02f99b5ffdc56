"""Rows that are awaited, for a load."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any


class AwaitedRows:
    """Rows of an asynchronous iterable.

    Args:
        rows: The iterable.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: AsyncIterable[Any]) -> None:
        self._rows = aiter(rows)

    async def read(self, count: int) -> list[Any]:
        """The next rows; fewer than asked for only at the end."""
        taken: list[Any] = []
        async for row in self._rows:
            taken.append(row)
            if len(taken) == count:
                break
        return taken
