"""The waits of a call before it can be sent: for a connection, for a change of the cluster, for a newer look at it.

Every wait ends by the call's patience: its own timeout, else `acquire_timeout` within `command_timeout`; and what it
raises then says what was waited for.
"""

from __future__ import annotations

from contextlib import suppress

from picopyn.engine import failures
from picopyn.engine.call_router import CallRouter
from picopyn.engine.cluster import Cluster
from picopyn.engine.journal import Journal
from picopyn.engine.node_pool import HookFailed, NodePool, NodeUnreachable, QueueFull
from picopyn.engine.request import Request
from picopyn.engine.runtime import Link, Waiter
from picopyn.errors import AuthenticationFailed, Fault, OutcomeUnknown, PoolClosed
from picopyn.routing.plan import FOR_LEADER, Plan, Wait
from picopyn.topology import Node

#: First pause after a whole round of candidates failed without the cluster having changed (seconds); it doubles.
BACK_OFF = 0.05
LONGEST_BACK_OFF = 1.0


class Waits:
    """Where calls wait. Owned by an executor.

    Args:
        cluster: Node pools, snapshot, reachability.
        router: Plans anew after a wait, and has texts learned.
        journal: Where what ended in vain is counted.
    """

    __slots__ = ("_acquire_timeout", "_changes", "_cluster", "_journal", "_now", "_router")

    def __init__(self, cluster: Cluster, router: CallRouter, journal: Journal) -> None:
        self._acquire_timeout = cluster.settings.acquire_timeout
        self._changes = cluster.changes
        self._cluster = cluster
        self._journal = journal
        self._now = cluster.runtime.now
        self._router = router

    async def for_link(
        self, request: Request, pool: NodePool, version: int | None = None, turn: Waiter[Link] | None = None
    ) -> Link | None:
        """Wait for a connection of one node pool.

        Args:
            request: The call.
            pool: The node pool.
            version: Of the cluster's changes, as of when the call was planned: after another one, it is looked whether
                it still goes there. None: whatever happens, it does.
            turn: A place in the queue, if the call has one.

        Returns:
            The connection; None: that node gives none, or is not the right one any more; another may be tried.
        """
        try:
            link = await pool.take(self.patience(request), request, turn)
        except (NodeUnreachable, HookFailed, QueueFull, TimeoutError) as error:
            failure = error
        else:
            if version is None or version == self._changes.version or self._still_goes_to(pool, request, link):
                return link
            pool.give(link)
            return None
        self._give_up(request, pool, failure)  # out here, so that a hook's own error comes as it was raised
        return None

    def _give_up(self, request: Request, pool: NodePool, error: Exception) -> None:
        """Say why there is no connection; of a node that cannot be reached only note it, for there may be others."""
        if isinstance(error, NodeUnreachable):
            self._unreachable(request, pool.node, error)
        elif isinstance(error, HookFailed):
            raise error.__cause__ or PoolClosed("a connection was not set up")
        elif isinstance(error, QueueFull):
            self._journal.counters.too_many_waiting += 1
            raise failures.too_many_waiting(request, pool.node, pool.state) from None
        else:
            what = f"a free connection to {pool.node.name} ({pool.node.address}: {pool.state})"
            raise self._not_acquired(request, what) from pool.cause or error

    def _still_goes_to(self, pool: NodePool, request: Request, link: Link) -> bool:
        """Whether a call that has waited may be sent there: its leader may be elsewhere, or it would hang by now.

        A change that has nothing to do with the call does not cost it its place.
        """
        try:
            candidates = self._router.plan(request).candidates
        except BaseException:
            pool.give(link)
            raise
        return any(self._cluster.pools_by_key.get(candidate.key) is pool for candidate in candidates)

    async def for_change(self, request: Request, plan: Plan, version: int) -> None:
        """Wait for a change that came after the plan was made."""
        if plan.wait is Wait.LEARN:
            request.asked = True
            self._router.learn(request.query)
        self._cluster.ask_refresh()
        request.waited = request.waited or plan.wait in FOR_LEADER
        try:
            await self._changes.wait(self.patience(request), version)
        except TimeoutError as error:
            what = failures.awaited(plan, self._cluster.snapshot)
            raise self._not_acquired(request, what, plan.note) from self._cluster.failure or error

    async def pause(self, request: Request, rounds: int, version: int | None = None) -> None:
        """Every candidate was tried in vain: wait for a change, but not for long."""
        if self._router.closed:
            raise request.annotate(PoolClosed("the pool is closed"))
        patience, now = self.patience(request), self._now()
        if patience is not None and now >= patience:
            raise self._not_acquired(request, "a reachable node") from self._cluster.failure
        await self.for_a_while(request, rounds, version)

    async def for_a_while(self, request: Request, times: int, version: int | None) -> None:
        """Wait for a change, but not for long, and the longer the more often it was in vain."""
        pause = self._now() + min(BACK_OFF * 2.0 ** min(times, 10), LONGEST_BACK_OFF)
        patience = self.patience(request)
        with suppress(TimeoutError):
            await self._changes.wait(pause if patience is None else min(patience, pause), version)

    async def for_look(self, request: Request, doubtful: Node) -> bool:
        """Wait for the result of a look that begins now or later: one under way may have seen what was before.

        The server may tell who leads in the place of a doubtful node before that: then there is nothing to wait for.

        Returns:
            Whether there is a look; without one, the next candidate may know better.
        """
        changes, look = self._changes, await self._cluster.next_look(doubtful)
        if look is None:
            return False
        version, leader = changes.version, self._cluster.snapshot.leader(doubtful.replicaset_uuid)
        try:
            while changes.look < look and not self._router.closed and not self._is_replaced(doubtful, leader):
                await changes.wait(self.patience(request), version)
                version = changes.version
        except TimeoutError as error:
            raise self._not_acquired(request, "a newer look at the cluster") from error
        return True

    def _is_replaced(self, doubtful: Node, leader: Node | None) -> bool:
        """Whether another node leads since a wait began in which a doubtful one did."""
        if leader is None or leader.uuid != doubtful.uuid:
            return False
        now = self._cluster.snapshot.leader(doubtful.replicaset_uuid)
        return now is not None and now.uuid != leader.uuid

    def patience(self, request: Request) -> float | None:
        """Until when a call may wait to be sent: its own timeout, else `acquire_timeout` within `command_timeout`."""
        patience, limit = request.patience, self._acquire_timeout
        if patience is None:
            patience = request.deadline
            if limit is not None:
                end = self._now() + limit
                patience = end if patience is None else min(end, patience)
            request.patience = patience
        return patience

    def _unreachable(self, request: Request, node: Node, error: NodeUnreachable) -> None:
        cause = error.__cause__
        if isinstance(cause, Exception) and self._cluster.fault(cause) is Fault.AUTH:
            refused = AuthenticationFailed(f"{node.address}: {failures.first_line(cause)}")
            raise request.annotate(refused) from cause
        request.tried(node, "connecting", str(error))

    def _not_acquired(self, request: Request, awaited: str, mode: str = "") -> Exception:
        if self._router.closed:
            return request.annotate(PoolClosed("the pool was closed while the call waited"))
        own = request.patience == request.deadline
        limit = request.timeout if own else self._acquire_timeout
        if mode and not request.losses:
            return failures.forbidden(request, mode, limit or 0.0, self._cluster.snapshot, self._cluster.health)
        told = failures.not_acquired(request, awaited, limit or 0.0, self._cluster.snapshot, self._cluster.health)
        if isinstance(told, OutcomeUnknown) and request.node is not None:
            self._journal.outcome_lost(request.node, "connection lost")
        else:
            self._journal.counters.acquire_timeouts += 1
        return told
