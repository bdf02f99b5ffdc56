"""Where one call goes as of now, and whether its route is still right.

Plans are made from the compiled route of the text and the snapshot's planner. What is not known yet is asked for, and
what is known is compared with the server's answer now and then, in the background. Nothing is sent, and nothing waits.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.engine import failures
from picopyn.engine.cluster import Cluster
from picopyn.engine.express import Express
from picopyn.engine.request import MANY, Request, check_text
from picopyn.engine.retries import Retries
from picopyn.engine.route_table import CompiledRoute, RouteTable
from picopyn.engine.runtime import Waiter
from picopyn.engine.tallies import NEVER, Count, Tallies
from picopyn.errors import PoolClosed
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import OFF_LEADER, Plan, Role, Wait
from picopyn.routing.route import RouteKind

#: A name costs a call less than the member of an enumeration.
_LEADER: Final = Role.LEADER


class Learner(Protocol):
    """What the executor asks of the metadata service."""

    async def get_query_metadata(self, query: str) -> PreparedStatementMetadata | None:
        """Learn about a text now, and wait for it."""
        ...

    def evict(self, query: str) -> None:
        """Forget what is known of a text."""
        ...

    def check_later(self, query: str, args: Sequence[Any]) -> int:
        """Compare, in the background, where a call went with what the server says.

        Returns:
            The how manieth call of the text from now on is to be offered next.
        """
        ...

    def check(self, query: str, args: Sequence[Any]) -> None:
        """The same for a call that is checked out of turn, since something speaks against the route."""
        ...


class CallRouter:
    """Plans calls on a cluster. Owned by an executor.

    Args:
        cluster: Planner and reachability.
        routes: Compiled routes by text.
        learner: Learns about texts.
        dialect: The kind of server.
        counts: Reason → calls.
        retries: Is told of answers to statements that are suspect.

    Attributes:
        closed: The pool closes: calls are refused; see `refuse`.
        express: The short way of most calls, which need no plan from here.
    """

    __slots__ = (
        "_cluster",
        "_compiled",
        "_counts",
        "_dialect",
        "_doubted",
        "_learner",
        "_losses",
        "_retries",
        "_routes",
        "_sharded",
        "closed",
        "express",
    )

    def __init__(
        self,
        cluster: Cluster,
        routes: RouteTable,
        learner: Learner,
        dialect: Dialect,
        counts: MutableMapping[str, int],
        retries: Retries,
    ) -> None:
        self.closed = False
        owners = Capability.SHARDED in dialect.capabilities
        self.express = Express(cluster, routes, retries.losses.suspects, owners=owners)
        self._retries = retries
        self._losses = retries.losses
        self._counts = counts
        self._cluster = cluster
        self._routes = routes
        self._compiled = routes.compiled
        self._learner = learner
        self._dialect = dialect
        self._sharded = Capability.SHARDED in dialect.capabilities
        self._doubted = cluster.health.doubted

    @property
    def _learns(self) -> bool:
        """Whether statements may have owners, or leaders that save them a hop."""
        return self._sharded or self._cluster.planner.by_tablets

    def refuse(self) -> None:
        """Refuse every call from now on."""
        self.closed = True
        self.express.close()

    @property
    def tallies(self) -> Tallies:
        """The calls of each text."""
        return self._routes.tallies

    def plan(self, request: Request) -> Plan:
        """Plan a call; the request keeps the plan, and the route it was made from.

        Raises:
            PoolClosed: The pool is closed.
            PicopynError: The caller said where it goes, and there is no such place; see `Place.plan`.
        """
        express = self.express
        alone = express.alone if express.is_open else None  # in this order: `open` does it the other way round
        if alone is None or request.place is not None or request.role is not _LEADER:
            plan = self._plan(request)
        else:
            plan = alone[0]
        request.plan = plan
        return plan

    def _plan(self, request: Request) -> Plan:
        if self.closed:
            raise request.annotate(PoolClosed("the pool is closed"))
        planner = self._cluster.planner
        if request.role is Role.REPLICA and self._sharded:
            self._check_reads(request)
        if request.place is not None:
            return request.place.plan(planner, self._dialect, request.role, read=self._reads_off(request))
        request.route = route = self._compiled.get(request.query) or self._find_route(request)
        if route is None or not route.limit:
            return self._plan_unkeyed(request, route)
        if not (planner.by_tablets or self._losses.suspects):
            self._hurry(request.query, route)
        bucket = route.bucket(request.args)
        if bucket is None:
            return self._plan_unkeyed(request, route)
        return planner.for_bucket(route.tier, bucket, request.role, self._reads_off(request), route.reason)

    def _hurry(self, query: str, route: CompiledRoute | None = None) -> None:
        """Let the next call of a text go the short way, if it may."""
        express = self.express
        if not (self._doubted or (express.is_open and express.routes.get(query) is route)):
            self._cluster.runtime.post(express.open if route is None else partial(express.admit, query, route))

    def _reads_off(self, request: Request) -> bool:
        """Whether it is a read that may be answered by others than leaders, at least while those are away."""
        return request.role is not _LEADER and self._dialect.is_read(request.query)

    def _check_reads(self, request: Request) -> None:
        """Refuse what a replica cannot do: it would forward a write to its leader, and say nothing about it."""
        if request.method in MANY or not self._dialect.is_read(request.query):
            raise failures.may_write(request.called)

    def _find_route(self, request: Request) -> CompiledRoute | None:
        """The route of a text that is not compiled yet, where there can be one; learning may begin."""
        if not self._learns:
            return None
        check_text(request.query, request.called)
        self._cluster.runtime.post(partial(self._routes.get, request.query))
        return self._compiled.get(request.query)

    def _plan_unkeyed(self, request: Request, route: CompiledRoute | None) -> Plan:
        """Plan a call that does not belong to one bucket, as far as is known."""
        planner = self._cluster.planner
        if not self._learns:
            self._hurry(request.query)
            return planner.for_host(request.role)
        if not self._sharded:
            return planner.beside(request.role, "unlearned" if route is None else route.otherwise)
        if route is None:
            return self._plan_unknown(request)
        if route.buckets is not None:
            buckets = route.buckets(request.args)
            if buckets is not None:
                return planner.for_buckets(route.tier, buckets, request.role, self._reads_off(request))
        elif route.route.kind is RouteKind.ANY_NODE:
            return planner.anywhere(self._role_off(request))
        return planner.spread(route.route.tier, route.otherwise, self._role_off(request))

    def _role_off(self, request: Request) -> Role | None:
        """The role of a read that leaders need not answer; None for everything else."""
        return request.role if request.role in OFF_LEADER and self._dialect.is_read(request.query) else None

    def _plan_unknown(self, request: Request) -> Plan:
        plan = self._cluster.planner.unlearned(self._role_off(request))
        if plan.wait is not Wait.LEARN:
            return plan
        if self._dialect.never_hangs(request.query):
            return self._cluster.planner.anywhere(self._role_off(request))
        if request.asked or not self._dialect.can_be_asked(request.query):
            return Plan((), plan.reason, wait=Wait.TIER, missing=plan.missing)
        return plan

    # learning

    def answered(self, request: Request, plan: Plan) -> None:
        """A call was answered: it is counted, and now and then compared with what the server says."""
        if self._losses.suspects:
            self._retries.answered(request)
        route = request.route
        if route is None or plan.reason != route.reason or request.waited:
            self._count(route, request, plan.reason)
            return
        route.calls = calls = route.calls + 1
        if calls >= route.check_at:
            self.look_closer(route, request)

    def _count(self, route: CompiledRoute | None, request: Request, reason: str) -> None:
        """Count a call that did not go the usual way of its text, or whose text has none."""
        self._counts["waited_for_leader" if request.waited else reason] += 1
        if route is not None or self._sharded:
            self._routes.tallies.of(request.query)[reason] += 1
        if route is not None:
            route.check_at -= 1  # it is a call, too
            if route.calls >= route.check_at:
                self.look_closer(route, request)

    def look_closer(self, route: Count, request: Request) -> None:
        """So many calls were counted that one is offered for a check; or the route is not in use any more."""
        if self._compiled.get(request.query) is not route:
            route.book()
            return
        route.check_at = NEVER  # until it is found out
        self._cluster.runtime.post(partial(self._offer_check, route, request))

    def needs_leader(self, request: Request) -> None:
        """A node said that it is not the leader, so the call is for one; nothing new where statements have owners."""
        if not self._sharded:
            request.role = _LEADER

    def turns_to_leader(self, request: Request, purpose: Purpose, error: Exception) -> bool:
        """Whether a session that only reads refused what only preferred it: nothing was done, so it is for a leader."""
        preferred = purpose is Purpose.REPLICA_READ and request.role is Role.PREFER_REPLICA
        turns = preferred and self._dialect.only_reads(getattr(error, "sqlstate", None))
        if turns:
            request.role = _LEADER
        return turns

    def doubt(self, request: Request) -> None:
        """A node says that a call's rows are elsewhere: compare the route with the server's answer."""
        self._cluster.runtime.post(partial(self._learner.check, request.query, request.args))

    def learn(self, query: str) -> None:
        """Ask about a text now; everybody who waits plans again when that is answered."""
        self._cluster.spawn(self._learn(query), "picopyn learn")

    def forget(self, query: str) -> None:
        """What was learned about a text is outdated."""
        self._cluster.runtime.post(partial(self._learner.evict, query))

    def _offer_check(self, route: Count, request: Request) -> None:
        route.check_at = route.calls + self._learner.check_later(request.query, request.args)

    def known(self, query: str) -> CompiledRoute | None:
        """What is compiled for a text."""
        return self._compiled.get(query)

    async def learned(self, query: str, deadline: float | None) -> PreparedStatementMetadata | None:
        """Learn about a text now, and wait for it, wherever the caller is; its route is compiled afterwards.

        Raises:
            TimeoutError: It took longer than until the deadline.
        """
        asked: Waiter[PreparedStatementMetadata | None] = self._cluster.runtime.waiter()
        self._cluster.spawn(self._learn_for(query, asked), "picopyn learn")
        return await asked.wait(deadline)

    async def _learn_for(self, query: str, asked: Waiter[PreparedStatementMetadata | None]) -> None:
        metadata = None
        try:
            metadata = await self._learner.get_query_metadata(query)
            self._routes.get(query)
        finally:
            asked.wake(metadata)

    async def _learn(self, query: str) -> None:
        await self._learner.get_query_metadata(query)
        self._cluster.changes.ring()
