"""Where a call may go now: the candidates in order, or what it has to wait for.

A plan is made from one immutable snapshot, the reachability of the nodes, and what is known of the statement. It sends
nothing and waits for nothing.

The rule behind it (recorded on Picodata 26.1.6, `picodata-recorded.md` section 1): a statement that is not executed at
its own owner's leader first waits, at the server, until the leaders of *all* replicasets of the tier are connected. So
while one of them is missing, only calls to a healthy owner are sent; everything that would be forwarded waits on our
side, where it holds no connection and no slot of a healthy server.

Servers before 26.1 execute nothing by themselves (25.6, recorded there): what goes to such a node waits for all leaders
of its tier, also at its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import ClassVar, Final, Literal

from picopyn.routing.balance import lightest, order
from picopyn.routing.health import Health
from picopyn.topology import Node, TopologySnapshot


class Role(Enum):
    """Which member of a replicaset may answer."""

    LEADER = "leader"
    PREFER_LEADER = "prefer_leader"
    REPLICA = "replica"
    PREFER_REPLICA = "prefer_replica"
    ANY = "any"

    __hash__ = object.__hash__  # calls look it up; that of enumerations is a function in Python


#: Roles whose reads may be answered off the leader although it lives.
OFF_LEADER: Final = frozenset({Role.REPLICA, Role.PREFER_REPLICA, Role.ANY})

#: The same without the one that does not care who answers.
FOLLOWING: Final = frozenset({Role.REPLICA, Role.PREFER_REPLICA})

#: The kind of connection a candidate needs. Texts, for they are looked up by every call.
Flavour = Literal["plain", "replica reads", "strict"]
PLAIN: Final = "plain"
REPLICA_READ: Final = "replica reads"
STRICT: Final = "strict"


class Wait(Enum):
    """Why no candidate may be tried now."""

    LEADER = "the replicaset that owns the key has no reachable leader"
    TIER = "a replicaset of the tier has no reachable leader, and the server would hang"
    LEARN = "the statement is not learned yet, and it would hang if it is not keyed"
    NODES = "no node of the cluster can be reached"
    PRIMARY = "no host that takes writes can be reached"
    REPLICA = "no replica can be reached"
    PLACEMENT = "no node that may be used can be reached"


#: The call waits until a leader is back.
FOR_LEADER: Final = frozenset({Wait.LEADER, Wait.TIER, Wait.PRIMARY})


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node to try, over one kind of connection.

    Attributes:
        node: The node.
        flavour: The kind of connection.
        key: Both, as a look-up key of node pools.
    """

    node: Node
    flavour: Flavour = PLAIN
    key: tuple[str, Flavour] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.node.uuid, self.flavour))


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a call may go.

    Attributes:
        candidates: What to try, in order; empty when `wait` is set.
        reason: A short word for statistics, one of `picopyn.stats.CALL_REASONS`.
        direct: The first candidate is expected to execute the statement itself.
        wait: Why the call must wait for a change first.
        missing: Replicasets without a reachable leader that the call waits for (their uuids).
        tier: The tier whose rows the statement touches; None when it is not known, or when there are none.
        note: The settings behind `wait`, for people.
        one_owner: Although it is forwarded, exactly one replicaset takes part: what that refuses has not happened.
        needs_all: Although it goes to its owner, the server waits for all leaders of the tier.
    """

    candidates: tuple[Candidate, ...]
    reason: str
    direct: bool = False
    wait: Wait | None = None
    missing: tuple[str, ...] = ()
    tier: str | None = None
    note: str = ""
    one_owner: bool = False
    needs_all: bool = False


class Planner:
    """Makes plans for one snapshot; a new snapshot gets a new planner.

    Args:
        snapshot: The cluster as last seen.
        health: Reachability of its nodes; read at every plan.
        load: Calls a node serves now, by uuid.
        rng: Source of randomness for ties.
        hangs: Whether a forwarded statement hangs while any leader of its tier is missing.
        keyed: The kind of connection for calls whose owner is known.
        alone: Whether a server of this version executes by itself what concerns its own rows only.

    Attributes:
        by_tablets: Keyed calls go to the leaders of tablets, all others as if there were no owners.
    """

    by_tablets: ClassVar[bool] = False
    __slots__ = (
        "_alone",
        "_complete",
        "_doubted",
        "_finished",
        "_hangs",
        "_health",
        "_keyed",
        "_leaders_of",
        "_load",
        "_rings",
        "_rng",
        "snapshot",
    )

    def __init__(
        self,
        snapshot: TopologySnapshot,
        health: Health,
        load: Callable[[str], int],
        rng: Random,
        *,
        hangs: bool,
        keyed: Flavour = PLAIN,
        alone: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.snapshot = snapshot
        self._alone = alone
        self._keyed: Flavour = keyed
        self._health = health
        self._doubted = health.doubted
        self._load = load
        self._rng = rng
        self._hangs = hangs
        self._finished: dict[tuple[str, str], tuple[Plan | None, ...]] = {}
        self._rings: dict[tuple[str | None, str], Ring] = {}
        self._leaders_of: dict[str | None, tuple[Node, ...]] = {}
        self._complete: dict[str | None, bool] = {}

    def for_bucket(self, tier: str, bucket: int, role: Role, read: bool, reason: str = "keyed") -> Plan:
        """Plan a call whose statement touches exactly one bucket."""
        if read and role in OFF_LEADER:
            return self._off_leader(tier, bucket, role, reason)
        plans = self._plans_of(tier, reason)
        plan = plans[bucket] if bucket < len(plans) else None
        if plan is not None and (not self._doubted or not self._health.is_down(plan.candidates[0].node.uuid)):
            return plan if not plan.needs_all else self._if_all_lead(plan)
        owner = self.snapshot.owner(tier, bucket)
        if owner is None:
            return self.spread(tier, "no_map")
        return self._without_leader(tier, owner, role, read=read)

    def by_bucket(self, tier: str, reason: str) -> Sequence[Plan | None]:
        """The plan of each bucket of a tier whose leader is known, for the hot path to look up; it knows no doubts.

        Args:
            tier: The tier.
            reason: What such calls are counted under.

        Returns:
            One for each number that a bucket of the tier can have, whether they are counted from 0 or 1; else none.
        """
        if not self._leads_all(tier) and not all(self._alone(leader.version) for leader in self._leaders(tier)):
            return ()  # they hang
        return self._plans_of(tier, reason)

    def _plans_of(self, tier: str, reason: str) -> Sequence[Plan | None]:
        finished = self._finished.get((tier, reason))
        if finished is None:
            finished = self._finished[tier, reason] = self._finish(tier, reason)
        return finished

    def for_buckets(self, tier: str, buckets: Iterable[int], role: Role, read: bool) -> Plan:
        """Plan a call whose statement touches a set of buckets: one owner, or else as if it had no key."""
        owners = {self.snapshot.owner(tier, bucket): bucket for bucket in buckets}
        if len(owners) == 1:
            return self.for_bucket(tier, next(iter(owners.values())), role, read, "key_set")
        return self.spread(tier, role=role if read else None)

    def anywhere(self, role: Role | None = None, *, fallback: bool | None = None, weight: float | None = None) -> Plan:
        """Plan a call that every node can answer by itself: the least loaded, then the others.

        Args:
            role: Which nodes will do, or come first; None: no difference.
            fallback: For hosts with roles, see `HostPlanner`; nothing here.
            weight: The same.
        """
        if role is not None:
            return self._by_role(role)
        if not self._doubted:
            return self._lightest(None, "any", direct=True)
        return self._among(self.snapshot.nodes(), "any", direct=True)

    def for_host(self, role: Role) -> Plan:
        """Plan a call of a server without owners, whose nodes have no roles."""
        if not self._doubted:
            return self._lightest(None, "any", direct=True)
        return self._among(self.snapshot.nodes(), "any", direct=True)

    def spreads(self) -> bool:
        """Whether calls that could go anywhere are to be the same number at each of the homes."""
        return False

    def alone(self) -> Plan | None:
        """What `for_host` says of every call for a leader, if there is but one node for them and no doubt."""
        plan = self.for_host(Role.LEADER)
        return plan if len(plan.candidates) == 1 else None

    def near(self, holders: Collection[str], role: Role) -> Plan:
        """Plan a read of one tablet from its copies, by nodes with these uuids; here every node is as good."""
        return self.for_host(role)

    def homes(self) -> Sequence[Node]:
        """The nodes where use goes now, as far as a node counts for itself: connections to them are kept ready."""
        return self.snapshot.nodes()

    def leading(self) -> Sequence[Node]:
        """Nodes that calls go to beside their homes, because of their keys."""
        return ()

    @property
    def mode(self) -> str:
        """The settings that forbid some nodes, for people; empty when none do."""
        return ""

    def allowed(self) -> Sequence[Node]:
        """The nodes where use may go at all."""
        return self.snapshot.nodes()

    def beside(self, role: Role, reason: str) -> Plan:
        """Plan a call that goes as if there were no owners, to be counted under a reason."""
        plan = self.for_host(role)
        return plan if plan.wait is not None or plan.reason != "any" else replace(plan, reason=reason)

    def _by_role(self, role: Role) -> Plan:
        if role is Role.LEADER:
            return self._among(self._leaders(None), "any", direct=True)
        candidates = self._preferred(role, *self._parted(None))
        wait = None if candidates else Wait.REPLICA if role is Role.REPLICA else Wait.NODES
        return Plan(candidates, "any", direct=True, wait=wait)

    def spread(self, tier: str | None, reason: str = "spread", role: Role | None = None) -> Plan:
        """Plan a call that the receiving node will forward.

        Args:
            tier: The tier of its rows; None when that is not known.
            reason: What it is counted under.
            role: Of a read that need not be answered by leaders; which members take part, the server decides.
        """
        missing = self._missing_leaders(tier)
        if missing:
            return Plan((), reason, wait=Wait.TIER, missing=missing, tier=tier)
        if role in OFF_LEADER:
            candidates = self._preferred(role, *self._parted(tier))
            wait = None if candidates else Wait.REPLICA if role is Role.REPLICA else Wait.NODES
            return Plan(candidates, reason, wait=wait, tier=tier)
        if not self._doubted:
            return self._lightest(tier, reason)
        return self._among(self._leaders(tier), reason, tier=tier)

    def unlearned(self, role: Role | None = None) -> Plan:
        """Plan a call whose statement is not known yet: it may be of any kind; `role` as for `spread`."""
        plan = self.spread(None, "unlearned", role)
        if plan.wait is Wait.TIER:
            return Plan((), "unlearned", wait=Wait.LEARN, missing=plan.missing)
        return plan

    def _finish(self, tier: str, reason: str) -> tuple[Plan | None, ...]:
        leaders = {r.uuid: self.snapshot.leader(r.uuid) for r in self.snapshot.replicasets()}
        plans: dict[str | None, Plan] = {
            uuid: Plan(
                (Candidate(leader, self._keyed),), reason, True, tier=tier, needs_all=not self._alone(leader.version)
            )
            for uuid, leader in leaders.items()
            if leader is not None and leader.reachable
        }
        shard_map = self.snapshot.shard_map(tier)
        return () if shard_map is None else (*map(plans.get, shard_map.owners), None)

    def _lightest(self, tier: str | None, reason: str, *, direct: bool = False) -> Plan:
        """A finished plan with the least loaded node first, while nothing speaks against any: a node or a leader."""
        ring = self._rings.get((tier, reason))
        if ring is None:
            nodes = filter(self._usable, self.snapshot.nodes() if direct else self._leaders(tier))
            ring = self._rings[tier, reason] = Ring(nodes, reason, direct=direct, tier=tier)
        if not ring.uuids:
            return Plan((), reason, wait=Wait.NODES, tier=tier)
        return ring.plan(lightest(ring.uuids, self._load, self._rng))

    def _off_leader(self, tier: str, bucket: int, role: Role, reason: str) -> Plan:
        """Plan a read of one bucket that need not be answered by its leader."""
        owner = self.snapshot.owner(tier, bucket)
        if owner is None:
            return self.spread(tier, "no_map", role)
        leader, members = self.snapshot.leader(owner), self.snapshot.members(owner)
        unknown = role is Role.REPLICA and not self.snapshot.leader_known(owner)  # then nobody is known to be a replica
        others = () if unknown else [node for node in members if node != leader]
        candidates = self._preferred(role, () if leader is None else (leader,), others, self._keyed)
        if not candidates:
            wait = Wait.REPLICA if role is Role.REPLICA else Wait.LEADER
            return Plan((), reason, wait=wait, missing=(owner,), tier=tier)
        off = candidates[0].node is not leader
        needs_all = not all(self._alone(candidate.node.version) for candidate in candidates)
        plan = Plan(candidates, "replica_read" if off else reason, direct=True, tier=tier, needs_all=needs_all)
        return self._if_all_lead(plan) if needs_all else plan

    def _if_all_lead(self, plan: Plan) -> Plan:
        """A plan that hangs while a leader of its tier is missing."""
        missing = self._missing_leaders(plan.tier)
        return Plan((), plan.reason, wait=Wait.TIER, missing=missing, tier=plan.tier) if missing else plan

    def _parted(self, tier: str | None) -> tuple[Sequence[Node], Sequence[Node]]:
        """The leaders of a tier, and its other nodes."""
        leaders = self._leaders(tier)
        return leaders, [node for node in self.snapshot.nodes(tier=tier) if node not in leaders]

    def _preferred(
        self, role: Role, leaders: Iterable[Node], others: Iterable[Node], leading: Flavour = PLAIN
    ) -> tuple[Candidate, ...]:
        """Who may answer for a role, in order; those that do not lead need a connection for replica reads."""
        first, then = self._living(leaders, leading), self._living(others, REPLICA_READ)
        if role is Role.ANY:
            groups = [first + then]
        elif role is Role.REPLICA:
            groups = [then]
        else:
            groups = [first, then] if role is Role.PREFER_LEADER else [then, first]
        return tuple(c for group in groups for c in order(group, lambda c: self._load(c.node.uuid), self._rng))

    def _living(self, nodes: Iterable[Node], flavour: Flavour) -> list[Candidate]:
        is_down = self._health.is_down
        return [Candidate(node, flavour) for node in nodes if self._usable(node) and not is_down(node.uuid)]

    def _without_leader(self, tier: str, owner: str, role: Role, *, read: bool) -> Plan:
        leader = self.snapshot.leader(owner)
        if leader is not None and not leader.reachable:  # alive, but not for us to dial: others forward to it
            return replace(self.spread(tier, "no_map"), one_owner=True)
        if not self.snapshot.leader_known(owner) and not self._suspects(owner):
            return replace(self._guess(tier, owner), one_owner=True)
        if role is Role.PREFER_LEADER and read:
            plan = self._among(self._followers(owner), "replica_read", REPLICA_READ, direct=True, tier=tier)
            if plan.wait is None and all(self._alone(candidate.node.version) for candidate in plan.candidates):
                return plan
        return Plan((), "keyed", wait=Wait.LEADER, missing=(owner,), tier=tier)

    def _guess(self, tier: str, owner: str) -> Plan:
        """Any member of a replicaset whose leader is not known: one that does not lead forwards, and that may hang."""
        missing = self._missing_leaders(tier)
        if missing:
            return Plan((), "no_map", wait=Wait.TIER, missing=missing, tier=tier)
        return self._among(self.snapshot.members(owner), "no_map", tier=tier)

    def _followers(self, owner: str) -> list[Node]:
        leader = self.snapshot.leader(owner)
        return [
            node
            for node in self.snapshot.members(owner)
            if node != leader and self._usable(node) and not self._health.is_down(node.uuid)
        ]

    def _usable(self, node: Node) -> bool:
        return node.reachable

    def _suspects(self, owner: str) -> bool:
        """Whether a member that may be the unknown leader of a replicaset is not reachable."""
        if self._health.all_up:
            return False
        return any(not self._health.is_up(node.uuid) for node in self.snapshot.members(owner))

    def _among(
        self,
        nodes: Iterable[Node],
        reason: str,
        flavour: Flavour = PLAIN,
        *,
        direct: bool = False,
        tier: str | None = None,
    ) -> Plan:
        usable = [node for node in nodes if self._usable(node)]
        if not self._health.all_up:
            usable = [node for node in usable if not self._health.is_down(node.uuid)] or usable
        if not usable:
            return Plan((), reason, wait=Wait.NODES, tier=tier)
        ordered = order(usable, self._load_of, self._rng)
        return Plan(tuple(Candidate(node, flavour) for node in ordered), reason, direct, tier=tier)

    def _load_of(self, node: Node) -> int:
        return self._load(node.uuid)

    def _leaders(self, tier: str | None) -> tuple[Node, ...]:
        known = self._leaders_of.get(tier)
        if known is None:
            leaders = tuple(self.snapshot.nodes(role="leader", tier=tier))
            known = self._leaders_of[tier] = leaders or tuple(self.snapshot.nodes())
        return known

    def _missing_leaders(self, tier: str | None) -> tuple[str, ...]:
        """Replicasets whose leader is missing or doubtful, where that makes forwarded statements hang."""
        if not self._hangs:
            return ()
        if self._leads_all(tier) and self._health.all_up:
            return ()
        return tuple(r for r in self._sharded(tier) if self._leaderless(r) or self._leader_doubtful(r))

    def _leads_all(self, tier: str | None) -> bool:
        """Whether no replicaset of a tier is without a leader, as far as the snapshot tells."""
        complete = self._complete.get(tier)
        if complete is None:
            complete = self._complete[tier] = not any(map(self._leaderless, self._sharded(tier)))
        return complete

    def _sharded(self, tier: str | None) -> list[str]:
        """Replicasets that own buckets of a tier, or of any tier."""
        tiers = [tier] if tier is not None else list(self.snapshot.tiers)
        return [r.uuid for t in tiers if self.snapshot.bucket_count(t) for r in self.snapshot.replicasets(t)]

    def _leaderless(self, replicaset: str) -> bool:
        return self.snapshot.leader_known(replicaset) and self.snapshot.leader(replicaset) is None

    def _leader_doubtful(self, replicaset: str) -> bool:
        leader = self.snapshot.leader(replicaset)
        return not self._health.is_up(leader.uuid) if leader is not None else self._suspects(replicaset)


class Ring:
    """Nodes that are equally good, with a plan for each that comes first; a plan is made at its first use.

    Args:
        nodes: The nodes.
        reason: See `Plan`.
        direct: See `Plan`.
        tier: See `Plan`.
        others: Nodes that come after them, in this order.

    Attributes:
        nodes: The nodes.
        uuids: Their uuids.
    """

    __slots__ = ("_candidates", "_direct", "_others", "_plans", "_reason", "_tier", "nodes", "uuids")

    def __init__(
        self, nodes: Iterable[Node], reason: str, *, direct: bool, tier: str | None = None, others: Iterable[Node] = ()
    ) -> None:
        self.nodes = tuple(nodes)
        self._candidates = tuple(map(Candidate, self.nodes))
        self._others = tuple(map(Candidate, others))
        self._reason = reason
        self._direct = direct
        self._tier = tier
        self._plans: dict[int, Plan] = {}
        self.uuids = tuple(candidate.node.uuid for candidate in self._candidates)

    def plan(self, first: int) -> Plan:
        """The plan that begins with one of them; the others come as they follow."""
        plan = self._plans.get(first)
        if plan is None:
            candidates = (*self._candidates[first:], *self._candidates[:first], *self._others)
            plan = self._plans[first] = Plan(candidates, self._reason, self._direct, tier=self._tier)
        return plan
