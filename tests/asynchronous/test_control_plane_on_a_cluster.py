"""Tracker, metadata service and leader finder on the embedded cluster: real sockets, the server's own answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import asyncpg
import pytest

from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.leader_finder import LeaderFinder
from picopyn.asynchronous.metadata_service import QueryMetadataService
from picopyn.asynchronous.topology_tracker import PollingTopologySource, TopologyTracker
from picopyn.dialects.base import Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.routing.route import RouteKind
from picopyn.routing.sharding import compile_route
from picopyn.testing import PicodataCluster

pytestmark = pytest.mark.cluster

DIALECT = PicodataDialect()
PASSWORD = "Secret-123"


async def dial(host, port, user, password, purpose, on_notice=None):
    """One service connection, as the pool opens them."""
    connection = await asyncpg.connect(
        host=host,
        port=port,
        user=user,
        password=password,
        database="picodata",
        timeout=2.0,
        statement_cache_size=0,
        server_settings=dict(DIALECT.startup_options(purpose)),
        connection_class=Connection,
    )
    connection.on_notice = on_notice
    return connection


class Plane:
    """The control plane of one user on a cluster, without a pool.

    Seeds are tried in order: the first that answers is asked.
    """

    def __init__(self, cluster, user="admin", seeds=None, interval=0.2) -> None:
        self.cluster = cluster
        self.user, self.password = user, cluster.password(user)
        self.seeds = list(seeds or cluster.instances)
        self.metadata = QueryMetadataService(
            lambda on_notice: self.connect(Purpose.METADATA, on_notice),
            100,
            dialect=DIALECT,
            bucket_counts=lambda: self.snapshot.bucket_counts,
            rng=random.Random(3),
        )
        finder = LeaderFinder(self.connect_to, self.key_select)
        source = PollingTopologySource(lambda: self.connect(Purpose.TOPOLOGY), leader_finder=finder, query_timeout=1.0)
        self.finder, self.source = finder, source
        self.tracker = TopologyTracker(source, interval)
        self.news = asyncio.Condition()

    @property
    def snapshot(self):
        """What is known."""
        return self.tracker.topology.snapshot

    async def connect(self, purpose, on_notice=None):
        """A connection to the first seed that answers."""
        for name in self.seeds:
            where = self.cluster.instances[name]
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return await dial(where.host, where.port, self.user, self.password, purpose, on_notice)
        return None

    async def connect_to(self, node):
        """A connection to ask a node whether it leads."""
        return await dial(node.host, node.port, self.user, self.password, Purpose.LEADER_QUESTION)

    def key_select(self, replicaset):
        """A keyed SELECT of a replicaset, if one was learned."""
        owner = self.snapshot.owner
        return self.metadata.keyed_select(lambda tier, bucket: owner(tier, bucket) == replicaset)

    def leader(self, replicaset):
        """Name of a replicaset's leader as far as known."""
        node = self.snapshot.leader(self.cluster.replicasets[replicaset])
        return node.name if node is not None else None

    async def until(self, known, seconds=15.0) -> float:
        """Wait until the snapshot says so; seconds it took."""
        begun = time.monotonic()
        async with asyncio.timeout(seconds), self.news:
            await self.news.wait_for(known)
        return time.monotonic() - begun

    async def __aenter__(self):
        async def listen(topology):
            async with self.news:
                self.news.notify_all()

        await self.tracker.start(listen)
        return self

    async def __aexit__(self, *error) -> None:
        await self.tracker.stop()
        await self.metadata.stop()
        await self.finder.close()


@pytest.fixture(scope="module")
def cluster(picopyn_cluster_factory):
    """A cluster with a few tables and a user who may read and write them only."""
    cluster = picopyn_cluster_factory(users={"app": PASSWORD, "poor": PASSWORD})
    cluster.execute("CREATE TABLE o (id INT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)")
    cluster.execute("CREATE TABLE c (a INT, b TEXT, v TEXT, PRIMARY KEY (a, b)) DISTRIBUTED BY (b, a)")
    cluster.execute("CREATE TABLE g (id INT PRIMARY KEY, v TEXT) DISTRIBUTED GLOBALLY")
    for table in ("o", "c", "g"):
        cluster.execute(f"GRANT READ ON TABLE {table} TO app")
        cluster.execute(f"GRANT WRITE ON TABLE {table} TO app")
    return cluster


