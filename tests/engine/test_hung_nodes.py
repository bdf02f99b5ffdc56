"""A node that accepts everything and says nothing: who notices, what becomes of its calls, what everybody else sees.

Time jumps here: what takes a second takes none, and its order holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from picopyn.dialects.base import Purpose
from picopyn.engine.place import Place
from picopyn.errors import ConnectionLost, OutcomeUnknown, WriteLost
from picopyn.observe import ConnectionClosed, NodeStateChanged
from picopyn.routing.health import NodeState
from picopyn.routing.plan import Candidate, Role
from picopyn.testing.clock import AutoJumpLoop
from tests.asynchronous.jump_loop import jumping
from tests.engine.test_executor import AT_R1, AT_R2
from tests.engine.world import HANG, READ, SCAN, WRITE, World, server_error, settle
from tests.snapshots import two_by_two


async def warm_world(**settings: object) -> World:
    """Two replicasets of two nodes, all connected."""
    world = World(two_by_two(), **{"acquire_timeout": 60.0, **settings})
    await world.warm()
    return world


async def end(world: World) -> None:
    """Close it; nothing may be left."""
    await world.cluster.close(world.cluster.runtime.now() + 1)
    await settle()


def state_of(world: World, uuid: str) -> NodeState:
    return world.cluster.health.of(uuid).state


def told(world: World, uuid: str) -> list[str]:
    """The states a node went through, as the observer heard."""
    return [e.new for e in world.events if isinstance(e, NodeStateChanged) and e.node == uuid]


async def until(met: Callable[[], bool]) -> float:
    """Wait until something holds; gives the time it took."""
    now = asyncio.get_running_loop().time
    began = now()
    while not met():
        await asyncio.sleep(0.01)
        assert now() - began < 30, "it never happened"
    return now() - began


async def until_down(world: World, uuid: str) -> float:
    """Wait until a node is down; gives the time it took."""
    return await until(lambda: state_of(world, uuid) is NodeState.DOWN)


@jumping
async def test_calls_at_a_hung_node_end_and_say_why() -> None:
    """Without any timeout: a write is unknown, since the node hung; all of it within a second of silence."""
    world = await warm_world()
    world.servers["i11"].answers = [HANG] * 5
    writes = [world.call(WRITE, AT_R1) for _ in range(5)]
    await settle(60)
    assert len(world.servers["i11"].calls) == 5
    world.servers["i11"].freeze()
    assert await until_down(world, "i11") < 1.1
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [WriteLost] * 5
    assert "was dropped after fetch() had sent its statement, since the node is down (it hangs: no answer" in str(
        results[0]
    )
    assert world.counters.outcome_unknown == 5
    assert world.counters.closes["terminated"] == 5
    assert not world.counters.closes["broken"]
    assert told(world, "i11") == ["suspect", "down"]
    assert not world.cluster.pool(Candidate(world.servers["i11"].node)).slots.size
    await end(world)


@jumping
async def test_what_may_be_repeated_runs_again_at_the_new_leader() -> None:
    """Reads, and what was declared idempotent, wait for the next leader; or a replica answers at once."""
    world = await warm_world()
    world.servers["i11"].freeze()
    read, write = world.call(READ, AT_R1), world.call(WRITE, AT_R1, idempotent=True)
    from_replica = world.call(READ, AT_R1, role=Role.PREFER_LEADER)
    await until_down(world, "i11")
    assert await from_replica == "i12"
    assert not read.done()
    assert not write.done()
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}, offline=("i11",)))
    assert [await read, await write] == ["i12", "i12"]
    await end(world)


@jumping
async def test_calls_that_wait_for_a_connection_to_a_hung_node_are_sent_on() -> None:
    """They were never sent: even writes run at the new leader."""
    world = await warm_world(max_size=1)
    world.servers["i11"].freeze()
    sent = world.call(WRITE, AT_R1)
    await settle()
    waiting = [world.call(WRITE, AT_R1) for _ in range(3)]
    await until_down(world, "i11")
    with pytest.raises(OutcomeUnknown):
        await sent
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}))
    assert await asyncio.gather(*waiting) == ["i12"] * 3
    assert len(world.servers["i11"].calls) == 1
    await end(world)


@jumping
async def test_other_nodes_feel_nothing() -> None:
    """Calls of the other replicaset take no time, before, during and after; no connection of it is touched."""
    world = await warm_world()
    links = set(world.servers["i21"].links)
    world.servers["i11"].freeze()
    hanging = world.call(WRITE, AT_R1)
    for _ in range(150):
        began = world.cluster.runtime.now()
        assert await world.call(WRITE, AT_R2) == "i21"
        assert world.cluster.runtime.now() == began
        await asyncio.sleep(0.01)
    assert hanging.done()
    assert world.servers["i21"].links == links
    assert told(world, "i21") == []
    assert await asyncio.gather(hanging, return_exceptions=True)
    await end(world)


@jumping
async def test_a_node_that_thaws_is_used_again() -> None:
    """A question that is still waiting is answered; calls that waited go on without a new look at the cluster."""
    world = await warm_world()
    world.servers["i11"].freeze()
    lost = world.call(WRITE, AT_R1)
    await until_down(world, "i11")
    waiting = world.call(WRITE, AT_R1)
    await asyncio.sleep(5)
    assert not waiting.done()
    world.servers["i11"].thaw()
    began = world.cluster.runtime.now()
    assert await waiting == "i11"
    assert world.cluster.runtime.now() - began < 0.3
    assert told(world, "i11") == ["suspect", "down", "up"]
    assert isinstance(await asyncio.gather(lost, return_exceptions=True), list)
    await end(world)


@jumping
async def test_a_long_statement_on_a_node_that_answers_just_runs() -> None:
    """It is asked now and then, less and less often, on one connection of its own."""
    world = await warm_world()
    world.servers["i11"].answers = [HANG]
    long = world.call(WRITE, AT_R1)
    await asyncio.sleep(30)
    assert not long.done()
    assert told(world, "i11") == []
    assert 20 <= world.servers["i11"].probed <= 33
    assert world.purposes.count(("i11", Purpose.PROBE)) == 1
    next(iter(link for link in world.servers["i11"].links if link.made == 1 and link.running)).reply("done")
    assert await long == "done"
    await end(world)


@jumping
async def test_the_connection_of_a_probe_is_closed_when_it_is_not_needed() -> None:
    """It is no connection of the pool, and stays for half a minute after the last question."""
    world = await warm_world()
    world.servers["i11"].answers = [HANG]
    long = world.call(WRITE, AT_R1)
    await asyncio.sleep(1)
    assert len(world.servers["i11"].links) == 2
    assert world.cluster.pool(Candidate(world.servers["i11"].node)).slots.size == 1
    long.cancel()
    await asyncio.sleep(28)
    assert len(world.servers["i11"].links) == 2
    await asyncio.sleep(5)
    assert len(world.servers["i11"].links) == 1
    await end(world)


@jumping
async def test_bytes_of_a_long_answer_count_as_life() -> None:
    """A node that is sending is not asked, where the kernel tells when the last byte came."""
    world = await warm_world()
    server = world.servers["i11"]
    server.tells_bytes, server.deaf_to_probes, server.answers = True, True, [HANG]
    long = world.call(WRITE, AT_R1)
    await settle()
    (busy,) = [link for link in server.links if link.running]
    for _ in range(100):
        await asyncio.sleep(0.1)
        busy.last_byte = world.cluster.runtime.now()
    assert server.probed == 0
    assert told(world, "i11") == []
    assert await until_down(world, "i11") < 1.1
    assert isinstance((await asyncio.gather(long, return_exceptions=True))[0], WriteLost)
    await end(world)


@jumping
async def test_a_client_that_blocks_its_loop_blames_nobody() -> None:
    """A second in which nothing runs here, again and again, is not the servers' silence."""
    world = await warm_world()
    for server in world.servers.values():
        server.answers = [HANG]
    calls = [world.call(WRITE, AT_R1), world.call(WRITE, AT_R2)]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutoJumpLoop)
    for _ in range(20):
        loop.clock.advance(1.0)
        await settle()
        await asyncio.sleep(0.03)
    assert not [event for event in world.events if isinstance(event, NodeStateChanged)]
    assert not any(call.done() for call in calls)
    for call in calls:
        call.cancel()
    await end(world)


