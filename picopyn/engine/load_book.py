"""What became of the rows of a load, as it goes on.

Chunks are entered before any of them is sent, and struck out when all their rows are acknowledged. So whatever stops a
load, also an interruption between any two steps of its caller, what is not acknowledged stands here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.engine import failures
from picopyn.engine.bulk_rows import Chunk, WrongRow
from picopyn.engine.request import Request
from picopyn.engine.row_acks import RowAcks
from picopyn.errors import BulkError, BulkOutcomeUnknown, CallTimeout, ConnectionLost, OutcomeUnknown, UsageError

#: asyncpg's words for the row that it cannot encode. A server's own text, which may quote any value, begins otherwise.
_ELEMENT: Final = re.compile(r"invalid input for query argument \$\d+ in element #(\d+) of executemany\(\) sequence")


class Book:
    """The book of one load. Changed under the load's lock, or by the caller who takes rows.

    Args:
        query: The statement.
        resume: The report that is gone on with.

    Attributes:
        acknowledged: Rows acknowledged in this load.
        problem: What stopped it first.
        stopped: Nothing more is taken and sent.
    """

    __slots__ = (
        "_left",
        "_open",
        "_query",
        "_taken",
        "_unfinished",
        "_were_taken",
        "acknowledged",
        "problem",
        "stopped",
    )

    def __init__(self, query: str, resume: BulkReport | None) -> None:
        self.acknowledged = 0
        self.problem: Exception | None = None
        self.stopped = False
        self._query = query
        self._taken = 0
        self._were_taken = 0 if resume is None else resume.taken
        self._left = {} if resume is None else {p: part for part in resume.unfinished for p in part.positions}
        self._open: dict[Chunk, None] = {}
        self._unfinished: list[Unfinished] = []

    def wanted(self, rows: list[Any]) -> tuple[Sequence[int], list[Any]]:
        """Which of the next rows are to be sent, and their positions."""
        first, end = self._taken, self._taken + len(rows)
        positions = range(first, end)
        if first >= self._were_taken:
            return positions, rows
        wanted = [p for p in positions if p >= self._were_taken or p in self._left]
        return wanted, [rows[p - first] for p in wanted]

    def enter(self, chunks: Sequence[Chunk], taken: int) -> None:
        """So many rows more were taken; those that are to be sent are in these chunks."""
        self._open.update(dict.fromkeys(chunks))  # first this: rows behind those that count as taken are left out
        self._taken += taken

    def end(self) -> None:
        """There are no more rows; those that a report says are left must have been among them."""
        missing = [position for position in self._left if position >= self._taken]
        if missing:
            told = f"only {self._taken} rows were given, but resume= says that row {min(missing)} is left"
            self.stop(UsageError(f"{told}; give the same rows again"))

    def note(self, error: Exception) -> None:
        """The load ends with this error, once what was taken is sent."""
        self.problem = self.problem or error

    def stop(self, error: Exception) -> None:
        """The load ends with this error, and nothing more is sent."""
        self.note(error)
        self.stopped = True

    def refuse(self, error: WrongRow, positions: Sequence[int], taken: int) -> None:
        """A row cannot be sent, so none of those taken with it is."""
        others = tuple(position for position in positions if position != error.position)
        self._unfinished.append(Unfinished(RowState.FAILED, (error.position,), None, error))
        if others:
            self._unfinished.append(Unfinished(RowState.NOT_EXECUTED, others))
        self._taken += taken
        self.stop(error)

    def done(self, chunk: Chunk) -> None:
        """All rows of a chunk are acknowledged."""
        self.acknowledged += len(chunk.rows)
        self._open.pop(chunk, None)

    def failed(self, chunk: Chunk, acks: RowAcks, request: Request, error: BaseException) -> None:
        """A chunk failed, or was acknowledged as a whole although its call failed."""
        positions = chunk.positions()
        self.acknowledged += acks.total
        self._open.pop(chunk, None)
        told = error if isinstance(error, Exception) else None
        if acks.total < len(positions) and told is not None:
            self.stop(told)
        for state, those in _judged(positions, acks, request, error):
            self._unfinished.append(Unfinished(state, tuple(those), request.node_name, told))

    def error(self) -> BulkError:
        """What the caller gets."""
        report, problem = self.report(), self.problem
        assert problem is not None
        named = (part for part in self._unfinished if part.state is RowState.FAILED and part.error is problem)
        first = next(named, None)
        where = f" at row {first.positions[0]}" if first is not None else ""
        kind = BulkOutcomeUnknown if report.positions(RowState.UNKNOWN) else BulkError
        told = kind(f"executemany() stopped{where}: {_why(problem)}; {report}", report)
        told.__cause__ = problem
        return told

    def report(self) -> BulkReport:
        """What is known now; what an earlier load left and this one did not reach stays as it was."""
        parts = [*self._unfinished, *(part for chunk in tuple(self._open) for part in _so_far(chunk))]
        parts = [mine for part in parts if (mine := _only(part, lambda p: p < self._taken)) is not None]
        for part in {id(part): part for part in self._left.values()}.values():  # to hash one takes all its positions
            unreached = _only(part, lambda p: p >= self._taken)
            if unreached is not None:
                parts.append(unreached)
        return BulkReport(self._query, max(self._taken, self._were_taken), tuple(parts))


def _only(part: Unfinished, wanted: Any) -> Unfinished | None:
    """A part with those of its positions that are wanted; None: there are none."""
    positions = tuple(filter(wanted, part.positions))
    if len(positions) == len(part.positions):
        return part
    return replace(part, positions=positions) if positions else None


def _so_far(chunk: Chunk) -> list[Unfinished]:
    """What became of the rows of a chunk whose call has not ended: its turn did not come, or it is under way."""
    positions, request = chunk.positions(), chunk.request
    if request is None:
        return [Unfinished(RowState.NOT_EXECUTED, tuple(positions))]
    rest = tuple(positions[request.progress :])
    return [Unfinished(RowState.UNKNOWN, rest, request.node_name)] if rest else []


def _why(problem: Exception) -> str:
    """What stopped a load, in short; of what the caller's own code raised only the kind, for it may tell values."""
    if isinstance(problem, UsageError):
        return str(problem)
    own = failures.is_callers(problem)
    return f"{type(problem).__name__} in the caller's own code" if own else failures.in_short(problem)


