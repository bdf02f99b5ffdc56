"""Which planner a cluster gets for a snapshot: by owners, by roles or places of hosts, or by load alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from picopyn.routing.balance_policies import POLICIES, BalancerPolicy
from picopyn.routing.health import Health
from picopyn.routing.host_plan import HostPlanner, ReadRules
from picopyn.routing.host_table import HostTable
from picopyn.routing.leader_table import LeaderTable
from picopyn.routing.placement_plan import PlacementPlanner
from picopyn.routing.plan import PLAIN, STRICT, Flavour, Planner
from picopyn.routing.server_table import ServerTable
from picopyn.routing.tablet_plan import TabletPlanner, Welcome
from picopyn.settings import PoolSettings
from picopyn.topology import Node, TopologySnapshot


class Planners:
    """Makes a planner for each snapshot. Owned by a cluster.

    Args:
        health: Reachability of the nodes.
        load: Calls a node serves now, by uuid.
        rng: Source of randomness.
        settings: What the user wants among hosts with roles, and of keyed calls.
        hangs: Whether a forwarded statement hangs while any leader of its tier is missing.
        alone: Whether a server of this version executes by itself what concerns its own rows only.
        hosts: What is known of hosts with roles, or of servers with places; None: nodes have neither.
        leaders: Who leads tablets; None: there are none, or calls are not to go to them.

    Attributes:
        hosts: See above.
        rng: Source of randomness.
        draining: The nodes that nothing is planned for by uuid, as they were when that was said; some may have left.
    """

    __slots__ = ("_alone", "_hangs", "_health", "_keyed", "_leaders", "_load", "_rules", "draining", "hosts", "rng")

    def __init__(
        self,
        health: Health,
        load: Callable[[str], int],
        rng: Random,
        settings: PoolSettings,
        *,
        hangs: bool,
        alone: Callable[[str], bool],
        hosts: HostTable | ServerTable | None,
        leaders: LeaderTable | None = None,
    ) -> None:
        self.rng = rng
        self.draining: dict[str, Node] = {}
        self._health = health
        self._load = load
        self._hangs = hangs
        self._alone = alone
        self.hosts = hosts
        self._keyed: Flavour = STRICT if settings.strict_routing else PLAIN
        self._leaders = leaders
        self._rules = ReadRules(
            settings.fallback_master,
            settings.master_as_replica_weight,
            _balancer(settings.balancer_policy),
            warmed=settings.min_size > 0,
        )

    def make(self, snapshot: TopologySnapshot) -> Planner:
        """The planner of a snapshot."""
        snapshot = self.seen(snapshot)
        placed = self._placed(snapshot)
        if self._leaders is None:
            return placed
        is_down = self._health.is_down
        welcome = placed.welcome() if isinstance(placed, PlacementPlanner) else Welcome(is_down=is_down)
        return TabletPlanner(placed, self._health, self._load, self.rng, self._leaders, welcome)

    def _placed(self, snapshot: TopologySnapshot) -> Planner:
        if isinstance(self.hosts, ServerTable):
            return PlacementPlanner(snapshot, self._health, self._load, self.rng, self.hosts)
        if self.hosts is not None:
            return HostPlanner(snapshot, self._health, self._load, self.rng, self.hosts, self._rules)
        return Planner(
            snapshot, self._health, self._load, self.rng, hangs=self._hangs, keyed=self._keyed, alone=self._alone
        )

    def seen(self, snapshot: TopologySnapshot) -> TopologySnapshot:
        """A snapshot as plans are made from it."""
        return snapshot.with_draining(self.draining.keys()) if self.draining else snapshot


def _balancer(policy: str | BalancerPolicy) -> BalancerPolicy | None:
    """The function; None for the least loaded, which planners find faster by themselves."""
    if not isinstance(policy, str):
        return policy
    return None if policy == "greedy" else POLICIES[policy]
