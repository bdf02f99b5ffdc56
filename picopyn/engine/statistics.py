"""The gauges of a pool, read off the accounts of its node pools at the moment of asking."""

from __future__ import annotations

from typing import Any

from picopyn.engine.cluster import Cluster
from picopyn.engine.journal import Journal
from picopyn.engine.tallies import Tallies
from picopyn.routing.slots import Slots
from picopyn.stats import MetadataStats, NodeStats, PoolStats, TopologyStats
from picopyn.topology import Node


def pool_stats(
    cluster: Cluster,
    journal: Journal,
    topology: TopologyStats | None,
    metadata: MetadataStats | None,
    tallies: Tallies,
) -> PoolStats:
    """Everything counted so far, with the gauges as of now."""
    return journal.counters.snapshot(_nodes(cluster), topology, metadata, tallies.all())


def _nodes(cluster: Cluster) -> list[NodeStats]:
    nodes = {node.uuid: node for node in cluster.snapshot.all_nodes() if node.reachable or node.draining}
    pools = [*cluster.pools, *cluster.draining_pools]
    nodes.update((pool.node.uuid, pool.node) for pool in cluster.pools)
    return [
        _node(cluster, node, [pool.slots for pool in pools if pool.node.uuid == uuid]) for uuid, node in nodes.items()
    ]


def _node(cluster: Cluster, node: Node, slots: list[Slots[Any, Any]]) -> NodeStats:
    return NodeStats(
        node=node.uuid,
        address=node.address,
        state="draining" if node.draining else cluster.health.of(node.uuid).state.value,
        idle=sum(len(each.idle) for each in slots),
        in_use=sum(len(each.held) for each in slots),
        connecting=sum(each.opening for each in slots),
        waiting=sum(len(each.waiters) for each in slots),
    )
