"""A transaction that is run again while that is safe: the loop around its attempts, its pauses, its limit.

What an attempt is (take a connection, BEGIN, the caller's work, COMMIT) the facades know; what an error means, the loan
of its connection. An error that did not come over that connection is the caller's own and ends the transaction.

What COMMIT did is never guessed. Not sent, or refused by the server: rolled back. Answered: committed. Sent, and the
answer did not come: unknown, and nothing is run again; unless the server is asked, and says what became of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, TypeVar, cast

from picopyn.engine import failures
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.journal import Journal
from picopyn.engine.loan import Loan
from picopyn.engine.request import Request, make_request
from picopyn.engine.resolution import Fate, Resolution
from picopyn.errors import AcquireTimeout, Fault, OutcomeUnknown
from picopyn.routing.plan import Role
from picopyn.routing.transactions import full_jitter, may_run_again

T = TypeVar("T")


class TransactionRun:
    """One call of `run_transaction`. Owned by its caller.

    Args:
        executor: Takes connections.
        cluster: Time, and news of the cluster.
        journal: Where further attempts are counted and told.
        rng: Source of the jitter.
        request: The call; it has the limit for all attempts, where there is one.
        retries: Further attempts at most.
        only_reads: It must not write anyway.
        resolution: Finds out what became of a COMMIT without an answer; None: that stays unknown.

    Attributes:
        loan: The connection of the attempt under way; None before it has one.
        resolution: See above.
        expired: The limit was reached while an attempt was under way.
    """

    def __init__(
        self,
        executor: Executor,
        cluster: Cluster,
        journal: Journal,
        rng: Random,
        request: Request,
        retries: int,
        *,
        only_reads: bool,
        resolution: Resolution | None = None,
    ) -> None:
        self.resolution = resolution
        self.loan: Loan | None = None
        self.expired = False
        self._executor = executor
        self._cluster = cluster
        self._journal = journal
        self._rng = rng
        self._request = request
        self._retries = retries
        self._only_reads = only_reads
        self._losses = 0

    @property
    def deadline(self) -> float | None:
        """When the limit for all attempts is reached, on the runtime's clock; None: there is none."""
        return self._request.deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until then, a moment at least; None: there is no limit."""
        return None if self.deadline is None else max(self.deadline - self._cluster.runtime.now(), 0.001)

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make attempts until one succeeds, or the error of one is the answer.

        Args:
            attempt: Makes one; sets `loan` once it has a connection, and `expired` when it was ended by the limit.

        Raises:
            CallTimeout: The limit was reached; an `OutcomeUnknown` as well, where COMMIT was on its way.
            Exception: What the last attempt raised, with a note for each one before.
        """
        while True:
            self.loan, self.expired = None, False
            if self.resolution is not None:
                self.resolution.note(None, None)
            try:
                return await attempt()
            except Exception as raised:
                fate, error = await self._find_out(raised), raised
                if fate is Fate.COMMITTED and self.resolution is not None:
                    return cast(T, self.resolution.result)
                if fate is Fate.ABORTED and self.loan is not None:
                    error = failures.rolled_back(self.loan)
                fault, pause = self._judge(error)
                if fault is None or self.loan is None:
                    self._request.annotate(error)
                    if error is raised:
                        raise
                    raise error from raised
                node = self.loan.pool.node
                self._request.tried(node, failures.how_far(fault), failures.why(fault, error, None))
            self._journal.retried(node, fault, len(self._request.attempts))
            if fault is Fault.NOT_LEADER:
                await self._executor.waits.for_look(self._request, node)
            await self._rest(pause)

    async def _find_out(self, error: Exception) -> Fate:
        """What became of an attempt that failed, if that has to be asked and can be."""
        loan, resolution = self.loan, self.resolution
        if resolution is None or loan is None or self.expired:
            return Fate.UNKNOWN
        if not (loan.undecided and isinstance(error, OutcomeUnknown)):
            return Fate.UNKNOWN
        return await resolution.fate(loan.pool.node, self.deadline)

    def interrupt(self) -> None:
        """The limit is reached: end the attempt under way by dropping its connection. From anywhere."""
        self.expired = True
        if self.loan is not None:
            self.loan.interrupt()

    def _judge(self, error: Exception) -> tuple[Fault | None, float]:
        """What a failed attempt means: the fault for which it is made again, or None; and the pause before."""
        loan, failed = self.loan, len(self._request.attempts) + 1
        remaining = self.remaining
        late = loan is None and failed > 1 and remaining is not None  # the limit is what its waiting was cut short by
        if self.expired or (late and isinstance(error, AcquireTimeout)):
            if loan is not None and loan.undecided and not isinstance(error, OutcomeUnknown):  # its call was cancelled
                self._journal.outcome_lost(loan.pool.node, "timeout")
            raise self._timed_out() from error
        if loan is None or loan.undecided:
            return None, 0.0
        fault = failures.meaning(error, loan)
        self._losses += fault is Fault.LOST
        again = may_run_again(
            fault, failed=failed, losses=self._losses, retries=self._retries, only_reads=self._only_reads
        )
        if not again:
            return None, 0.0
        pause = full_jitter(failed, self._rng)
        if remaining is not None and pause >= remaining:
            raise self._timed_out() from error
        return fault, pause

    def _timed_out(self) -> Exception:
        loan = self.loan
        undecided, node = (False, None) if loan is None else (loan.undecided, loan.pool.node)
        error = failures.transaction_timed_out(self._request.timeout or 0.0, node, undecided=undecided)
        return self._request.annotate(error)

    async def _rest(self, seconds: float) -> None:
        """Wait out a pause; the closing of the pool ends it."""
        changes, until = self._cluster.changes, self._cluster.runtime.now() + seconds
        version = changes.version
        with suppress(TimeoutError):
            while not self._executor.closed:
                await changes.wait(until, version)
                version = changes.version


_NEVER_WORK: Final = (
    ("an async generator function", inspect.isasyncgenfunction),
    ("a generator function", inspect.isgeneratorfunction),
)
_COROUTINE: Final = ("a coroutine function", inspect.iscoroutinefunction)


def check_work(work: Any, *, awaited: bool) -> None:
    """Refuse what cannot be the work of a transaction, before a connection is taken.

    Args:
        work: What the caller gave.
        awaited: Whether its result is awaited; a plain function may make something that can be, so it passes.

    Raises:
        TypeError: It is no function, or one of the wrong kind.
    """
    wanted = f"run_transaction() takes a {'coroutine' if awaited else 'plain'} function of the connection, not "
    if not callable(work):
        raise TypeError(wanted + ("None" if work is None else f"an object of type {type(work).__name__}"))
    kinds = _NEVER_WORK if awaited else (*_NEVER_WORK, _COROUTINE)
    for words, is_one in kinds:
        if is_one(work) or is_one(type(work).__call__):
            raise TypeError(wanted + words)


def new_request(role: Role) -> Request:
    """The call, for its limit and for what is told of its attempts."""
    return make_request("run_transaction", "", (), role)
