"""A node that hangs under calls without any timeout: its calls end, the others' go on, and it is used again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.acquired import AcquiredConnection
from picopyn.errors import OutcomeUnknown, PicopynError, WriteLost
from picopyn.observe import Event, NodeStateChanged
from picopyn.testing import FaultProxy
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.load import Load
from tests.contract.target import Capability, Member, Target
from tests.contract.test_leader_lost import _keys_by_owner, _promotion, _watch_hanging
from tests.contract.test_life_cycle import Proxied
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

Measured = Callable[[str, object], None]


class States:
    """The states of nodes as the pool tells them, each with its moment."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, NodeStateChanged]] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, NodeStateChanged):
            self.seen.append((time.monotonic(), event))
            self._news.set()

    def of(self, uuid: str) -> list[str]:
        """What a node went through."""
        return [event.new for _, event in self.seen if event.node == uuid]

    async def until(self, uuid: str, state: str, timeout: float = 20.0) -> float:
        """Wait until a node is in a state; gives the moment it came into it."""
        async with asyncio.timeout(timeout):
            while self.of(uuid)[-1:] != [state]:
                self._news.clear()
                await self._news.wait()
        return next(moment for moment, event in reversed(self.seen) if event.node == uuid)


class Two:
    """Two replicasets of a fresh cluster, a table, and keys of both."""

    def __init__(self, target: Target, healthy: list[Member], wounded: list[Member], table: str) -> None:
        self.target = target
        self.healthy = healthy[0]
        self.wounded = wounded[0]
        self.select = f"SELECT v FROM {table} WHERE id = $1"
        self.update = f"UPDATE {table} SET v = $1 WHERE id = $2"
        self.scan = f"SELECT count(*) FROM {table}"
        self.ours: list[int] = []
        self.theirs: list[int] = []

    async def learn(self, pool: Pool) -> None:
        """Let the pool learn the texts, and sort keys by their owner."""
        await pool.wait_ready()
        await pool.explain_route(self.update, 1, 1)
        await pool.explain_route(self.scan)
        keys = await _keys_by_owner(pool, self.select, 40)
        self.ours, self.theirs = keys[self.healthy.replicaset], keys[self.wounded.replicaset]


async def two(fresh: Fresh, *needs: Capability, auto_offline_timeout: float = 60.0) -> Two:
    target = fresh(auto_offline_timeout=auto_offline_timeout)
    target.need(*needs)
    healthy, wounded = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    await target.execute(*(f"INSERT INTO {table} VALUES ({number}, 0)" for number in range(40)))
    return Two(target, healthy, wounded, table)


