"""Where the caller said that something goes: to the owner of a key or a bucket, to a tier, to a node, to a role.

It only chooses, and refuses what names no place; it waits for nothing, and nothing was sent when it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypedDict

from picopyn.dialects.base import Capability, Dialect
from picopyn.errors import ConfigError, NoNodeAvailable, NotSupported, UsageError
from picopyn.routing.plan import STRICT, Candidate, Plan, Planner, Role, Wait
from picopyn.routing.sharding import ShardingKey
from picopyn.topology import Node, TopologySnapshot

#: What calls that went where the caller said are counted under.
NAMED = "named"
#: Why nothing is sent to a node that was drained.
DRAINING: Final = "is draining: drain() was called; undrain() takes it back"


class Where(TypedDict, total=False):
    """Keywords of a call that say where it goes, instead of what the statement's own route says.

    A key, a bucket and a node exclude each other.

    Attributes:
        key: To the leader that owns this key; see `sharding_key_factory`.
        tier: To a leader of this tier; with `bucket`, the tier the bucket belongs to.
        bucket: To the leader that owns this bucket, from 1 to the bucket count of the tier. Without `tier`, the only
            tier that has buckets is meant.
        node: To the node with this name, uuid or address (`host:port`). Picodata forwards what does not belong there.
    """

    key: ShardingKey | None
    tier: str | None
    bucket: int | None
    node: str | None


class HowToExecute(Where, total=False):
    """Keywords of `execute`: those that say where it goes, and one more.

    Attributes:
        splittable: Your word that the rows of a many-row `INSERT … VALUES` may take effect one by one: they are sent to
            all their owners at once, as by `executemany`.
    """

    splittable: bool


class Destination(Protocol):
    """Something that chooses where a call goes."""

    def plan(self, planner: Planner, dialect: Dialect, role: Role, *, read: bool) -> Plan:
        """Where to send it, as of now.

        Args:
            planner: Of the current snapshot.
            dialect: The kind of server.
            role: Which member of a replicaset may answer.
            read: Whether it only reads.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What the caller asked for. A key, a bucket and a node exclude each other; without any a node is chosen by load.

    Attributes:
        role: Which nodes will do; None: all.
        node: Name, uuid or address of the one node.
        key: The node that owns this key.
        fallback_master: Whether the primary answers where there is no fresh replica; None: as the pool has it.
        master_as_replica_weight: Probability with which the primary counts as a replica; None: as the pool has it.
        tier: A leader of this tier, or the tier of the bucket.
        bucket: The node that owns this bucket.

    Raises:
        UsageError: Several of them, or something that is none.
        ConfigError: A weight that is none, or without a role that reads from replicas.
    """

    role: Role | None = None
    node: str | None = None
    key: ShardingKey | None = None
    fallback_master: bool | None = None
    master_as_replica_weight: float | None = None
    tier: str | None = None
    bucket: int | None = None

    def __post_init__(self) -> None:
        weight = self.master_as_replica_weight
        if weight is not None and not (isinstance(weight, int | float) and 0 <= weight <= 1):
            raise ConfigError(f"master_as_replica_weight must be a number in the segment from 0 to 1, not {weight!r}")
        if self._is_about_replicas and self.role not in (Role.REPLICA, Role.PREFER_REPLICA):
            raise ConfigError(f"{self._about_replicas} is about connections to a replica; ask for one")
        _check_types(self.node, self.key, self.tier, self.bucket)
        if self.node is not None and not (self.key is None and self.role is None and self._no_bucket):
            raise UsageError("node= already says where to; leave key=, tier=, bucket= and role= out")
        if self.key is not None and not self._no_bucket:
            raise UsageError("key= already says where to; leave tier= and bucket= out")

    @property
    def _is_about_replicas(self) -> bool:
        """Whether the caller said when a primary answers for its replicas; that it never does, may be said anywhere."""
        return bool(self.fallback_master) or self.master_as_replica_weight is not None

    @property
    def _about_replicas(self) -> str:
        return "fallback_master" if self.master_as_replica_weight is None else "master_as_replica_weight"

    @property
    def _no_bucket(self) -> bool:
        return self.tier is None and self.bucket is None

    def plan(self, planner: Planner, dialect: Dialect, role: Role | None = None, *, read: bool = True) -> Plan:
        """Where to send a call, or to take a connection from, as of now.

        Args:
            planner: Of the current snapshot.
            dialect: The kind of server.
            role: Which member of a replicaset may answer, where the caller did not say.
            read: Whether it only reads.

        Raises:
            NoNodeAvailable: The topology knows no such node.
            NotSupported: The server has no keys, buckets and tiers, or has them and no primary.
            UsageError: The tier is not known, the bucket out of range, or the key's bucket cannot be computed.
        """
        if self.node is not None:
            return _at(find(self.node, planner.snapshot))
        role = self.role or role or Role.LEADER
        if self.key is None and self._no_bucket:
            if self._is_about_replicas and {Capability.SHARDED, Capability.LISTED_SERVERS} & dialect.capabilities:
                said = f"{self._about_replicas}: for plain PostgreSQL, not for {dialect.name}"
                raise NotSupported(f"{said}; say role='prefer_replica'")
            return planner.anywhere(self.role, fallback=self.fallback_master, weight=self.master_as_replica_weight)
        if Capability.SHARDED not in dialect.capabilities:
            raise NotSupported(f"key=, tier= and bucket= need a server whose tables are sharded, not {dialect.name}")
        if self.key is None and self.bucket is None:
            count_of(self.tier, planner.snapshot)
            return planner.spread(self.tier, NAMED)
        tier, bucket = self._locate(planner.snapshot, dialect)
        return _plainly(planner.for_bucket(tier, bucket, role, read and role is not Role.LEADER, NAMED))

    def _locate(self, snapshot: TopologySnapshot, dialect: Dialect) -> tuple[str, int]:
        key = self.key
        if key is None or key.bucket is not None:
            wanted = self.bucket if key is None else key.bucket
            tier, count = count_of(self.tier if key is None else key.tier, snapshot)
            if wanted is None or wanted > count:
                raise UsageError(f"bucket {wanted} is out of range: tier {tier!r} has the buckets 1 to {count}")
            return tier, wanted
        tier, count = count_of(key.tier, snapshot)
        bucket = key.locate(dialect.key_hash, count)
        if bucket is None:
            raise UsageError(f"the key has no bucket: {key.problem(dialect.key_hash)}")
        return tier, bucket


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rows whose buckets are known: to the one leader that owns them all, else as if they had no key.

    Attributes:
        tier: Their tier.
        buckets: Their buckets; at least one.
    """

    tier: str
    buckets: frozenset[int]

    def plan(self, planner: Planner, dialect: Dialect, role: Role, *, read: bool) -> Plan:
        """Where to send them, as of now."""
        return planner.for_buckets(self.tier, self.buckets, role, read)


