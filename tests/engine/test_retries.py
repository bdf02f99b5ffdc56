"""What is sent again: by one call, by all of a text, by all together; and what the error tells that comes at last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from picopyn.errors import AuthenticationFailed, CallTimeout, ConnectionLost, NoNodeAvailable, PoolClosed, WriteLost
from picopyn.routing.retry_budget import LEAST_RESERVE, PER_SECOND
from tests.asynchronous.jump_loop import jumping
from tests.engine.world import HANG, READ, WRITE, World, broken, server_error, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1

Notes = list[str]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes, all connected."""
    world = World(two_by_two(), max_size=2)
    await world.warm()
    yield world
    await world.cluster.close(world.cluster.runtime.now() + 1)


def notes(error: BaseException) -> Notes:
    return [note.removeprefix("picopyn: ") for note in getattr(error, "__notes__", ())]


def sent(world: World) -> int:
    return len(world.servers["i11"].calls)


async def lost(call: asyncio.Task[object]) -> ConnectionLost:
    with pytest.raises(ConnectionLost) as caught:
        await call
    return caught.value


async def test_failovers_in_a_row_fail_no_repeatable_call(world: World) -> None:
    """Ten within a second; the text works in between, so none of them was its doing."""
    for _ in range(10):
        world.servers["i11"].answers = [broken()]
        assert await world.call(WRITE, AT_R1, idempotent=True) == "i11"
    assert world.counters.retries == {"LOST": 10}


async def test_a_repeatable_write_that_is_given_up_may_have_taken_effect(world: World) -> None:
    """It is told as any write that was lost; a read is only lost."""
    world.servers["i11"].answers = [broken(), broken()]
    assert isinstance(await lost(world.call(WRITE, AT_R1, idempotent=True)), WriteLost)
    world.servers["i11"].answers = [broken(), broken()]
    assert type(await lost(world.call(READ, AT_R1))) is ConnectionLost
    assert world.counters.outcome_unknown == 1


async def test_a_repeated_call_waits_until_its_node_is_found_alive(world: World) -> None:
    """A node that dies loses its connections one after the other: the next one would only be the next loss."""
    i11 = world.servers["i11"]
    i11.answers, i11.deaf_to_probes = [broken()], True
    call = world.call(WRITE, AT_R1, idempotent=True, timeout=60)
    while not i11.probed:
        await settle()
    await settle()
    assert (sent(world), call.done()) == (1, False)
    i11.deaf_to_probes = False
    for link in i11.links - i11.for_callers:
        link.reply(None)
    assert await call == "i11"
    assert sent(world) == 2


async def test_what_breaks_while_a_node_is_in_doubt_is_one_death(world: World) -> None:
    """A call sent there after the first loss, on a connection that was about to end as well, felled nothing."""
    i11 = world.servers["i11"]
    i11.answers = [HANG, HANG]
    warming = [world.call(READ, AT_R1) for _ in range(2)]
    await settle()
    for link in i11.for_callers:
        link.reply("i11")
    await asyncio.gather(*warming)
    i11.freeze()
    calls = []
    for _ in range(2):
        calls.append(world.call(READ, AT_R1, timeout=60))
        await settle()
        next(link for link in i11.for_callers if link.running).cut()
        await settle()
    assert sent(world) == 4
    i11.thaw()
    assert await asyncio.gather(*calls) == ["i11"] * 2


async def test_nodes_that_die_at_the_same_moment_are_one_death(world: World) -> None:
    """Calls of one text were in flight at both, and hear of it one after the other: none of them felled the second."""
    dying = world.servers["i11"], world.servers["i21"]
    for server in dying:
        server.answers = [HANG]
    calls = [world.call(READ, key) for key in (AT_R1, AT_R2)]
    await settle()
    for server in dying:
        next(link for link in server.for_callers if link.running).cut()
    assert await asyncio.gather(*calls) == ["i11", "i21"]


async def test_a_text_that_kills_is_repeated_once_and_then_not_at_all(world: World) -> None:
    """Each call of it costs one connection from the second call on, and says why; other texts are repeated."""
    world.servers["i11"].answers = [broken() for _ in range(4)]
    for seen in (2, 3, 4):
        told = notes(await lost(world.call(READ, AT_R1)))
        assert sent(world) == seen
        assert any("an earlier call of this statement" in note for note in told) is (seen > 2)
    world.servers["i11"].answers = [broken()]
    assert await world.call(WRITE, AT_R1, idempotent=True) == "i11"


async def test_arguments_that_kill_are_found_though_the_text_works_with_others(world: World) -> None:
    """Its success with others says nothing about them."""
    await settle()
    poison = (AT_R1, "poison")
    text = "SELECT v FROM t WHERE v = $1 AND w = $2"
    world.servers["i11"].answers = [broken(), broken()]
    world.servers["i21"].answers = [broken(), broken()]
    await lost(world.call(text, *poison))
    for server in world.servers.values():
        server.answers = []
    assert await world.call(text, AT_R1, "harmless") in world.servers
    before = sum(len(server.calls) for server in world.servers.values())
    for server in world.servers.values():
        server.answers = [broken()]
    await lost(world.call(text, *poison))
    assert sum(len(server.calls) for server in world.servers.values()) == before + 1


async def test_an_error_of_the_statement_clears_it_too(world: World) -> None:
    """A server that says no has survived it."""
    world.servers["i11"].answers = [broken(), broken()]
    await lost(world.call(READ, AT_R1))
    world.servers["i11"].answers = [server_error("22012", "division by zero")]
    with pytest.raises(asyncpg.DivisionByZeroError):
        await world.call(READ, AT_R1)
    world.servers["i11"].answers = [broken()]
    assert await world.call(READ, AT_R1) == "i11"


