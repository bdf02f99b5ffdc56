"""The short way of calls whose owner is known: from the text over its bucket straight to a node pool.

Most calls are such: their text is compiled, their key gives a bucket, the leader that owns it is known, and nothing is
wrong anywhere. Their plan need not be made, only looked up. As soon as anything may make plans outdated (`version` of
[`Changes`][picopyn.engine.changes.Changes] rises), the short way is closed; the next call that is planned opens it
again. Where there are no owners, but one node answers everything, its plan is kept in the same way, and statements with
arguments go there: they leave no transaction behind, so their connection need not be looked at.

It is opened where the state of the cluster lives, and looked at by every caller. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from picopyn.engine.cluster import Cluster
from picopyn.engine.node_pool import NodePool
from picopyn.engine.request import Request
from picopyn.engine.route_table import CompiledRoute, Owners, RouteTable
from picopyn.engine.tallies import Count
from picopyn.routing.plan import OFF_LEADER, Plan, Planner, Role

#: A name costs a call less than the member of an enumeration.
_LEADER: Final = Role.LEADER


class Express:
    """Which calls may go the short way. Owned by a call router.

    Args:
        cluster: Planner, reachability and node pools.
        table: The compiled routes.
        suspects: Statements under which nodes died; while there are any, answers are noticed where calls are planned.
        owners: Whether statements have owners.

    Attributes:
        alone: The plan of all calls that ask for a leader, where statements have no owners and one node answers them
            all, and what they are counted by, and taken from; else None.
        routes: The routes whose calls may go this way, by text.
        version: Both count while that of the cluster's changes is this.
    """

    __slots__ = (
        "_changes",
        "_closed",
        "_cluster",
        "_doubted",
        "_has_owners",
        "_owners",
        "_planner",
        "_suspects",
        "_table",
        "alone",
        "routes",
        "version",
    )

    def __init__(
        self, cluster: Cluster, table: RouteTable, suspects: Mapping[Hashable, object], *, owners: bool
    ) -> None:
        self.alone: tuple[Plan, tuple[Count, NodePool]] | None = None
        self.routes = table.express
        self.version = -1
        self._changes = cluster.changes
        self._closed = False
        self._cluster = cluster
        self._doubted = cluster.health.doubted
        self._has_owners = owners
        self._owners: dict[tuple[str, str], Owners] = {}
        self._planner: Planner | None = None
        self._suspects = suspects
        self._table = table

    @property
    def is_open(self) -> bool:
        """Whether it is up to date."""
        return self.version == self._changes.version

    def open(self) -> None:
        """Bring it up to date, if nothing speaks against it."""
        if self._closed or self._doubted:
            return
        planner = self._cluster.planner
        if planner is not self._planner:
            self._planner = planner
            self._owners.clear()
            self.routes.clear()
            plan = None if self._has_owners else planner.alone()
            self.alone = None if plan is None else (plan, self._known(plan))
        self.version = self._changes.version

    def way(self, request: Request) -> tuple[Count, NodePool] | None:
        """What counts a call and where it goes the short way; its plan is noted. None: it has to be planned."""
        role = request.role
        if self._changes.version != self.version or request.place is not None:
            return None
        if role is not _LEADER and role in OFF_LEADER:
            return None
        route = self.routes.get(request.query)  # after the look at the version: `open` does it the other way round
        if route is None:
            return self._common_way(request)
        bucket_of = route.bucket  # a function that is no method costs less by a name of its own
        bucket = bucket_of(request.args)
        owner = None if bucket is None else route.owners[bucket]
        if owner is None:
            return None
        request.plan, pool = owner
        return route, pool

    def _common_way(self, request: Request) -> tuple[Count, NodePool] | None:
        """The same for a call whose text has no route."""
        alone = self.alone
        # Rows of arguments have a place, so they are planned: without arguments in a row, they may leave a transaction.
        if alone is None or not request.args or request.role is not _LEADER or self._suspects:
            return None
        request.plan, known = alone
        return known

    def admit(self, query: str, route: CompiledRoute) -> None:
        """Let calls of a text go this way, if nothing speaks against it."""
        if self._suspects:
            return
        self.open()
        if self.is_open and self._planner is not None and self._table.compiled.get(query) is route:
            owners = self._owners_of(self._planner, route)
            if route.limit <= len(owners):
                route.owners = owners
                self.routes[query] = route

    def close(self) -> None:
        """No call goes this way any more: the pool closes."""
        self._closed = True
        self.routes.clear()
        self.version = -1

    def _known(self, plan: Plan) -> tuple[Count, NodePool]:
        """What calls that all go by one plan are counted by, and taken from."""
        return self._table.textless(plan.reason), self._cluster.pool(plan.candidates[0])

    def _owners_of(self, planner: Planner, route: CompiledRoute) -> Owners:
        """The plan and the node pool of each bucket, by number; all routes of a tier share them."""
        plans = planner.by_bucket(route.tier, route.reason)
        owners = self._owners.get((route.tier, route.reason))
        if owners is None:
            found = {id(plan): (plan, self._cluster.pool(plan.candidates[0])) for plan in plans if plan is not None}
            owners = self._owners[route.tier, route.reason] = [found.get(id(plan)) for plan in plans]
        return owners
