"""One dead leader stops everybody who is not routed (recorded facts, section 1)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PicodataCluster
from tests.testing_cluster.conftest import Connect, hangs

Factory = Callable[..., PicodataCluster]
LIVE = ["default_1_1", "default_1_2", "default_2_2"]
KEYED = {
    "insert": "INSERT INTO o (id, v) VALUES ($1, 'new')",
    "select": "SELECT v FROM o WHERE id = $1",
    "update": "UPDATE o SET v = 'changed' WHERE id = $1",
    "delete": "DELETE FROM o WHERE id = $1",
}


def keys_of(cluster: PicodataCluster, replicaset: str, count: int = 8) -> list[int]:
    """The first keys of table `o` whose bucket lives in a replicaset."""
    found = []
    for key in range(1, 1000):
        if cluster.owner_of("default", cluster.bucket_of("o", key)) == replicaset:
            found.append(key)
            if len(found) == count:
                return found
    raise AssertionError(f"{replicaset} owns nothing")


def with_tables(cluster: PicodataCluster) -> PicodataCluster:
    """A cluster with a sharded and a global table, and a row of each replicaset."""
    cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY, v TEXT)")
    cluster.execute("CREATE TABLE g (id INT NOT NULL PRIMARY KEY, v TEXT) DISTRIBUTED GLOBALLY")
    cluster.execute("INSERT INTO g VALUES (1, 'one')")
    for replicaset in ("default_1", "default_2"):
        cluster.execute(f"INSERT INTO o VALUES ({keys_of(cluster, replicaset)[0]}, '{replicaset}')")
    return cluster


@pytest.fixture(scope="module")
def one_wounded() -> Iterator[PicodataCluster]:
    """A cluster whose default_2 has lost its leader; nobody is demoted during the tests."""
    with PicodataCluster(auto_offline_timeout=600.0) as cluster:
        with_tables(cluster).kill("default_2_1")
        yield cluster


@pytest.fixture
def wounded(one_wounded: PicodataCluster) -> PicodataCluster:
    """The same cluster with fresh counts; statements of earlier tests still hang in it."""
    one_wounded.reset_counters()
    return one_wounded


async def test_the_owners_leader_goes_on_as_if_nothing_had_happened(wounded: PicodataCluster, connect: Connect) -> None:
    """Keyed INSERT, SELECT, UPDATE and DELETE of a healthy replicaset, sent to its leader, run at once."""
    key = keys_of(wounded, "default_1")[1]
    connection = await connect(wounded, "default_1_1")
    assert await connection.execute(KEYED["insert"], key) == "INSERT 0 1"
    assert await connection.fetchval(KEYED["select"], key) == "new"
    assert await connection.execute(KEYED["update"], key) == "UPDATE 1"
    assert await connection.execute(KEYED["delete"], key) == "DELETE 1"
    counters = wounded.counters()["default_1_1"]
    assert (counters.direct, counters.forwarded) == (4, 0)


@pytest.mark.parametrize("kind", KEYED)
async def test_the_same_statement_hangs_at_every_other_instance(
    wounded: PicodataCluster, connect: Connect, kind: str
) -> None:
    """A replica of its own owner included."""
    key = keys_of(wounded, "default_1")[1]
    for at in ("default_1_2", "default_2_2"):
        connection = await connect(wounded, at)
        (await hangs(wounded, at, connection.fetch(KEYED[kind], key))).cancel()


@pytest.mark.parametrize("kind", KEYED)
async def test_a_keyed_statement_of_the_dead_leaders_bucket_hangs_anywhere(
    wounded: PicodataCluster, connect: Connect, kind: str
) -> None:
    """There is nobody who could execute it."""
    key = keys_of(wounded, "default_2")[1]
    for at in LIVE:
        connection = await connect(wounded, at)
        (await hangs(wounded, at, connection.fetch(KEYED[kind], key))).cancel()


@pytest.mark.parametrize("preference", ["any", "replica"])
async def test_the_dead_leaders_replica_answers_reads_on_a_connection_that_allows_it(
    wounded: PicodataCluster, connect: Connect, preference: str
) -> None:
    """A keyed SELECT with read_preference in the connection's options, or in the text."""
    key = keys_of(wounded, "default_2")[0]
    connection = await connect(wounded, "default_2_2", options=f"read_preference={preference}")
    assert await connection.fetchval(KEYED["select"], key) == "default_2"
    plain = await connect(wounded, "default_2_2")
    text = f"{KEYED['select']} OPTION (READ_PREFERENCE = {preference})"
    assert await plain.fetchval(text, key) == "default_2"
    assert wounded.counters()["default_2_2"].replica == 2


