"""What is known about a cluster at one moment, immutable: nodes, replicasets, leaders, owners of buckets.

This file decides how questions are answered from facts that are already applied. It knows no event and no
order of events. Readers hold a snapshot as long as they like; parts that did not change are the same objects
in the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from picopyn.topology.shard_map import ShardMap

_ROLES = frozenset({None, "any", "leader", "replica"})


@dataclass(frozen=True, slots=True)
class Node:
    """One instance of the cluster, as a client sees it.

    Attributes:
        uuid: Identity.
        name: Name, for people.
        host: Host to dial, without brackets; empty when no usable address is known.
        port: Port to dial.
        tier: Tier it belongs to.
        replicaset_uuid: Replicaset it belongs to.
        online: Whether it takes calls, by its current and its target state.
        version: Server version.
        failure_domain: Zones it lies in; read only.
        current_state: The server's word.
        target_state: The server's word.
        incarnation: Grows with every start; None when unknown.
        draining: This client was told to keep away from it; the cluster knows nothing of that.
    """

    uuid: str
    name: str = ""
    host: str = ""
    port: int = 0
    tier: str = ""
    replicaset_uuid: str = ""
    online: bool = True
    version: str = ""
    failure_domain: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    current_state: str = ""
    target_state: str = ""
    incarnation: int | None = None
    draining: bool = False

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets; empty without a usable address."""
        if not self.host:
            return ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reachable(self) -> bool:
        """Online, with an address to dial, and not draining."""
        return self.online and bool(self.host) and not self.draining


@dataclass(frozen=True, slots=True)
class Replicaset:
    """One replicaset, as the server's tables show it.

    Attributes:
        uuid: Identity.
        name: Name, for people.
        tier: Tier it belongs to.
        leader_uuid: The instance the tables name as leader; it may be gone or Offline, see
            `TopologySnapshot.leader`.
        leader_known: Whether the tables could be read.
        config_version: Grows with every change; None when unknown.
    """

    uuid: str
    name: str = ""
    tier: str = ""
    leader_uuid: str | None = None
    leader_known: bool = False
    config_version: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts behind a snapshot; compared to tell whether anything changed.

    Attributes:
        nodes: Node by uuid.
        replicasets: Replicaset by uuid.
        tiers: Number of buckets by tier as the server said it; None when it did not.
        maps: Owners by tier, for tiers with buckets.
        found_leaders: Instance uuid by replicaset uuid, found by asking.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    replicasets: Mapping[str, Replicaset] = field(default_factory=dict)
    tiers: Mapping[str, int | None] = field(default_factory=dict)
    maps: Mapping[str, ShardMap] = field(default_factory=dict)
    found_leaders: Mapping[str, str] = field(default_factory=dict)


