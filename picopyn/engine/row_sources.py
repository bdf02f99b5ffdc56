"""Where the rows of a load come from: what the caller gave, read a batch at a time.

What is raised where rows are made comes behind all rows that were made before, so those are loaded. A generator is
closed when nobody reads any more, so what it holds (a file, a cursor) is let go on every way out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from itertools import islice
from typing import Any, Final

from picopyn.errors import UsageError

#: How long rows wait for the others of their batch, where these do not come at once (seconds).
LINGER: Final = 0.1
#: Most rows that are taken between two looks at the clock.
LONGEST_STRIDE: Final = 512


class RowSource(ABC):
    """Where rows come from.

    Args:
        now: A clock.

    Attributes:
        ended: There are no more.
    """

    __slots__ = ("_now", "_trouble", "ended")

    def __init__(self, now: Callable[[], float]) -> None:
        self.ended = False
        self._now = now
        self._trouble: Exception | None = None

    async def read(self, count: int) -> list[Any]:
        """The next rows; fewer than asked for at the end, and where the next ones do not come at once.

        Raises:
            Exception: What was raised where they are made, behind all rows that were made before.
        """
        if self._trouble is not None:
            raise self._trouble
        taken: list[Any] = []
        try:
            await self._fill(taken, count, self._now() + LINGER)
        except Exception as error:
            if not taken:
                raise
            self._trouble = error
        return taken

    @abstractmethod
    async def _fill(self, taken: list[Any], count: int, late: float) -> None:
        """Take rows until there are so many, it is late, or they have `ended`; what is raised leaves those taken."""

    @abstractmethod
    async def close(self) -> None:
        """Nobody reads any more: a generator is closed."""


class GivenRows(RowSource):
    """Rows of an iterable.

    Args:
        rows: The iterable.
        now: A clock.

    Raises:
        UsageError: It is none.
    """

    __slots__ = ("_rows", "_stride")

    def __init__(self, rows: Iterable[Any], now: Callable[[], float]) -> None:
        super().__init__(now)
        self._rows = iter(checked(rows))
        self._stride = 1

    async def _fill(self, taken: list[Any], count: int, late: float) -> None:
        while len(taken) < count and not self.ended:
            wanted = min(len(taken) + self._stride, count)
            taken.extend(islice(self._rows, wanted - len(taken)))  # keeps what came before an error
            self.ended = len(taken) < wanted
            if self._now() >= late:
                self._stride = 1
                return
            self._stride = min(self._stride * 2, LONGEST_STRIDE)

    async def close(self) -> None:
        """Nobody reads any more."""
        if isinstance(self._rows, Generator):
            self._rows.close()


def checked(rows: Iterable[Any]) -> Iterable[Any]:
    """What a caller gives as rows.

    Raises:
        UsageError: There cannot be any rows in it.
    """
    if isinstance(rows, AsyncIterable) and not isinstance(rows, Iterable):
        raise UsageError("executemany() of picopyn.sync takes rows from an iterable, not from an asynchronous one")
    if isinstance(rows, str | bytes) or not (isinstance(rows, Iterable) or hasattr(rows, "__getitem__")):
        raise UsageError(f"executemany() takes rows of arguments one after the other, not {type(rows).__name__}")
    return rows
