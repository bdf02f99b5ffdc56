"""The life of connections in the engine: kept warm, replaced when old, closed when unused, shared between nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Link
from picopyn.errors import AcquireTimeout, TooManyWaiting
from picopyn.observe import ConnectionClosed, ConnectionOpened
from picopyn.routing.plan import Candidate
from tests.asynchronous.jump_loop import jumping
from tests.engine.world import HANG, READ, SCAN, WRITE, World, server_error, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1


def leaders_only(**settings: Any) -> World:
    """Two nodes, each the leader of a replicaset."""
    world = World(two_by_two(offline=("i12", "i22")), **settings)
    for uuid in ("i12", "i22"):
        world.servers[uuid].refuses = ConnectionRefusedError("offline")
    return world


def pool_of(world: World, uuid: str) -> NodePool:
    """The pool of one node."""
    node = world.cluster.snapshot.node(uuid)
    assert node is not None
    return world.cluster.pool(Candidate(node))


async def take(world: World, uuid: str, timeout: float = 2.0) -> Link:
    """Take a connection to a node, as a call does."""
    return await pool_of(world, uuid).take(world.cluster.runtime.now() + timeout)


async def close(world: World) -> None:
    """The end of every test."""
    await world.cluster.close(world.cluster.runtime.now())


@jumping
async def test_min_size_is_opened_in_the_background_and_kept_after_losses() -> None:
    """Also when nobody calls."""
    world = leaders_only(min_size=3)
    await world.warm()
    await settle()
    server = world.servers["i11"]
    assert [len(one.for_callers) for one in world.servers.values() if one.for_callers] == [3, 3]
    for link in list(server.for_callers)[:2]:
        link.cut()
    await asyncio.sleep(1)
    assert len(server.for_callers) == 3
    await close(world)


@jumping
async def test_after_an_outage_min_size_comes_back_without_any_call() -> None:
    """The node is probed, and then filled again."""
    world = leaders_only(min_size=3)
    await world.warm()
    server = world.servers["i11"]
    server.kill()
    await asyncio.sleep(60)
    assert not server.for_callers
    server.refuses = None
    await asyncio.sleep(12)
    assert len(server.for_callers) == 3
    await close(world)


@jumping
async def test_a_node_that_is_up_but_lets_nobody_in_is_tried_again_with_growing_pauses() -> None:
    """A server without free slots says nothing against itself, and is not stormed."""
    world = leaders_only(min_size=2)
    await world.warm()
    full = world.servers["i11"]
    full.refuses = server_error("53300", "sorry, too many clients already")
    tried = len([e for e in world.events if type(e).__name__ == "ConnectFailed"])
    for link in list(full.for_callers)[:1]:
        pool_of(world, "i11").drop(link, "idle")
    await asyncio.sleep(60)
    tries = [e for e in world.events if type(e).__name__ == "ConnectFailed"][tried:]
    assert 5 <= len(tries) <= 20
    full.refuses = None
    await asyncio.sleep(13)
    assert len(full.for_callers) == 2
    await close(world)


@jumping
async def test_a_connection_is_replaced_before_it_is_older_than_max_lifetime() -> None:
    """Up to a tenth earlier, not all at once, and never under a call."""
    world = leaders_only(min_size=4, max_lifetime=100.0)
    await world.warm()
    await settle()
    server = world.servers["i11"]
    first = set(server.for_callers)
    held = await take(world, "i11")
    await asyncio.sleep(89.9)
    assert first <= server.for_callers
    await asyncio.sleep(10.2)
    assert server.for_callers & first == {held}
    assert not held.is_closed()
    assert len({round(event.seconds, 3) for event in closed(world, "lifetime")}) > 1
    pool_of(world, "i11").give(held)
    await settle()
    assert held.is_closed()
    assert len(server.for_callers) == 4
    await close(world)


@jumping
async def test_an_unused_connection_is_closed_after_max_idle_and_min_size_is_made_anew() -> None:
    """The connection used last stays for as long as it is used."""
    world = leaders_only(max_idle=100.0, max_size=5)
    await world.warm()
    server = world.servers["i11"]
    held = [await take(world, "i11") for _ in range(5)]
    for link in held:
        pool_of(world, "i11").give(link)
    for _ in range(12):
        await asyncio.sleep(10)
        assert await world.call(READ, AT_R1) == "i11"
    assert len(server.for_callers) == 1
    assert len(closed(world, "idle")) == 4 + 1  # and the one of the other node, which was replaced
    assert len(world.servers["i21"].for_callers) == 1
    assert all(100 <= event.seconds <= 110 for event in closed(world, "idle"))
    await close(world)


@jumping
async def test_old_age_and_idleness_cost_one_timer_for_all_connections() -> None:
    """None per connection, and none on the way of a call."""
    world = leaders_only(min_size=10)
    await world.warm()
    await settle()
    before = timers()
    for number in range(100):
        await world.call(READ, number)
    assert before == timers() <= 2  # the other one watches over calls in flight
    await close(world)


def timers() -> int:
    """Timers of the running loop that will fire, but for those of the nodes themselves."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not handle.cancelled() for handle in scheduled)


