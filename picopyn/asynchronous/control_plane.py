"""The control plane of a pool: the tracker with its source, the metadata service, the leader finder, put together.

It carries news from the tracker to the engine, and requests for a new look from the engine to the tracker. It decides
nothing about calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from picopyn.asynchronous.host_names import HostNames
from picopyn.asynchronous.host_watchers import HostWatchers
from picopyn.asynchronous.leader_finder import LeaderFinder
from picopyn.asynchronous.looks_on_demand import LooksOnDemand
from picopyn.asynchronous.metadata_service import QueryMetadataService
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.servers_source import ServersSource
from picopyn.asynchronous.static_source import StaticTopologySource
from picopyn.asynchronous.tablet_learner import TabletLearner
from picopyn.asynchronous.topology_source import ConnectedSource
from picopyn.asynchronous.topology_tracker import (
    NotifyTopologySource,
    PollingTopologySource,
    TopologySource,
    TopologyTracker,
)
from picopyn.dialects.base import Capability, Dialect
from picopyn.dialects.yugabyte.hash_code import HASH_CODES
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.errors import NoNodeAvailable, UsageError
from picopyn.observe import Publisher, RouteLearned, TopologyChanged
from picopyn.placement_settings import SHORTEST_INTERVAL, goes_to_leaders
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.role_settings import watches_hosts
from picopyn.routing.host_table import HostTable
from picopyn.routing.leader_table import LeaderTable
from picopyn.routing.placement import Placement
from picopyn.routing.plan import Role
from picopyn.routing.route import RouteKind
from picopyn.routing.server_table import ServerTable
from picopyn.settings import PoolSettings
from picopyn.topology import Node, Topology, TopologyDiff, TopologySnapshot, difference

_LOG = logging.getLogger(__name__)


class ControlPlane:
    """What a pool knows beyond its connections, and how it comes to know it. Owned by a pool.

    Args:
        settings: Intervals, sizes, the source of one's own.
        dialect: The kind of server.
        reach: Opens service connections.
        publisher: Whom changes of the topology are told.
        now: The engine's clock.
        rng: Source of randomness.

    Attributes:
        hosts: What is known of hosts with roles, or of servers with places; None where neither decides.
        tracker: Keeps the topology current.
        metadata: Learns about statements.
    """

    def __init__(
        self,
        settings: PoolSettings,
        dialect: Dialect,
        reach: Reach,
        publisher: Publisher,
        now: Callable[[], float],
        rng: Random,
    ) -> None:
        self._reach = reach
        self._publisher = publisher
        self._capabilities = dialect.capabilities
        self.metadata = self._make_learner(settings, dialect, now, rng)
        self.hosts = self._make_hosts(settings)
        self._finder = LeaderFinder(reach.to, self._key_select)
        self._source: TopologySource = settings.topology_source or self._make_source(settings, dialect, now, rng)
        speaks = isinstance(self._source, StaticTopologySource | HostWatchers)  # nothing to ask, or it tells by itself
        interval = None if speaks else _interval(settings, lists=self._lists)
        self.tracker = TopologyTracker(self._source, interval, now=now, rng=rng)
        self._on_demand = LooksOnDemand(self.tracker)
        self._cluster: Cluster | None = None
        self._executor: Executor | None = None
        self._seen = self.snapshot

    def _make_learner(
        self, settings: PoolSettings, dialect: Dialect, now: Callable[[], float], rng: Random
    ) -> QueryMetadataService | TabletLearner:
        connect, size = self._reach.metadata, settings.query_metadata_cache_size
        if Capability.TABLETS in dialect.capabilities and goes_to_leaders(settings):
            leaders = LeaderTable(HASH_CODES)
            return TabletLearner(connect, size, leaders, self._is_away, now=now, rng=rng, on_learned=self._learned)
        return QueryMetadataService(
            connect,
            size,
            dialect=dialect,
            bucket_counts=lambda: self.snapshot.bucket_counts,
            now=now,
            rng=rng,
            on_learned=self._learned,
        )

    def _make_source(
        self, settings: PoolSettings, dialect: Dialect, now: Callable[[], float], rng: Random
    ) -> TopologySource:
        reach = self._reach
        if self._learns:
            return NotifyTopologySource(
                reach.topology_news,
                first=reach.first,
                address_map=settings.address_map,
                leader_finder=self._finder,
                now=now,
            )
        endpoints = [endpoint.with_default_port(dialect.default_port) for endpoint in settings.endpoints]
        if self.hosts is None:
            return StaticTopologySource(endpoints)
        if isinstance(self.hosts, ServerTable):
            names = HostNames(endpoints, reach.names)
            return ServersSource(reach.topology, names, self.hosts, address_map=settings.address_map)
        return HostWatchers(
            HostNames(endpoints, reach.names),
            reach.host,
            self.hosts,
            delay=settings.refresh_delay,
            timeout=settings.refresh_timeout,
            now=now,
            rng=rng,
        )

    def _make_hosts(self, settings: PoolSettings) -> HostTable | ServerTable | None:
        if self._learns or settings.topology_source is not None:
            return None
        if self._lists:
            return ServerTable(Placement.of(settings))
        return HostTable(settings.staleness) if watches_hosts(settings) else None

    def check_role(self, role: Role) -> None:
        """Refuse the role of a call that means nothing here.

        Raises:
            UsageError: The pool does not know which of its hosts are replicas.
        """
        if role is Role.REPLICA and not self._learns and self.hosts is None:
            raise UsageError(
                "role='replica' means nothing to this pool, which does not watch the roles of its hosts: "
                "name more than one host, or give the pool a role"
            )

    @property
    def _learns(self) -> bool:
        return Capability.SHARDED in self._capabilities

    @property
    def _lists(self) -> bool:
        return Capability.LISTED_SERVERS in self._capabilities

    @property
    def snapshot(self) -> TopologySnapshot:
        """The newest snapshot."""
        return self.tracker.topology.snapshot

    @property
    def marked(self) -> TopologySnapshot:
        """The newest snapshot, as the engine has it: it shows which nodes are drained."""
        return self.snapshot if self._cluster is None else self._cluster.snapshot

    @property
    def leaders(self) -> LeaderTable | None:
        """Who leads tablets; None where there are none, or calls are not to go to their leaders."""
        return self.metadata.leaders if isinstance(self.metadata, TabletLearner) else None

    @property
    def bucket_counts(self) -> Mapping[str, int]:
        """Number of buckets, or of hash codes, by tier or table."""
        leaders = self.leaders
        return leaders.counts if leaders is not None else self.snapshot.bucket_counts

    async def start(self, cluster: Cluster, executor: Executor) -> None:
        """Take the first look, hand it to the engine; learning, where there is anything to learn, starts meanwhile."""
        self._cluster, self._executor = cluster, executor
        if isinstance(self._source, NotifyTopologySource):
            self._source.on_doubt = self._look_soon
        await self.tracker.start(self._refreshed)
        self._adopt(self.snapshot)
        if self._learns:
            cluster.jobs.spawn(self.metadata.start(), "picopyn metadata start")

    async def learn(self, query: str) -> PreparedStatementMetadata | None:
        """What is known of a text, asked for now if need be; None where statements have no owners."""
        if not self._learns and self.leaders is None:
            return None
        return await self.metadata.get_query_metadata(query)

    def look_again(self, doubtful: Node | None = None) -> int | None:
        """Ask for a refresh soon; the leader of a doubtful node's replicaset is asked for again where it was asked.

        Returns:
            The number of the first refresh that begins after this; None when a refresh can never tell anything new.
        """
        if doubtful is not None and isinstance(self.metadata, TabletLearner):
            self.metadata.look_again()
        if doubtful is not None and isinstance(self._source, ConnectedSource):
            if isinstance(self._source, PollingTopologySource):
                self._source.doubt_leader(doubtful.replicaset_uuid)
            if self._cluster is not None and self._cluster.health.is_down(doubtful.uuid):
                self._source.leave(doubtful.host, doubtful.port)
        if self._cluster is None or isinstance(self._source, StaticTopologySource):
            return None
        if self.tracker.interval is not None:
            self.tracker.trigger()
            return self.tracker.next_look
        return self._on_demand.ask(self._cluster)

    def leave(self, node: Node) -> None:
        """A node is drained: what reads the topology, or listens for changes of it, goes to another one."""
        if isinstance(self._source, ConnectedSource) and self._source.move(node.host, node.port):
            self.look_again()

    def _look_soon(self) -> None:
        self.look_again()

    async def look_now(self) -> None:
        """Look at the cluster now; afterwards the engine has what was seen.

        Raises:
            NoNodeAvailable: The topology could not be read.
        """
        tracker = self.tracker
        look = tracker.next_look
        await tracker.refresh_now()
        if tracker.last_look < look and not tracker.stopped:
            raise _unread(tracker.failure) from tracker.failure

    async def close(self) -> None:
        """End everything; the source and the metadata service close their connections, each in its own time."""
        await asyncio.gather(self.tracker.stop(), self.metadata.stop(), self._finder.close())
        self._reach.terminate()

    def terminate(self) -> None:
        """The same at once."""
        self.tracker.terminate()
        self.metadata.terminate()
        self._finder.terminate()
        self._reach.terminate()

    def _learned(self, metadata: PreparedStatementMetadata) -> None:
        """A text was learned. A user who may not read who leads can ask from the first keyed SELECT on."""
        route = metadata.route
        if route is None:
            return
        if (
            self._learns
            and route.kind is RouteKind.KEYED
            and any(not self.snapshot.leader_known(replicaset) for replicaset in self.snapshot.replicaset_uuids())
        ):
            self.look_again()
        if self._publisher.active:
            self._publisher.notify(
                RouteLearned(query=metadata.query, kind=route.kind.name, tier=route.tier, reason=route.reason)
            )

    def _is_away(self, leader: str) -> bool:
        """Whether the leader of a tablet cannot be reached now, or is no node that is known."""
        leaders = self.leaders
        node = leaders.nodes(self.snapshot).get(leader) if leaders is not None else None
        return node is None or (self._cluster is not None and not self._cluster.health.is_up(node.uuid))

    def _key_select(self, replicaset: str) -> tuple[str, tuple[object, ...]] | None:
        owner = self.snapshot.owner
        return self.metadata.keyed_select(lambda tier, bucket: owner(tier, bucket) == replicaset)

    async def _refreshed(self, topology: Topology) -> None:
        self._adopt(topology.snapshot)

    def _adopt(self, snapshot: TopologySnapshot) -> None:
        if self._cluster is None or self._executor is None:
            return
        before, self._seen = self._seen, snapshot
        diff = difference(before, snapshot)
        if snapshot.facts is before.facts:
            self._cluster.confirm(snapshot, self.tracker.last_look)
            return
        self._cluster.adopt(snapshot, self.tracker.last_look)
        if isinstance(self.metadata, TabletLearner):
            self.metadata.look_again()
        if _recounted(before, snapshot):
            self.metadata.forget_all()
        moved = frozenset(uuid for uuid in diff.leaders if before.replicaset(uuid) is not None)
        if moved and self._learns:  # elsewhere nothing waits, inside a server, for a leader
            self._executor.leaders_moved(moved)
        self._tell(diff, snapshot)

    def _tell(self, diff: TopologyDiff, snapshot: TopologySnapshot) -> None:
        _LOG.info(
            "topology version %d: %d nodes added, %d removed, %d leaders changed, %d buckets moved",
            snapshot.version,
            len(diff.nodes_added),
            len(diff.nodes_removed),
            len(diff.leaders),
            sum(diff.buckets_moved.values()),
        )
        if self._publisher.active:
            self._publisher.notify(
                TopologyChanged(
                    version=snapshot.version,
                    nodes_added=tuple(node.uuid for node in diff.nodes_added),
                    nodes_removed=tuple(node.uuid for node in diff.nodes_removed),
                    nodes_changed=tuple(after.uuid for _, after in diff.nodes_moved),
                    leaders_changed=diff.leaders,
                    buckets_moved=diff.buckets_moved,
                    tiers_added=diff.tiers_added,
                )
            )


def _interval(settings: PoolSettings, *, lists: bool) -> float | None:
    """How often the cluster is looked at by itself (seconds); None: never."""
    if not lists or settings.topology_update_interval is None:
        return settings.topology_update_interval
    return max(float(settings.yb_servers_refresh_interval), SHORTEST_INTERVAL)


def _unread(failure: Exception | None) -> NoNodeAvailable:
    why = "nothing was read" if failure is None else str(failure) or type(failure).__name__
    return NoNodeAvailable(f"the topology could not be read, what was known stays: {why}")


def _recounted(before: TopologySnapshot, after: TopologySnapshot) -> bool:
    """Whether a known tier has another number of buckets: for users who may not read it, it is derived and may grow."""
    counts = after.bucket_counts
    return any(counts.get(tier) != count for tier, count in before.bucket_counts.items())