@pytest.fixture(scope="module")
def patient():
    """A cluster that is broken again and again, with one table."""
    with PicodataCluster(auto_offline_timeout=0.5, users={"app": PASSWORD}) as cluster:
        cluster.execute("CREATE TABLE o (id INT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)")
        cluster.execute("GRANT READ ON TABLE o TO app")
        yield cluster


@pytest.fixture
def doomed(patient):
    """The same cluster, as it was at first: all live, the first of each replicaset leads and has its buckets."""
    yield patient
    patient.lose_bucket("default", None)
    for name, state in patient.states().items():
        if state["life"] == "frozen":
            patient.thaw(name)
        elif state["life"] == "dead":
            patient.restart(name)
    for number, name in enumerate(patient.replicasets):
        patient.wait_leader(name)
        patient.promote(f"{name}_1")
        patient.move_buckets("default", 1500 * number + 1, 1500 * number + 1500, name)
    patient.wait_views()


# Topology


async def test_the_whole_topology_is_known_after_start(cluster):
    """Instances with addresses, leaders, tiers and the owner of every bucket."""
    async with Plane(cluster) as plane:
        snapshot = plane.snapshot
        assert {node.name: node.address for node in snapshot.nodes()} == {
            name: where.address for name, where in cluster.instances.items()
        }
        assert {name: plane.leader(name) for name in cluster.replicasets} == cluster.leaders()
        assert snapshot.bucket_counts == {"default": 3000}
        assert snapshot.shard_map("default").unowned == 0
        for bucket in (1, 1500, 1501, 3000):
            assert snapshot.owner("default", bucket) == cluster.replicasets[cluster.owner_of("default", bucket)]


async def test_moved_buckets_are_known_with_the_next_refresh(doomed):
    """Half of a replicaset's buckets move; no other bucket changes its owner."""
    doomed.set_view_lag(0.0)
    async with Plane(doomed, interval=None) as plane:
        before = plane.snapshot.shard_map("default").owners
        doomed.move_buckets("default", 1, 700, "default_2")
        doomed.wait_views()
        await plane.tracker.refresh_now()
        after = plane.snapshot.shard_map("default").owners
        assert set(after[1:701]) == {doomed.replicasets["default_2"]}
        assert after[701:] == before[701:]


async def test_a_bucket_that_cannot_be_found_keeps_the_last_map(doomed):
    """The call fails as a whole during rebalancing: everything else is fresh."""
    async with Plane(doomed, interval=None) as plane:
        before = plane.snapshot.shard_map("default")
        doomed.lose_bucket("default", 7)
        doomed.promote("default_1_2")
        await plane.tracker.refresh_now()
        assert plane.snapshot.shard_map("default") is before
        assert plane.leader("default_1") == "default_1_2"


@pytest.mark.stops_instances
async def test_a_killed_leader_is_replaced_in_the_snapshot_after_the_demotion(doomed):
    """The tracker's own node dies as well: it reads on at another one."""
    async with Plane(doomed) as plane:
        assert plane.leader("default_1") == "default_1_1"
        doomed.kill("default_1_1")
        await plane.until(lambda: plane.leader("default_1") == "default_1_2")
        assert plane.leader("default_2") == "default_2_1"


@pytest.mark.stops_instances
async def test_a_frozen_tracker_node_delays_the_topology_by_one_deadline(doomed):
    """The node that carries the tracker's connection freezes: after its deadline another one is asked."""
    async with Plane(doomed) as plane:
        doomed.freeze("default_1_1")
        plane.seeds.remove("default_1_1")
        took = await plane.until(lambda: plane.leader("default_1") == "default_1_2")
        assert took < 10
        doomed.thaw("default_1_1")