@jumping
async def test_expired_connections_serve_nobody_again() -> None:
    """Idle ones go at once, held ones when they are given back, those being opened on arrival."""
    world = leaders_only(min_size=2, max_size=3)
    await world.warm()
    await settle()
    server, pool = world.servers["i11"], pool_of(world, "i11")
    held = await take(world, "i11")
    before = set(server.for_callers)
    again = await take(world, "i11")
    late = asyncio.create_task(take(world, "i11"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pool.slots.opening == 1
    world.cluster.expire_connections()
    fresh = await late
    assert fresh not in before
    assert len(closed(world, "lifetime")) == 3  # the idle ones of the other node, and the one on its way
    for link in (held, again):
        pool.give(link)
        assert link.is_closed() or link in pool.slots.leaving
    await settle()
    assert not before & server.for_callers
    pool.give(fresh)
    await close(world)


@jumping
async def test_no_more_than_max_total_connections_exist_at_any_time() -> None:
    """Over all nodes, however many calls there are; each call is answered all the same."""
    world = World(two_by_two(), max_total=3, max_size=3)
    most = 0

    def count(link: Any) -> str:
        nonlocal most
        most = max(most, sum(len(server.for_callers) for server in world.servers.values()))
        return str(link.server.node.uuid)

    for server in world.servers.values():
        server.default = count
    calls = [world.call(WRITE, AT_R1 if number % 3 else AT_R2) for number in range(300)]
    answers = Counter(await asyncio.gather(*calls))
    assert answers == {"i11": 200, "i21": 100}
    assert most <= 3
    assert sum(pool.slots.occupied for pool in world.cluster.pools) <= 3
    await close(world)


@jumping
async def test_a_node_that_has_nothing_gets_the_place_of_an_idle_connection() -> None:
    """Whichever nodes are called, with fewer connections than nodes."""
    world = World(two_by_two(), max_total=1)
    for number in range(20):
        uuid = ("i11", "i21", "i12", "i22")[number % 4]
        link = await take(world, uuid)
        assert sum(len(server.for_callers) for server in world.servers.values()) == 1
        pool_of(world, uuid).give(link)
    assert world.counters.acquire_timeouts == 0
    await close(world)


@jumping
async def test_a_node_that_has_nothing_waits_for_one_answer_of_a_busy_node_not_for_its_queue() -> None:
    """However many calls wait there."""
    world = World(two_by_two(), max_total=2)
    held = {uuid: await take(world, uuid) for uuid in ("i11", "i21")}
    queue = [asyncio.create_task(take(world, "i11")) for _ in range(10)]
    poor = asyncio.create_task(take(world, "i22"))
    await settle()
    assert not poor.done()
    pool_of(world, "i11").give(held["i11"])
    await settle()
    assert poor.done()
    assert not any(task.done() for task in queue)
    pool_of(world, "i22").give(await poor)
    for task in queue:
        pool_of(world, "i11").give(await task)
    pool_of(world, "i21").give(held["i21"])
    await close(world)


@jumping
async def test_too_many_waiting_calls_are_refused_at_once() -> None:
    """With an error of their own, which says how many wait; the others keep their places."""
    world = leaders_only(max_size=1, max_waiting=3)
    await world.warm()
    link = await take(world, "i11")
    waiting = [world.call(READ, AT_R1) for _ in range(3)]
    await settle()
    began = world.cluster.runtime.now()
    with pytest.raises(TooManyWaiting, match=r"default_1_1.*all 1 in use, 3 calls wait.*nothing was sent") as caught:
        await world.call(READ, AT_R1)
    assert isinstance(caught.value, AcquireTimeout)
    assert world.cluster.runtime.now() == began
    assert await world.call(READ, AT_R2) == "i21"
    pool_of(world, "i11").give(link)
    assert await asyncio.gather(*waiting) == ["i11"] * 3
    assert world.counters.too_many_waiting == 1
    await close(world)


@jumping
async def test_a_thousand_waiters_are_served_without_one_inversion() -> None:
    """In the order of asking, by whichever connection becomes free, while others give up."""
    world = leaders_only(max_size=3, acquire_timeout=None)
    await world.warm()
    order: list[int] = []

    async def one(number: int) -> None:
        link = await take(world, "i11", 1e6)
        order.append(number)
        await asyncio.sleep(0.001 * (number % 7))
        pool_of(world, "i11").give(link)

    tasks = [asyncio.create_task(one(number)) for number in range(1000)]
    await settle()
    gone = {number for number in range(1000) if number % 5 == 4}
    for number in gone:
        tasks[number].cancel()
    await asyncio.wait(tasks)
    assert order == [number for number in range(1000) if number not in gone]
    await close(world)


@jumping
async def test_a_burst_opens_two_connections_at_a_time() -> None:
    """A node that was asleep is not stormed."""
    world = leaders_only(max_size=10)
    await world.warm()
    most = 0
    world.servers["i11"].answers = [HANG] * 50
    calls = [world.call(READ, AT_R1) for _ in range(50)]
    for _ in range(100):
        most = max(most, pool_of(world, "i11").slots.opening)
        await asyncio.sleep(0)
    assert most == 2
    assert pool_of(world, "i11").slots.size == 10
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await close(world)


@jumping
async def test_a_held_connection_of_a_node_that_left_is_waited_for_and_closed() -> None:
    """When it is given back; and at the end of the pool at the latest."""
    world = World(two_by_two())
    await world.warm()
    link, other = await take(world, "i12"), await take(world, "i22")
    pool = pool_of(world, "i12")
    world.cluster.adopt(two_by_two(offline=("i12", "i22")))
    await settle()
    assert not link.is_closed()
    pool.give(link)
    await settle()
    assert link.is_closed()
    assert world.counters.closes["node_gone"] == 1
    assert not other.is_closed()
    await world.cluster.close(world.cluster.runtime.now() + 1)
    assert other.is_closed()


@jumping
async def test_closing_ends_with_the_last_holder_even_if_its_connection_broke() -> None:
    """It does not wait for the whole grace for a connection that will never be given back."""
    world = leaders_only()
    await world.warm()
    world.servers["i11"].answers = [HANG]
    call = world.call(WRITE, AT_R1)
    await settle()
    world.executor.refuse()
    began = world.cluster.runtime.now()
    closing = asyncio.create_task(world.cluster.close(began + 100))
    await asyncio.sleep(1)
    call.cancel()
    await closing
    assert world.cluster.runtime.now() - began < 1.1


def closed(world: World, reason: str) -> list[ConnectionClosed]:
    """Connections closed for a reason."""
    return [event for event in world.events if isinstance(event, ConnectionClosed) and event.reason == reason]


@jumping
async def test_every_connection_that_was_opened_is_told_as_closed_once() -> None:
    """Whatever ended it."""
    world = leaders_only(min_size=2, max_idle=10.0, max_lifetime=25.0)
    await world.warm()
    await asyncio.sleep(100)
    world.cluster.expire_connections()
    await asyncio.sleep(1)
    await close(world)
    opened = [event.connection for event in world.events if isinstance(event, ConnectionOpened)]
    ended = [event.connection for event in world.events if isinstance(event, ConnectionClosed)]
    assert sorted(opened) == sorted(ended)


async def test_a_node_without_room_sends_on_whom_another_one_can_serve() -> None:
    """Its sessions go on, and who can only be served there waits for one of them, in turn."""
    world = leaders_only(max_size=2, min_size=1)
    await world.warm()
    full = world.servers["i11"]
    full.refuses = server_error("53300", "sorry, too many clients already")
    held = [await take(world, "i11") for _ in range(len(full.for_callers))]
    keyed = world.call(WRITE, AT_R1, timeout=60)
    scans = await asyncio.gather(*(world.call(SCAN, number, timeout=60) for number in range(20)))
    assert set(scans) == {"i21"}
    assert not keyed.done()
    for link in held:
        pool_of(world, "i11").give(link)
    assert await keyed == "i11"
    await close(world)
