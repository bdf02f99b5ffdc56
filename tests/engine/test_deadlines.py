"""One deadline per call: it covers waiting, connecting and running, and the error says which of them it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from picopyn.engine import failures
from picopyn.errors import AcquireTimeout, CallTimeout, NoNodeAvailable, OutcomeUnknown
from tests.asynchronous.jump_loop import jumping, settle
from tests.engine.test_executor import READONLY
from tests.engine.world import HANG, READ, WRITE, World, server_error
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1


async def opened(**settings: Any) -> World:
    """A world whose nodes are all connected."""
    world = World(two_by_two(), **settings)
    await world.warm()
    return world


async def ended(call: asyncio.Task[Any]) -> tuple[BaseException, float]:
    """What a call ends with, and when."""
    await asyncio.wait({call})
    error = call.exception()
    assert error is not None
    return error, asyncio.get_running_loop().time()


async def close(world: World) -> None:
    """The end of every test."""
    await world.cluster.close(world.cluster.runtime.now())


@jumping
async def test_waiting_for_a_connection_ends_at_the_deadline() -> None:
    """The message says how many are in use and who else waits; nothing was sent."""
    world = await opened(max_size=1)
    world.servers["i11"].answers = [HANG]
    holder = world.call(READ, AT_R1)
    await settle()
    other = world.call(READ, AT_R1, timeout=5)
    error, when = await ended(world.call(READ, AT_R1, timeout=1.5))
    assert isinstance(error, AcquireTimeout)
    assert "waited 1.5 s for a free connection to default_1_1" in str(error)
    assert "all 1 in use, 1 calls wait" in str(error)
    assert when == pytest.approx(1.5)
    holder.cancel()
    assert await other == "i11"
    await close(world)


@jumping
@pytest.mark.parametrize("query", [READ, WRITE])
async def test_no_limit_is_told_where_nobody_has_set_any(query: str) -> None:
    """What says that it took too long may be code of somebody else's; and who waits without a limit waited for it."""
    world = await opened()
    world.servers["i11"].answers = [TimeoutError()]
    error, _ = await ended(world.call(query, AT_R1))
    assert isinstance(error, CallTimeout)
    assert "got no answer from default_1_1" in str(error)
    assert "within" not in str(error)
    told = failures.not_acquired(
        world.request(query, AT_R1), "a free connection", 0.0, world.cluster.snapshot, world.cluster.health
    )
    assert "waited for a free connection" in str(told)
    await close(world)


@jumping
async def test_waiting_for_a_leader_ends_at_the_deadline() -> None:
    """The message names the replicaset; the error of the last attempt to connect is the cause."""
    world = await opened()
    world.servers["i21"].kill()
    await settle()
    error, when = await ended(world.call(WRITE, AT_R2, timeout=1.5))
    assert isinstance(error, AcquireTimeout)
    assert "no reachable leader [default_2]" in str(error)
    assert "127.0.0.1:4321: connection refused" in str(error)
    assert isinstance(error.__cause__, ConnectionRefusedError)
    assert when == pytest.approx(1.5)
    await close(world)


@jumping
async def test_connecting_ends_at_the_deadline() -> None:
    """Nobody waits longer for a connection than he said, however long `connect_timeout` is."""
    world = World(two_by_two())
    for server in world.servers.values():
        server.freeze()
    error, when = await ended(world.call(READ, AT_R1, timeout=0.25))
    assert isinstance(error, AcquireTimeout)
    assert "default_1_1" in str(error)
    assert "none is open, 1 being opened" in str(error)
    assert when == pytest.approx(0.25)
    await close(world)


@jumping
async def test_running_ends_at_the_deadline() -> None:
    """The time spent waiting is part of it; a write may still happen, a read did nothing."""
    world = await opened(max_size=1)
    world.servers["i11"].answers = [HANG, HANG]
    holder = world.call(READ, AT_R1, timeout=1)
    await settle()
    write = world.call(WRITE, AT_R1, timeout=1.5)
    error, when = await ended(holder)
    assert isinstance(error, CallTimeout)
    assert not isinstance(error, OutcomeUnknown)
    assert when == pytest.approx(1.0)
    error, when = await ended(write)
    assert isinstance(error, CallTimeout)
    assert isinstance(error, OutcomeUnknown)
    assert "got no answer from default_1_1 (127.0.0.1:4311) within 1.5 s" in str(error)
    assert when == pytest.approx(1.5)
    await close(world)


@jumping
async def test_sending_again_happens_inside_the_deadline() -> None:
    """A repeated read has what is left of the time, not all of it again."""
    world = await opened()

    def after_a_second(link: Any) -> Any:
        asyncio.get_running_loop().call_later(1, link.cut)
        return HANG

    world.servers["i11"].answers = [after_a_second, HANG, HANG]
    error, when = await ended(world.call(READ, AT_R1, timeout=2.5))
    assert isinstance(error, CallTimeout)
    assert when == pytest.approx(2.5)
    assert len(world.servers["i11"].calls) == 2
    await close(world)


@jumping
async def test_a_call_without_a_timeout_waits_as_long_as_acquire_timeout_says() -> None:
    """And then runs as long as it likes."""
    world = await opened(max_size=1, acquire_timeout=3.0)
    world.servers["i11"].answers = [HANG]
    holder = world.call(READ, AT_R1)
    await settle()
    error, when = await ended(world.call(READ, AT_R1))
    assert isinstance(error, AcquireTimeout)
    assert "waited 3 s" in str(error)
    assert when == pytest.approx(3.0)
    await asyncio.sleep(1000)
    assert not holder.done()
    holder.cancel()
    await asyncio.wait({holder})
    await close(world)


