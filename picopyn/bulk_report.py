"""What became of the rows of a load that stopped: a value to look at, to keep, and to go on from.

Rows are told by their positions in what the caller gave, counted from 0. All rows up to `taken` are acknowledged but
those that are listed, and none behind it was sent, so a report stays small however many rows there are.

No text made here shows a value: of an error, which may tell some, only its class and its SQLSTATE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from picopyn.errors import UsageError, led_to

#: Most ranges of positions that a text names.
MOST_RANGES: Final = 5


class RowState(Enum):
    """What became of a row that is not acknowledged."""

    FAILED = "the server or the driver refused it; it had no effect"
    NOT_EXECUTED = "it was not executed"
    UNKNOWN = "it was sent, and may have taken effect"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Rows of one chunk that came to the same end.

    Attributes:
        state: What became of them.
        positions: Their positions, ascending.
        node: Name of the node they were for last, or None.
        error: What ended the chunk, as it was raised, so its text may tell values of rows; None for rows whose turn did
            not come, or whose caller was interrupted.
    """

    state: RowState
    positions: tuple[int, ...]
    node: str | None = None
    error: Exception | None = None

    def __repr__(self) -> str:
        where = "" if self.node is None else f" at {self.node}"
        why = "" if self.error is None else f": {_kind(self.error)}"
        return f"<{self.state.name}: {_places(self.positions)}{where}{why}>"


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What became of the rows of an `executemany`.

    Attributes:
        query: Its statement.
        taken: How many rows were taken from what the caller gave; those behind were not looked at.
        unfinished: The rows among them that are not acknowledged. Of all others the server said they took effect.
    """

    query: str
    taken: int
    unfinished: tuple[Unfinished, ...] = ()

    @property
    def acknowledged(self) -> int:
        """How many rows the server has acknowledged."""
        return self.taken - sum(len(part.positions) for part in self.unfinished)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """What went wrong, each once."""
        return tuple({id(part.error): part.error for part in self.unfinished if part.error is not None}.values())

    def positions(self, state: RowState) -> tuple[int, ...]:
        """Positions of the rows of one state, ascending."""
        return tuple(sorted(p for part in self.unfinished if part.state is state for p in part.positions))

    def is_acknowledged(self, position: int) -> bool:
        """Whether a row is acknowledged."""
        return 0 <= position < self.taken and not any(position in part.positions for part in self.unfinished)

    def settled(self, applied: Iterable[int]) -> BulkReport:
        """The report after somebody has looked which of the unknown rows took effect.

        Args:
            applied: Positions of unknown rows that did; the other unknown ones did not.

        Raises:
            UsageError: A position is not that of an unknown row.
        """
        done = set(applied)
        strangers = done.difference(self.positions(RowState.UNKNOWN))
        if strangers:
            raise UsageError(f"row {min(strangers)} is not among those whose outcome is unknown")
        return replace(self, unfinished=tuple(_settled(part, done) for part in self.unfinished))

    @classmethod
    def of(cls, error: BaseException) -> BulkReport | None:
        """The report that an error carries: a `BulkError`, or whatever interrupted a load.

        Args:
            error: The error, or one that was raised because of it, as the `TimeoutError` of `asyncio.timeout`.

        Returns:
            None when there is none: no load was interrupted, or it had not begun.
        """
        reports = (getattr(each, "report", None) for each in led_to(error))
        return next((report for report in reports if isinstance(report, cls)), None)

    def put_on(self, error: BaseException) -> None:
        """Let an interruption carry it, as `error.report`."""
        error.__dict__["report"] = self
        error.add_note(f"picopyn: executemany() was interrupted; {self}. BulkReport.of(error) is its report")

    def __str__(self) -> str:
        counts = {state: len(self.positions(state)) for state in RowState}
        return (
            f"of {self.taken} rows taken {self.acknowledged} are acknowledged, {counts[RowState.FAILED]} failed, "
            f"{counts[RowState.NOT_EXECUTED]} were not executed, {counts[RowState.UNKNOWN]} are unknown"
        )


def _settled(part: Unfinished, done: set[int]) -> Unfinished:
    if part.state is not RowState.UNKNOWN:
        return part
    left = tuple(position for position in part.positions if position not in done)
    return replace(part, state=RowState.NOT_EXECUTED, positions=left)


def _kind(error: BaseException) -> str:
    """What kind of error it is."""
    sqlstate = getattr(error, "sqlstate", None)
    return type(error).__name__ if sqlstate is None else f"{type(error).__name__} ({sqlstate})"


def _places(positions: tuple[int, ...]) -> str:
    """Positions in short: the first ones, as ranges."""
    if len(positions) == 1:
        return f"row {positions[0]}"
    ranges: list[list[int]] = []
    for position in positions:
        if ranges and position == ranges[-1][1] + 1:
            ranges[-1][1] = position
        elif len(ranges) == MOST_RANGES:
            break
        else:
            ranges.append([position, position])
    told = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    more = len(positions) - sum(last - first + 1 for first, last in ranges)
    return f"rows {told}" + (f" and {more} more" if more else "")