@pytest.mark.stops_instances
async def test_stop_returns_although_the_tracker_s_node_is_frozen(doomed):
    """No server has to answer for a pool to close."""
    async with Plane(doomed, interval=None) as plane:
        doomed.freeze("default_1_1")
        refreshing = asyncio.create_task(plane.tracker.refresh_now())
        await asyncio.sleep(0)
        begun = time.monotonic()
        await plane.tracker.stop()
        await refreshing
        assert time.monotonic() - begun < 15
    doomed.thaw("default_1_1")


# Statement metadata

LEARNED = [
    ("SELECT * FROM o WHERE id = $1", "o", (0,), (42,)),
    ("INSERT INTO o VALUES ($1, $2)", "o", (0,), (42, "x")),
    ("UPDATE o SET v = $1 WHERE id = $2", "o", (1,), ("x", 42)),
    ("DELETE FROM o WHERE id = $1", "o", (0,), (42,)),
    ("SELECT * FROM c WHERE a = $1 AND b = $2", "c", (1, 0), (7, "k")),
    ("INSERT INTO c VALUES ($1, $2, $3)", "c", (1, 0), (7, "k", "v")),
]


@pytest.mark.parametrize(("query", "table", "key", "args"), LEARNED)
async def test_keys_are_learned_from_the_server(cluster, query, table, key, args):
    """The learned route gives the bucket the cluster gives."""
    async with Plane(cluster, user="app") as plane:
        found = await plane.metadata.get_query_metadata(query)
        assert found.route.kind is RouteKind.KEYED
        assert tuple(part.parameter for part in found.route.keys[0]) == key
        predict = compile_route(found.route, DIALECT.key_hash, 3000)
        assert predict(args) == {cluster.bucket_of(table, *(args[position] for position in key))}


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("SELECT * FROM o WHERE v = $1", RouteKind.NOT_KEYED),
        ("SELECT * FROM g WHERE id = $1", RouteKind.ANY_NODE),
        ("INSERT INTO g VALUES ($1, $2)", RouteKind.ANY_NODE),
        ("SELECT * FROM o WHERE id IN ($1, $2)", RouteKind.KEY_SET),
        ("SELECT * FROM o WHERE id = 7 AND v = $1", RouteKind.CONSTANT),
    ],
)
async def test_what_has_no_single_key_is_learned_too(cluster, query, kind):
    """Scans, global tables, sets and constants."""
    async with Plane(cluster, user="app") as plane:
        assert (await plane.metadata.get_query_metadata(query)).route.kind is kind


async def test_texts_without_parameters_tell_where_they_may_run(cluster):
    """Worth knowing while a leader is missing."""
    async with Plane(cluster, user="app") as plane:
        ask = plane.metadata.get_query_metadata
        for query, kind in (
            ("SELECT * FROM o WHERE id = 7", RouteKind.CONSTANT),
            ("SELECT count(*) FROM o", RouteKind.NOT_KEYED),
            ("SELECT 1", RouteKind.ANY_NODE),
        ):
            assert (await ask(query)).route.kind is kind


async def test_statements_the_server_refuses_cost_nothing(cluster):
    """Cache and connection survive unknown tables and missing rights."""
    async with Plane(cluster, user="app") as plane:
        known = await plane.metadata.get_query_metadata(LEARNED[0][0])
        assert await plane.metadata.get_query_metadata("SELECT * FROM nowhere WHERE id = $1") is None
        assert await plane.metadata.get_query_metadata("SELECT $1 FROM WHERE") is None
        assert plane.metadata.request_if_missing(LEARNED[0][0]) is known
        assert plane.metadata.connected


async def test_a_grant_makes_a_text_learnable(cluster):
    """AccessDenied is asked about again."""
    async with Plane(cluster, user="poor") as plane:
        query = "SELECT * FROM o WHERE id = $1"
        assert await plane.metadata.get_query_metadata(query) is None
        cluster.execute("GRANT READ ON TABLE o TO poor")
        plane.metadata.evict(query)
        assert (await plane.metadata.get_query_metadata(query)).route.kind is RouteKind.KEYED


