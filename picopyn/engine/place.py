"""Where a connection that is held leads: anywhere, to a role, to one node, to the owner of a key.

It only chooses; it waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from picopyn.dialects.base import Dialect
from picopyn.errors import ConfigError, NoNodeAvailable, UsageError
from picopyn.routing.plan import STRICT, Candidate, Plan, Planner, Role, Wait
from picopyn.routing.sharding import ShardingKey
from picopyn.topology import Node, TopologySnapshot


@dataclass(frozen=True, slots=True)
class Place:
    """What a borrower asked for. A node and a key exclude each other; without both a node is chosen by load.

    Attributes:
        role: Which nodes will do; None: all.
        node: Name, uuid or address of the one node.
        key: The node that owns this key.
        fallback_master: Whether the primary answers where there is no fresh replica; None: as the pool has it.
        master_as_replica_weight: Probability with which the primary counts as a replica; None: as the pool has it.

    Raises:
        UsageError: A node, and something else.
        ConfigError: A weight that is none, or without a role that reads from replicas.
    """

    role: Role | None = None
    node: str | None = None
    key: ShardingKey | None = None
    fallback_master: bool | None = None
    master_as_replica_weight: float | None = None

    def __post_init__(self) -> None:
        weight = self.master_as_replica_weight
        if weight is not None and not 0 <= weight <= 1:
            raise ConfigError(f"master_as_replica_weight must be a number in the segment from 0 to 1, not {weight!r}")
        if weight is not None and self.role not in (Role.REPLICA, Role.PREFER_REPLICA):
            raise ConfigError("master_as_replica_weight is about connections to a replica; ask for one")
        if self.node is not None and (self.key is not None or self.role is not None):
            raise UsageError("node= already says where to; leave key= and role= out")

    def plan(self, planner: Planner, dialect: Dialect) -> Plan:
        """Where to take the connection from, as of now.

        Raises:
            NoNodeAvailable: The topology knows no such node.
            UsageError: The key's bucket cannot be computed.
        """
        if self.node is not None:
            return _at(find(self.node, planner.snapshot))
        if self.key is not None:
            return _owner(self.key, self.role or Role.LEADER, planner, dialect)
        return planner.anywhere(self.role, fallback=self.fallback_master, weight=self.master_as_replica_weight)


def find(wanted: str, snapshot: TopologySnapshot) -> Node:
    """The node that somebody means.

    Args:
        wanted: Its name, uuid or address (`host:port`).
        snapshot: The cluster as last seen.

    Raises:
        NoNodeAvailable: The topology knows no such node.
    """
    nodes = snapshot.all_nodes()
    for node in nodes:
        if wanted in (node.name, node.uuid, node.address):
            return node
    known = {node.address: _named(node) for node in nodes}
    raise NoNodeAvailable(f"the topology knows no node {wanted!r}, by name, uuid or address", known)


def _at(node: Node) -> Plan:
    if node.draining:
        raise NoNodeAvailable(f"{node.name} ({node.address}) is draining: drain() was called; undrain() takes it back")
    return Plan((Candidate(node),), "any") if node.reachable else Plan((), "any", wait=Wait.NODES)


def _named(node: Node) -> str:
    return f"is {node.name}, {node.uuid}"


def _owner(key: ShardingKey, role: Role, planner: Planner, dialect: Dialect) -> Plan:
    count = planner.snapshot.bucket_count(key.tier) or 0
    bucket = key.locate(dialect.key_hash, count)
    if bucket is None:
        raise UsageError(
            f"the key has no bucket in tier {key.tier!r}: an unknown tier, or a value that cannot be hashed"
        )
    plan = planner.for_bucket(key.tier, bucket, role, read=role is not Role.LEADER)
    if any(candidate.flavour == STRICT for candidate in plan.candidates):  # who holds it may run anything on it
        return replace(plan, candidates=tuple(map(_plain, plan.candidates)))
    return plan


def _plain(candidate: Candidate) -> Candidate:
    return Candidate(candidate.node) if candidate.flavour == STRICT else candidate
