"""A load of many rows: taken a batch at a time, sorted by owner, sent in chunks to all owners at the same time.

Rules of this file:

1. The rows of one owner are executed in the order given, a chunk at a time; within a chunk asyncpg pipelines.
2. A batch is taken only when fewer rows than a batch wait to be sent, so memory is bounded whatever is given.
3. A chunk with a row of the wrong width, or with a key that cannot be sent, is not sent, and no chunk of its batch.
4. After the first failure nothing more is taken; what is under way ends, the rest is told as not executed. Only where
   it was the source that failed, all that it gave before is sent.
5. Where rows take effect one by one, the server's acknowledgements are counted as they arrive, so that the report is
   exact: what was acknowledged is done, the next row failed, and after an error the server executes nothing more. Only
   a lost connection, a deadline, or an interruption leaves rows that were sent and are unknown.
6. A load that is cancelled or interrupted, at any moment, tells what became of the rows, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Final

from picopyn.bulk_report import BulkReport, RowState
from picopyn.engine import failures
from picopyn.engine.bulk_rows import Chunk, Machinery, Sorter, WrongRow, check_rows
from picopyn.engine.crew import Crew
from picopyn.engine.interruptions import is_interruption
from picopyn.engine.load_book import Book
from picopyn.engine.request import EXECUTEMANY, EXECUTEMANY_FRESHLY, Request, make_request
from picopyn.engine.row_acks import RowAcks
from picopyn.engine.row_sources import RowSource
from picopyn.errors import UsageError
from picopyn.routing.plan import Role

#: Rows of one chunk, where the caller does not say: 25 times the rate of single rows (`measurements.md` section 5).
CHUNK_SIZE: Final = 1000
#: Most rows of one batch, however many owners there are.
LARGEST_BATCH: Final = 20_000


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
        machinery: What it works with.
        query: The statement.
        source: The rows; closed at the end.
        options: What the caller wants.
    """

    def __init__(self, machinery: Machinery, query: str, source: RowSource, options: BulkOptions) -> None:
        runtime = machinery.cluster.runtime
        self._machinery = machinery
        self._crew = Crew(runtime, machinery.executor)
        self._query = query
        self._source = source
        self._options = options
        self._book = Book(query, options.resume)
        self._queues: dict[str | None, deque[Chunk]] = {}
        self._lock = runtime.lock()
        self._waiting = 0
        self._told = 0
        self._affected = 0
        self._deadline = None if options.timeout is None else runtime.now() + options.timeout

    async def run(self) -> int:
        """Load the rows.

        Returns:
            How many rows of the table they changed, where each takes effect by itself; else 0.

        Raises:
            BulkError: It stopped; its report says what became of the rows.
            UsageError: Replicas are asked for, which take no rows.
            BaseException: It was cancelled or interrupted; `BulkReport.of(error)` says what became of the rows.
        """
        if self._options.role is Role.REPLICA:
            raise failures.may_write("executemany")
        try:
            await self._take_all()
            await self._until(lambda: not self._crew.running)
        except GeneratorExit:  # nobody waits for anything any more
            self._book.stopped = True
            raise
        except BaseException as error:
            self._book.stopped = True
            try:
                await self._crew.abandon()
                await self._close()
            finally:
                self._tell_of(error)
            raise
        if self._book.problem is not None:
            raise self._book.error()
        return self._affected

    def _tell_of(self, error: BaseException) -> None:
        """An interruption carries the report."""
        with self._lock:
            report = self._book.report()
        report.put_on(error)

    async def _take_all(self) -> None:
        sorter, width = await self._sorter()
        await self._take(sorter, width)
        await self._close()

    async def _sorter(self, *, anew: bool = False) -> tuple[Sorter, int | None]:
        """What sorts the rows, and how many values each has, as far as is known."""
        machinery = self._machinery
        known = await machinery.executor.learned(self._query, self._deadline, anew=anew)
        oids = () if known is None else known.parameter_oids
        may_have_own_codecs = machinery.cluster.settings.after_connect is not None  # which take other values
        return machinery.sorter(self._query, () if may_have_own_codecs else oids), len(oids) or None

    async def _take(self, sorter: Sorter, width: int | None) -> None:
        size, book = self._options.chunk_size, self._book
        while not book.stopped:
            count = min(size * sorter.owners, max(size, LARGEST_BATCH))
            try:
                rows = await self._source.read(count)
            except Exception as error:
                if is_interruption(error):
                    raise
                failures.mark_as_callers(error)
                book.note(error)
                return
            positions, kept = book.wanted(rows)
            try:
                width = check_rows(kept, positions, width)
                try:
                    chunks = sorter.sort(positions, kept, size) if kept else []
                except WrongRow:  # unless the type of the key has changed
                    sorter, _ = await self._sorter(anew=True)
                    chunks = sorter.sort(positions, kept, size)
            except WrongRow as error:
                book.refuse(error, positions, len(rows))
                return
            book.enter(chunks, len(rows))
            self._send(chunks)
            if self._source.ended:
                book.end()
                return
            await self._until(partial(self._has_room, count if len(rows) == count else 1))

    async def _close(self) -> None:
        """Nothing more is taken."""
        try:
            await self._source.close()
        except Exception as error:
            failures.mark_as_callers(error)
            self._book.note(error)

    def _has_room(self, count: int) -> bool:
        """Whether fewer rows wait to be sent. Those of a slow source are not kept waiting for its next ones."""
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
            self._crew.ring()
            await self._load(chunk)
            self._crew.ring()

    def _next(self, owner: str | None) -> Chunk | None:
        with self._lock:
            self._look_at_the_time()
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
        how = options.role, options.idempotent
        if options.one_by_one:
            request = make_request(EXECUTEMANY_FRESHLY, self._query, (chunk.rows, acks), *how)
        else:
            request = make_request(EXECUTEMANY, self._query, (chunk.rows,), *how)
        request.place = chunk.place
        self._limit(request)
        chunk.request = request
        try:
            await self._crew.call(request)
        except BaseException as error:
            with self._lock:
                self._book.failed(chunk, acks, request, error)
            if not isinstance(error, Exception):
                raise
        else:
            with self._lock:
                self._book.done(chunk)
                self._affected += acks.affected

    def _look_at_the_time(self) -> None:
        """What cannot be sent in time is not sent."""
        if self._deadline is not None and self._now() >= self._deadline:
            self._book.stop(failures.load_too_slow(self._options.timeout or 0))

    def _now(self) -> float:
        return self._machinery.cluster.runtime.now()

    def _limit(self, request: Request) -> None:
        now = self._now()
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
                if is_interruption(error):
                    raise
                failures.mark_as_callers(error)
                self._book.stop(error)
        return False


def check_progress(progress: object) -> None:
    """Refuse what cannot be told of progress.

    Raises:
        UsageError: It is no function, or one whose coroutine nobody would await.
    """
    if progress is not None and (not callable(progress) or iscoroutinefunction(progress)):
        kind = "a coroutine function" if callable(progress) else type(progress).__name__
        raise UsageError(f"progress= takes a plain function of one number, not {kind}")


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
