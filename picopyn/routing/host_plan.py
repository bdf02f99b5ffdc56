"""Where a call of a primary with replicas may go: hosts by role, the fresh ones first.

The order for whoever may read off the leader: fresh replicas, then the primary where it may answer, then replicas that
are too far behind, and where there is none of these the call waits. What follows the first candidate is only tried when
that one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from picopyn.errors import UsageError
from picopyn.routing.balance import UNCONNECTED, lightest
from picopyn.routing.balance_policies import BalancerPolicy, Equals
from picopyn.routing.health import Health
from picopyn.routing.host_roles import GROUP
from picopyn.routing.host_table import HostTable
from picopyn.routing.plan import Plan, Planner, Ring, Role, Wait
from picopyn.routing.staleness import Freshness
from picopyn.topology import Node, TopologySnapshot

_LEADER: Final = Role.LEADER
#: Calls for which the weight of the primary counts.
_READS: Final = (Role.REPLICA, Role.PREFER_REPLICA)

#: Hosts that are equally good, the better ones first.
Groups = Sequence[Sequence[Node]]


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Who else may answer those who asked for a replica, and which of several equals does.

    Attributes:
        fallback_master: Where there is no fresh replica, the primary answers.
        master_weight: Probability (0 … 1) with which the primary counts as one of the fresh replicas.
        policy: Chooses among equals; None: the least loaded.
        warmed: Connections are made without calls, so a host that has none yet need not be chosen to get one.
    """

    fallback_master: bool = False
    master_weight: float = 0.0
    policy: BalancerPolicy | None = None
    warmed: bool = False


@dataclass(frozen=True, slots=True)
class Sorted:
    """The hosts that have a role.

    Attributes:
        leader: The primary; None where there is none now.
        fresh: Replicas that are near enough; where all hosts are equals: all of them.
        stale: Replicas that are too far behind.
        equals: Nobody leads, and everybody may.
    """

    leader: Node | None = None
    fresh: tuple[Node, ...] = ()
    stale: tuple[Node, ...] = ()
    equals: bool = False


def sort(snapshot: TopologySnapshot, freshness: Mapping[str, Freshness]) -> Sorted:
    """Sort the hosts of a snapshot by their roles; those without one are left out, and replicas not to be trusted."""
    members = tuple(node for node in snapshot.members(GROUP) if node.reachable)
    if not snapshot.leader_known(GROUP):
        return Sorted(fresh=members, equals=True)
    leader = snapshot.leader(GROUP)
    leader = leader if leader in members else None
    replicas = [node for node in members if node is not leader]
    fresh = tuple(n for n in replicas if freshness.get(n.uuid, Freshness.FRESH) is Freshness.FRESH)
    return Sorted(leader, fresh, tuple(n for n in replicas if freshness.get(n.uuid) is Freshness.STALE))


def groups(role: Role, hosts: Sorted, *, fallback: bool = False, with_leader: bool = False) -> Groups:
    """Who may answer, best first; empty where nobody may.

    Args:
        role: Whom the call asks for.
        hosts: The hosts.
        fallback: The primary may answer for a missing fresh replica, although the role does not say so.
        with_leader: This once, the primary counts as a fresh replica.
    """
    if hosts.equals:
        return [] if role is Role.REPLICA or not hosts.fresh else [hosts.fresh]
    leader = () if hosts.leader is None else (hosts.leader,)
    if role is Role.LEADER:
        found: Groups = [leader]
    elif role is Role.PREFER_LEADER:
        found = [leader, hosts.fresh, hosts.stale]
    elif role is Role.ANY or (with_leader and hosts.fresh):
        found = [(*hosts.fresh, *leader), hosts.stale]
    elif role is Role.PREFER_REPLICA or fallback or with_leader:
        found = [hosts.fresh, leader, hosts.stale]
    else:
        found = [hosts.fresh, hosts.stale]
    return [group for group in found if group]


