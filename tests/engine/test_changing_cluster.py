"""Calls, connections and nodes while the cluster changes around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.engine.node_pool import NodeUnreachable
from picopyn.engine.place import Place, find
from picopyn.errors import AcquireTimeout, CallTimeout, NoNodeAvailable, NotSupported, PoolClosed
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Candidate, Role
from picopyn.routing.route import RouteKind, StatementRoute
from tests.engine.world import HANG, READ, SCAN, WRITE, World, broken, server_error, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes with room for one connection each, all connected."""
    world = World(two_by_two(), max_size=1)
    await world.warm()
    yield world
    world.cluster.terminate()


def asked(world: World) -> list[str]:
    """The nodes that were sent something."""
    return [uuid for uuid, server in world.servers.items() if server.calls]


async def test_a_call_that_queued_is_not_sent_where_it_would_hang_by_now(world: World) -> None:
    """A leader died while it waited for a connection: it waits on our side, and the connection serves others."""
    for uuid in ("i11", "i21"):
        world.servers[uuid].answers = [HANG]
    busy = [world.call(WRITE, AT_R1), world.call(WRITE, AT_R2)]
    await settle()
    scans = [world.call(SCAN, 5) for _ in range(4)]
    await settle()
    world.servers["i21"].kill()
    await settle()
    busy[0].cancel()
    await settle(50)
    assert [query for query, _ in world.servers["i11"].calls] == [WRITE]
    assert await world.call(READ, AT_R1) == "i11"
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}, offline=("i21",)))
    assert set(await asyncio.gather(*scans)) <= {"i11", "i22"}
    await asyncio.gather(*busy, return_exceptions=True)


async def test_a_call_that_queued_at_the_old_leader_goes_to_the_new_one(world: World) -> None:
    """The old leader is there and would forward it."""
    world.servers["i11"].answers = [HANG]
    first = world.call(WRITE, AT_R1)
    await settle()
    second = world.call(WRITE, AT_R1)
    await settle()
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}))
    first.cancel()
    assert await second == "i12"


async def test_a_late_timeout_does_not_bring_back_a_node_that_left(world: World) -> None:
    """Neither a pool for it, nor a probe, nor a state that nobody ever clears."""
    world.servers["i11"].answers = [HANG]
    call = world.call(READ, AT_R1, timeout=0.05)
    await settle()
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}, offline=("i11",)))
    with pytest.raises(CallTimeout):
        await call
    await settle()
    assert "i11" not in {pool.node.uuid for pool in world.cluster.pools}
    assert world.cluster.health.all_up


async def test_a_plan_older_than_the_snapshot_makes_no_pool_for_a_node_that_left(world: World) -> None:
    """The second candidate left while the first one was asked."""
    for uuid in ("i11", "i21"):
        world.servers[uuid].answers = [HANG]
    scan = world.call(SCAN, 5)
    await settle()
    (first,) = asked(world)
    gone, heir, replicaset = ("i21", "i22", "r2") if first == "i11" else ("i11", "i12", "r1")
    world.cluster.adopt(two_by_two(leaders={replicaset: heir}, offline=(gone,)))
    (link,) = world.servers[first].links
    assert link._running is not None
    link._running.set_exception(server_error("57P03", "the database system is starting up"))
    assert await scan in (first, heir)
    assert gone not in {pool.node.uuid for pool in world.cluster.pools}


async def test_a_call_that_goes_on_after_the_end_finds_no_pool_to_wait_at() -> None:
    """It waited at one replica; the other one's pool was never made, and would have kept it for ever."""
    world = World(two_by_two(leaders={"r2": None}), acquire_timeout=None)
    await world.warm()
    for uuid in ("i21", "i22"):
        world.servers[uuid].silent = True
    call = world.call(READ, AT_R2, role=Role.PREFER_LEADER)
    await settle()
    world.executor.refuse()
    await world.cluster.close(world.cluster.runtime.now() + 0.1)
    with pytest.raises(PoolClosed):
        await asyncio.wait_for(call, 1)