@jumping
async def test_a_call_pays_for_no_probe() -> None:
    """No task and no timer is made by a call, and nobody is asked while calls are answered."""
    world = await warm_world()
    await world.call(READ, AT_R1)
    tasks = asyncio.all_tasks()
    for _ in range(300):
        request = world.request(READ, AT_R1)
        await world.run(request)
        assert asyncio.all_tasks() == tasks
        await asyncio.sleep(0.01)
    assert all(server.probed == 0 for server in world.servers.values())
    await end(world)


@jumping
async def test_a_borrowed_connection_to_a_hung_node_is_ended_too() -> None:
    """Its call ends with the error of a connection that broke."""
    world = await warm_world()
    pools = [world.cluster.pool(Candidate(server.node)) for server in world.servers.values()]
    loan = await world.executor.acquire(world.request("", method="acquire"), Place())
    link, uuid = loan.link, loan.pool.node.uuid
    world.servers[uuid].freeze()
    borrowed = asyncio.create_task(link.fetch("SELECT pg_sleep(1000)"))  # type: ignore[attr-defined]
    await until_down(world, uuid)
    assert isinstance((await asyncio.gather(borrowed, return_exceptions=True))[0], Exception)
    assert link.is_closed()
    assert all(not other.slots.held for other in pools)
    await end(world)


