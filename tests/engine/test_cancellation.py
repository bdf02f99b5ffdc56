"""The routed call and the loan, cancelled at each await, over servers that answer as told: the accounts stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from picopyn.asynchronous.runtime import AsyncioJob
from picopyn.engine.loan import Loan
from picopyn.engine.place import Place
from picopyn.engine.request import Request, make_request
from picopyn.errors import AcquireTimeout, CallTimeout
from picopyn.routing.plan import Role
from tests.cancelling import cancel_everywhere, nothing_left_behind
from tests.engine.world import HANG, READ, SCAN, WRITE, World, broken, server_error, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1

Step = Callable[[World], Coroutine[Any, Any, Any]]


def run(world: World, query: str, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
    return world.run(world.request(query, *args, **options))


def soon(step: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(0.003, step)


async def plain(world: World) -> None:
    assert await run(world, READ, AT_R1) == "i11"


async def sent_again(world: World) -> None:
    world.servers["i11"].answers = [broken()]
    assert await run(world, READ, AT_R1) == "i11"


async def prepared_again(world: World) -> None:
    world.servers["i11"].answers = [server_error("42999", "prepared statement s1 has been invalidated")]
    assert await run(world, READ, AT_R1) == "i11"


async def overloaded(world: World) -> None:
    world.servers["i11"].answers = [server_error("53300", "too many connections")]
    with suppress(Exception):
        await run(world, READ, AT_R1)


async def waits_for_a_leader(world: World) -> None:
    world.cluster.adopt(two_by_two(leaders={"r2": None}))
    soon(lambda: world.cluster.adopt(two_by_two()))
    assert await run(world, WRITE, AT_R2) == "i21"


async def waits_for_a_leader_in_vain(world: World) -> None:
    world.cluster.adopt(two_by_two(leaders={"r2": None}))
    try:
        await run(world, WRITE, AT_R2, timeout=0.003)
    except AcquireTimeout:
        return
    finally:
        world.cluster.adopt(two_by_two())


async def learns_first(world: World) -> None:
    world.cluster.adopt(two_by_two(leaders={"r2": None}))
    soon(lambda: world.cluster.adopt(two_by_two()))
    assert await run(world, "SELECT other FROM t WHERE v = $1", 5) in ("i11", "i21")


async def times_out(world: World) -> None:
    world.servers["i11"].answers = [HANG]
    with suppress(CallTimeout):
        await run(world, READ, AT_R1, timeout=0.003)


async def finds_its_connection_closed(world: World) -> None:
    for link in list(world.servers["i11"].links):
        link.cut()
    assert await run(world, READ, AT_R1) == "i11"


async def waits_its_turn(world: World) -> None:
    taken: list[Loan] = []
    try:
        while len(taken) < 2:
            taken.append(await world.executor.acquire(request(), Place(node="i11")))
        soon(taken.pop().release)
        assert await run(world, READ, AT_R1, timeout=1) == "i11"
    finally:
        for loan in taken:
            loan.release()


async def borrowed(world: World) -> None:
    loan = await world.executor.acquire(request(), Place(role=Role.LEADER))
    try:
        loan.begin("fetch", READ)
        try:
            await loan.link.fetch(READ, AT_R1)  # type: ignore[attr-defined]
        except BaseException as error:
            loan.end(error)
            raise
        loan.end(None)
    finally:
        loan.release()


async def scan(world: World) -> None:
    assert await run(world, SCAN, 5) in ("i11", "i21")


STEPS: list[Step] = [
    plain,
    sent_again,
    prepared_again,
    overloaded,
    waits_for_a_leader,
    waits_for_a_leader_in_vain,
    learns_first,
    times_out,
    finds_its_connection_closed,
    waits_its_turn,
    borrowed,
    scan,
]


def request() -> Request:
    return make_request("acquire", "", (), Role.LEADER)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_accounts_are_exact_after_a_cancellation_at_any_await(step: Step) -> None:
    """Nothing held, nobody waiting, nothing in flight; and the next call is answered by the right node."""
    async with nothing_left_behind():
        world = World(two_by_two(), max_size=2)
        await world.warm()

        async def prepare() -> Coroutine[Any, Any, Any]:
            for server in world.servers.values():
                server.answers.clear()
            await world.warm()
            return step(world)

        async def check(where: str) -> None:
            world.cluster.adopt(two_by_two())
            for _ in range(200):
                await asyncio.sleep(0.001)
                if all(not pool.slots.opening for pool in world.cluster.pools):
                    break
            for pool in world.cluster.pools:
                slots = pool.slots
                state = (where, pool.node.uuid, slots.held, slots.waiters, slots.opening)
                assert not slots.held, state
                assert not slots.waiters, state
                assert not slots.opening, state
                alive = {link for link in world.servers[pool.node.uuid].for_callers if not link.closed}
                assert set(slots.idle) == alive, state
            assert not world.cluster.changes.waiting, where
            assert not world.cluster.stuck(frozenset({"r1", "r2"})), where
            for server in world.servers.values():
                server.answers.clear()
            assert await run(world, READ, AT_R1) == "i11"
            assert await run(world, READ, AT_R2) == "i21"

        assert await cancel_everywhere(prepare, check)
        await world.cluster.close(world.cluster.runtime.now() + 1)
        assert not any(pool.slots.size or pool.slots.opening for pool in world.cluster.pools)


@pytest.mark.parametrize("held", [False, True])
async def test_a_close_cancelled_at_any_await_is_a_terminate(held: bool) -> None:
    """No connection is left, whatever was being opened, held or closed at that moment."""
    async with nothing_left_behind():
        worlds: list[World] = []

        async def prepare() -> Coroutine[Any, Any, Any]:
            worlds.append(world := World(two_by_two(), max_size=3))
            await world.warm()
            if held:
                loan = await world.executor.acquire(request(), Place())
                soon(loan.release)
            for pool in world.cluster.pools:
                pool.warm(3)  # jobs that have not even begun

            async def close() -> None:
                world.executor.refuse()
                try:
                    await world.cluster.close(world.cluster.runtime.now() + 1)
                except BaseException:
                    world.cluster.terminate()
                    raise

            return close()

        async def check(where: str) -> None:
            await settle()
            await asyncio.sleep(0.01)
            world = worlds[-1]
            assert not any(server.links for server in world.servers.values()), where
            accounts = [(pool.slots.size, pool.slots.opening, len(pool.slots.waiters)) for pool in world.cluster.pools]
            assert set(accounts) == {(0, 0, 0)}, (where, accounts)

        assert await cancel_everywhere(prepare, check)


async def test_a_job_cancelled_before_its_first_step_gives_back_what_it_has() -> None:
    """Its first step is done, and it ends at its first wait."""
    given_back: list[str] = []

    async def job() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            given_back.append("the slot")

    started = AsyncioJob(asyncio.get_running_loop(), job(), "a job")
    started.cancel()
    await asyncio.wait({started.task})
    assert started.done()
    assert started.task.cancelled()
    assert given_back == ["the slot"]