async def test_read_preference_helps_only_at_the_owners_replica(wounded: PicodataCluster, connect: Connect) -> None:
    """Another leader forwards and hangs; the replica without the option hangs."""
    key = keys_of(wounded, "default_2")[0]
    elsewhere = await connect(wounded, "default_1_1", options="read_preference=any")
    (await hangs(wounded, "default_1_1", elsewhere.fetch(KEYED["select"], key))).cancel()
    plain = await connect(wounded, "default_2_2")
    (await hangs(wounded, "default_2_2", plain.fetch(KEYED["select"], key))).cancel()


async def test_what_touches_no_sharded_table_runs_at_any_living_instance(
    wounded: PicodataCluster, connect: Connect
) -> None:
    """Constants, system tables, the bucket map, EXPLAIN, global tables (reads and writes)."""
    for number, at in enumerate(LIVE, 10):
        connection = await connect(wounded, at)
        assert await connection.fetchval("SELECT 1") == 1
        assert len(await connection.fetch("SELECT name FROM _pico_instance")) == 4
        assert await connection.fetchval("SELECT _pico_bucket('default')")
        plan = await connection.fetch("EXPLAIN SELECT * FROM o WHERE id = $1", 1)
        assert plan[-1][0] == "buckets = [1934]"
        assert await connection.fetchval("SELECT v FROM g WHERE id = 1") == "one"
        assert await connection.execute("INSERT INTO g VALUES ($1, 'x')", number) == "INSERT 0 1"


async def test_scans_and_unkeyed_statements_hang_even_at_a_healthy_leader(
    wounded: PicodataCluster, connect: Connect
) -> None:
    """More than one replicaset is concerned."""
    connection = await connect(wounded, "default_1_1")
    (await hangs(wounded, "default_1_1", connection.fetch("SELECT count(*) FROM o"))).cancel()