@jumping
async def test_a_call_that_times_out_has_its_node_asked_at_once() -> None:
    """A node that answers is cleared in no time; one that hangs is down after two questions."""
    world = await warm_world()
    world.servers["i11"].answers = [HANG]
    with pytest.raises(TimeoutError):
        await world.call(READ, AT_R1, timeout=0.1)
    await settle()
    assert told(world, "i11") == ["suspect", "up"]
    world.servers["i11"].freeze()
    with pytest.raises(TimeoutError):
        await world.call(READ, AT_R1, timeout=0.1)
    assert await until_down(world, "i11") < 0.7
    await end(world)


@jumping
async def test_a_node_that_cannot_be_connected_to_in_time_is_asked_before_it_is_down() -> None:
    """A slow hand-shake is no refusal."""
    world = await warm_world()
    node = world.servers["i11"].node
    world.cluster.open_failed(world.cluster.pool(Candidate(node)), TimeoutError(), 5.0)
    assert state_of(world, "i11") is NodeState.SUSPECT
    await settle()
    assert state_of(world, "i11") is NodeState.UP
    assert world.servers["i11"].probed == 1
    await end(world)


@jumping
async def test_a_wrong_password_is_nothing_against_the_node() -> None:
    """It lives and says so: the connections it has go on serving calls, however often it refuses another one."""
    world = await warm_world()
    server = world.servers["i11"]
    before = set(server.for_callers)
    server.refuses = server_error("28P01", "authentication failed for user 'u'")
    world.cluster.suspect(server.node, "a connection broke")
    await settle()
    assert state_of(world, "i11") is NodeState.UP
    await asyncio.gather(*(world.call(WRITE, AT_R1) for _ in range(20)))
    await asyncio.sleep(60)
    assert "down" not in told(world, "i11")
    assert server.for_callers == before
    server.refuses = None
    await end(world)


@jumping
async def test_a_refusing_node_loses_its_idle_connections_and_its_waiters() -> None:
    """Calls that run there go on as long as it talks to them."""
    world = await warm_world(max_size=2)
    server = world.servers["i11"]
    server.tells_bytes = True
    server.answers = [HANG]
    running = world.call(WRITE, AT_R1)
    await settle()
    (busy,) = [link for link in server.links if link.running]
    server.refuses = ConnectionRefusedError("connection refused")
    world.cluster.suspect(server.node, "a connection broke")
    for _ in range(10):
        await asyncio.sleep(0.1)
        busy.last_byte = world.cluster.runtime.now()
    assert state_of(world, "i11") is NodeState.DOWN
    assert not running.done()
    busy.reply("done")
    assert await running == "done"
    await settle()
    assert not server.links
    reasons = {event.reason for event in world.events if isinstance(event, ConnectionClosed)}
    assert reasons == {"terminated"}
    await end(world)


@jumping
async def test_calls_stuck_by_a_leader_change_leave_their_node_alone() -> None:
    """The node that had forwarded them is well: it is not in doubt, and other calls there go on."""
    world = await warm_world()
    world.servers["i11"].answers = world.servers["i21"].answers = [HANG, HANG]
    scan = world.call("UPDATE t SET v = 1 WHERE v = $1", 5)
    await settle()
    where = next(uuid for uuid in ("i11", "i21") if world.servers[uuid].calls)
    other = "r2" if where == "i11" else "r1"
    world.executor.leaders_moved(frozenset({other}))
    with pytest.raises(WriteLost, match="since a leader changed while it ran, and it may wait for the old one"):
        await scan
    assert told(world, where) == []
    assert world.counters.closes["terminated"] == 1
    assert world.counters.closes["broken"] == 0
    await end(world)


