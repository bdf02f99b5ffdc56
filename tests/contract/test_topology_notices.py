"""A server that tells of changes of the topology by itself, as Picodata plans it: only the embedded one does so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from picopyn.observe import TopologyChanged
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.threads import FACADES, over_both

pytestmark = pytest.mark.cluster

INSERT = "INSERT INTO orders VALUES ($1, $2)"
UPDATE = "UPDATE orders SET region = $2 WHERE id = $1"
#: No timer looks at the cluster while a test runs.
NEVER = 600.0


@pytest.fixture
def cluster() -> Iterator[PicodataCluster]:
    """A cluster that tells, with a table, and a user who may not read who leads."""
    with PicodataCluster(topology_notices=True, users={"app": "Secret-123"}, auto_offline_timeout=0.5) as cluster:
        cluster.execute("CREATE TABLE orders (id INT PRIMARY KEY, region TEXT) DISTRIBUTED BY (id)")
        for right in ("READ", "WRITE"):
            cluster.execute(f'GRANT {right} ON TABLE orders TO "app"')
        yield cluster


class Witness:
    """Hears of every change, on whatever thread it is told."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.changes: list[tuple[float, TopologyChanged]] = []
        self.bell = asyncio.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, TopologyChanged):
            self.changes.append((self.loop.time(), event))
            self.loop.call_soon_threadsafe(self.bell.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is known; every change asks again."""
        async with asyncio.timeout(30):
            while not condition():
                self.bell.clear()
                await self.bell.wait()


def leader(pool: Any, replicaset: str) -> str | None:
    """Name of the leader of a replicaset as the pool knows it."""
    for node in pool.topology.nodes(role="leader"):
        if node.name.startswith(replicaset):
            return str(node.name)
    return None


async def ready(pool: Any) -> list[int]:
    """The texts are learned, and the pool listens; keys of the first replicaset."""
    for key in range(20):
        await pool.execute(INSERT, key, "new")
    for text, args in ((INSERT, (0, "")), (UPDATE, (0, ""))):
        assert (await pool.explain_route(text, *args)).reason.endswith("keyed")
    await pool.refresh_topology()
    found = [(key, await pool.explain_route(UPDATE, key, "")) for key in range(20)]
    return [key for key, route in found if route.candidates[0].startswith("default_1_")]


@over_both("user", ["admin", "app"], sync=["app"])
async def test_a_change_of_leader_is_known_before_anybody_asks(
    cluster: PicodataCluster, open_pool: OpenPool, user: str, measured: Callable[[str, object], None]
) -> None:
    """The next write goes straight to the new leader: no refusal, no look, no forwarding; also without rights."""
    witness = Witness()
    pool = await open_pool(cluster.dsn_for(user), topology_update_interval=NEVER, on_event=witness)
    keys = await ready(pool)
    looks = pool.stats().topology.refreshes
    new = "default_1_2"
    await asyncio.to_thread(cluster.promote, new)
    promoted = witness.loop.time()
    await witness.until(lambda: leader(pool, "default_1") == new)
    cluster.reset_counters()
    assert await pool.execute(UPDATE, keys[0], "there") == "UPDATE 1"
    measured("from the end of the switch to the first routed write (s)", witness.loop.time() - promoted)
    counters = cluster.counters()
    assert counters[new].direct == 1
    assert sum(each.forwarded for each in counters.values()) == 0
    assert pool.stats().topology.refreshes == looks
    assert pool.stats().retries.get("NOT_LEADER", 0) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_write_that_is_refused_meanwhile_runs_when_the_new_leader_is_told(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """A planned switch costs no call, and the call that was refused goes where the notice says."""
    pool = await open_pool(cluster.dsn, topology_update_interval=NEVER, acquire_timeout=30.0)
    keys = await ready(pool)
    switching = asyncio.create_task(asyncio.to_thread(cluster.promote, "default_1_2"))
    for number in range(1000):
        assert await pool.execute(UPDATE, keys[number % len(keys)], str(number)) == "UPDATE 1"
        if switching.done() and leader(pool, "default_1") == "default_1_2":
            break
    await switching
    assert leader(pool, "default_1") == "default_1_2"


async def test_moves_arrivals_and_departures_are_told(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """Buckets, an instance that joins, one that is expelled: without any look of a timer."""
    witness = Witness()
    pool = await open_pool(cluster.dsn, topology_update_interval=NEVER, on_event=witness)
    await ready(pool)
    other = cluster.replicasets["default_2"]
    await asyncio.to_thread(cluster.move_buckets, "default", 1, 1000, "default_2")
    await witness.until(lambda: pool.topology.owner("default", 1000) == other)
    added = await asyncio.to_thread(cluster.add_instance, "default_2")
    await witness.until(lambda: any(node.name == added for node in pool.topology.nodes()))
    await asyncio.to_thread(cluster.expel, added)
    await witness.until(lambda: all(node.name != added for node in pool.topology.all_nodes()))


async def test_a_feed_that_breaks_is_replaced_or_done_without(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """Whoever told us dies: the next one tells. All fall silent: the tables are believed after a while."""
    witness = Witness()
    pool = await open_pool(cluster.dsn, topology_update_interval=1.0, on_event=witness)
    await ready(pool)
    await asyncio.to_thread(cluster.kill, "default_1_1")
    await witness.until(lambda: leader(pool, "default_1") == "default_1_2")
    for name in cluster.instances:
        cluster.mute_notices(name)
    await asyncio.to_thread(cluster.promote, "default_2_2")
    await witness.until(lambda: leader(pool, "default_2") == "default_2_2")


async def test_a_server_without_notices_is_polled_over_the_connection_it_has(open_pool: OpenPool) -> None:
    """It ignores the wish, and the connection that was to hear of news is not kept."""
    with PicodataCluster(replicasets=1, replication=1) as cluster:
        pool = await open_pool(cluster.dsn, max_size=1, topology_update_interval=NEVER)
        before = sum(cluster.sessions().values())
        await pool.refresh_topology()
        await pool.refresh_topology()
        assert pool.stats().topology.refreshes == 3
        assert sum(cluster.sessions().values()) <= before + 1  # the metadata connection may be on its way
