"""What changed between two snapshots, for those who act on it: pools to open, calls to end, a log line.

This file compares; it does not know what anybody does about a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import ne

from picopyn.topology.shard_map import ShardMap
from picopyn.topology.snapshot import Node, TopologySnapshot


@dataclass(frozen=True, slots=True)
class TopologyDiff:
    """What one batch changed.

    Attributes:
        nodes_added: Nodes that were not known before.
        nodes_removed: Nodes that are not known any more, as they were.
        nodes_moved: (before, after) of nodes with another address.
        nodes_changed: (before, after) of nodes that differ in anything else, such as their state.
        leaders: Replicaset uuid → (uuid of its Online leader before, after); None where there was or is none.
        buckets_moved: Tier → number of buckets whose known owner is another one, became known or was
            forgotten.
        tiers_added: Names of tiers that were not known before.
        tiers_removed: Names of tiers that are not known any more.
    """

    nodes_added: tuple[Node, ...] = ()
    nodes_removed: tuple[Node, ...] = ()
    nodes_moved: tuple[tuple[Node, Node], ...] = ()
    nodes_changed: tuple[tuple[Node, Node], ...] = ()
    leaders: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    buckets_moved: Mapping[str, int] = field(default_factory=dict)
    tiers_added: tuple[str, ...] = ()
    tiers_removed: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing changed that anybody must act on."""
        return self == _NOTHING


_NOTHING = TopologyDiff()


def difference(before: TopologySnapshot, after: TopologySnapshot) -> TopologyDiff:
    """What changed from one snapshot to the next."""
    if before.facts is after.facts:
        return _NOTHING
    pairs = [(node, after.node(node.uuid)) for node in before.all_nodes()]
    both = [(old, new) for old, new in pairs if new is not None and new is not old and old != new]
    return TopologyDiff(
        nodes_added=tuple(node for node in after.all_nodes() if before.node(node.uuid) is None),
        nodes_removed=tuple(old for old, new in pairs if new is None),
        nodes_moved=tuple((old, new) for old, new in both if old.address != new.address),
        nodes_changed=tuple((old, new) for old, new in both if old.address == new.address),
        leaders=dict(_leaders(before, after)),
        buckets_moved=dict(_moves(before, after)),
        tiers_added=tuple(sorted(set(after.tiers) - set(before.tiers))),
        tiers_removed=tuple(sorted(set(before.tiers) - set(after.tiers))),
    )


def _leaders(before: TopologySnapshot, after: TopologySnapshot) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    for uuid in sorted(before.replicaset_uuids() | after.replicaset_uuids()):
        old, new = before.leader(uuid), after.leader(uuid)
        change = (old.uuid if old else None, new.uuid if new else None)
        if change[0] != change[1]:
            yield uuid, change


def _moves(before: TopologySnapshot, after: TopologySnapshot) -> Iterator[tuple[str, int]]:
    for tier in sorted({*before.tiers, *after.tiers}):
        moved = _count_moves(before.shard_map(tier), after.shard_map(tier))
        if moved:
            yield tier, moved


def _count_moves(before: ShardMap | None, after: ShardMap | None) -> int:
    if before is after:
        return 0
    old = before.owners if before is not None else ()
    new = after.owners if after is not None else ()
    shared: int = sum(map(ne, old, new))
    rest = old[len(new) :] or new[len(old) :]
    return shared + sum(owner is not None for owner in rest)