async def test_schema_changes_hang_until_there_is_a_new_leader(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """CREATE TABLE waits for every replicaset."""
    cluster = picopyn_fresh_cluster(auto_offline_timeout=0.3)
    connection = await connect(cluster, "default_1_1")
    cluster.kill("default_2_1")
    task = await hangs(cluster, "default_1_1", connection.execute("CREATE TABLE t (id INT PRIMARY KEY)"))
    assert await task == "CREATE TABLE"
    assert cluster.leaders()["default_2"] == "default_2_2"


async def test_the_dead_leader_is_demoted_after_the_timeout_and_new_statements_succeed_at_once(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """Target and current state Offline, the replica is master, versions have grown."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=0.4))
    connection = await connect(cluster, "default_1_1")
    query = "SELECT current_config_version FROM _pico_replicaset WHERE name = 'default_2'"
    before = await connection.fetchval(query)
    began = time.monotonic()
    cluster.kill("default_2_1")
    assert await asyncio.to_thread(cluster.wait_leader, "default_2") == "default_2_2"
    assert time.monotonic() - began >= 0.4
    states = await connection.fetchrow("SELECT current_state, target_state FROM _pico_instance WHERE raft_id = 3")
    assert tuple(states) == ('["Offline",1]', '["Offline",1]')
    assert await connection.fetchval(query) > before
    key = keys_of(cluster, "default_2")[0]
    for at in LIVE:
        assert await (await connect(cluster, at)).fetchval(KEYED["select"], key) == "default_2"


async def test_a_statement_that_already_waits_stays_stuck_after_the_promotion(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """A new one beside it works; the stuck one ends when the dead instance comes back."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=0.3))
    stuck, fresh = await connect(cluster, "default_1_1"), await connect(cluster, "default_1_1")
    key = keys_of(cluster, "default_2")[0]
    cluster.kill("default_2_1")
    task = await hangs(cluster, "default_1_1", stuck.fetchval(KEYED["select"], key))
    await asyncio.to_thread(cluster.wait_leader, "default_2")
    assert await fresh.fetchval(KEYED["select"], key) == "default_2"
    assert cluster.counters()["default_1_1"].hanging == 1
    await asyncio.to_thread(cluster.restart, "default_2_1")
    assert await task == "default_2"


async def test_a_stuck_statement_ends_at_its_own_limit(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """360 s on a real server, short here."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=60.0, statement_timeout=0.3))
    connection = await connect(cluster, "default_1_1")
    cluster.kill("default_2_1")
    with pytest.raises(asyncpg.PostgresError, match="timeout"):
        await connection.fetch("SELECT * FROM o")


async def test_a_returning_instance_is_online_again_as_a_replica(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """The old leader does not get its role back."""
    cluster = picopyn_fresh_cluster(auto_offline_timeout=0.2)
    cluster.kill("default_2_1")
    await asyncio.to_thread(cluster.wait_leader, "default_2")
    await asyncio.to_thread(cluster.restart, "default_2_1")
    assert cluster.leaders()["default_2"] == "default_2_2"
    connection = await connect(cluster, "default_2_1")
    state = await connection.fetchval("SELECT current_state FROM _pico_instance WHERE name = 'default_2_1'")
    assert state == '["Online",2]'


def answers(cluster: PicodataCluster, at: str, timeout: float = 0.1) -> Any:
    """What a client sees that says hello: "refused", "silent" or the first byte."""
    instance = cluster.instances[at]
    try:
        with socket.create_connection((instance.host, instance.port), timeout=timeout) as client:
            client.sendall((8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"))
            return client.recv(1) or "closed"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"


def test_a_quick_restart_refuses_then_is_silent_then_serves_and_the_topology_never_shows_it(
    picopyn_fresh_cluster: Factory,
) -> None:
    """Kill -9 and immediate restart: always Online, always the leader; the socket is the only sign."""
    cluster = picopyn_fresh_cluster(auto_offline_timeout=60.0, restart_silence=0.5)
    cluster.kill("default_2_1")
    assert answers(cluster, "default_2_1") == "refused"
    cluster.restart("default_2_1", wait=False)
    assert answers(cluster, "default_2_1") == "silent"
    assert cluster.states()["default_2_1"] == {"life": "silent", "current": "Online", "target": "Online"}
    assert cluster.leaders()["default_2"] == "default_2_1"
    assert answers(cluster, "default_2_1", timeout=5.0) == b"N"
    assert cluster.leaders()["default_2"] == "default_2_1"


async def test_an_orderly_stop_makes_a_new_leader_at_once_and_leaves_waiting_statements_stuck(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """Offline and the new master after 0.2 s; what was on its way is stuck, new statements are fine."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=60.0))
    key = keys_of(cluster, "default_2")[0]
    early, late = await connect(cluster, "default_1_1"), await connect(cluster, "default_1_1")
    began = time.monotonic()
    cluster.stop("default_2_1")
    task = await hangs(cluster, "default_1_1", early.fetchval(KEYED["select"], key))
    await asyncio.to_thread(cluster.wait_leader, "default_2", "default_2_2")
    assert time.monotonic() - began < 5.0
    assert cluster.states()["default_2_1"]["current"] == "Offline"
    assert await late.fetchval(KEYED["select"], key) == "default_2"
    assert not task.done()
    task.cancel()


async def test_a_planned_switch_refuses_writes_for_a_moment_and_reads_go_on(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """Read-only, plain at the old leader and wrapped elsewhere; target_master_name changes first."""
    cluster = with_tables(picopyn_fresh_cluster(switch_delay=1.0))
    key = keys_of(cluster, "default_2")[0]
    here, there = await connect(cluster, "default_2_1"), await connect(cluster, "default_1_1")
    cluster.promote("default_2_2", wait=False)
    names = "SELECT current_master_name, target_master_name FROM _pico_replicaset WHERE name = 'default_2'"
    for connection, begin in ((here, "sbroad: invalid transaction"), (there, "sbroad: box error: ProcLua")):
        with pytest.raises(asyncpg.PostgresError, match="Readonly") as refused:
            await connection.execute(KEYED["update"], key)
        assert str(refused.value).startswith(begin)
        assert await connection.fetchval(KEYED["select"], key) == "default_2"
        assert tuple(await connection.fetchrow(names)) == ("default_2_1", "default_2_2")
    await asyncio.to_thread(cluster.wait_leader, "default_2", "default_2_2")
    assert await there.execute(KEYED["update"], key) == "UPDATE 1"


async def test_hanging_statements_take_the_places_of_healthy_ones_even_without_their_clients(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """With every place taken nothing executes, not even SELECT 1; EXPLAIN answers."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=60.0, concurrency=5))
    other, own = keys_of(cluster, "default_2")[0], keys_of(cluster, "default_1")[0]
    cluster.kill("default_2_1")
    for _ in range(5):
        connection = await connect(cluster, "default_1_1")
        task = await hangs(cluster, "default_1_1", connection.fetch(KEYED["select"], other))
        connection.terminate()
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await task
    poor = await connect(cluster, "default_1_1")
    assert await poor.fetch("EXPLAIN SELECT * FROM o WHERE id = 1")
    asking = await hangs(cluster, "default_1_1", poor.fetchval("SELECT 1"))
    keyed = await connect(cluster, "default_1_1")
    waiting = await hangs(cluster, "default_1_1", keyed.fetchval(KEYED["select"], own))
    await asyncio.to_thread(cluster.restart, "default_2_1")
    assert await asking == 1
    assert await waiting == "default_1"
    assert cluster.counters()["default_1_1"].hanging == 0
