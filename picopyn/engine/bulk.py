"""A load of many rows: taken a batch at a time, sorted by owner, sent in chunks to all owners at the same time.

Rules of this file:

1. The rows of one owner are executed in the order given, a chunk at a time; within a chunk asyncpg pipelines.
2. A batch is taken only when fewer rows than a batch wait to be sent, so memory is bounded whatever is given.
3. A chunk with a row of the wrong width is not sent, and no chunk of its batch.
4. After the first failure nothing more is taken; what is under way ends, the rest is told as not executed.
5. Where rows take effect one by one, the server's acknowledgements are counted as they arrive, so that the report is
   exact: what was acknowledged is done, the next row failed, and after an error the server executes nothing more. Only
   a lost connection, or a deadline, leaves rows that were sent and are unknown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.dialects.base import KeyHash
from picopyn.engine import failures
from picopyn.engine.bulk_rows import Chunk, RowSource, Sorter, WrongRow, check_rows
from picopyn.engine.cluster import Cluster
from picopyn.engine.crew import Crew
from picopyn.engine.executor import Executor
from picopyn.engine.request import EXECUTEMANY, EXECUTEMANY_FRESHLY, Request
from picopyn.engine.row_acks import RowAcks
from picopyn.errors import BulkError, BulkOutcomeUnknown, CallTimeout, ConnectionLost, OutcomeUnknown, UsageError
from picopyn.routing.plan import Role

#: Rows of one chunk, where the caller does not say: 25 times the rate of single rows (`measurements.md` section 5).
CHUNK_SIZE: Final = 1000
#: Most rows of one batch, however many owners there are.
LARGEST_BATCH: Final = 20_000

#: asyncpg's word for the row that it cannot encode.
_ELEMENT: Final = re.compile(r"in element #(\d+) of executemany\(\) sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """What the caller wants of a load.

    Attributes:
        chunk_size: Most rows of one chunk.
        one_by_one: Each row takes effect by itself; else a chunk as a whole.
        timeout: Limit for all rows together (seconds), or None.
        chunk_timeout: Limit for each chunk (seconds), or None.
        role: Which member of a replicaset may answer.
        idempotent: Whether a row may be executed twice.
        resume: The report of the load that this one goes on with.
        progress: Called with the number of acknowledged rows, in the caller's own task or thread.
    """

    chunk_size: int = CHUNK_SIZE
    one_by_one: bool
    timeout: float | None = None
    chunk_timeout: float | None = None
    role: Role = Role.LEADER
    idempotent: bool | None = None
    resume: BulkReport | None = None
    progress: Callable[[int], object] | None = None


class BulkLoad:
    """One load. Owned by the call that runs it.

    Args:
        executor: Runs the chunks.
        cluster: Time, and the map.
        key_hash: The dialect's hash.
        query: The statement.
        source: The rows.
        options: What the caller wants.
    """

    def __init__(
        self,
        executor: Executor,
        cluster: Cluster,
        key_hash: KeyHash,
        query: str,
        source: RowSource,
        options: BulkOptions,
    ) -> None:
        self._crew = Crew(cluster.runtime, executor)
        self._parts = (executor, cluster, key_hash)
        self._query = query
        self._source = source
        self._options = options
        self._book = Book(query, options.resume)
        self._queues: dict[str | None, deque[Chunk]] = {}
        self._lock = cluster.runtime.lock()
        self._waiting = 0
        self._told = 0
        self._affected = 0
        self._deadline = None if options.timeout is None else cluster.runtime.now() + options.timeout

    async def run(self) -> int:
        """Load the rows.

        Returns:
            How many rows of the table they changed, where each takes effect by itself; else 0.

        Raises:
            BulkError: It stopped; its report says what became of the rows.
            UsageError: Replicas are asked for, which take no rows.
        """
        if self._options.role is Role.REPLICA:
            raise failures.may_write("executemany")
        executor, cluster, key_hash = self._parts
        try:
            known = await executor.learned(self._query, self._deadline)
            width = len(known.parameter_oids) if known is not None and known.parameter_oids else None
            await self._take(Sorter(executor, cluster, key_hash, self._query), width)
            await self._until(lambda: not self._crew.running)
        except BaseException:
            self._book.stopped = True
            await self._crew.abandon()
            raise
        if self._book.problem is not None:
            self._leave_the_rest()
            raise self._book.error()
        return self._affected

    async def _take(self, sorter: Sorter, width: int | None) -> None:
        size, book = self._options.chunk_size, self._book
        while not book.stopped:
            count = min(size * sorter.owners, max(size, LARGEST_BATCH))
            try:
                rows = await self._source.read(count)
            except Exception as error:
                failures.mark_as_callers(error)
                book.stop(error)
                return
            positions, kept = book.take(rows)
            try:
                width = check_rows(kept, positions, width)
            except WrongRow as error:
                book.refuse(error, positions)
                return
            if kept:
                self._send(sorter.sort(positions, kept, size))
                await self._until(partial(self._has_room, count))
            if len(rows) < count:
                book.end()
                return

    def _has_room(self, count: int) -> bool:
        return self._book.stopped or self._waiting < count

    def _send(self, chunks: list[Chunk]) -> None:
        """Queue chunks; where nobody works for an owner, somebody begins to."""
        for chunk in chunks:
            with self._lock:
                queue = self._queues.get(chunk.owner)
                idle = queue is None
                if queue is None:
                    queue = self._queues[chunk.owner] = deque()
                queue.append(chunk)
                self._waiting += len(chunk.rows)
            if idle:
                self._crew.start(self._work(chunk.owner), "picopyn bulk load")

    async def _work(self, owner: str | None) -> None:
        """Send the chunks of one owner, one after the other, until there are none."""
        while (chunk := self._next(owner)) is not None:
            await self._load(chunk)
            self._crew.ring()

    def _next(self, owner: str | None) -> Chunk | None:
        with self._lock:
            queue = self._queues[owner]
            if self._book.stopped or not queue:
                if not queue:
                    del self._queues[owner]
                return None
            chunk = queue.popleft()
            self._waiting -= len(chunk.rows)
            return chunk

    async def _load(self, chunk: Chunk) -> None:
        """Send one chunk, and note what became of its rows."""
        options, acks = self._options, RowAcks()
        if options.one_by_one:
            request = Request(EXECUTEMANY_FRESHLY, self._query, (chunk.rows, acks), options.role, options.idempotent)
        else:
            request = Request(EXECUTEMANY, self._query, (chunk.rows,), options.role, options.idempotent)
        request.place = chunk.place
        self._limit(request)
        try:
            await self._crew.call(request)
        except Exception as error:
            with self._lock:
                self._book.failed(chunk, acks, request, error)
        else:
            with self._lock:
                self._book.acknowledged += len(chunk.rows)
                self._affected += acks.affected

    def _limit(self, request: Request) -> None:
        now = self._parts[1].runtime.now()
        if self._deadline is not None:
            request.limit(max(self._deadline - now, 0.001), now)
            request.timeout = self._options.timeout
        elif self._options.chunk_timeout is not None:
            request.limit(self._options.chunk_timeout, now, own=False)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the crew, and tell of progress meanwhile."""
        await self._crew.until(lambda: self._tell() or condition())

    def _tell(self) -> bool:
        done = self._book.acknowledged
        if self._options.progress is not None and done > self._told:
            self._told = done
            try:
                self._options.progress(done)
            except Exception as error:
                failures.mark_as_callers(error)
                self._book.stop(error)
        return False

    def _leave_the_rest(self) -> None:
        for queue in self._queues.values():
            for chunk in queue:
                self._book.leave(chunk)


