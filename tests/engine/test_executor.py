"""The routed call, over servers that answer as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from picopyn.dialects.base import Purpose
from picopyn.engine.failures import mark_as_callers
from picopyn.engine.node_pool import HookFailed
from picopyn.engine.place import Place
from picopyn.engine.request import make_request
from picopyn.errors import (
    AcquireTimeout,
    AuthenticationFailed,
    CallTimeout,
    ConnectionLost,
    Fault,
    NoNodeAvailable,
    OutcomeUnknown,
    PoolClosed,
    WriteLost,
    WriteTimeout,
)
from picopyn.observe import NodeStateChanged, OutcomeLost, StatementRetried
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Role
from picopyn.routing.route import RouteKind, StatementRoute
from tests.engine.world import HANG, READ, SCAN, WRITE, World, broken, server_error, settle
from tests.snapshots import two_by_two

# ids whose bucket lies in the first half (r1) and in the second (r2): recorded buckets 1410 and 1934
AT_R1, AT_R2 = 2, 1

READONLY = (
    "sbroad: invalid transaction: transaction rolled-back: failed to insert space: box error: Readonly: Can't modify "
    "data on a read-only instance - box.cfg.read_only is true"
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes, all connected."""
    world = World(two_by_two())
    await world.warm()
    yield world
    await world.cluster.close(world.cluster.runtime.now() + 1)


async def test_a_keyed_call_runs_at_its_owner(world: World) -> None:
    """Every id at the leader of the replicaset that owns its bucket."""
    assert await world.call(READ, AT_R1) == "i11"
    assert await world.call(WRITE, AT_R2) == "i21"
    assert world.calls()["keyed"] == 2


async def test_a_call_that_is_not_keyed_runs_at_a_leader(world: World) -> None:
    """And is counted under why."""
    assert await world.call(SCAN, 5) in ("i11", "i21")
    assert await world.call(READ, None) in ("i11", "i21")
    assert await world.call("SELECT 1") in ("i11", "i21")
    assert (world.calls()["not_keyed"], world.calls()["uncomputable"]) == (1, 1)


async def test_a_dead_leader_stops_only_its_own_buckets(world: World) -> None:
    """Keyed calls of the other replicaset go on; the dead one's wait and hold nothing."""
    world.servers["i21"].kill()
    await settle()
    waiting = world.call(WRITE, AT_R2)
    scan = world.call(SCAN, 5)
    for _ in range(20):
        assert await world.call(WRITE, AT_R1) == "i11"
    assert not waiting.done()
    assert not scan.done()
    assert all(len(pool.slots.held) == 0 for pool in world.cluster.pools)
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}, offline=("i21",)))
    assert await waiting == "i22"
    assert await scan in ("i11", "i22")
    assert world.calls()["waited_for_leader"] == 2


async def test_prefer_leader_reads_use_a_replica_connection_when_the_leader_dies(world: World) -> None:
    """Opened with the purpose that asks the server for replica reads; writes wait all the same."""
    assert await world.call(READ, AT_R2, role=Role.PREFER_LEADER) == "i21"
    world.servers["i21"].kill()
    assert await world.call(READ, AT_R2, role=Role.PREFER_LEADER) == "i22"
    assert ("i22", Purpose.REPLICA_READ) in world.purposes
    with pytest.raises(AcquireTimeout, match=r"default_2.*nothing was sent"):
        await world.call(WRITE, AT_R2, role=Role.PREFER_LEADER, timeout=0.05)


async def test_a_server_that_refuses_replica_reads_still_serves_plain_calls(world: World) -> None:
    """It does not know the start-up option: that is nothing against the node, and its connections stay."""
    world.servers["i21"].kill()
    replica = world.servers["i22"]
    replica.refuses_replica_reads = server_error("22023", "unrecognized start-up option")
    before = set(replica.for_callers)
    with pytest.raises(AcquireTimeout):
        await world.call(READ, AT_R2, role=Role.PREFER_LEADER, timeout=0.1)
    assert world.cluster.health.is_up("i22")
    assert replica.for_callers == before
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}, offline=("i21",)))
    assert await world.call(WRITE, AT_R2) == "i22"


async def test_a_replica_that_cannot_be_reached_is_down_for_all_calls(world: World) -> None:
    """Nobody listens there: that has nothing to do with what the connection is for."""
    world.servers["i21"].kill()
    world.servers["i22"].refuses_replica_reads = ConnectionRefusedError("connection refused")
    with pytest.raises(AcquireTimeout):
        await world.call(READ, AT_R2, role=Role.PREFER_LEADER, timeout=0.1)
    states = [e.new for e in world.events if isinstance(e, NodeStateChanged) and e.node == "i22"]
    assert states[:1] == ["down"]


