"""Where a call goes on servers that all execute everything, and where the leader of its tablet saves a hop.

How leaders go together with wishes about places (`topology_keys`, modes that want a type of node):

1. A statement whose key is known goes to the leader of its tablet, if that leader is **welcome**: it is one of the
   nodes that the wishes name, in whatever order; or the wishes name nobody in particular; or no node that they name is
   left, and they allow others then. Keys name nodes before the type of a mode does: another node of the type is next.
2. A read for a replica whose key is known goes where the wishes say, to a node there that holds a copy of the tablet.
3. Everything else goes where the wishes say, as if there were no tablets: calls without a key, and calls whose leader
   is unknown, down, or not welcome. The server there sends them on.

So no node is dialled that would not be dialled anyway, and a leader in the second zone of two that are named is used
while the first one lives: the other way leads over the first zone to the same leader. Nothing ever waits for a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from picopyn.routing.health import Health
from picopyn.routing.leader_table import LeaderTable
from picopyn.routing.plan import FOLLOWING, Candidate, Plan, Planner, Role
from picopyn.topology import Node
from picopyn.topology.tablet_map import TabletMap

#: Plans that are kept under another reason; each keeps the one it was made from, so that its identity stays its own.
_MOST_NAMED: Final = 256


class Welcome:
    """Which leaders are welcome; see the rule of this file.

    Args:
        named: Uuids of the nodes that the wishes name; several such sets: each counts when no node of those before it
            can be reached. None at all: they name nobody in particular.
        others: When no node that is named can be reached, others are allowed.
        is_down: Whether a node cannot be reached.
    """

    __slots__ = ("_is_down", "_named", "_others")

    def __init__(self, *named: Iterable[str], others: bool = True, is_down: Callable[[str], bool]) -> None:
        self._named = tuple(map(frozenset, named))
        self._others = others
        self._is_down = is_down

    def __call__(self, node: Node) -> bool:
        """Whether a leader is welcome now."""
        for named in self._named:
            if node.uuid in named:
                return True
            if not all(map(self._is_down, named)):
                return False
        return self._others


class TabletPlanner(Planner):
    """Makes plans for one snapshot of servers with tablets.

    Args:
        placed: Plans everything that does not go to a leader.
        health: Reachability of the nodes.
        load: Calls a node serves now, by uuid.
        rng: Source of randomness.
        table: The leaders; read at every plan.
        welcome: Which leaders are welcome.
    """

    by_tablets = True
    __slots__ = ("_holders", "_led", "_named", "_nodes", "_placed", "_table", "_tablets", "_welcome")

    def __init__(
        self,
        placed: Planner,
        health: Health,
        load: Callable[[str], int],
        rng: Random,
        table: LeaderTable,
        welcome: Callable[[Node], bool],
    ) -> None:
        super().__init__(placed.snapshot, health, load, rng, hangs=False)
        self._placed = placed
        self._table = table
        self._welcome = welcome
        self._tablets: TabletMap | None = None
        self._led: dict[tuple[str, str], Plan] = {}
        self._nodes: dict[str, Node] = {}
        self._holders: dict[str, frozenset[str]] = {}
        self._named: dict[tuple[int, str], tuple[Plan, Plan]] = {}

    def for_bucket(self, tier: str, bucket: int, role: Role, read: bool, reason: str = "keyed") -> Plan:
        """Plan a call whose statement touches one hash code of a table."""
        tablets = self._table.tablets
        if tablets is not self._tablets:
            self._gather(tablets)
        if role in FOLLOWING:
            return self._near(tablets.holders(tier, bucket), role)
        plan = self._led.get((tablets.owner(tier, bucket) or "", reason))
        if plan is None:
            return self.beside(role, "no_map")
        leader = plan.candidates[0].node
        if leader.uuid in self._doubted or not self._welcome(leader):
            return self.beside(role, "leader_unused")
        return plan

    def _near(self, holders: str, role: Role) -> Plan:
        uuids = self._holders.get(holders)
        if uuids is None:
            found = map(self._nodes.get, holders.split(","))
            uuids = self._holders[holders] = frozenset(node.uuid for node in found if node is not None)
        return self._placed.near(uuids, role)

    def for_buckets(self, tier: str, buckets: Iterable[int], role: Role, read: bool) -> Plan:
        """Plan a call whose statement touches several hash codes: one leader, or else as if it had no key."""
        leaders = {self._table.tablets.owner(tier, bucket): bucket for bucket in buckets}
        if len(leaders) == 1:
            return self.for_bucket(tier, next(iter(leaders.values())), role, read, "key_set")
        return self.beside(role, "spread")

    def beside(self, role: Role, reason: str) -> Plan:
        """Plan a call that does not go to a leader, to be counted under a reason; the same plan is named once."""
        plan = self._placed.for_host(role)
        if plan.wait is not None or plan.reason != "any":
            return plan
        known = self._named.get((id(plan), reason))
        if known is None or known[0] is not plan:
            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            known = self._named[id(plan), reason] = (plan, replace(plan, reason=reason))
        return known[1]

    def for_host(self, role: Role) -> Plan:
        """Plan a call of which nothing is to be known."""
        return self._placed.for_host(role)

    def anywhere(self, role: Role | None = None, *, fallback: bool | None = None, weight: float | None = None) -> Plan:
        """Where to take a connection from."""
        return self._placed.anywhere(role, fallback=fallback, weight=weight)

    def homes(self) -> Sequence[Node]:
        """Where use goes that does not go to a leader."""
        return self._placed.homes()

    def allowed(self) -> Sequence[Node]:
        """Where use may go at all."""
        return self._placed.allowed()

    def leading(self) -> Sequence[Node]:
        """The leaders, as far as they are known, to whom calls go now."""
        leaders = self._table.leaders(self.snapshot)
        return [node for node in leaders if node.uuid not in self._doubted and self._welcome(node)]

    @property
    def mode(self) -> str:
        """The settings that forbid some nodes, for people; empty when none do."""
        return self._placed.mode

    def spread(self, tier: str | None, reason: str = "spread", role: Role | None = None) -> Plan:
        """Plan a call that has no single leader."""
        return self.beside(role or Role.LEADER, reason)

    def unlearned(self, role: Role | None = None) -> Plan:
        """Plan a call whose statement is not known yet."""
        return self.beside(role or Role.LEADER, "unlearned")

    def by_bucket(self, tier: str, reason: str) -> Sequence[Plan | None]:
        """Nothing to be kept: leaders change while the planner stays."""
        return ()

    def spreads(self) -> bool:
        """As without tablets."""
        return self._placed.spreads()

    def alone(self) -> Plan | None:
        """Nothing to be kept: what calls go by changes while the planner stays."""
        return None

    def _gather(self, tablets: TabletMap) -> None:
        """Make a plan per leader: the leader, then whoever else may execute it."""
        others: Sequence[Candidate] = self._placed.for_host(Role.LEADER).candidates
        led = {}
        self._nodes, self._holders = self._table.nodes(self.snapshot), {}
        for leader in tablets.leaders & self._nodes.keys():
            first = Candidate(self._nodes[leader])
            candidates = (first, *(other for other in others if other.key != first.key))
            for reason in ("keyed", "constant", "key_set"):
                led[leader, reason] = Plan(candidates, reason, direct=True)
        self._led, self._tablets = led, tablets