def _slow_tenth(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] if seconds else 0.0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_traffic_to_a_frozen_leader_stops(fresh: Fresh, open_pool: OpenPool, measured: Measured) -> None:
    """50 tasks, no timeout: its writes in flight are unknown, since it hangs; nobody else notices; it comes back."""
    cluster = await two(fresh, Capability.FREEZE)
    states = States()
    pool = await open_pool(cluster.target.dsn, on_event=states)
    await cluster.learn(pool)

    async def write(numbers: list[int], number: int) -> None:
        assert await pool.execute(cluster.update, number, numbers[number % len(numbers)]) == "UPDATE 1"

    async with Load() as load:
        load.start("ours", lambda n: write(cluster.ours, n), tasks=25)
        load.start("theirs", lambda n: write(cluster.theirs, n), tasks=25)
        await load.wait("calls of both", lambda: len(load.of("ours")) > 500 and len(load.of("theirs")) > 500)
        before = [done.seconds for done in load.of("ours")]
        await cluster.target.freeze(cluster.wounded)
        frozen = time.monotonic()
        stopped = await states.until(cluster.wounded.uuid, "down")
        await load.wait("its calls end", lambda: bool(load.failures("theirs")))
        await load.wait("all of them", lambda: not pool.stats().nodes[cluster.wounded.uuid].in_use)
        late = load.of("ours", began_after=frozen)
        await load.wait("others go on", lambda: len(load.of("ours", began_after=stopped)) > 200)
        await cluster.target.thaw(cluster.wounded)
        thawed = time.monotonic()
        await load.wait("it is used again", lambda: any(d.error is None for d in load.of("theirs", began_after=frozen)))
        await load.wait("and goes on", lambda: len(load.of("theirs", began_after=thawed)) > 50)
    lost = load.failures("theirs")
    measured("traffic stopped after (s)", stopped - frozen)
    measured("others' p99 before (s)", _slow_tenth(before))
    measured("others' p99 while it hung (s)", _slow_tenth([done.seconds for done in late]))
    measured("used again after the thaw (s)", load.of("theirs", ended_after=thawed)[0].ended - thawed)
    assert 0 < len(lost) <= 10
    assert all(isinstance(done.error, WriteLost) and "it hangs" in str(done.error) for done in lost)
    assert not load.failures("ours")
    assert states.of(cluster.wounded.uuid)[:3] == ["suspect", "down", "up"]
    assert states.of(cluster.healthy.uuid) == []


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_how_soon_traffic_stops(fresh: Fresh, open_pool: OpenPool, measured: Measured, full_size: bool) -> None:
    """Frozen and thawed again and again under 50 tasks; every time it is found, and used again."""
    cluster = await two(fresh, Capability.FREEZE, auto_offline_timeout=600.0)
    states = States()
    pool = await open_pool(cluster.target.dsn, on_event=states)
    await cluster.learn(pool)
    keys = [*cluster.ours, *cluster.theirs]
    stopped: list[float] = []
    thawed: list[float] = []

    async def write(number: int) -> None:
        await pool.execute(cluster.update, number, keys[number % len(keys)])

    async with Load() as load:
        load.start("writes", write, tasks=50, pause=0.01)
        for _ in range(20 if full_size else 2):
            ended = len(load.done)
            await load.wait("all go on", lambda ended=ended: len(load.done) > ended + 500)
            frozen = time.monotonic()
            await cluster.target.freeze(cluster.wounded)
            stopped.append(await states.until(cluster.wounded.uuid, "down") - frozen)
            moment = time.monotonic()
            await cluster.target.thaw(cluster.wounded)
            thawed.append(await states.until(cluster.wounded.uuid, "up") - moment)
    for what, seconds in (("traffic stopped after a freeze", stopped), ("used again after a thaw", thawed)):
        measured(f"{what}, {len(seconds)} times: p50 (s)", statistics.median(seconds))
        measured(f"{what}: p99 (s)", max(seconds))
    assert all(isinstance(done.error, WriteLost) for done in load.failures())
    assert states.of(cluster.healthy.uuid) == []


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["mute", "freeze"])
async def test_a_node_behind_a_dead_link_is_found_and_found_again(
    target: Target, open_pool: OpenPool, measured: Measured, how: str
) -> None:
    """Bytes are swallowed, or held: the link says nothing of it. The replica answers reads meanwhile."""
    healthy, wounded = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    cluster, states = Two(target, healthy, wounded, table), States()
    with ExitStack() as stack:
        members = await target.members()
        proxied = Proxied(target, {m.endpoint: stack.enter_context(FaultProxy(*m.endpoint)) for m in members})
        pool = await open_pool(proxied.dsn, address_map=proxied.address_map, on_event=states)
        await cluster.learn(pool)
        proxy = proxied.proxies[cluster.wounded.endpoint]
        getattr(proxy, how)()
        began = time.monotonic()
        write = asyncio.create_task(pool.execute(cluster.update, 1, cluster.theirs[0]))
        while not pool.stats().in_use:  # else a read may take the only connection that it could be sent on
            await asyncio.sleep(0.001)
        reads = [pool.fetchrow(cluster.select, cluster.theirs[0], role="prefer_leader") for _ in range(5)]
        assert await asyncio.gather(*reads) == [None] * 5
        measured("reads answered by the replica after (s)", time.monotonic() - began)
        with pytest.raises(OutcomeUnknown, match="it hangs"):
            await write
        proxy.let_pass()
        passing = time.monotonic()
        assert await pool.execute(cluster.update, 1, cluster.theirs[0]) == "UPDATE 0"
        measured("used again after (s)", time.monotonic() - passing)
        await pool.close(grace=1)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_with_a_frozen_node_ends_with_the_grace(
    pool_class: Any, fresh: Fresh, measured: Measured
) -> None:
    """Calls in flight have the grace; then everything is dropped, whoever does not say goodbye."""
    cluster = await two(fresh, Capability.FREEZE)
    for member in (cluster.wounded, cluster.healthy):
        pool = await pool_class(cluster.target.dsn).open()
        await cluster.learn(pool)
        keys = cluster.theirs if member is cluster.wounded else cluster.ours
        await cluster.target.freeze(member)
        try:
            call = asyncio.create_task(pool.execute(cluster.update, 1, keys[0]))
            while not pool.stats().in_use:
                await asyncio.sleep(0.001)
            began = time.monotonic()
            await pool.close(grace=0.4)
            measured("close(grace=0.4) with a frozen leader (s)", time.monotonic() - began)
            await asyncio.wait({call}, timeout=20)  # a thread that is told still has to come to the end of it
            assert call.done()
            with pytest.raises(PicopynError):
                await call
        finally:
            await cluster.target.thaw(member)


async def test_a_busy_client_blames_nobody(fresh: Fresh, open_pool: OpenPool) -> None:
    """It blocks its own loop, a second at once, and then nearly all of the time: nobody is down, long calls run on."""
    cluster = await two(fresh, Capability.FREEZE)
    states = States()
    pool = await open_pool(cluster.target.dsn, on_event=states)
    await cluster.learn(pool)
    borrowed = [await _borrow(pool, cluster.healthy.uuid) for _ in range(3)]
    await cluster.target.freeze(cluster.wounded)  # what is forwarded to it is a long statement at the healthy one
    calls = [asyncio.create_task(connection.fetchval(cluster.scan)) for connection in borrowed]
    routed = asyncio.create_task(pool.execute(cluster.update, 1, cluster.theirs[0], idempotent=True))
    await states.until(cluster.wounded.uuid, "down")
    states.seen.clear()
    for blocked, pause in ((1.0, 0.02), (1.0, 0.02), *[(0.1, 0.001)] * 15, *[(0.02, 0.0002)] * 50):
        time.sleep(blocked)  # noqa: ASYNC251 - this is the client's fault that is tested
        await asyncio.sleep(pause)
    assert states.of(cluster.healthy.uuid) == []
    assert not any(call.done() for call in calls)
    await cluster.target.thaw(cluster.wounded)
    assert await asyncio.gather(*calls) == [40] * 3
    assert await routed == "UPDATE 1"
    for connection in borrowed:
        await pool.release(connection)