async def test_an_unlearned_text_is_learned_while_a_leader_is_missing(world: World) -> None:
    """It may be keyed, and then it runs at once."""
    text = "SELECT n FROM t WHERE id = $1"
    world.knowledge.later[text] = PreparedStatementMetadata(
        text, "default", (), (20,), world.knowledge.known[READ].route
    )
    world.servers["i21"].kill()
    await settle()
    assert await world.call(text, AT_R1) == "i11"
    assert world.knowledge.asked == [text]
    assert (world.calls()["keyed"], world.calls()["waited_for_leader"]) == (1, 0)


async def test_an_unlearned_text_never_waits_for_metadata_while_all_leaders_live(world: World) -> None:
    """It runs now, unrouted."""
    assert await world.call("SELECT n FROM t WHERE id = $1", AT_R1) in ("i11", "i21")
    assert world.knowledge.asked == []


async def test_what_asks_no_sharded_table_runs_anywhere_while_a_leader_is_missing(world: World) -> None:
    """EXPLAIN said so."""
    world.knowledge.later["SELECT 1"] = PreparedStatementMetadata(
        "SELECT 1", None, (), (), StatementRoute(RouteKind.ANY_NODE)
    )
    world.servers["i21"].kill()
    await settle()
    assert await world.call("SELECT 1") in ("i11", "i12", "i22")
    assert await world.call("BEGIN") in ("i11", "i12", "i22")


async def test_a_lost_write_is_reported_as_unknown_and_sent_once(world: World) -> None:
    """Nobody can tell whether it happened."""
    world.servers["i11"].answers = [broken()]
    with pytest.raises(WriteLost, match="may have taken effect") as caught:
        await world.call(WRITE, AT_R1)
    assert isinstance(caught.value, OutcomeUnknown)
    assert len(world.servers["i11"].calls) == 1
    assert world.counters.outcome_unknown == 1


async def test_the_observer_hears_of_retries_and_lost_outcomes(world: World) -> None:
    """With the node, what the failure meant, and which attempt it was."""
    world.servers["i11"].answers = [broken()]
    await world.call(READ, AT_R1)
    world.servers["i11"].answers = [broken()]
    with pytest.raises(WriteLost):
        await world.call(WRITE, AT_R1)
    told = [event for event in world.events if isinstance(event, StatementRetried | OutcomeLost)]
    assert told == [
        StatementRetried(node="i11", address="127.0.0.1:4311", fault=Fault.LOST, attempt=1),
        OutcomeLost(node="i11", address="127.0.0.1:4311", reason="connection lost"),
    ]


async def test_a_lost_select_is_sent_once_more(world: World) -> None:
    """A SELECT has no effect on Picodata; so has what is declared idempotent."""
    world.servers["i11"].answers = [broken()]
    assert await world.call(READ, AT_R1) == "i11"
    world.servers["i11"].answers = [broken()]
    assert await world.call(WRITE, AT_R1, idempotent=True) == "i11"


async def test_a_text_that_fells_its_server_is_not_carried_to_a_third_node(world: World) -> None:
    """It is sent again once; and a text that lost connections at two nodes within a minute is not sent again at all."""
    world.servers["i11"].answers = [broken(), broken(), broken()]
    with pytest.raises(ConnectionLost) as caught:
        await world.call(READ, AT_R1)
    assert len(world.servers["i11"].calls) == 2
    assert any("default_1_1" in note for note in caught.value.__notes__)


async def test_a_node_that_dies_is_one_loss_for_all_its_calls(world: World) -> None:
    """Its death was not the doing of a text that many calls had in flight there: each read is sent again."""
    world.servers["i11"].answers = [HANG] * 5
    calls = [world.call(READ, AT_R1, role=Role.PREFER_LEADER) for _ in range(5)]
    await settle()
    world.servers["i11"].kill()
    assert await asyncio.gather(*calls) == ["i12"] * 5


async def test_a_text_that_fells_one_node_after_the_other_is_not_carried_to_a_third(world: World) -> None:
    """Other calls of it, at the second node, end with the second loss."""
    world.servers["i11"].answers = [HANG] * 2
    world.servers["i12"].answers = [HANG] * 2
    calls = [world.call(READ, AT_R1, role=Role.PREFER_LEADER) for _ in range(2)]
    await settle()
    world.servers["i11"].kill()
    while len(world.servers["i12"].calls) < 2:
        await settle()
    world.servers["i12"].kill()
    lost = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in lost] == [ConnectionLost] * 2


