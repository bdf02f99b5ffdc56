"""Where one call goes as of now, and whether its route is still right.

Plans are made from the compiled route of the text and the snapshot's planner. What is not known yet is asked for, and
what is known is compared with the server's answer now and then, in the background. Nothing is sent, and nothing waits.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from picopyn.dialects.base import Capability, Dialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.request import MANY, Request
from picopyn.engine.route_table import CompiledRoute, RouteTable
from picopyn.engine.tallies import Tallies
from picopyn.errors import PoolClosed
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Plan, Role, Wait
from picopyn.routing.route import RouteKind

#: Stands for the number of calls until the next check of a route while that number is being found out.
NOT_SOON = 1_000_000

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


class CallRouter:
    """Plans calls on a cluster. Owned by an executor.

    Args:
        cluster: Planner and reachability.
        routes: Compiled routes by text.
        learner: Learns about texts.
        dialect: The kind of server.
        counts: Reason → calls.

    Attributes:
        closed: The pool closes: calls are refused.
    """

    __slots__ = ("_cluster", "_compiled", "_counts", "_dialect", "_learner", "_routes", "_sharded", "closed")

    def __init__(
        self,
        cluster: Cluster,
        routes: RouteTable,
        learner: Learner,
        dialect: Dialect,
        counts: MutableMapping[str, int],
    ) -> None:
        self.closed = False
        self._counts = counts
        self._cluster = cluster
        self._routes = routes
        self._compiled = routes.compiled
        self._learner = learner
        self._dialect = dialect
        self._sharded = Capability.SHARDED in dialect.capabilities

    @property
    def tallies(self) -> Tallies:
        """The calls of each text."""
        return self._routes.tallies

    def plan(self, request: Request) -> Plan:
        """Plan a call; the request keeps the plan, and the route it was made from.

        Raises:
            PoolClosed: The pool is closed.
        """
        if self.closed:
            raise PoolClosed("the pool is closed")
        if request.method in MANY:  # its rows may have any owner
            request.plan = plan = (
                self._cluster.planner.spread(None) if self._sharded else self._cluster.planner.for_host(request.role)
            )
            return plan
        request.route = route = self._compiled.get(request.query) or self._find_route(request)
        if route is not None and route.bucket is not None:
            bucket = route.bucket(request.args)
            if bucket is not None:
                read = request.role is not _LEADER and self._dialect.is_read(request.query)
                request.plan = plan = self._cluster.planner.for_bucket(
                    route.tier, bucket, request.role, read, route.reason
                )
                return plan
        request.plan = plan = self._plan_unkeyed(request, route)
        return plan

    def _find_route(self, request: Request) -> CompiledRoute | None:
        """The route of a text that is not compiled yet, where there can be one; learning may begin."""
        if not self._sharded:
            return None
        self._cluster.runtime.post(partial(self._routes.get, request.query))
        return self._compiled.get(request.query)

    def _plan_unkeyed(self, request: Request, route: CompiledRoute | None) -> Plan:
        """Plan a call that does not belong to one bucket, as far as is known."""
        planner = self._cluster.planner
        if not self._sharded:
            return planner.for_host(request.role)
        if route is None:
            return self._plan_unknown(request)
        if route.buckets is not None:
            buckets = route.buckets(request.args)
            if buckets is not None:
                read = request.role is not _LEADER and self._dialect.is_read(request.query)
                return planner.for_buckets(route.tier, buckets, request.role, read)
        elif route.route.kind is RouteKind.ANY_NODE:
            return planner.anywhere()
        return planner.spread(route.route.tier, route.otherwise)

    def _plan_unknown(self, request: Request) -> Plan:
        plan = self._cluster.planner.unlearned()
        if plan.wait is not Wait.LEARN:
            return plan
        if self._dialect.never_hangs(request.query):
            return self._cluster.planner.anywhere()
        if request.asked or not self._dialect.can_be_asked(request.query):
            return Plan((), plan.reason, wait=Wait.TIER, missing=plan.missing)
        return plan

    # learning

    def answered(self, request: Request, plan: Plan) -> None:
        """A call was answered: it is counted, and now and then compared with what the server says."""
        self._counts["waited_for_leader" if request.waited else plan.reason] += 1
        route = request.route
        if route is not None:
            route.tally[plan.reason] += 1
            route.check_in -= 1
            if route.check_in <= 0:
                route.check_in = NOT_SOON
                self._cluster.runtime.post(partial(self._offer_check, route, request))
        elif self._sharded:
            self._routes.tallies.of(request.query)[plan.reason] += 1

    def needs_leader(self, request: Request) -> None:
        """A node said that it is not the leader, so the call is for one; nothing new where statements have owners."""
        if not self._sharded:
            request.role = _LEADER

    def doubt(self, request: Request) -> None:
        """A node says that a call's rows are elsewhere: compare the route with the server's answer."""
        self._cluster.runtime.post(partial(self._learner.check_later, request.query, request.args))

    def learn(self, query: str) -> None:
        """Ask about a text now; everybody who waits plans again when that is answered."""
        self._cluster.spawn(self._learn(query), "picopyn learn")

    def forget(self, query: str) -> None:
        """What was learned about a text is outdated."""
        self._cluster.runtime.post(partial(self._learner.evict, query))

    def _offer_check(self, route: CompiledRoute, request: Request) -> None:
        route.check_in = self._learner.check_later(request.query, request.args)

    async def _learn(self, query: str) -> None:
        await self._learner.get_query_metadata(query)
        self._cluster.changes.ring()