@pytest.mark.parametrize(
    ("command_timeout", "acquire_timeout", "end"), [(1.0, 3.0, 1.0), (3.0, 1.0, 1.0), (2.0, None, 2.0)]
)
def test_of_two_limits_the_first_to_end_counts(
    command_timeout: float, acquire_timeout: float | None, end: float
) -> None:
    """`acquire_timeout` and `command_timeout` for who names no timeout."""

    @jumping
    async def main() -> None:
        world = await opened(max_size=1, acquire_timeout=acquire_timeout)
        world.servers["i11"].answers = [HANG]
        holder = world.call(READ, AT_R1)
        await settle()
        request = world.request(READ, AT_R1)
        request.limit(command_timeout, world.cluster.runtime.now(), own=False)
        error, when = await ended(asyncio.create_task(world.run(request)))
        assert isinstance(error, AcquireTimeout)
        assert f"waited {end:g} s" in str(error)
        assert when == pytest.approx(end)
        holder.cancel()
        await asyncio.wait({holder})
        await close(world)

    main()


@jumping
async def test_a_timeout_of_ones_own_replaces_acquire_timeout() -> None:
    """Whoever allows a minute gets a minute, for a leader too."""
    world = await opened(acquire_timeout=0.1)
    world.servers["i21"].kill()
    await settle()
    call = world.call(WRITE, AT_R2, timeout=60)
    await asyncio.sleep(30)
    world.cluster.adopt(two_by_two(leaders={"r2": "i22"}, offline=("i21",)))
    assert await call == "i22"
    await close(world)


@jumping
async def test_no_reachable_node_is_told_with_the_last_error_as_its_cause() -> None:
    """After the call's own time, while the nodes are tried again and again."""
    world = World(two_by_two())
    for server in world.servers.values():
        server.refuses = ConnectionRefusedError("connection refused")
    error, when = await ended(world.call(READ, AT_R1, timeout=1.5))
    assert isinstance(error, NoNodeAvailable)
    assert isinstance(error.__cause__, ConnectionRefusedError)
    assert when == pytest.approx(1.5)
    await close(world)


@jumping
async def test_waiting_for_a_newer_look_ends_at_the_deadline() -> None:
    """A refused write waits for it, and says so."""
    world = await opened()
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    error, when = await ended(world.call(WRITE, AT_R1, timeout=1.5))
    assert isinstance(error, AcquireTimeout)
    assert "a newer look at the cluster" in str(error)
    assert any("not the leader" in note for note in error.__notes__)
    assert when == pytest.approx(1.5)
    await close(world)


@jumping
async def test_a_call_that_ran_long_before_its_connection_broke_may_still_wait() -> None:
    """`acquire_timeout` is about waiting: time spent running is no part of it."""
    world = await opened(max_size=1, acquire_timeout=1.0)

    def after_long(link: Any) -> Any:
        asyncio.get_running_loop().call_later(100, link.cut)
        return HANG

    def a_moment(link: Any) -> Any:
        asyncio.get_running_loop().call_later(0.5, link.reply, "i11")
        return HANG

    world.servers["i11"].answers = [a_moment, after_long]
    first = world.call(READ, AT_R1)
    await settle()
    second = world.call(READ, AT_R1)
    assert await first == "i11"
    assert await second == "i11"
    assert asyncio.get_running_loop().time() > 100
    await close(world)


@jumping
@pytest.mark.parametrize("answer", ["in time", server_error("23505", "duplicate key")])
async def test_what_the_server_says_in_the_last_moment_counts(answer: Any) -> None:
    """It arrives in the very turn in which the time is over, as when the loop stood still; nothing is dropped."""
    world = await opened(max_size=1)
    loop = asyncio.get_running_loop()
    links: list[Any] = []

    def reply() -> None:
        if isinstance(answer, Exception):
            links[0]._running.set_exception(answer)
        else:
            links[0].reply(answer)

    loop.call_at(loop.time() + 1.5, reply)  # set before the alarm, so it comes first
    world.servers["i11"].answers = [lambda link: links.append(link) or HANG]
    (ended,) = await asyncio.gather(world.call(WRITE, AT_R1, timeout=1.5), return_exceptions=True)
    assert ended is answer
    assert not links[0].closed
    await close(world)


@jumping
async def test_a_call_without_a_limit_is_let_alone_when_that_of_another_is_over() -> None:
    """One alarm rings for all; it ends whose time is over, and rings again for the next."""
    world = await opened(max_size=3)
    world.servers["i11"].answers = [HANG, HANG, HANG]
    unlimited = world.call(READ, AT_R1)
    long, short = world.call(READ, AT_R1, timeout=40), world.call(READ, AT_R1, timeout=20)
    error, when = await ended(short)
    assert isinstance(error, CallTimeout)
    assert when == pytest.approx(20)
    assert not long.done()
    error, when = await ended(long)
    assert isinstance(error, CallTimeout)
    assert when == pytest.approx(40)
    await asyncio.sleep(60)
    assert not unlimited.done()
    unlimited.cancel()
    await close(world)