async def test_the_first_retry_after_a_refresh_goes_to_the_new_leader(world: World) -> None:
    """A refused write waits for the next look at the cluster, not for a timer."""
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    call = world.call(WRITE, AT_R1)
    await settle()
    assert not call.done()
    assert world.refreshes_asked
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}), world.refreshes_asked)
    assert await call == "i12"
    assert len(world.servers["i11"].calls) == 1


async def test_a_look_that_began_before_the_fault_is_not_the_newer_one(world: World) -> None:
    """What it read may be what was before: sent by that, the call would be refused once more."""
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    call = world.call(WRITE, AT_R1)
    await settle()
    world.cluster.confirm(two_by_two(), world.refreshes_asked - 1)
    await settle()
    assert not call.done()
    assert len(world.servers["i11"].calls) == 1
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}), world.refreshes_asked)
    assert await call == "i12"


async def test_a_switch_that_takes_its_time_costs_no_call(world: World) -> None:
    """As long as it may be one, each newer look leads to a further attempt; none of them has done anything."""
    world.servers["i11"].answers = [server_error("XX000", READONLY) for _ in range(10)]
    call = world.call(WRITE, AT_R1)
    for sent in range(1, 11):
        await settle()
        assert len(world.servers["i11"].calls) == sent
        world.cluster.confirm(two_by_two(), world.refreshes_asked)
    assert await call == "i11"
    assert world.counters.retries["NOT_LEADER"] == 10


async def test_calls_that_wait_for_a_leader_are_woken_by_the_snapshot_that_has_it(world: World) -> None:
    """By nothing else: no timer runs meanwhile, and none is needed. All of them, in the order of asking."""
    world.cluster.adopt(two_by_two(leaders={"r1": None}), 1)
    waiting = [world.call(WRITE, AT_R1) for _ in range(5)]
    scan = world.call(SCAN, 5)
    await settle()
    world.cluster.confirm(two_by_two(leaders={"r1": None}), 2)  # looked, and nothing new
    await settle()
    assert not any(call.done() for call in (*waiting, scan))
    assert world.cluster.changes.waiting == 6
    assert not any(pool.slots.held for pool in world.cluster.pools)
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}), 3)
    await settle()
    assert [call.result() for call in waiting] == ["i12"] * 5
    assert scan.result() in ("i12", "i21")
    assert world.calls()["waited_for_leader"] == 6
    assert [args for _, args in world.servers["i12"].calls][:5] == [(AT_R1,)] * 5


async def test_where_there_is_nothing_to_look_at_a_refused_call_is_sent_again_after_a_pause(world: World) -> None:
    """Nobody would ever tell that it was looked at."""
    world.can_be_looked_at = False
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    async with asyncio.timeout(1):
        assert await world.call(WRITE, AT_R1) == "i11"
    assert len(world.servers["i11"].calls) == 2


def forwarded(message: str) -> asyncpg.PostgresError:
    """The error of another replicaset, as the asked node passes it on."""
    inner = f"Error on replicaset 6b2d: Failed to execute '.proc_sql_execute': sbroad: {message}"
    return server_error("XX000", "sbroad: box error: ProcLua: " + json.dumps({"code": 32, "message": inner}))


async def test_a_write_over_several_replicasets_that_one_refused_is_unknown(world: World) -> None:
    """It may have happened at the other one; the same refusal of a write with one owner is waited out."""
    text = "UPDATE t SET v = 1 WHERE v = $1"
    world.servers["i11"].default = world.servers["i21"].default = forwarded(READONLY.removeprefix("sbroad: "))
    with pytest.raises(OutcomeUnknown, match="or a part of it"):
        await world.call(text, 5)
    assert len(world.servers["i11"].calls) + len(world.servers["i21"].calls) == 1
    assert all(len(server.links) >= 1 for server in world.servers.values())


async def test_an_idempotent_write_that_was_lost_and_then_waits_in_vain_is_unknown(world: World) -> None:
    """It was sent once; only what never left this process may say that nothing was sent."""
    world.servers["i11"].answers = [HANG]
    call = world.call(WRITE, AT_R1, idempotent=True, timeout=0.3)
    await settle()
    world.servers["i11"].kill()
    with pytest.raises(WriteLost, match="had been sent before"):
        await call


