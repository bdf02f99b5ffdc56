"""A server that tells of changes of the topology by itself, as Picodata plans it: only the embedded one does so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from statistics import quantiles
from typing import Any

import pytest

from picopyn.asynchronous.notify_source import SHORT_LIFE
from picopyn.observe import TopologyChanged
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.threads import FACADES, over_both

pytestmark = pytest.mark.cluster

INSERT = "INSERT INTO orders VALUES ($1, $2)"
UPDATE = "UPDATE orders SET region = $2 WHERE id = $1"
#: No timer looks at the cluster while a test runs.
NEVER = 600.0


@pytest.fixture(scope="module")
def shared() -> Iterator[PicodataCluster]:
    """A cluster that tells, with a table, and a user who may not read who leads."""
    with PicodataCluster(topology_notices=True, users={"app": "Secret-123"}, auto_offline_timeout=0.5) as cluster:
        cluster.execute("CREATE TABLE orders (id INT PRIMARY KEY, region TEXT) DISTRIBUTED BY (id)")
        for right in ("READ", "WRITE"):
            cluster.execute(f'GRANT {right} ON TABLE orders TO "app"')
        yield cluster


@pytest.fixture
async def cluster(shared: PicodataCluster) -> AsyncIterator[PicodataCluster]:
    """The cluster of this module; at the end everybody lives, and tells."""
    yield shared
    for name, state in shared.states().items():
        shared.mute_notices(name, muted=False)
        if state["life"] == "frozen":
            await asyncio.to_thread(shared.thaw, name)
        elif state["life"] == "dead" and state["current"] != "Expelled":
            await asyncio.to_thread(shared.restart, name)
    shared.set_notices("told")
    shared.execute("DELETE FROM orders")


class Witness:
    """Hears of every change, on whatever thread it is told."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.bell = asyncio.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, TopologyChanged):
            self.loop.call_soon_threadsafe(self.bell.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is known; every change asks again."""
        async with asyncio.timeout(30):
            while not condition():
                self.bell.clear()
                await self.bell.wait()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def leader(pool: Any, replicaset: str) -> str | None:
    """Name of the leader of a replicaset as the pool knows it."""
    for node in pool.topology.nodes(role="leader"):
        if node.name.startswith(replicaset):
            return str(node.name)
    return None


def other(cluster: PicodataCluster, replicaset: str) -> str:
    """The member of a replicaset that does not lead it."""
    first, second = f"{replicaset}_1", f"{replicaset}_2"
    return second if cluster.leaders()[replicaset] == first else first


def teller(pool: Any, cluster: PicodataCluster) -> str:
    """The instance that is listened to; `""` while none is."""
    push = pool.stats().topology.push
    found = [name for name, each in cluster.instances.items() if f"{each.host}:{each.port}" == push.address]
    return found[0] if found and push.active else ""


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
    cluster: PicodataCluster,
    open_pool: OpenPool,
    user: str,
    full_size: bool,
    measured: Callable[[str, object], None],
) -> None:
    """The next write goes straight to the new leader: no refusal, no look, no forwarding; also without rights."""
    witness = Witness()
    pool = await open_pool(cluster.dsn_for(user), topology_update_interval=NEVER, on_event=witness)
    keys = await ready(pool)
    looks = pool.stats().topology.refreshes
    times = []
    for number in range(30 if full_size else 3):
        new = other(cluster, "default_1")
        cluster.reset_counters()
        promoted = asyncio.create_task(asyncio.to_thread(cluster.promote, new))
        await witness.until(lambda new=new: leader(pool, "default_1") == new)
        assert await pool.execute(UPDATE, keys[0], str(number)) == "UPDATE 1"
        routed = time.monotonic()
        times.append(routed - (await promoted or 0))
        counters = cluster.counters()
        assert counters[new].direct == 1
        assert sum(each.forwarded for each in counters.values()) == 0
    low, middle, high = quantiles(times, n=20, method="inclusive")[0:19:9]
    measured("from leader change to routed write: 5 %, median, 95 %, most (ms)",
             ", ".join(f"{1000 * each:.1f}" for each in (low, middle, high, max(times))))  # fmt: skip
    assert pool.stats().topology.refreshes == looks
    assert pool.stats().retries.get("NOT_LEADER", 0) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_write_that_is_refused_meanwhile_runs_when_the_new_leader_is_told(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """A planned switch costs no call, and the call that was refused goes where the notice says."""
    pool = await open_pool(cluster.dsn, topology_update_interval=NEVER, acquire_timeout=30.0)
    keys = await ready(pool)
    new = other(cluster, "default_1")
    switching = asyncio.create_task(asyncio.to_thread(cluster.promote, new))
    for number in range(1000):
        assert await pool.execute(UPDATE, keys[number % len(keys)], str(number)) == "UPDATE 1"
        if switching.done() and leader(pool, "default_1") == new:
            break
    await switching
    assert leader(pool, "default_1") == new


async def test_moves_arrivals_and_departures_are_told(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """Buckets, an instance that joins, one that is expelled: without any look of a timer."""
    witness = Witness()
    pool = await open_pool(cluster.dsn, topology_update_interval=NEVER, on_event=witness)
    await ready(pool)
    for replicaset in ("default_2", "default_1"):
        owner = cluster.replicasets[replicaset]
        await asyncio.to_thread(cluster.move_buckets, "default", 1, 1000, replicaset)
        await witness.until(lambda owner=owner: pool.topology.owner("default", 1000) == owner)
    added = await asyncio.to_thread(cluster.add_instance, "default_2")
    await witness.until(lambda: any(node.name == added for node in pool.topology.nodes()))
    await asyncio.to_thread(cluster.expel, added)
    await witness.until(lambda: all(node.name != added for node in pool.topology.all_nodes()))


@pytest.mark.parametrize("facade", ["sync"], indirect=True)
async def test_whoever_tells_us_is_replaced_when_it_dies(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """At once, without a timer; what changed meanwhile is told by the next one."""
    witness = Witness()
    pool = await open_pool(cluster.dsn, topology_update_interval=NEVER, on_event=witness)
    await pool.refresh_topology()
    await asyncio.sleep(SHORT_LIFE)  # one that hangs up at once is not hurried after
    first = teller(pool, cluster)
    await asyncio.to_thread(cluster.kill, first)
    await eventually(lambda: teller(pool, cluster) not in (first, ""))
    replicaset = first.rpartition("_")[0]
    await witness.until(lambda: leader(pool, replicaset) not in (first, None))


async def test_between_two_readings_only_the_life_of_the_server_is_checked(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """No table is read, as the servers count. A node that freezes is found out, one that is drained is left at once."""
    pool = await open_pool(cluster.dsn, topology_update_interval=1.0)
    await pool.refresh_topology()
    for _ in range(10):  # who opens connections on a busy machine may want a look now and then
        cluster.reset_counters()
        checks = pool.stats().topology.push.checks
        await eventually(lambda checks=checks: pool.stats().topology.push.checks > checks)
        here = [each.here_by_kind for each in cluster.counters().values()]
        assert sum(kinds.get("explain", 0) for kinds in here) >= 1
        if not any(kinds.get("select", 0) for kinds in here):
            break
    else:
        pytest.fail("tables were read with every check")
    drained = teller(pool, cluster)
    await pool.drain(drained)
    await eventually(lambda: teller(pool, cluster) not in (drained, ""))
    frozen = teller(pool, cluster)
    await asyncio.to_thread(cluster.freeze, frozen)
    await eventually(lambda: teller(pool, cluster) not in (frozen, ""))
    assert teller(pool, cluster) != drained


async def test_servers_that_fall_silent_are_polled(cluster: PicodataCluster, open_pool: OpenPool) -> None:
    """All answer and tell nothing any more: a call that met the old leader has the tables read, and these count."""
    witness = Witness()
    pool = await open_pool(cluster.dsn, topology_update_interval=1.0, on_event=witness, acquire_timeout=30.0)
    keys = await ready(pool)
    for name in cluster.instances:
        cluster.mute_notices(name)
    new = other(cluster, "default_1")
    await asyncio.to_thread(cluster.promote, new)
    assert await pool.execute(UPDATE, keys[0], "again") == "UPDATE 1"  # forwarded, or refused and sent again
    await pool.refresh_topology()
    await witness.until(lambda: leader(pool, "default_1") == new)
    assert pool.stats().topology.push.fallbacks == {"contradicted": 1}


async def test_servers_that_do_not_tell_are_polled_until_they_are_updated(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """They refuse the wish or ignore it, and everything works; those that are started anew, and tell, are heard."""
    witness = Witness()
    for manner, why in (("refused", "refused"), ("closed", "refused"), ("ignored", "silent")):
        cluster.set_notices(manner)
        await eventually(lambda: sum(cluster.sessions().values()) == 0)
        pool = await open_pool(cluster.dsn, max_size=1, topology_update_interval=1.0, on_event=witness)
        await pool.refresh_topology()
        await pool.refresh_topology()
        stats = pool.stats().topology
        assert (stats.mode, stats.failures) == ("polling", 0)
        assert stats.push.fallbacks == {why: 1}
        assert stats.push.events == 0
        # the connection that was to hear of news is not kept: one for the topology, one for metadata
        await eventually(lambda pool=pool: sum(cluster.sessions().values()) <= pool.stats().size + 2)
        if manner != "ignored":
            await pool.close()
    new = other(cluster, "default_1")
    await asyncio.to_thread(cluster.promote, new)
    await witness.until(lambda: leader(pool, "default_1") == new)
    cluster.set_notices("told")
    polled = next(name for name, each in cluster.instances.items() if f"{each.host}:{each.port}" == stats.push.address)
    await asyncio.to_thread(cluster.kill, polled)
    await eventually(lambda: teller(pool, cluster) != "")
