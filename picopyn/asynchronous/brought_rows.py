"""Rows that a caller brings while a call is under way, and what is raised where they are made.

asyncpg fetches the rows of an `executemany` in a place where it goes on after anything that is no `Exception`, a
`KeyboardInterrupt` included: it would wait for an answer to a request it has not finished. Where it fetches those of a
COPY, it takes a `TimeoutError` for one of its own. So such an error is handed to it as an ordinary one, and raised as
what it was when the call is over. Any error is marked as the caller's own: it says nothing about a connection, whatever
its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from picopyn.engine import failures


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

    def __enter__(self) -> Rows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Interrupted) and self._interruption is not None:
            raise self._interruption from None


class CopiedRows(Rows):
    """The same for a COPY, which an interruption ends by itself, but a `TimeoutError` would not."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._given
        except TimeoutError as error:
            failures.mark_as_callers(error)
            self._interruption = error
            raise Interrupted from error