class HostPlanner(Planner):
    """Makes plans for one snapshot of a group of hosts.

    Args:
        snapshot: The hosts as last seen.
        health: Their reachability.
        load: Calls a node serves now, by uuid.
        rng: Source of randomness.
        table: How the replicas stand; read at every plan.
        rules: What the user wants beyond the role.
    """

    __slots__ = ("_drawn", "_freshness", "_hosts", "_leading", "_reading", "_rules", "_table", "_turns")

    def __init__(
        self,
        snapshot: TopologySnapshot,
        health: Health,
        load: Callable[[str], int],
        rng: Random,
        table: HostTable,
        rules: ReadRules,
    ) -> None:
        super().__init__(snapshot, health, load, rng, hangs=False)
        self._table = table
        self._rules = rules
        self._turns = {role: count() for role in Role}
        self._sort()

    def for_host(self, role: Role) -> Plan:
        """Plan a call for a role."""
        if self._freshness is not self._table.freshness:
            self._sort()
        if self._doubted:
            return self._plan(role, self._ring(role, self._with_leader(role), doubted=True))
        if role is _LEADER:
            return self._plan(role, self._leading)
        rings = self._drawn if self._rules.master_weight and self._with_leader(role) else self._reading
        try:
            ring = rings[role]
        except KeyError:
            ring = rings[role] = self._ring(role, rings is self._drawn)
        return self._plan(role, ring)

    def alone(self) -> Plan | None:
        """What `for_host` says of every call for a leader; see `Planner`. No policy is asked."""
        ring = self._leading
        return ring.plan(0) if ring is not None and len(ring.nodes) == 1 else None

    def anywhere(self, role: Role | None = None, *, fallback: bool | None = None, weight: float | None = None) -> Plan:
        """Where to take a connection from; without a role it is the leader, who takes everything.

        Args:
            role: Whom it shall lead to.
            fallback: Wins over the rule of the pool, for this once.
            weight: The same.
        """
        role = role or _LEADER
        if fallback is None and weight is None:
            return self.for_host(role)
        if self._freshness is not self._table.freshness:
            self._sort()
        with_leader = self._with_leader(role, weight)
        return self._plan(role, self._ring(role, with_leader, doubted=bool(self._doubted), fallback=fallback))

    def _sort(self) -> None:
        freshness = self._table.freshness
        self._hosts = sort(self.snapshot, freshness)
        self._reading: dict[Role, Ring | None] = {}
        self._drawn: dict[Role, Ring | None] = {}
        self._leading = self._ring(_LEADER)
        self._freshness = freshness  # last, for callers may have threads of their own

    def _with_leader(self, role: Role, weight: float | None = None) -> bool:
        """Whether the primary counts as a fresh replica for this call."""
        return role in _READS and self._rng.random() < (self._rules.master_weight if weight is None else weight)

    def _ring(
        self, role: Role, with_leader: bool = False, *, doubted: bool = False, fallback: bool | None = None
    ) -> Ring | None:
        """The best hosts for a role, with the others behind them; None where there is none now."""
        fallback = self._rules.fallback_master if fallback is None else fallback
        found = groups(role, self._hosts, fallback=fallback, with_leader=with_leader)
        if doubted:
            is_down = self._health.is_down
            living = ([node for node in group if not is_down(node.uuid)] for group in found)
            found = [group for group in living if group]
        if not found:
            return None
        best, *others = found
        leads_off = self._hosts.leader in best or self._hosts.equals
        reason = "any" if leads_off else "replica_read"
        return Ring(best, reason, direct=True, others=[node for group in others for node in group])

    def _plan(self, role: Role, ring: Ring | None) -> Plan:
        if ring is None:
            return Plan((), "any", wait=Wait.REPLICA if role in _READS else Wait.PRIMARY)
        policy = self._rules.policy
        if policy is None:
            return ring.plan(lightest(ring.uuids, self._load, self._rng))
        ready = self._ready(ring)
        if len(ready) == 1:
            return ring.plan(ready[0])
        nodes = tuple(map(ring.nodes.__getitem__, ready))
        chosen = policy(Equals(nodes, self._load, self._table.latency, next(self._turns[role]), self._rng))
        if not 0 <= chosen < len(nodes):
            raise UsageError(f"the balancer policy chose {chosen!r} of {len(nodes)} hosts")
        return ring.plan(ready[chosen])

    def _ready(self, ring: Ring) -> Sequence[int]:
        """Positions of the hosts that have a connection, where they get one anyway; else all."""
        everybody = range(len(ring.nodes))
        if not self._rules.warmed:
            return everybody
        return [n for n in everybody if self._load(ring.uuids[n]) < UNCONNECTED] or everybody