@dataclass(frozen=True, slots=True)
class Anyhow:
    """Rows whose owners are not known: to a node that forwards them.

    Attributes:
        tier: Their tier, where that is known.
    """

    tier: str | None = None

    def plan(self, planner: Planner, dialect: Dialect, role: Role, *, read: bool) -> Plan:
        """Where to send them, as of now."""
        if Capability.SHARDED in dialect.capabilities:
            return planner.spread(self.tier)
        return planner.for_host(role)


#: Rows of which not even the tier is known.
ANYHOW: Final = Anyhow()


def place_of(where: Mapping[str, Any], role: Role | None, method: str) -> Place:
    """The place that the keywords of a call name; all of them None: none in particular.

    Args:
        where: The keywords, see `Where`.
        role: The role the caller named.
        method: Who is called, for the error.

    Raises:
        TypeError: A keyword that there is not.
        UsageError: See `Place`.
    """
    unknown = where.keys() - Where.__annotations__.keys()
    if unknown:
        raise TypeError(f"{method}() got an unexpected keyword argument {min(unknown)!r}")
    return Place(role, **where)


def count_of(tier: str | None, snapshot: TopologySnapshot) -> tuple[str, int]:
    """A tier and its number of buckets; None stands for the only one that has any.

    Raises:
        UsageError: It is not known or has none, or there are several.
    """
    if tier is not None:
        count = snapshot.bucket_count(tier)
        if not count:
            raise UsageError(f"the topology knows no tier {tier!r} with buckets; known are {_counts(snapshot)}")
        return tier, count
    found = [(name, count) for name, count in snapshot.bucket_counts.items() if count]
    if len(found) != 1:
        raise UsageError(f"tier= has to say which tier the bucket belongs to; known are {_counts(snapshot)}")
    return found[0]


def _counts(snapshot: TopologySnapshot) -> str:
    """The tiers that have buckets, in words."""
    counts = sorted(snapshot.bucket_counts.items())
    return ", ".join(f"{name!r} ({count} buckets)" for name, count in counts if count) or "none yet"


def _plainly(plan: Plan) -> Plan:
    """Over connections that forward: what runs there need not be what the place was named for."""
    if any(candidate.flavour == STRICT for candidate in plan.candidates):
        return replace(plan, candidates=tuple(map(_plain, plan.candidates)))
    return plan


def _plain(candidate: Candidate) -> Candidate:
    return Candidate(candidate.node) if candidate.flavour == STRICT else candidate


def _check_types(node: object, key: object, tier: object, bucket: object) -> None:
    if key is not None and not isinstance(key, ShardingKey):
        raise UsageError(f"key= takes a ShardingKey, not {type(key).__name__}; sharding_key_factory() makes them")
    for word, value in (("node", node), ("tier", tier)):
        if value is not None and (not isinstance(value, str) or not value):
            raise _no_name(word, value)
    if bucket is not None and (type(bucket) is not int or bucket < 1):
        raise UsageError("bucket= takes an integer of at least 1")


def _no_name(word: str, value: object) -> UsageError:
    return UsageError(f"{word}= takes a name, not {'an empty one' if value == '' else type(value).__name__}")


def find(wanted: str, snapshot: TopologySnapshot, others: Iterable[Node] = ()) -> Node:
    """The node that somebody means.

    Args:
        wanted: Its name, uuid or address (`host:port`).
        snapshot: The cluster as last seen.
        others: Nodes that may be meant although they have left.

    Raises:
        NoNodeAvailable: The topology knows no such node.
        UsageError: It is no text, or an empty one.
    """
    if not isinstance(wanted, str) or not wanted:
        raise _no_name("node", wanted)
    nodes = snapshot.all_nodes()
    for node in (*nodes, *others):
        if wanted in (node.name, node.uuid, node.address):
            return node
    known = {node.address: _named(node) for node in nodes}
    raise NoNodeAvailable(f"the topology knows no node {wanted!r}, by name, uuid or address", known)


def _at(node: Node) -> Plan:
    if node.draining:
        raise NoNodeAvailable(f"{node.name} ({node.address}) {DRAINING}")
    return Plan((Candidate(node),), NAMED) if node.reachable else Plan((), NAMED, wait=Wait.NODES)


def _named(node: Node) -> str:
    return f"is {node.name}, {node.uuid}"
