"""Frozen is not dead: only the frozen leader's own statements wait (recorded facts, section 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import asyncpg
import pytest

from picopyn.testing import PicodataCluster
from tests.testing_cluster.conftest import Connect, hangs
from tests.testing_cluster.test_dead_leader import KEYED, LIVE, answers, keys_of, with_tables

Factory = Callable[..., PicodataCluster]


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[PicodataCluster]:
    """A cluster in which nobody is demoted during the tests."""
    with PicodataCluster(auto_offline_timeout=600.0) as cluster:
        yield with_tables(cluster)


@pytest.fixture
def cluster(one_cluster: PicodataCluster) -> Iterator[PicodataCluster]:
    """The same cluster, thawed afterwards, with two rows."""
    yield one_cluster
    if one_cluster.states()["default_2_1"]["life"] == "frozen":
        one_cluster.thaw("default_2_1")
    one_cluster.execute("DELETE FROM o WHERE v = 'new'")


async def test_only_statements_for_the_frozen_leaders_buckets_hang(cluster: PicodataCluster, connect: Connect) -> None:
    """The other replicaset's run at every instance; after the thaw the waiting ones finish."""
    own, other = keys_of(cluster, "default_1")[0], keys_of(cluster, "default_2")[0]
    cluster.freeze("default_2_1")
    waiting = []
    for at in LIVE:
        connection = await connect(cluster, at)
        assert await connection.fetchval(KEYED["select"], own) == "default_1"
        waiting.append(await hangs(cluster, at, connection.fetchval(KEYED["select"], other)))
    scanning = await connect(cluster, "default_1_1")
    waiting.append(await hangs(cluster, "default_1_1", scanning.fetchval("SELECT count(*) FROM o")))
    await asyncio.to_thread(cluster.thaw, "default_2_1")
    assert await asyncio.gather(*waiting) == ["default_2"] * 3 + [2]


async def test_a_forwarded_write_happens_at_the_thaw_although_its_client_left(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """So a write that timed out is unknown, never failed."""
    key = keys_of(cluster, "default_2")[1]
    leaving, staying = await connect(cluster, "default_1_1"), await connect(cluster, "default_1_1")
    cluster.freeze("default_2_1")
    task = await hangs(cluster, "default_1_1", leaving.execute(KEYED["insert"], key))
    leaving.terminate()
    await asyncio.wait([task])
    assert task.exception() is not None
    await asyncio.to_thread(cluster.thaw, "default_2_1")
    async with asyncio.timeout(20):
        while await staying.fetchval(KEYED["select"], key) != "new":
            await asyncio.sleep(0.01)


async def test_a_write_sent_straight_to_the_frozen_leader_is_dropped_with_its_client(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """It was never read."""
    key = keys_of(cluster, "default_2")[1]
    straight, other = await connect(cluster, "default_2_1"), await connect(cluster, "default_1_1")
    await straight.fetch(KEYED["select"], key)
    cluster.freeze("default_2_1")
    with pytest.raises(TimeoutError):
        await straight.execute(f"INSERT INTO o (id, v) VALUES ({key}, 'new')", timeout=0.1)
    straight.terminate()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.to_thread(cluster.thaw, "default_2_1")
    assert await other.fetchval(KEYED["select"], key) is None


async def test_a_statement_sent_straight_to_the_frozen_leader_is_answered_after_the_thaw(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """If its client waits."""
    key = keys_of(cluster, "default_2")[0]
    connection = await connect(cluster, "default_2_1")
    cluster.freeze("default_2_1")
    task = asyncio.ensure_future(connection.fetchval(KEYED["select"], key))
    await asyncio.sleep(0)
    await asyncio.to_thread(cluster.thaw, "default_2_1")
    assert await task == "default_2"


def test_a_frozen_instance_accepts_connections_and_says_nothing(cluster: PicodataCluster) -> None:
    """A connect timeout that covers only TCP does not see it; it answers after the thaw."""
    cluster.freeze("default_2_1")
    assert answers(cluster, "default_2_1") == "silent"
    cluster.thaw("default_2_1")
    assert answers(cluster, "default_2_1", timeout=5.0) == b"N"


async def test_a_frozen_leader_is_demoted_and_comes_back_as_a_replica(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """New statements succeed after the demotion; what waits for the frozen one goes on waiting."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=0.3))
    key = keys_of(cluster, "default_2")[0]
    stuck, fresh = await connect(cluster, "default_1_1"), await connect(cluster, "default_1_1")
    cluster.freeze("default_2_1")
    task = await hangs(cluster, "default_1_1", stuck.fetchval(KEYED["select"], key))
    await asyncio.to_thread(cluster.wait_leader, "default_2", "default_2_2")
    assert await fresh.fetchval(KEYED["select"], key) == "default_2"
    assert not task.done()
    await asyncio.to_thread(cluster.thaw, "default_2_1")
    assert await task == "default_2"
    assert cluster.leaders()["default_2"] == "default_2_2"
    assert cluster.states()["default_2_1"] == {"life": "alive", "current": "Online", "target": "Online"}


async def test_killing_the_frozen_leader_fails_what_waits_for_it(
    picopyn_fresh_cluster: Factory, connect: Connect
) -> None:
    """The connection between the instances breaks."""
    cluster = with_tables(picopyn_fresh_cluster(auto_offline_timeout=600.0))
    connection = await connect(cluster, "default_1_1")
    cluster.freeze("default_2_1")
    statement = connection.fetch(KEYED["select"], keys_of(cluster, "default_2")[0])
    task = await hangs(cluster, "default_1_1", statement)
    cluster.kill("default_2_1")
    with pytest.raises(asyncpg.PostgresError, match="Peer closed"):
        await task