@pytest.mark.stops_instances
async def test_texts_are_learned_while_a_leader_is_dead(doomed):
    """EXPLAIN answers although statements hang."""
    async with Plane(doomed, seeds=["default_1_1", "default_1_2"]) as plane:
        doomed.kill("default_2_1")
        found = await plane.metadata.get_query_metadata("SELECT * FROM o WHERE id = $1")
        assert found.route.kind is RouteKind.KEYED


@pytest.mark.stops_instances
async def test_a_frozen_metadata_node_costs_a_waiter_one_deadline(doomed):
    """The question is put again at another node."""
    async with Plane(doomed, seeds=["default_1_2", "default_2_2"]) as plane:
        await plane.metadata.start()
        doomed.freeze("default_1_2")
        plane.seeds.remove("default_1_2")
        begun = time.monotonic()
        found = await plane.metadata.get_query_metadata("SELECT * FROM o WHERE id = $1")
        assert found.route.kind is RouteKind.KEYED
        assert 1.5 < time.monotonic() - begun < 20
        doomed.thaw("default_1_2")


async def test_a_table_made_anew_with_another_key_is_noticed_by_a_check(doomed):
    """A real call's arguments differ from the server's answer: the text is learned afresh."""
    create = "CREATE TABLE k (a INT, b INT, PRIMARY KEY (a, b)) DISTRIBUTED BY ({})"
    query = "SELECT * FROM k WHERE a = $1 AND b = $2"
    doomed.execute(create.format("a"))
    async with Plane(doomed) as plane:
        first = await plane.metadata.get_query_metadata(query)
        assert [part.parameter for part in first.route.keys[0]] == [0]
        doomed.execute("DROP TABLE k")
        doomed.execute(create.format("b"))
        plane.metadata.check_later(query, (1, 2))
        fresh = first
        async with asyncio.timeout(10):
            while fresh is None or fresh is first:
                await asyncio.sleep(0.01)
                fresh = plane.metadata.request_if_missing(query)
        assert [part.parameter for part in fresh.route.keys[0]] == [1]


async def test_arguments_that_do_not_fit_their_type_cost_nothing(cluster):
    """What asyncpg refuses to send is no answer about the route."""
    async with Plane(cluster, user="app") as plane:
        query = "SELECT * FROM o WHERE id = $1"
        assert await plane.metadata.get_query_metadata(query) is not None
        plane.metadata.check_later(query, ("x",))
        plane.metadata.check_later(query, (1,))
        await plane.metadata.close()
        stats = plane.metadata.stats()
        assert (stats.checks, stats.differences, stats.lost) == (1, 0, 0)


# A user who may not read who leads


async def test_a_bare_user_s_leaders_are_found_once_a_keyed_select_is_known(cluster):
    """READ and WRITE on the application's tables only: buckets are known at once, leaders after the first SELECT."""
    async with Plane(cluster, user="app") as plane:
        assert plane.snapshot.bucket_counts == {"default": 3000}
        assert plane.snapshot.nodes(role="leader") == ()
        await plane.metadata.get_query_metadata("SELECT * FROM o WHERE id = $1")
        await plane.tracker.refresh_now()
        assert {name: plane.leader(name) for name in cluster.replicasets} == cluster.leaders()


@pytest.mark.stops_instances
async def test_a_bare_user_follows_a_leader_change(doomed):
    """Killed, and switched as planned: the leader is found again, the second time because it was doubted."""
    async with Plane(doomed, user="app", seeds=["default_2_2", "default_2_1"]) as plane:
        await plane.metadata.get_query_metadata("SELECT * FROM o WHERE id = $1")
        await plane.until(lambda: plane.leader("default_1") == "default_1_1")
        doomed.kill("default_1_1")
        await plane.until(lambda: plane.leader("default_1") == "default_1_2")
        doomed.promote("default_2_2")
        plane.source.doubt_leader(doomed.replicasets["default_2"])
        await plane.until(lambda: plane.leader("default_2") == "default_2_2")