async def _borrow(pool: Pool, uuid: str) -> AcquiredConnection:
    """A connection to this node: nodes are chosen by load, so it comes when the others have more."""
    others: list[AcquiredConnection] = []
    while True:
        connection = await pool.acquire()
        if connection.node.uuid == uuid:
            break
        others.append(connection)
    for other in others:
        await pool.release(other)
    return connection


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_overloaded_server_is_not_down(fresh: Fresh, open_pool: OpenPool, measured: Measured) -> None:
    """All places for running statements are taken; it answers what is only planned, and new connections too."""
    cluster = await two(fresh, Capability.KILL, Capability.COUNT_HANGING, auto_offline_timeout=600.0)
    states = States()
    pool = await open_pool(cluster.target.dsn, on_event=states)
    await cluster.learn(pool)
    raws = [await cluster.target.connect(cluster.healthy) for _ in range(60)]
    await cluster.target.kill(cluster.wounded)
    hanging = [asyncio.create_task(raw.fetchval(cluster.select, cluster.theirs[0])) for raw in raws]

    async def all_taken() -> bool:
        return (await cluster.target.hanging())[cluster.healthy.name] >= 50

    await cluster.target.until(all_taken, "50 statements hang")
    calls = [asyncio.create_task(pool.execute(cluster.update, 1, cluster.ours[0])) for _ in range(20)]
    await asyncio.wait(calls, timeout=4)
    assert not any(call.done() for call in calls)
    with pytest.raises(TimeoutError):
        await pool.execute(cluster.update, 1, cluster.ours[0], timeout=0.2)
    await asyncio.wait(calls, timeout=0.5)
    measured("states of the overloaded leader", str(states.of(cluster.healthy.uuid)))
    assert "down" not in states.of(cluster.healthy.uuid)
    assert not any(call.done() for call in calls)
    for task in (*calls, *hanging):
        task.cancel()
    await asyncio.gather(*calls, *hanging, return_exceptions=True)
    for raw in raws:
        raw.terminate()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.stops_instances
async def test_no_call_outlives_a_promotion_by_more_than_a_second(
    fresh: Fresh, open_pool: OpenPool, measured: Measured
) -> None:
    """A leader dies, unseen by us, with calls in flight on it and, forwarded, on others: all of them end."""
    cluster = await two(fresh, Capability.KILL, auto_offline_timeout=1.0)
    states = States()
    with ExitStack() as stack:
        members = await cluster.target.members()
        proxies = {m.endpoint: stack.enter_context(FaultProxy(*m.endpoint)) for m in members}
        proxied = Proxied(cluster.target, proxies)
        pool = await open_pool(
            proxied.dsn, address_map=proxied.address_map, on_event=states, topology_update_interval=30.0
        )
        await cluster.learn(pool)
        proxies[cluster.wounded.endpoint].freeze()
        await cluster.target.kill(cluster.wounded)
        direct = [asyncio.create_task(pool.execute(cluster.update, 1, cluster.theirs[0])) for _ in range(5)]
        forwarded = [asyncio.create_task(pool.fetchval(cluster.scan)) for _ in range(10)]
        writes = [
            asyncio.create_task(pool.execute(cluster.update.replace("id = $2", "v = $2"), 0, 0)) for _ in range(3)
        ]
        ended: list[float] = []
        for call in (*direct, *forwarded, *writes):
            call.add_done_callback(lambda _: ended.append(time.monotonic()))
        promotion = asyncio.create_task(_promotion(cluster.target, cluster.wounded))
        most: dict[str, int] = {}
        watching = asyncio.create_task(_watch_hanging(cluster.target, most))
        promoted = await promotion
        results = await asyncio.gather(*direct, *forwarded, *writes, return_exceptions=True)
        watching.cancel()
        measured("statements that hung at the healthy leader", most.get(cluster.healthy.name, 0))
        measured("the last call ended after the promotion by (s)", max(ended) - promoted)
        kinds = [type(result).__name__ for result in results]
        measured("results", str({kind: kinds.count(kind) for kind in kinds}))
        assert results[5:15] == [40] * 10
        assert all(isinstance(r, OutcomeUnknown) or str(r).startswith("UPDATE") for r in (*results[:5], *results[15:]))
        assert "down" not in states.of(cluster.healthy.uuid)
        await pool.close(grace=1)
    with suppress(asyncpg.PostgresError):
        await cluster.target.drop_tables()
