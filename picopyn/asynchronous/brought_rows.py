"""Rows that a caller brings while a call is under way, and what is raised where they are made.

asyncpg fetches the rows of an `executemany` in a place where it goes on after anything that is no `Exception`, a
`KeyboardInterrupt` included: it would wait for an answer to a request it has not finished. Where it fetches those of a
COPY, it takes a `TimeoutError` for one of its own. So such an error is handed to it as an ordinary one, and raised as
what it was when the call is over. Any error is marked as the caller's own: it says nothing about a connection, whatever
its type.

Of a row of a COPY asyncpg takes as many values as there are columns, and never looks whether there are more.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from picopyn.engine import failures
from picopyn.errors import UsageError


class Interrupted(Exception):  # noqa: N818 - never leaves a `with` block of rows
    """The rows ended with something that asyncpg takes for what it is not."""


class Rows:
    """The rows for one call: `with Rows(given) as rows: …`. They can be read again as often as those given can.

    Args:
        given: What the caller gave.
    """

    __slots__ = ("_given", "_interruption")

    def __init__(self, given: Iterable[Any]) -> None:
        self._given = given
        self._interruption: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._given
        except GeneratorExit:
            raise
        except Exception as error:
            failures.mark_as_callers(error)
            raise
        except BaseException as error:
            self._interruption = error
            raise Interrupted from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Interrupted) and self._interruption is not None:
            raise self._interruption from None


class CopiedRows(Rows):
    """The same for a COPY, which an interruption ends by itself, but a `TimeoutError` would not.

    Attributes:
        width: The number of values that a row must have. It has to be set before the first row is taken.
        shape: asyncpg's statement that has told the width, or None.
    """

    __slots__ = ("shape", "width")

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__(given)
        self.width = 0
        self.shape: Any = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._checked()
        except TimeoutError as error:
            failures.mark_as_callers(error)
            self._interruption = error
            raise Interrupted from error

    def _checked(self) -> Iterator[Any]:
        width, rows = self.width, None
        try:
            rows = iter(self._given)
            for position, row in enumerate(rows):
                if len(row) != width:
                    raise _of_another_width(position, row, width)
                yield row
        finally:
            if isinstance(rows, Generator):
                rows.close()


class AwaitedCopyRows(AsyncIterator[Any]):
    """Rows for a COPY that are awaited one by one.

    Args:
        given: What the caller gave.

    Attributes:
        width: See `CopiedRows`.
        shape: See there.
    """

    __slots__ = ("_next", "_position", "shape", "width")

    def __init__(self, given: AsyncIterable[Any]) -> None:
        self._next = aiter(given).__anext__
        self._position = -1
        self.width = 0
        self.shape: Any = None

    async def __anext__(self) -> Any:
        row = await self._next()
        self._position += 1
        if len(row) != self.width:
            raise _of_another_width(self._position, row, self.width)
        return row


def _of_another_width(position: int, row: Any, width: int) -> UsageError:
    error = UsageError(f"row {position} has {len(row)} values, {width} are expected; nothing was copied")
    failures.mark_as_callers(error)
    return error