async def test_a_leader_change_does_not_end_what_runs_elsewhere(world: World) -> None:
    """A read of a global table, at a node of another replicaset: any node could have answered it, this one does."""
    text = "SELECT * FROM countries WHERE id = $1"
    world.knowledge.known[text] = PreparedStatementMetadata(text, None, (), (20,), StatementRoute(RouteKind.ANY_NODE))
    for server in world.servers.values():
        server.default = HANG
    call = world.call(text, 1)
    await settle()
    (node,) = asked(world)
    other = "r2" if node.startswith("i1") else "r1"
    assert world.cluster.stuck(frozenset({other})) == []
    assert len(world.cluster.stuck(frozenset({"r1", "r2"}))) == 1
    call.cancel()


async def test_a_leader_change_does_not_end_what_is_forwarded_in_another_tier() -> None:
    """It waits for the leaders of its own tier only; a text whose tier is not known may wait for any of them."""
    world = World(two_by_two(second_tier="hot"))
    await world.warm()
    for server in world.servers.values():
        server.default = HANG
    scan = world.call(SCAN, 5)
    await settle()
    assert world.cluster.stuck(frozenset({"r2"})) == []
    assert len(world.cluster.stuck(frozenset({"r1"}))) == 1
    unlearned = world.call("SELECT v FROM unknown WHERE v = $1", 5)
    await settle()
    assert len(world.cluster.stuck(frozenset({"r2"}))) == 1
    assert len(world.cluster.stuck(frozenset({"a replicaset that left"}))) == 2
    scan.cancel()
    unlearned.cancel()
    world.cluster.terminate()


async def test_each_wait_of_a_call_has_its_own_patience() -> None:
    """`acquire_timeout` is for waiting: what an attempt took in between does not count."""
    world = World(two_by_two(), max_size=1, acquire_timeout=0.1)
    await world.warm()
    world.servers["i11"].answers = [HANG, HANG]
    first = world.call(WRITE, AT_R1)
    await settle()
    second = world.call(READ, AT_R1)
    await settle()
    first.cancel()
    await settle()
    assert len(world.servers["i11"].calls) == 2
    patience = world.cluster.runtime.now() + 0.12
    while world.cluster.runtime.now() < patience:
        await settle()
    (link,) = world.servers["i11"].links
    assert link._running is not None
    link._running.set_exception(broken())
    assert await second == "i11"
    world.cluster.terminate()


async def test_a_wait_after_an_attempt_is_short_under_a_long_command_timeout() -> None:
    """`acquire_timeout` bounds it like the first one; only a `timeout=` of the call's own stands above it."""
    world = World(two_by_two(), acquire_timeout=0.1)
    await world.warm()
    world.servers["i11"].answers = [HANG]
    request = world.request(READ, AT_R1, timeout=30)
    request.patience = None  # as a pool does where the limit is not the call's own
    call = asyncio.create_task(world.run(request))
    await settle()
    world.servers["i11"].kill()
    async with asyncio.timeout(3):
        with pytest.raises(AcquireTimeout):
            await call
    world.cluster.terminate()


async def test_the_pause_after_many_rounds_is_the_longest_one() -> None:
    """And no overflow: with no limit on waiting, an outage of minutes has thousands of rounds."""
    world = World(two_by_two(), acquire_timeout=None)
    await world.warm()
    request = world.request(READ, AT_R1)
    pause = asyncio.create_task(world.executor.waits.pause(request, 5000))
    await settle()
    assert not pause.done()
    world.cluster.changes.ring()
    await pause
    world.cluster.terminate()


async def test_a_node_that_comes_is_connected_to_before_it_gets_calls(world: World) -> None:
    """It may be Online and not answer yet: calls that may run elsewhere do not wait for it."""
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}, offline=("i21",)))
    await settle()
    world.servers["i21"].freeze()
    world.cluster.adopt(two_by_two())
    await settle()
    assert [await world.call(SCAN, number) for number in range(10)] == ["i11"] * 10
    assert world.servers["i21"].calls == []
    world.servers["i21"].thaw()
    await world.warm()
    assert {await world.call(SCAN, number) for number in range(50)} == {"i11", "i21"}


