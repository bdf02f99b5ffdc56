"""Nodes that leave politely, and nodes that come: no call fails, and new ones are connected to before they get any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import ConnectionLost, NoNodeAvailable
from picopyn.observe import ConnectionOpened, Event, NodeStateChanged
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.contract.load import Load
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("facade", FACADES, indirect=True)]

CREATE = "CREATE TABLE orders (id INT PRIMARY KEY, region TEXT) DISTRIBUTED BY (id)"
INSERT = "INSERT INTO orders VALUES ($1, $2)"
SELECT = "SELECT region FROM orders WHERE id = $1"

Start = Callable[..., PicodataCluster]


@pytest.fixture
def cluster() -> Iterator[PicodataCluster]:
    """Two replicasets of two instances, with the table."""
    with PicodataCluster(replicasets=2, replication=2) as running:
        running.execute(CREATE)
        yield running


class Books:
    """Calls that go on: every row is written once and read again, and counted at the end."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.load = Load()

    async def __aenter__(self) -> Books:
        await self.load.__aenter__()
        for number in (-1, -2):
            await self._insert(number)
        self.load.start("insert", self._insert, tasks=4)
        self.load.start("read", lambda number: self._pool.fetchval(SELECT, -1 - number % 2), tasks=2)
        self.load.start("scan", lambda _: self._pool.fetchval("SELECT count(*) FROM orders"), pause=0.02)
        return self

    async def _insert(self, number: int) -> None:
        assert await self._pool.execute(INSERT, number, "new") == "INSERT 0 1"

    async def go_on(self) -> None:
        """Wait for some more calls of each kind."""
        before = {label: len(self.load.of(label)) for label in ("insert", "read", "scan")}
        await self.load.wait(
            "calls", lambda: all(len(self.load.of(label)) > before[label] + 20 for label in ("insert", "read"))
        )

    async def __aexit__(self, *how: Any) -> None:
        await self.load.__aexit__(*how)
        if how[0] is None:
            assert self.load.failures() == []
            assert await self._pool.fetchval("SELECT count(*) FROM orders") == 2 + len(self.load.of("insert"))


def connections(pool: Pool, uuid: str) -> int:
    """How many a node has, for callers."""
    node = pool.stats().nodes[uuid]
    return node.size