async def test_a_goodbye_that_is_the_cause_of_the_loss_counts_as_one(world: World) -> None:
    """The server's last word and the end of the connection may be read together: asyncpg tells both in one error."""
    lost_with_a_word = [broken(), broken()]
    for error in lost_with_a_word:
        error.__cause__ = server_error("57P01", "terminating connection due to administrator command")
    world.servers["i11"].answers = list(lost_with_a_word)
    assert await world.call(READ, AT_R1) == "i11"


async def test_a_server_that_says_goodbye_was_not_killed(world: World) -> None:
    """A shutdown is nobody's doing: a call survives two of them, and three attempts are the limit."""
    goodbye = [server_error("57P01", "terminating connection due to administrator command") for _ in range(3)]
    world.servers["i11"].answers = goodbye[:2]
    assert await world.call(READ, AT_R1) == "i11"
    world.servers["i11"].answers = goodbye[:1]
    with pytest.raises(WriteLost, match="broke after"):
        await world.call(WRITE, AT_R1)
    world.servers["i11"].answers = goodbye
    with pytest.raises(asyncpg.AdminShutdownError) as caught:
        await world.call(READ, AT_R1)
    assert len(notes(caught.value)) == 3


@jumping
async def test_when_everything_fails_the_servers_get_little_more_than_was_asked_for() -> None:
    """After the reserve and what time brings, each call is sent once; its error says why, and it is counted."""
    world = World(two_by_two(), max_size=2)
    await world.warm()
    for server in world.servers.values():
        server.default = broken()
    began = asyncio.get_running_loop().time()
    calls = 10 * LEAST_RESERVE
    errors = await asyncio.gather(
        *(world.call(f"{READ} -- {number}", AT_R1, idempotent=True) for number in range(calls)), return_exceptions=True
    )
    assert {type(error) for error in errors} == {ConnectionLost}
    refused = world.counters.retries_refused
    again = sum(len(server.calls) for server in world.servers.values()) - calls
    assert again == calls - refused
    assert LEAST_RESERVE <= again <= LEAST_RESERVE + PER_SECOND * (asyncio.get_running_loop().time() - began)
    assert world.counters.snapshot().retries_refused == refused
    told = [notes(error) for error in errors if isinstance(error, BaseException)]
    assert sum(any("retry budget" in note for note in lines) for lines in told) == refused
    await world.cluster.close(asyncio.get_running_loop().time())


# --- what an error tells -----------------------------------------------------------------------------------

FIRST = "attempt 1 at default_1_1 (127.0.0.1:4311), "
SECOND = "attempt 2 at default_1_1 (127.0.0.1:4311), "


async def test_every_final_error_lists_its_attempts(world: World) -> None:
    """The node, how far the attempt came, and why it failed; nothing of a row or a parameter."""
    answers = world.servers["i11"].answers
    answers.append(server_error("22P02", "invalid input: secret"))
    with pytest.raises(asyncpg.DataError) as own:
        await world.call(READ, AT_R1)
    what = "the statement itself failed; it is the caller's affair: InvalidTextRepresentationError (22P02)"
    assert notes(own.value) == [f"{FIRST}sent: {what}"]
    answers.append(broken())
    with pytest.raises(WriteLost) as unknown:
        await world.call(WRITE, AT_R1)
    why = "the connection broke after the statement was sent: connection was closed in the middle of operation"
    assert notes(unknown.value) == [f"{FIRST}sent: {why}"]
    answers += [broken(), broken()]
    twice = await lost(world.call(READ, AT_R1))
    assert notes(twice) == [f"{FIRST}sent: {why}", f"{SECOND}sent: {why}"]
    answers.append(HANG)
    with pytest.raises(CallTimeout) as late:
        await world.call(READ, AT_R1, timeout=0.1)
    assert notes(late.value) == [f"{FIRST}sent: no answer by the deadline"]


async def test_a_call_that_was_never_sent_lists_where_it_tried_to_connect(world: World) -> None:
    """With the reason of each attempt."""
    for server in world.servers.values():
        server.kill()
    with pytest.raises(NoNodeAvailable) as caught:
        await world.call(READ, AT_R1, timeout=0.3)
    tried = notes(caught.value)
    assert tried
    assert all(", connecting: " in note and note.endswith("connection refused") for note in tried)
    assert set(caught.value.reasons.values()) == {"connection refused"}


async def test_a_refused_password_names_its_one_attempt(world: World) -> None:
    """Where it was tried."""
    for server in world.servers.values():
        server.refuses = server_error("28P01", "password authentication failed")
        for link in list(server.links):
            link.cut()
    with pytest.raises(AuthenticationFailed, match="password authentication failed"):
        await world.call(READ, AT_R1, timeout=5)


async def test_a_pool_that_closes_tells_what_was_tried_before(world: World) -> None:
    """The call may have taken effect by then."""
    world.servers["i11"].answers = [broken()]
    world.servers["i11"].refuses = ConnectionRefusedError("connection refused")
    call = world.call(WRITE, AT_R1, idempotent=True, timeout=30)
    while not world.counters.retries:
        await settle()
    world.executor.refuse()
    await world.cluster.close(world.cluster.runtime.now())
    with pytest.raises(PoolClosed) as caught:
        await call
    assert notes(caught.value)[0].startswith(f"{FIRST}sent: the connection broke")