class Book:
    """What became of the rows of a load. Changed under the load's lock, or by the caller who takes rows.

    Args:
        query: The statement.
        resume: The report that is gone on with.

    Attributes:
        acknowledged: Rows acknowledged in this load.
        problem: What stopped it first.
        stopped: Nothing more is taken and sent.
    """

    __slots__ = ("_left", "_query", "_taken", "_unfinished", "_were_taken", "acknowledged", "problem", "stopped")

    def __init__(self, query: str, resume: BulkReport | None) -> None:
        self.acknowledged = 0
        self.problem: Exception | None = None
        self.stopped = False
        self._query = query
        self._taken = 0
        self._were_taken = 0 if resume is None else resume.taken
        self._left = {} if resume is None else {p: part for part in resume.unfinished for p in part.positions}
        self._unfinished: list[Unfinished] = []

    def take(self, rows: list[Any]) -> tuple[Sequence[int], list[Any]]:
        """Rows were taken: which of them are to be sent, and their positions."""
        first, self._taken = self._taken, self._taken + len(rows)
        positions = range(first, self._taken)
        if first >= self._were_taken:
            return positions, rows
        wanted = [p for p in positions if p >= self._were_taken or p in self._left]
        return wanted, [rows[p - first] for p in wanted]

    def end(self) -> None:
        """There are no more rows; those that a report says are left must have been among them."""
        missing = [position for position in self._left if position >= self._taken]
        if missing:
            told = f"only {self._taken} rows were given, but resume= says that row {min(missing)} is left"
            self.stop(UsageError(f"{told}; give the same rows again"))

    def stop(self, error: Exception) -> None:
        """Something that the caller gave stops the load."""
        self.problem = self.problem or error
        self.stopped = True

    def refuse(self, error: WrongRow, positions: Sequence[int]) -> None:
        """A row cannot be sent, so none of those taken with it is."""
        others = tuple(position for position in positions if position != error.position)
        self._unfinished.append(Unfinished(RowState.FAILED, (error.position,), None, error))
        if others:
            self._unfinished.append(Unfinished(RowState.NOT_EXECUTED, others))
        self.stop(error)

    def failed(self, chunk: Chunk, acks: RowAcks, request: Request, error: Exception) -> None:
        """A chunk failed, or was acknowledged as a whole although its call failed."""
        positions = chunk.positions()
        self.acknowledged += acks.total
        if acks.total < len(positions):
            self.stop(error)
        node = None if request.node is None else request.node.name
        for state, those in _judged(positions, acks, request, error):
            self._unfinished.append(Unfinished(state, tuple(those), node, error))

    def leave(self, chunk: Chunk) -> None:
        """The turn of a chunk did not come."""
        self._unfinished.append(Unfinished(RowState.NOT_EXECUTED, tuple(chunk.positions())))

    def error(self) -> BulkError:
        """What the caller gets."""
        report, problem = self._report(), self.problem
        assert problem is not None
        named = (part for part in self._unfinished if part.state is RowState.FAILED and part.error is problem)
        first = next(named, None)
        where = f" at row {first.positions[0]}" if first is not None else ""
        kind = BulkOutcomeUnknown if report.positions(RowState.UNKNOWN) else BulkError
        told = kind(f"executemany() stopped{where}: {_why(problem)}; {report}", report)
        told.__cause__ = problem
        return told

    def _report(self) -> BulkReport:
        """What is known now; what an earlier load left and this one did not reach stays as it was."""
        parts = list(self._unfinished)
        for part in {id(part): part for part in self._left.values()}.values():  # to hash one takes all its positions
            unreached = tuple(position for position in part.positions if position >= self._taken)
            if unreached:
                parts.append(replace(part, positions=unreached))
        return BulkReport(self._query, max(self._taken, self._were_taken), tuple(parts))


