"""The gauges of a pool, read off the accounts of its node pools at the moment of asking."""

from __future__ import annotations

from picopyn.engine.cluster import Cluster
from picopyn.engine.journal import Journal
from picopyn.engine.tallies import Tallies
from picopyn.stats import MetadataStats, NodeStats, PoolStats, TopologyStats


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
    nodes = {node.uuid: node for node in cluster.snapshot.nodes()}
    nodes.update((pool.node.uuid, pool.node) for pool in cluster.pools)
    return [
        NodeStats(
            node=uuid,
            address=node.address,
            state=cluster.health.of(uuid).state.value,
            idle=sum(len(pool.slots.idle) for pool in cluster.pools if pool.node.uuid == uuid),
            in_use=sum(len(pool.slots.held) for pool in cluster.pools if pool.node.uuid == uuid),
            connecting=sum(pool.slots.opening for pool in cluster.pools if pool.node.uuid == uuid),
            waiting=sum(len(pool.slots.waiters) for pool in cluster.pools if pool.node.uuid == uuid),
        )
        for uuid, node in nodes.items()
    ]
