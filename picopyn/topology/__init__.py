"""The model of a cluster: events go in, immutable snapshots and diffs come out. No I/O, no clock."""

from picopyn.topology.diff import TopologyDiff, difference
from picopyn.topology.events import (
    BucketRange,
    Event,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventLeader,
    EventReplicaset,
    EventTier,
    vanished,
)
from picopyn.topology.shard_map import RangeMap, ShardMap
from picopyn.topology.snapshot import Node, Replicaset, TopologySnapshot
from picopyn.topology.topology import Topology

__all__ = [
    "BucketRange",
    "Event",
    "EventBatch",
    "EventBuckets",
    "EventInstance",
    "EventLeader",
    "EventReplicaset",
    "EventTier",
    "Node",
    "RangeMap",
    "Replicaset",
    "ShardMap",
    "Topology",
    "TopologyDiff",
    "TopologySnapshot",
    "difference",
    "vanished",
]