def _judged(
    positions: list[int], acks: RowAcks, request: Request, error: BaseException
) -> list[tuple[RowState, list[int]]]:
    """What became of the rows of a failed chunk that are not acknowledged."""
    rest = positions[acks.total :]
    one_by_one = request.acks is not None
    if not rest:
        return []
    if request.broke or isinstance(error, CallTimeout | ConnectionLost):
        return [(RowState.UNKNOWN, rest)]
    if isinstance(error, OutcomeUnknown):  # it is the server who said so, of one row
        return _apart(rest, 0, RowState.UNKNOWN) if one_by_one else [(RowState.UNKNOWN, rest)]
    if getattr(error, "sqlstate", None) is None:  # nothing was sent
        return [(RowState.NOT_EXECUTED, rest)]
    named = _ELEMENT.match(str(error))
    if named is not None:
        return _apart(rest, acks.began + int(named[1]) - acks.total, RowState.FAILED)
    return _apart(rest, 0, RowState.FAILED) if one_by_one else [(RowState.FAILED, rest)]


def _apart(rest: list[int], at: int, state: RowState) -> list[tuple[RowState, list[int]]]:
    """One row has a state of its own; the others were not executed."""
    others = [*rest[:at], *rest[at + 1 :]]
    return [(state, rest[at : at + 1]), *([(RowState.NOT_EXECUTED, others)] if others else [])]