def _why(problem: Exception) -> str:
    """What stopped a load, in short; of what the caller's own code raised only the kind, for it may tell values."""
    if isinstance(problem, UsageError):
        return str(problem)
    own = failures.is_callers(problem)
    return f"{type(problem).__name__} in the caller's own code" if own else failures.in_short(problem)


def _judged(
    positions: list[int], acks: RowAcks, request: Request, error: Exception
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
    named = _ELEMENT.search(str(error))
    if named is not None:
        return _apart(rest, acks.began + int(named[1]) - acks.total, RowState.FAILED)
    return _apart(rest, 0, RowState.FAILED) if one_by_one else [(RowState.FAILED, rest)]


def _apart(rest: list[int], at: int, state: RowState) -> list[tuple[RowState, list[int]]]:
    """One row has a state of its own; the others were not executed."""
    others = [*rest[:at], *rest[at + 1 :]]
    return [(state, rest[at : at + 1]), *([(RowState.NOT_EXECUTED, others)] if others else [])]


def check_resume(resume: object, query: str, idempotent: bool | None) -> None:
    """Refuse a report that a load cannot go on with.

    Raises:
        UsageError: It is none, is about another statement, or has rows whose outcome nobody knows.
    """
    if not isinstance(resume, BulkReport):
        raise UsageError(f"resume= takes the report of a BulkError, not {type(resume).__name__}")
    if resume.query != query:
        raise UsageError("the report given with resume= is about another statement")
    unknown = resume.positions(RowState.UNKNOWN)
    if unknown and not idempotent:
        raise UsageError(
            f"of {len(unknown)} rows nobody knows whether they took effect, the first is row {unknown[0]}: look, and "
            "give resume=report.settled(applied), or declare with idempotent=True that rows may be executed twice"
        )
