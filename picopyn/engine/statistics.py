"""The gauges of a pool, read off the accounts of its node pools at the moment of asking."""

from __future__ import annotations

from typing import Any

from picopyn.engine.cluster import Cluster
from picopyn.engine.journal import Journal
from picopyn.engine.tallies import Tallies
from picopyn.routing.host_table import HostTable
from picopyn.routing.slots import Slots
from picopyn.routing.staleness import Freshness
from picopyn.stats import HostStats, MetadataStats, NodeStats, PoolStats, TopologyStats
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
    leaders = {node.uuid for node in cluster.snapshot.nodes(role="leader")}
    return [
        _node(cluster, node, uuid in leaders, [pool.slots for pool in pools if pool.node.uuid == uuid])
        for uuid, node in nodes.items()
    ]


def _node(cluster: Cluster, node: Node, leads: bool, slots: list[Slots[Any, Any]]) -> NodeStats:
    return NodeStats(
        node=node.uuid,
        address=node.address,
        state="draining" if node.draining else cluster.health.of(node.uuid).state.value,
        role="leader" if leads else "replica" if _follows(cluster, node) else None,
        idle=sum(len(each.idle) for each in slots),
        in_use=sum(len(each.held) for each in slots),
        connecting=sum(each.opening for each in slots),
        waiting=sum(len(each.waiters) for each in slots),
        host=_host(cluster.hosts, node.uuid),
    )


def _follows(cluster: Cluster, node: Node) -> bool:
    """Whether a node that does not lead belongs to a replicaset that somebody leads, or may lead."""
    replicaset = cluster.snapshot.replicaset(node.replicaset_uuid)
    return replicaset is not None and (cluster.hosts is None or not cluster.hosts.roles.equals)


def _host(hosts: HostTable | None, uuid: str) -> HostStats | None:
    """What is known of a host whose role is watched."""
    facts = None if hosts is None else hosts.facts.get(uuid)
    if hosts is None or facts is None:
        return None
    standing = None if facts.writable else hosts.standings.get(uuid)
    if standing is None:
        return HostStats(writable=facts.writable, response_time=hosts.latency(uuid))
    return HostStats(
        writable=facts.writable,
        response_time=hosts.latency(uuid),
        lag_bytes=standing.lag_bytes,
        lag=standing.lag,
        stale=None if hosts.policy is None else standing.freshness is not Freshness.FRESH,
    )
