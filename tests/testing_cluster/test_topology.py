"""Tiers, buckets and instances that come and go (recorded facts, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.testing import ClusterError, PicodataCluster, TierShape
from tests.testing_cluster.conftest import Connect, hangs

Factory = Callable[..., PicodataCluster]


async def bucket_map(connection: Any, tier: str = "default") -> list[tuple[int, int, str]]:
    """What an instance's `_pico_bucket` answers, shortened."""
    answer = json.loads(await connection.fetchval("SELECT _pico_bucket($1)", tier))
    assert all(item["state"] == "active" for item in answer)
    keys = ("bucket_id_start", "bucket_id_end", "current_replicaset_uuid")
    return [tuple(item[key] for key in keys) for item in answer]


def names(cluster: PicodataCluster, ranges: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The same with names of replicasets."""
    known = {uuid: name for name, uuid in cluster.replicasets.items()}
    return [(first, last, known[uuid]) for first, last, uuid in ranges]


@pytest.fixture(scope="module")
def tiers() -> Iterator[PicodataCluster]:
    """Three tiers: a router, a storage of two replicasets, and an arbiter without buckets."""
    shapes = {
        "router": TierShape(1, 1, 100),
        "storage": TierShape(2, 2, 1000),
        "arbiter": TierShape(1, 1, 0),
    }
    with PicodataCluster(tiers=shapes, auto_offline_timeout=600.0) as cluster:
        cluster.execute('CREATE TABLE s (id INT NOT NULL PRIMARY KEY) DISTRIBUTED BY (id) IN TIER "storage"')
        cluster.execute("CREATE TABLE r (id INT NOT NULL PRIMARY KEY)")
        cluster.execute("CREATE TABLE g (id INT NOT NULL PRIMARY KEY) DISTRIBUTED GLOBALLY")
        yield cluster


async def test_each_tier_counts_its_own_buckets(tiers: PicodataCluster, connect: Connect) -> None:
    """Key 1 is bucket 934 of 1 000 and 34 of 100; the system table says how many there are."""
    connection = await connect(tiers, "router_1_1")
    for table, bucket in (("s", 934), ("r", 34)):
        plan = await connection.fetch(f"EXPLAIN SELECT * FROM {table} WHERE id = 1")
        assert plan[-1][0] == f"buckets = [{bucket}]"
        assert tiers.bucket_of(table, 1) == bucket
    rows = await connection.fetch("SELECT name, bucket_count, is_default FROM _pico_tier")
    assert {tuple(row) for row in rows} == {
        ("router", 100, True),
        ("storage", 1000, False),
        ("arbiter", 0, False),
    }


async def test_an_all_buckets_answer_counts_the_asked_instances_own_tier(
    tiers: PicodataCluster, connect: Connect
) -> None:
    """So [1-N] with N any tier's count means all."""
    for at, line in (("router_1_1", "buckets = [1-100]"), ("storage_1_1", "buckets = [1-1000]")):
        plan = await (await connect(tiers, at)).fetch("EXPLAIN SELECT * FROM s")
        assert plan[-1][0] == line


async def test_every_instance_answers_for_every_tier_that_has_buckets(tiers: PicodataCluster, connect: Connect) -> None:
    """The arbiter tier does not exist in this sense."""
    for at in tiers.instances:
        connection = await connect(tiers, at)
        assert [(first, last) for first, last, _ in await bucket_map(connection, "storage")] == [
            (1, 500),
            (501, 1000),
        ]
        assert len(await bucket_map(connection, "router")) == 1
        with pytest.raises(asyncpg.PostgresError, match="tier 'arbiter' doesn't exist"):
            await bucket_map(connection, "arbiter")


async def test_a_dead_leader_hangs_statements_on_its_own_tiers_tables_only(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """The other tier's tables, global tables and scans of them run at every instance."""
    cluster = picopyn_fresh_cluster(
        tiers={"router": TierShape(1, 1, 100), "storage": TierShape(2, 1, 1000)}, auto_offline_timeout=600.0
    )
    cluster.execute('CREATE TABLE s (id INT NOT NULL PRIMARY KEY) DISTRIBUTED BY (id) IN TIER "storage"')
    cluster.execute("CREATE TABLE r (id INT NOT NULL PRIMARY KEY)")
    cluster.kill("storage_2_1")
    for at in ("router_1_1", "storage_1_1"):
        connection = await connect(cluster, at)
        assert await connection.fetchval("SELECT count(*) FROM r") == 0
        assert await connection.fetch("SELECT * FROM r WHERE id = $1", 1) == []
        (await hangs(cluster, at, connection.fetch("SELECT count(*) FROM s"))).cancel()
    key = next(k for k in range(100) if cluster.owner_of("storage", cluster.bucket_of("s", k)) == "storage_1")
    connection = await connect(cluster, "storage_1_1")
    assert await connection.execute("INSERT INTO s VALUES ($1)", key) == "INSERT 0 1"
    assert cluster.counters()["storage_1_1"].direct == 1


async def test_direct_and_forwarded_statements_are_counted_by_kind(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """At the owner's leader, its replica, and the other leader."""
    cluster = picopyn_fresh_cluster()
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY, v TEXT)")
    owner = cluster.owner_of("default", cluster.bucket_of("o", 1))
    other = next(name for name in cluster.leaders() if name != owner)
    at_owner = await connect(cluster, cluster.leaders()[owner])
    await at_owner.execute("INSERT INTO o VALUES ($1, $2)", 1, "a")
    for at in (f"{owner}_2", cluster.leaders()[other]):
        assert await (await connect(cluster, at)).fetchval("SELECT v FROM o WHERE id = $1", 1) == "a"
    counters = cluster.counters()
    assert counters[f"{owner}_1"].direct_by_kind == {"insert": 1}
    assert counters[f"{owner}_2"].forwarded_by_kind == {"select": 1}
    assert counters[f"{other}_1"].forwarded_by_kind == {"select": 1}


async def test_buckets_move_and_views_follow(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """At once without lag; one instance can stay behind; the rows are never lost."""
    cluster = picopyn_fresh_cluster()
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY)")
    cluster.execute("INSERT INTO o VALUES (1), (2), (3)")
    one, two = await connect(cluster, "default_1_1"), await connect(cluster, "default_2_1")
    cluster.set_view_lag(0.3, "default_2_1")
    cluster.move_buckets("default", 1001, 1500, "default_2")
    moved = [(1, 1000, "default_1"), (1001, 3000, "default_2")]
    assert names(cluster, await bucket_map(one)) == moved
    assert names(cluster, await bucket_map(two)) == [(1, 1500, "default_1"), (1501, 3000, "default_2")]
    cluster.wait_views()
    assert names(cluster, await bucket_map(two)) == moved
    assert await one.fetchval("SELECT count(*) FROM o") == 3


async def test_a_moved_buckets_new_leader_executes_its_statements(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """What was forwarded becomes direct."""
    cluster = picopyn_fresh_cluster()
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY)")
    bucket = cluster.bucket_of("o", 1)
    owner = cluster.owner_of("default", bucket)
    other = "default_2" if owner == "default_1" else "default_1"
    connection = await connect(cluster, cluster.leaders()[other])
    await connection.execute("INSERT INTO o VALUES ($1)", 1)
    cluster.move_buckets("default", bucket, bucket, other)
    await connection.fetch("SELECT * FROM o WHERE id = $1", 1)
    counters = cluster.counters()[cluster.leaders()[other]]
    assert (counters.forwarded_by_kind, counters.direct_by_kind) == ({"insert": 1}, {"select": 1})


async def test_a_gradual_move_passes_through_steps(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """Every map on the way is complete: each bucket has one owner."""
    cluster = picopyn_fresh_cluster()
    connection = await connect(cluster, "default_1_1")
    cluster.move_buckets("default", 1, 1500, "default_2", duration=0.2, steps=5)
    seen = set()
    while len(ranges := await bucket_map(connection)) > 1:
        assert [first for first, _, _ in ranges[1:]] == [last + 1 for _, last, _ in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (1, 3000)
        seen.add(tuple(ranges))
    cluster.wait_views()
    assert names(cluster, await bucket_map(connection)) == [(1, 3000, "default_2")]
    assert len(seen) >= 2


async def test_one_bucket_that_cannot_be_found_fails_the_whole_map(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """At the instance told to, until it is found again; statements go on."""
    cluster = picopyn_fresh_cluster()
    one, two = await connect(cluster, "default_1_1"), await connect(cluster, "default_2_1")
    cluster.lose_bucket("default", 77, "default_1_1")
    with pytest.raises(asyncpg.PostgresError, match="Bucket 77 cannot be found"):
        await bucket_map(one)
    assert len(await bucket_map(two)) == 2
    cluster.lose_bucket("default", None, "default_1_1")
    assert len(await bucket_map(one)) == 2


async def test_a_new_instance_joins_and_cannot_route_for_a_while(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """It is Online and listed, and says "no router found"."""
    cluster = picopyn_fresh_cluster(replicasets=1, replication=1, join_delay=600.0)
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY)")
    name = cluster.add_instance("default_1")
    assert name == "default_1_2"
    connection = await connect(cluster, name)
    assert await connection.fetchval("SELECT count(*) FROM _pico_instance") == 2
    for statement in ("SELECT * FROM o WHERE id = 1", "INSERT INTO o VALUES (1)"):
        with pytest.raises(asyncpg.PostgresError, match="no router found for tier 'default'"):
            await connection.fetch(statement)
    with pytest.raises(asyncpg.PostgresError, match="doesn't exist"):
        await bucket_map(connection)


async def test_a_new_replicaset_owns_nothing_until_buckets_move(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """Then its leader is the owner."""
    cluster = picopyn_fresh_cluster(replicasets=1, replication=1)
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY)")
    assert cluster.add_instance() == "default_2_1"
    assert cluster.leaders() == {"default_1": "default_1_1", "default_2": "default_2_1"}
    cluster.move_buckets("default", 1, 3000, "default_2")
    await (await connect(cluster, "default_2_1")).execute("INSERT INTO o VALUES (1)")
    assert cluster.counters()["default_2_1"].direct == 1


async def test_an_expelled_instance_leaves_its_rows_behind(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """State Expelled, addresses still listed, its port refuses; the last instance with buckets cannot go."""
    cluster = picopyn_fresh_cluster(replicasets=1, replication=2)
    cluster.expel("default_1_1")
    assert cluster.leaders() == {"default_1": "default_1_2"}
    connection = await connect(cluster, "default_1_2")
    rows = await connection.fetch("SELECT current_state[1]::text FROM _pico_instance")
    assert {row[0] for row in rows} == {"Expelled", "Online"}
    assert await connection.fetchval("SELECT count(*) FROM _pico_peer_address") == 6
    with pytest.raises(ConnectionRefusedError):
        await connect(cluster, "default_1_1")
    with pytest.raises(ClusterError, match="still has buckets"):
        cluster.expel("default_1_2")


async def test_an_injected_error_comes_once_and_without_effect(
    picopyn_cluster_factory: Factory, connect: Connect
) -> None:
    """For errors that a real cluster gives only at the wrong moment."""
    cluster = picopyn_cluster_factory(replicasets=1, replication=1)
    cluster.execute("CREATE TABLE injected (id INT NOT NULL PRIMARY KEY)")
    text = "Error on replicaset x: Object is outdated after module reload/reconfigure. Use new instance."
    cluster.inject_error("default_1_1", text)
    connection = await connect(cluster, "default_1_1")
    with pytest.raises(asyncpg.PostgresError, match="Object is outdated"):
        await connection.execute("INSERT INTO injected VALUES (1)")
    assert await connection.execute("INSERT INTO injected VALUES (1)") == "INSERT 0 1"


async def test_an_instance_may_advertise_another_address(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """As behind a NAT, or with 0.0.0.0."""
    cluster = picopyn_fresh_cluster(replicasets=1, replication=1)
    connection = await connect(cluster, "default_1_1")
    query = "SELECT address FROM _pico_peer_address WHERE connection_type = 'pgproto'"
    assert await connection.fetchval(query) == cluster.instances["default_1_1"].address
    cluster.advertise("default_1_1", "0.0.0.0:4327")
    assert await connection.fetchval(query) == "0.0.0.0:4327"
    cluster.advertise("default_1_1", None)
    assert await connection.fetchval(query) == cluster.instances["default_1_1"].address