async def test_a_drained_node_is_forwarded_to_and_its_queue_goes_elsewhere(world: World) -> None:
    """The call under way ends in its own time; the one that waited for the connection is sent on."""
    world.servers["i11"].answers = [HANG]
    node = next(node for node in two_by_two().all_nodes() if node.uuid == "i11")
    busy = world.call(WRITE, AT_R1)
    await settle()
    queued = world.call(WRITE, AT_R1)
    await settle()
    world.cluster.drain(node, 1000.0)
    emptied = asyncio.create_task(world.cluster.vacated("i11"))
    assert await queued == "i21"
    assert await world.call(READ, AT_R1, role=Role.PREFER_LEADER) == "i21"
    assert not emptied.done()
    next(iter(world.servers["i11"].for_callers)).reply("done")
    assert await busy == "done"
    await emptied
    assert not world.servers["i11"].for_callers
    world.cluster.adopt(two_by_two(), 5)  # what the cluster says changes nothing
    assert await world.call(WRITE, AT_R1) == "i21"
    world.cluster.undrain(world.cluster.snapshot.node("i11") or node)
    await world.warm()
    assert await world.call(WRITE, AT_R1) == "i11"


async def test_all_nodes_drained_is_waited_out(world: World) -> None:
    """Nothing fails at once; whoever comes back first answers."""
    for node in two_by_two().all_nodes():
        world.cluster.drain(node, 1000.0)
    call = world.call(READ, AT_R1)
    await settle()
    assert not call.done()
    world.cluster.undrain(next(node for node in world.cluster.snapshot.all_nodes() if node.uuid == "i11"))
    assert await call == "i11"


async def test_when_all_nodes_are_drained_the_error_says_so(world: World) -> None:
    """They can be reached: it is the caller's own doing, and undone by him."""
    for node in world.cluster.snapshot.nodes():
        world.cluster.drain(node, 1.0)
    with pytest.raises(NoNodeAvailable, match=r"undrain\(\) takes it back") as caught:
        await world.call(SCAN, 5, timeout=0.05)
    assert len(caught.value.reasons) == 4
    for node in world.cluster.snapshot.all_nodes():
        world.cluster.undrain(node)
    assert await world.call(SCAN, 5) in world.servers


async def test_a_drained_node_that_has_left_is_taken_back_by_the_name_it_had(world: World) -> None:
    """It is used when it comes back; of one that has left and was not drained nothing is known."""
    node = find("default_1_1", world.cluster.snapshot)
    world.cluster.drain(node, 1000.0)
    world.cluster.adopt(two_by_two(gone=("i11", "i22"), leaders={"r1": "i12"}), 5)
    for wanted in ("default_1_1", "i11", node.address):
        assert find(wanted, world.cluster.snapshot, world.cluster.drained).uuid == "i11"
    with pytest.raises(NoNodeAvailable, match="knows no node 'default_2_2'"):
        find("default_2_2", world.cluster.snapshot, world.cluster.drained)
    world.cluster.undrain(node)
    world.cluster.undrain(node)
    assert world.cluster.drained == ()
    world.cluster.adopt(two_by_two(), 6)
    await world.warm()
    assert await world.call(WRITE, AT_R1) == "i11"


async def test_what_is_about_a_primary_and_its_replicas_is_refused_where_there_are_none(world: World) -> None:
    """Per call as for the pool: nothing is accepted and then ignored."""
    for place, name in (
        (Place(Role.REPLICA, fallback_master=True), "fallback_master"),
        (Place(Role.PREFER_REPLICA, master_as_replica_weight=0.5), "master_as_replica_weight"),
    ):
        for dialect in (PicodataDialect(), YugabyteDialect()):
            with pytest.raises(NotSupported, match=f"{name}: for plain PostgreSQL, not for {dialect.name}"):
                place.plan(world.cluster.planner, dialect)
    assert Place(Role.REPLICA, fallback_master=False).plan(world.cluster.planner, PicodataDialect()).candidates


async def test_a_pool_that_is_made_too_late_is_retired(world: World) -> None:
    """A thread planned its call, and then the node was drained: it gets no connection there, and none stays."""
    node = world.cluster.snapshot.nodes()[0]
    world.cluster.drain(node, 1.0)
    await settle()
    late = world.cluster.pool(Candidate(node))
    with pytest.raises(NodeUnreachable):
        await late.take(world.cluster.runtime.now() + 1, object())
    await settle()
    assert late.retired
    assert not late.slots.occupied
    assert not world.cluster.pools_of(node.uuid)