async def test_a_servers_own_error_keeps_its_class_and_its_text_out_of_ours(world: World) -> None:
    """A failure between two nodes that is not repeated any more; its text may contain row values."""
    world.servers["i11"].default = forwarded("Peer closed")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await world.call(READ, AT_R1)
    assert caught.value.sqlstate == "XX000"
    assert not any("Peer closed" in note for note in caught.value.__notes__)


async def test_a_loss_between_two_nodes_costs_no_connection_of_ours(world: World) -> None:
    """The asked node is well; a SELECT is sent again."""
    world.servers["i11"].answers = [forwarded("proc_query_metadata call failed: io error: unexpected end of file")]
    before = set(world.servers["i11"].links)
    assert await world.call(READ, AT_R1) == "i11"
    assert world.servers["i11"].links == before
    assert world.cluster.health.all_up


async def test_a_stale_statement_is_prepared_again_once_on_the_same_connection(world: World) -> None:
    """The caller sees nothing of it."""
    stale = server_error("42999", "prepared statement s1 has been invalidated")
    world.servers["i11"].answers = [stale]
    assert await world.call(READ, AT_R1) == "i11"
    assert [link.prepared_again for link in world.servers["i11"].links] == [1]
    assert world.knowledge.evicted == [READ]
    world.servers["i11"].answers = [stale, stale]
    with pytest.raises(asyncpg.PostgresError) as caught:
        await world.call(READ, AT_R1)
    assert caught.value.sqlstate == "42999"


async def test_a_statement_error_is_the_callers_own_and_names_the_node(world: World) -> None:
    """The class and SQLSTATE of asyncpg, plus a note; the connection stays."""
    world.servers["i11"].answers = [server_error("22P02", "bad value")]
    with pytest.raises(asyncpg.DataError) as caught:
        await world.call(READ, AT_R1)
    assert caught.value.sqlstate == "22P02"
    assert any("default_1_1 (127.0.0.1:4311)" in note for note in caught.value.__notes__)
    assert len(world.servers["i11"].links) == 1


async def test_a_hooks_own_error_comes_as_the_hook_raised_it() -> None:
    """What tells of it inside is not shown beside it."""
    world, own = World(two_by_two()), ValueError("the hook's own")
    failed = HookFailed()
    failed.__cause__ = own
    for server in world.servers.values():
        server.refuses = failed
    with pytest.raises(ValueError, match="the hook's own") as caught:
        await world.call(READ, AT_R1)
    assert (caught.value, own.__cause__, own.__context__) == (own, None, None)
    await world.cluster.close(world.cluster.runtime.now() + 1)


async def test_a_call_that_times_out_drops_its_connection(world: World) -> None:
    """Its state is unknown; a write that timed out may still happen."""
    world.servers["i11"].answers = [HANG, HANG]
    with pytest.raises(CallTimeout) as read:
        await world.call(READ, AT_R1, timeout=0.02)
    assert not isinstance(read.value, OutcomeUnknown)
    with pytest.raises(WriteTimeout):
        await world.call(WRITE, AT_R1, timeout=0.02)
    assert world.counters.closes["timeout"] == 2


async def test_a_cancelled_call_drops_its_connection(world: World) -> None:
    """No reply can reach the next caller."""
    world.servers["i11"].answers = [HANG]
    call = world.call(READ, AT_R1)
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await world.call(READ, AT_R1) == "i11"
    assert world.counters.closes["state_unknown"] == 1


async def test_a_connection_closed_for_a_borrowers_own_error_speaks_against_no_node(world: World) -> None:
    """This side has closed it, and is told so when it is too late to say why."""
    loan = await world.executor.acquire(make_request("acquire", "", (), Role.LEADER), Place(node="i11"))
    loan.begin("copy_from_query")
    error = ValueError("the sink is full")
    mark_as_callers(error)
    loan.link.terminate()
    loan.end(error)
    loan.release()
    await settle()
    assert world.counters.closes == {"state_unknown": 1}
    assert world.cluster.health.all_up


async def test_waiters_at_a_node_are_served_first_in_first_out() -> None:
    """No call passes another one."""
    world = World(two_by_two(), max_size=1)
    await world.warm()
    world.servers["i11"].answers = [HANG]
    first = world.call(READ, AT_R1)
    await settle()
    order: list[int] = []
    calls = [world.call(READ, AT_R1) for _ in range(10)]
    for number, call in enumerate(calls):
        call.add_done_callback(lambda _, number=number: order.append(number))
    await settle()
    first.cancel()
    await asyncio.gather(*calls)
    assert order == list(range(10))
    world.cluster.terminate()