class TopologySnapshot:
    """Everything known about the cluster at one moment; never changes.

    Attributes:
        version: Grows by one with every change of a fact; a refresh that changed nothing keeps it.
        refreshed_at: When the last batch was applied, on the clock of the caller of `apply`; None before the
            first.
    """

    __slots__ = ("_facts", "_leaders", "_listed", "_members", "refreshed_at", "version")

    def __init__(self, facts: Facts | None = None, version: int = 0, refreshed_at: float | None = None) -> None:
        self._facts = facts or Facts()
        self.version = version
        self.refreshed_at = refreshed_at
        self._members = _members(self._facts.nodes.values())
        self._leaders = {uuid: self._find_leader(uuid) for uuid in self.replicaset_uuids()}
        self._listed: dict[tuple[str | None, str | None], tuple[Node, ...]] = {}

    def __repr__(self) -> str:
        facts = self._facts
        return (
            f"<TopologySnapshot version={self.version} nodes={len(facts.nodes)} "
            f"replicasets={len(facts.replicasets)} tiers={sorted(self.tiers)}>"
        )

    @property
    def facts(self) -> Facts:
        """The facts it answers from."""
        return self._facts

    def seen_again(self, refreshed_at: float) -> TopologySnapshot:
        """The same facts, confirmed at a later moment."""
        twin = object.__new__(TopologySnapshot)
        twin._facts, twin._members, twin._leaders, twin._listed = (
            self._facts,
            self._members,
            self._leaders,
            self._listed,
        )
        twin.version, twin.refreshed_at = self.version, refreshed_at
        return twin

    def with_draining(self, uuids: AbstractSet[str]) -> TopologySnapshot:
        """The same cluster, with exactly these nodes draining."""
        nodes = self._facts.nodes
        changed = {u: replace(n, draining=u in uuids) for u, n in nodes.items() if n.draining is not (u in uuids)}
        if not changed:
            return self
        return TopologySnapshot(replace(self._facts, nodes={**nodes, **changed}), self.version, self.refreshed_at)

    # Buckets

    def owner(self, tier: str, bucket: int) -> str | None:
        """Uuid of the replicaset that owns this bucket of this tier; None when it is not known."""
        shards = self._facts.maps.get(tier)
        return shards.owner(bucket) if shards is not None else None

    def shard_map(self, tier: str) -> ShardMap | None:
        """Owners of the tier's buckets; None for an unknown tier and for one without buckets."""
        return self._facts.maps.get(tier)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of all known tiers, those without buckets included."""
        return tuple(sorted(self._facts.tiers))

    def bucket_count(self, tier: str) -> int | None:
        """Number of buckets of the tier, 0 for one without sharded rows; None when it is not known."""
        count = self._facts.tiers.get(tier)
        if count is None and tier in self._facts.maps:
            return self._facts.maps[tier].count
        return count

    @property
    def bucket_counts(self) -> dict[str, int]:
        """`bucket_count` of every tier of which it is known; a new dictionary."""
        counts = {tier: self.bucket_count(tier) for tier in self._facts.tiers}
        return {tier: count for tier, count in counts.items() if count is not None}

    # Replicasets and nodes

    def leader(self, replicaset_uuid: str) -> Node | None:
        """The Online leader of a replicaset; None when there is none now, or when it is not known.

        `leader_known` tells these two apart. It may be a node without a usable address: alive, but not to be
        dialled by us.
        """
        return self._leaders.get(replicaset_uuid)

    def leader_known(self, replicaset_uuid: str) -> bool:
        """Whether `leader` is an answer: True with None means the replicaset has no leader now."""
        known = self._facts.replicasets.get(replicaset_uuid)
        return (known is not None and known.leader_known) or self.leader(replicaset_uuid) is not None

    def replicaset(self, uuid: str) -> Replicaset | None:
        """The replicaset with this uuid."""
        return self._facts.replicasets.get(uuid)

    def replicasets(self, tier: str | None = None) -> tuple[Replicaset, ...]:
        """All replicasets, or those of one tier, by name."""
        chosen = (r for r in self._facts.replicasets.values() if tier is None or r.tier == tier)
        return tuple(sorted(chosen, key=lambda r: (r.name, r.uuid)))

    def replicaset_uuids(self) -> frozenset[str]:
        """Uuids of all replicasets, those of which only instances are known included."""
        return frozenset(self._facts.replicasets) | frozenset(self._members)

    def members(self, replicaset_uuid: str) -> tuple[Node, ...]:
        """All nodes of a replicaset, Offline ones included, by name."""
        return self._members.get(replicaset_uuid, ())

    def node(self, uuid: str) -> Node | None:
        """The node with this uuid."""
        return self._facts.nodes.get(uuid)

    def all_nodes(self) -> tuple[Node, ...]:
        """Every known node, Offline ones and those without an address included, by name."""
        return tuple(sorted(self._facts.nodes.values(), key=lambda n: (n.name, n.uuid)))

    def nodes(self, role: str | None = None, tier: str | None = None) -> tuple[Node, ...]:
        """Online nodes with an address that are not draining, by name.

        Args:
            role: `"leader"`, `"replica"`, or `"any"` (the same as None). A node of a replicaset whose leader
                is not known is neither leader nor replica.
            tier: Only nodes of this tier.

        Raises:
            ValueError: The role is none of these.
        """
        if role not in _ROLES:
            raise ValueError(f"unknown role {role!r}")
        listed = self._listed.get((role, tier))
        if listed is None:
            chosen = (n for n in self.all_nodes() if n.reachable and (tier is None or n.tier == tier))
            listed = self._listed[role, tier] = tuple(n for n in chosen if self._has_role(n, role))
        return listed

    def age(self, now: float) -> float:
        """Seconds since the last batch was applied; infinite before the first."""
        return float("inf") if self.refreshed_at is None else now - self.refreshed_at

    # How it is answered

    def _has_role(self, node: Node, role: str | None) -> bool:
        if role is None or role == "any":
            return True
        if not self.leader_known(node.replicaset_uuid):
            return False
        leads = self.leader(node.replicaset_uuid) is node
        return leads if role == "leader" else not leads

    def _find_leader(self, replicaset_uuid: str) -> Node | None:
        known = self._facts.replicasets.get(replicaset_uuid)
        named = known.leader_uuid if known is not None and known.leader_known else None
        if known is None or not known.leader_known:
            named = self._facts.found_leaders.get(replicaset_uuid)
        node = self._facts.nodes.get(named) if named is not None else None
        return node if node is not None and node.online and node.replicaset_uuid == replicaset_uuid else None


def _members(nodes: Iterable[Node]) -> dict[str, tuple[Node, ...]]:
    members: dict[str, list[Node]] = {}
    for node in sorted(nodes, key=lambda n: (n.name, n.uuid)):
        members.setdefault(node.replicaset_uuid, []).append(node)
    return {uuid: tuple(nodes) for uuid, nodes in members.items()}
