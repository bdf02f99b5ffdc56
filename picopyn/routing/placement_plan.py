"""Where a call on a YugabyteDB may go now: the best group of nodes that works, the least loaded of it first.

A group works where a node of it is connected; so calls move to a better group that recovers as soon as a connection to
it is there, and never wait for one. Until then the group in use goes on.

Calls for a replica go to the same nodes, over connections that read from followers: the server asks the copy that is
closest to the node. Where it is known who holds a copy, such a node of the group saves that hop.

*Source*: `yugabyte-smart-drivers.md` section 7.6 (follower reads).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from picopyn.routing.balance import UNCONNECTED
from picopyn.routing.health import Health
from picopyn.routing.placement import Groups
from picopyn.routing.plan import FOLLOWING, REPLICA_READ, Candidate, Plan, Planner, Ring, Role, Wait
from picopyn.routing.server_table import ServerTable
from picopyn.routing.tablet_plan import Welcome
from picopyn.topology import Node, TopologySnapshot

_OFF_LEADER: Final = "replica_read"
#: Plans that are kept for such reads; each keeps the one it was made from, so that its identity stays its own.
_MOST_FOLLOWING: Final = 256


class PlacementPlanner(Planner):
    """Makes plans for one snapshot of servers that list each other.

    Args:
        snapshot: The servers as last seen, and the hosts of the connection string that none of them listed.
        health: Their reachability.
        load: Calls a node serves now, by uuid; `UNCONNECTED` for one without a connection.
        rng: Source of randomness.
        table: The seeds, and what is wanted.
    """

    __slots__ = ("_best", "_following", "_groups", "_placement", "_servers")

    def __init__(
        self,
        snapshot: TopologySnapshot,
        health: Health,
        load: Callable[[str], int],
        rng: Random,
        table: ServerTable,
    ) -> None:
        super().__init__(snapshot, health, load, rng, hangs=False)
        self._placement = table.placement
        nodes = snapshot.nodes()
        seeds = [node for uuid in table.seeds if (node := snapshot.node(uuid)) is not None and node.reachable]
        self._servers = [node for node in nodes if node.tier] if table.discovered else []
        self._groups: Groups = self._placement.groups(self._servers, seeds)
        self._best = _ring(self._groups) if self._groups else None
        self._following: dict[tuple[int, Role], tuple[Plan, Plan]] = {}

    def for_host(self, role: Role) -> Plan:
        """Plan a call; every node takes every statement, and reads from followers for a role that allows it."""
        return self._follow(self._placed(), role) if role in FOLLOWING else self._placed()

    def near(self, holders: Collection[str], role: Role) -> Plan:
        """Plan a read of one tablet from its copies: by a node of the group in use that holds one, if any does."""
        plan = self._placed()
        group = next((group for group in self._reached() if plan.candidates and plan.candidates[0].node in group), ())
        holding = [node for node in group if node.uuid in holders]
        first = least_loaded([node.uuid for node in holding], self._load, self._rng) if holding else None
        if first is None:
            return self._follow(plan, role)
        others = [each for each in plan.candidates if each.node is not holding[first]]
        candidates = [Candidate(holding[first]), *others]
        return Plan(_following(candidates, role), _OFF_LEADER, direct=True)

    def _follow(self, plan: Plan, role: Role) -> Plan:
        """The same over connections that read from followers; the same plan is turned once."""
        known = self._following.get((id(plan), role))
        if known is None or known[0] is not plan:
            if len(self._following) >= _MOST_FOLLOWING:
                self._following.clear()
            candidates = _following(plan.candidates, role)
            known = self._following[id(plan), role] = (plan, replace(plan, candidates=candidates, reason=_OFF_LEADER))
        return known[1]

    def _placed(self) -> Plan:
        """Plan a call by the wishes alone."""
        best = self._best
        if best is not None and not self._doubted:
            first = least_loaded(best.uuids, self._load, self._rng)
            if first is not None:
                return best.plan(first)
        return self._search()

    def anywhere(self, role: Role | None = None, *, fallback: bool | None = None, weight: float | None = None) -> Plan:
        """Where to take a connection from, as for a call; fall-backs and weights make no difference."""
        return self.for_host(role or Role.LEADER)

    def homes(self) -> Sequence[Node]:
        """The best group that has a node which is not down; the best of all where everything is down."""
        living = self._reached()
        return living[0] if living else next(iter(self._groups), ())

    @property
    def mode(self) -> str:
        """The settings that forbid some nodes, for people; empty when none do."""
        return self._placement.words if self._placement.forbids else ""

    def allowed(self) -> Sequence[Node]:
        """Every node of every group."""
        return [node for group in self._groups for node in group]

    def welcome(self) -> Welcome:
        """Which leaders of tablets are welcome."""
        placement = self._placement
        named = placement.named(self._servers)
        return Welcome(*named, others=not placement.forbids, is_down=self._health.is_down)

    def spreads(self) -> bool:
        """They are."""
        return True

    def alone(self) -> Plan | None:
        """Nothing to be kept: what calls go by changes while the planner stays."""
        return None

    def _search(self) -> Plan:
        """The same where some node is down, or the best group is not connected yet."""
        living = self._reached()
        if not living:
            return self._nobody()
        for number, group in enumerate(living):
            first = least_loaded([node.uuid for node in group], self._load, self._rng)
            if first is not None:
                return _ring((group, *living[:number], *living[number + 1 :])).plan(first)
        return _ring(living).plan(self._rng.randrange(len(living[0])))

    def _nobody(self) -> Plan:
        """Everything that is allowed is down: it is tried all the same, but where living nodes are forbidden."""
        if self._groups and not self._placement.forbids:
            return _ring(self._groups).plan(0)
        return Plan((), "any", wait=Wait.PLACEMENT if self._placement.forbids else Wait.NODES, note=self.mode)

    def _reached(self) -> Groups:
        if not self._doubted:
            return self._groups
        is_down = self._health.is_down
        living = (tuple(node for node in group if not is_down(node.uuid)) for group in self._groups)
        return tuple(group for group in living if group)


def least_loaded(uuids: Sequence[str], load: Callable[[str], int], rng: Random) -> int | None:
    """Position of the node that serves least, each of several with the same chance; None where none is connected."""
    loads = list(map(load, uuids))
    least = min(loads)
    if least >= UNCONNECTED:
        return None
    ties = [position for position, now in enumerate(loads) if now == least]
    return ties[0] if len(ties) == 1 else ties[int(rng.random() * len(ties))]


def _following(candidates: Sequence[Candidate], role: Role) -> tuple[Candidate, ...]:
    """The nodes by connections that read from followers, and where that is only preferred, by plain ones after them."""
    followers = tuple(Candidate(each.node, REPLICA_READ) for each in candidates)
    return followers if role is Role.REPLICA else (*followers, *candidates)


def _ring(groups: Sequence[Sequence[Node]]) -> Ring:
    best, *others = groups
    return Ring(best, "any", direct=True, others=[node for group in others for node in group])