async def test_calls_stuck_by_a_leader_change_are_ended(world: World) -> None:
    """A scan that waits for the old leader would hang for ever; a keyed call of the other replicaset runs on."""
    world.servers["i11"].answers = [HANG]
    world.servers["i21"].answers = [HANG]
    keyed = world.call(WRITE, AT_R1)
    await settle()
    scan = world.call(WRITE, AT_R2)
    await settle()
    moved = two_by_two(leaders={"r2": "i22"})
    world.cluster.adopt(moved)
    world.executor.leaders_moved(frozenset({"r2"}))
    with pytest.raises(WriteLost):
        await scan
    assert not keyed.done()
    assert world.counters.closes["terminated"] == 1
    keyed.cancel()


async def test_reads_stuck_by_a_leader_change_run_again(world: World) -> None:
    """Ended by us, they are no sign of a text that fells servers, nor of a sick node: all of them are sent again."""
    for server in (world.servers["i11"], world.servers["i21"]):
        server.answers = [HANG] * 2
    calls = [world.call(SCAN, 5) for _ in range(4)]
    await settle()
    world.servers["i21"].kill()
    await settle()
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}))
    world.executor.leaders_moved(frozenset({"r2"}))
    assert set(await asyncio.gather(*calls)) <= {"i11", "i22"}
    assert world.cluster.health.is_up("i11")
    await settle()
    assert world.counters.closes["terminated"] == 2


async def test_what_a_text_knows_of_its_plans_ends_with_the_snapshot(world: World) -> None:
    """Looked up once it is known; but never that of another snapshot, of a node in doubt, or of a closed pool."""
    for _ in range(3):
        assert await world.call(WRITE, AT_R2) == "i21"
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}))
    for _ in range(3):
        assert await world.call(WRITE, AT_R2) == "i22"
        assert await world.call(READ, AT_R2) == "i22"
    world.servers["i22"].kill()
    await settle()
    waiting = world.call(WRITE, AT_R2)
    await settle()
    assert not waiting.done()
    world.cluster.adopt(two_by_two())
    assert await waiting == "i21"
    assert await world.call(WRITE, AT_R2) == "i21"
    world.executor.refuse()
    with pytest.raises(PoolClosed):
        await world.call(WRITE, AT_R2)


async def test_a_wrong_password_stops_at_one_node() -> None:
    """No second node is asked: servers block a user after a few failures."""
    world = World(two_by_two())
    world.cluster.terminate()
    for server in world.servers.values():
        server.refuses = server_error("28P01", "authentication failed for user 'u'")
    fresh = World(two_by_two(), min_size=0)
    for uuid, server in fresh.servers.items():
        server.refuses = world.servers[uuid].refuses
    with pytest.raises(AuthenticationFailed):
        await fresh.call(READ, AT_R1)
    fresh.cluster.terminate()


async def test_no_reachable_node_lists_each_with_its_reason() -> None:
    """One error for the whole cluster."""
    world = World(two_by_two(), acquire_timeout=0.2)
    for server in world.servers.values():
        server.refuses = ConnectionRefusedError("connection refused")
    with pytest.raises(NoNodeAvailable) as caught:
        await world.call(READ, AT_R1)
    assert len(caught.value.reasons) == 4
    assert set(caught.value.reasons.values()) == {"connection refused"}
    world.cluster.terminate()


async def test_a_node_that_comes_back_is_used_again(world: World) -> None:
    """Probing is the opening of a connection; while a call waits it is tried every 0.2 s."""
    world.servers["i11"].kill()
    await settle()
    call = world.call(WRITE, AT_R1)
    await settle()
    world.servers["i11"].refuses = None
    assert await call == "i11"
    assert world.cluster.health.all_up


async def test_closing_wakes_waiting_calls(world: World) -> None:
    """They end with `PoolClosed`; a running one may finish."""
    world.servers["i21"].kill()
    await settle()
    waiting = world.call(WRITE, AT_R2)
    await settle()
    world.executor.refuse()
    await world.cluster.close(world.cluster.runtime.now() + 0.5)
    with pytest.raises(PoolClosed):
        await waiting


async def test_checks_of_a_learned_route_are_asked_for_at_first(world: World) -> None:
    """As often as the learner wants to be offered one."""
    for _ in range(50):
        await world.call(READ, AT_R1)
    assert len(world.knowledge.checked) == 20
