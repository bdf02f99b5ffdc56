"""Whether a call whose attempt failed is sent again: what the pure decisions need to know, kept for one pool.

It keeps the memory of losses and the budget of retries, and asks [`retry`][picopyn.routing.retry] with them. It sends
nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from picopyn.engine.cluster import Cluster
from picopyn.engine.request import Request
from picopyn.engine.tallies import Tallies
from picopyn.errors import Fault
from picopyn.routing.losses import Life, LossMemory
from picopyn.routing.plan import Role
from picopyn.routing.retry import Action, Call, decide
from picopyn.routing.retry_budget import RetryBudget
from picopyn.stats import Counters

#: Class 57, "operator intervention", of a session that ends: an administrator, a shutdown, another session's crash, a
#: dropped database, a limit for idle sessions. *Source*: PostgreSQL 18 documentation, appendix A.
_GOODBYE: Final = ("57P01", "57P02", "57P04", "57P05")
#: What may add to the load of a server that is in trouble.
_COSTS: Final = (Action.NEXT_NODE, Action.BACK_OFF)
#: For the notes of an error.
BUDGET_IS_SPENT: Final = "not sent again: more calls failed lately than may be repeated (docs/errors.md, retry budget)"
IS_SUSPECT: Final = (
    "not sent again: a connection broke under an earlier call of this statement too, and none was answered in between "
    "(docs/errors.md, what is sent again)"
)


def is_goodbye(error: BaseException) -> bool:
    """Whether the server itself ended the session, and said why: no statement of ours did that.

    Where the connection ends right after that word, asyncpg makes it the cause of its own error.
    """
    return any(getattr(told, "sqlstate", None) in _GOODBYE for told in (error, error.__cause__))


class Retries:
    """Decides about the attempts of a pool's calls that failed. Owned by an executor.

    Args:
        cluster: Clock, lock, the calls in flight.
        counters: How many calls were answered, as far as the tallies have booked them.
        tallies: The calls of each text.
        leaders_switch: A leader that refuses a write is about to be replaced by another one.

    Attributes:
        losses: Which statements nodes died under.
        budget: What may be spent.
    """

    __slots__ = (
        "_changes",
        "_counters",
        "_flights",
        "_leaders_switch",
        "_lock",
        "_now",
        "_post",
        "_tallies",
        "budget",
        "losses",
    )

    def __init__(self, cluster: Cluster, counters: Counters, tallies: Tallies, *, leaders_switch: bool) -> None:
        self._now: Callable[[], float] = cluster.runtime.now
        self._lock = cluster.runtime.lock()
        self._changes = cluster.changes
        self._flights = cluster.flights
        self._post = cluster.runtime.post
        self._counters = counters
        self._tallies = tallies
        self._leaders_switch = leaders_switch
        self.losses = LossMemory()
        self.budget = RetryBudget(cluster.settings.max_size, self._now())

    def landed(self, request: Request) -> None:
        """An attempt of a call has ended: deaths from now on are not those that it was under way at."""
        if request.sent_after is None:
            request.sent_after = self.losses.deaths

    def decide(self, request: Request, where: Life, error: Exception, fault: Fault, *, repeatable: bool) -> Action:
        """What happens after an attempt that failed; the request notes the attempt and its loss.

        Args:
            request: The call.
            where: The node it was sent to, in which of its lives.
            error: What happened.
            fault: What that means.
            repeatable: Whether it may be sent twice.
        """
        request.sent += fault is not Fault.NOT_SENT
        losses = self._lost(request, where, error, repeatable=repeatable) if fault is Fault.LOST else 0
        if fault is Fault.STATEMENT and self.losses.suspects:
            self.answered(request)
        for_replica = request.role is Role.REPLICA
        switching_for = self._switching_for(request) if fault is Fault.NOT_LEADER and self._leaders_switch else None
        call = Call(repeatable, request.sent, losses, request.prepared_again, for_replica, switching_for)
        action = decide(fault, call)
        if action not in _COSTS or fault is Fault.NOT_SENT:
            return action
        self._tallies.book()
        with self._lock:
            if self.budget.spend(sum(self._counters.calls.values()), self._now()):
                return action
            self._counters.retries_refused += 1
        request.not_again = BUDGET_IS_SPENT
        return Action.RAISE

    def answered(self, request: Request) -> None:
        """A server answered a call: nothing is held against its statement any more."""
        with self._lock:
            self.losses.answered(request.query, request.args, self._now())

    def _switching_for(self, request: Request) -> float:
        now = self._now()
        if request.refused_since is None:
            request.refused_since = now
        return now - request.refused_since

    def _lost(self, request: Request, where: Life, error: Exception, *, repeatable: bool) -> int:
        if request.ended:  # by ourselves
            request.ended = False
            return 0
        request.losses += 1
        if is_goodbye(error):
            return 0
        request.deaths += 1
        if not repeatable:  # it is not sent again anyway, and may never be answered
            return request.deaths
        with self._lock:
            before = self.losses.deaths
            sent_after = before if request.sent_after is None else request.sent_after
            known = self.losses.lost(request.query, request.args, where, sent_after, self._now())
            if self.losses.deaths > before:
                self._note_those_aloft(before)
        self._post(self._changes.ring)  # from now on, answers matter
        if known > request.deaths:
            request.not_again = IS_SUSPECT
        return max(request.deaths, known)

    def _note_those_aloft(self, before: int) -> None:
        """A death became known: whatever is under way was sent before it. So no call has to look when it is sent."""
        for _, request in self._flights.aloft():
            if request.sent_after is None:
                request.sent_after = before