async def test_a_leader_is_drained_stopped_and_comes_back(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """Others forward its share; it is stopped and started with calls going on, and used again when one says so."""
    events: list[Event] = []
    pool = await open_pool(cluster.dsn, acquire_timeout=30.0, topology_update_interval=1.0, on_event=events.append)
    await pool.wait_ready(timeout=30)
    leader = cluster.leaders()["default_1"]
    uuid = next(node.uuid for node in pool.topology.nodes() if node.name == leader)
    async with Books(pool) as books:
        await books.go_on()
        await pool.drain(leader)
        assert connections(pool, uuid) == 0
        assert pool.stats().nodes[uuid].state == "draining"
        assert uuid not in {node.uuid for node in pool.topology.nodes()}
        cluster.reset_counters()
        await books.go_on()
        assert cluster.counters()[leader].direct == 0
        assert connections(pool, uuid) == 0
        with pytest.raises(NoNodeAvailable, match="is draining"):
            await pool.acquire(node=leader)
        await asyncio.to_thread(
            cluster.promote, next(n for n in cluster.instances if n.startswith("default_1") and n != leader)
        )
        await asyncio.to_thread(cluster.stop, leader)
        await books.go_on()
        await asyncio.to_thread(cluster.restart, leader)
        await pool.refresh_topology()
        await books.go_on()
        assert connections(pool, uuid) == 0
        pool.undrain(leader)
        await pool.wait_ready(timeout=30)
        assert connections(pool, uuid) > 0
        await books.go_on()
    told = [(e.old, e.new) for e in events if isinstance(e, NodeStateChanged) and e.node == uuid]
    assert told[:1] == [("up", "draining")]
    assert ("draining", "up") in told
    with pytest.raises(NoNodeAvailable, match="knows no node"):
        await pool.drain("nobody")
    with pytest.raises(ValueError, match="grace must be"):
        await pool.drain(leader, grace=-1)


async def test_idle_first_busy_on_release_and_a_hard_limit(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """Who still holds a connection is waited for; after the grace it is dropped. Looks at the cluster drop none."""
    events: list[Event] = []
    pool = await open_pool(cluster.dsn, min_size=2, on_event=events.append)
    await pool.wait_ready(timeout=30)
    while any(node.size + node.connecting < 2 or node.connecting for node in pool.stats().nodes.values()):
        await asyncio.sleep(0.005)
    made = len([event for event in events if isinstance(event, ConnectionOpened)])
    for _ in range(20):
        await pool.refresh_topology()
    assert len([event for event in events if isinstance(event, ConnectionOpened)]) == made
    leader = next(node for node in pool.topology.nodes(role="leader"))
    async with pool.acquire(node=leader.name) as connection:
        draining = asyncio.create_task(pool.drain(leader.name))
        while pool.stats().nodes[leader.uuid].idle or pool.stats().nodes[leader.uuid].connecting:
            await asyncio.sleep(0.005)
        assert pool.stats().nodes[leader.uuid].in_use == 1
        assert await connection.fetchval("SELECT 5") == 5
        assert not draining.done()
    await asyncio.wait_for(draining, 20)
    assert connections(pool, leader.uuid) == 0

    other = next(node for node in pool.topology.nodes(role="leader"))
    async with pool.acquire(node=other.name) as connection:
        await asyncio.wait_for(pool.drain(other.name, grace=0.05), 20)
        assert connections(pool, other.uuid) == 0
        with pytest.raises(ConnectionLost):
            await connection.fetchval("SELECT 5")

    pool.undrain(other.name)
    pool.undrain(leader.name)
    async with pool.acquire(node=other.name) as connection:
        draining = asyncio.create_task(pool.drain(other.name, grace=0.2))
        while pool.stats().nodes[other.uuid].state != "draining":
            await asyncio.sleep(0.005)
        pool.undrain(other.name)  # who is wanted again is not ended
        await asyncio.wait_for(draining, 20)
        assert await connection.fetchval("SELECT 5") == 5


async def test_instances_are_added_and_expelled_under_load(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """New ones are connected to before they take load; those that leave fail nobody."""
    events: list[Event] = []
    pool = await open_pool(cluster.dsn, acquire_timeout=30.0, topology_update_interval=1.0, on_event=events.append)
    await pool.wait_ready(timeout=30)
    async with Books(pool) as books:
        await books.go_on()
        added = await asyncio.to_thread(cluster.add_instance)
        await pool.refresh_topology()
        await books.go_on()
        uuid = next(node.uuid for node in pool.topology.nodes() if node.name == added)
        replicaset = next(name for name, leader in cluster.leaders().items() if leader == added)
        await asyncio.to_thread(cluster.move_buckets, "default", 1, 500, replicaset)
        await asyncio.to_thread(cluster.wait_views)
        await pool.refresh_topology()
        await books.go_on()
        assert cluster.counters()[added].direct > 0
        await asyncio.to_thread(cluster.move_buckets, "default", 1, 500, "default_1")
        await asyncio.to_thread(cluster.wait_views)
        await pool.refresh_topology()
        for name in (added, "default_2_2"):
            await pool.drain(name)
            await asyncio.to_thread(cluster.expel, name)
            await pool.refresh_topology()
            await books.go_on()
            pool.undrain(name)  # it has left, and may come back
            with pytest.raises(NoNodeAvailable, match="knows no node"):
                pool.undrain(name)
        assert uuid not in {node.uuid for node in pool.topology.nodes()}
    opened = [e.purpose for e in events if isinstance(e, ConnectionOpened) and e.node == uuid]
    assert opened[0] == "plain"


async def test_the_nodes_of_a_tier_can_be_left_alone(target: Target, open_pool: OpenPool) -> None:
    """What concerns their tables is sent on by the nodes of other tiers, as with `forbidden_tiers` of picopyn 3."""
    target.need(Capability.OWN_SHAPE)
    assert isinstance(target, EmbeddedTarget)
    table = await target.create_table("id INT PRIMARY KEY", distribution='DISTRIBUTED BY (id) IN TIER "storage"')
    pool = await open_pool(target.dsn, acquire_timeout=30.0)
    await pool.wait_ready(timeout=30)
    nodes = pool.topology.nodes(tier="storage")
    for node in nodes:
        await pool.drain(node.name)
    assert await pool.execute(f"INSERT INTO {table} VALUES ($1)", 1) == "INSERT 0 1"
    await pool.executemany(f"INSERT INTO {table} VALUES ($1)", [(key,) for key in range(2, 30)])
    assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 29
    stats = pool.stats().nodes
    assert nodes
    assert all((stats[node.uuid].state, stats[node.uuid].idle) == ("draining", 0) for node in nodes)