@jumping
async def test_the_cluster_is_looked_at_while_calls_in_flight_may_wait_for_a_leader() -> None:
    """Every 0.4 s, so that they end soon after the promotion; not for a node that leads nobody."""
    world = await warm_world()
    world.servers["i11"].answers = world.servers["i21"].answers = [HANG, HANG]
    scan = world.call(SCAN, 5)
    await settle()
    where, other = ("i11", "i21") if world.servers["i11"].calls else ("i21", "i11")
    world.servers[other[:2] + "2"].kill()
    await asyncio.sleep(1)
    asked = world.refreshes_asked
    await asyncio.sleep(10)
    assert world.refreshes_asked - asked <= 2
    world.servers[other].kill()
    await asyncio.sleep(1)
    asked = world.refreshes_asked
    await asyncio.sleep(4)
    assert 9 <= world.refreshes_asked - asked <= 14
    assert told(world, where) == []
    scan.cancel()
    await end(world)


@jumping
async def test_calls_at_a_node_that_is_not_online_any_more_are_ended() -> None:
    """The cluster gave it up before we did: its calls would wait for ever."""
    world = await warm_world()
    world.servers["i12"].answers = [HANG]
    world.servers["i11"].kill()
    await settle()
    read = world.call(READ, AT_R1, role=Role.PREFER_LEADER)
    await until(lambda: bool(world.servers["i12"].calls))
    began = world.cluster.runtime.now()
    world.cluster.adopt(two_by_two(leaders={"r1": "i11"}, offline=("i12",)))
    world.servers["i11"].refuses = None
    assert await read == "i11"
    assert world.cluster.runtime.now() - began < 1
    await end(world)


@jumping
async def test_a_text_that_hangs_one_node_after_the_other_is_not_carried_to_a_third() -> None:
    """Nodes that hang under a text are lost by it, like nodes that die."""
    world = await warm_world()
    read = world.call(READ, AT_R1, role=Role.PREFER_LEADER)
    assert await read == "i11"
    world.servers["i11"].freeze()
    world.servers["i12"].answers = [HANG]
    read = world.call(READ, AT_R1, role=Role.PREFER_LEADER)
    await until(lambda: bool(world.servers["i12"].calls))
    world.servers["i12"].refuses = ConnectionRefusedError("connection refused")
    world.servers["i12"].kill()
    with pytest.raises(ConnectionLost):
        await read
    await end(world)


@jumping
async def test_closing_with_a_hung_node_ends_with_the_grace() -> None:
    """Nobody there says goodbye; a call in flight has the grace, and ends with an error."""
    world = await warm_world()
    world.servers["i11"].freeze()
    world.servers["i11"].answers = [HANG]
    call = world.call(READ, AT_R1)
    await settle()
    began = world.cluster.runtime.now()
    await world.cluster.close(began + 0.2)
    assert world.cluster.runtime.now() - began <= 0.3
    assert isinstance(
        (await asyncio.gather(call, return_exceptions=True))[0], ConnectionLost | OutcomeUnknown | Exception
    )


@jumping
async def test_terminating_drops_the_connections_of_probes_too() -> None:
    """Kept ones, and those on which a question waits."""
    world = await warm_world()
    world.servers["i11"].answers = world.servers["i21"].answers = [HANG, HANG]
    world.servers["i21"].deaf_to_probes = True
    calls = [world.call(WRITE, AT_R1), world.call(WRITE, AT_R2)]
    await until(lambda: all(world.servers[uuid].probed for uuid in ("i11", "i21")))
    world.executor.refuse()
    world.cluster.terminate()
    await asyncio.gather(*calls, return_exceptions=True)
    await settle()
    assert not any(server.links for server in world.servers.values())


@jumping
async def test_a_node_that_is_back_before_its_openings_have_ended_is_connected_all_the_same() -> None:
    """They are given up when it goes down, and count until that is done: they must not stand in the way of new ones."""
    world = await warm_world(max_size=3)
    server = world.servers["i12"]
    server.freeze()
    world.cluster.health.unreachable("i12", "it hangs", 0.0)
    for link in list(server.links):
        link.cut()
    await settle()
    pool = world.cluster.pool(Candidate(server.node))
    pool.warm(3)
    await settle()
    assert (pool.slots.size, pool.slots.opening) == (0, 2)
    pool.desert(TimeoutError())
    server.thaw()
    world.cluster.probe_answered(server.node)
    assert pool.slots.opening == 2
    await until(lambda: pool.slots.size >= 1 and not pool.slots.opening)
    await end(world)
