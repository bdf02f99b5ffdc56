"""Calls that are given up by the thousand, and calls at nodes that never answer: each ends as it should, and in time.

Order and outcome are asserted; how late a call ended is measured.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AcquireTimeout, CallTimeout, NoNodeAvailable, PicopynError
from picopyn.testing import FaultProxy, PostgresServer, black_hole
from tests.asynchronous.servers import Watch
from tests.postgres.conftest import until
from tests.postgres.nodes import Nodes
from tests.threads import FACADES

Measured = Callable[[str, object], None]

# 70 % are cancelled


@pytest.mark.timeout(1800)
async def test_thousands_of_operations_of_which_most_are_cancelled(
    postgres: PostgresServer, full_size: bool, measured: Measured
) -> None:
    """70 % are cancelled at random: who was not gets his own answer, all counts are exact, no session is left."""
    rng, number = Random(4), 100_000 if full_size else 10_000
    outcomes: Counter[str] = Counter()

    async def one_shot(n: int) -> None:
        assert await pool.fetchval("SELECT $1::int", n) == n

    async def borrowed(n: int) -> None:
        async with pool.acquire() as held:
            assert await held.fetchval("SELECT $1::int", n) == n

    async def transaction(n: int) -> None:
        async with pool.transaction() as held:
            assert await held.fetchval("SELECT $1::int", n) == n
            assert await held.execute("SELECT 1") == "SELECT 1"

    async def many(n: int) -> None:
        await pool.executemany("SELECT $1::int", [(n,), (n + 1,)])

    async def operate(n: int) -> None:
        step = rng.choices([one_shot, borrowed, transaction, many], [6, 2, 1, 1])[0]
        task = asyncio.create_task(step(n))
        doomed = rng.random() < 0.7
        if doomed:
            turns = rng.choice([0, 1, 2, 3, 5, 8, 13])
            for _ in range(turns):
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 0.005))
            doomed = task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            assert doomed, "nobody cancelled it"
            outcomes["cancelled"] += 1
        else:
            assert task.exception() is None, repr(task.exception())
            outcomes["answered" if not doomed else "answered, although it was cancelled"] += 1

    async def work(numbers: Iterator[int]) -> None:
        for n in numbers:
            await operate(n)

    async with Watch(postgres, "given up") as watch:
        pool = watch.pool(max_size=8, min_size=2, acquire_timeout=60)
        async with pool:
            numbers = iter(range(number))
            await asyncio.gather(*(work(numbers) for _ in range(40)))
            await watch.agrees(pool)
            held = [await pool.acquire(timeout=5) for _ in range(8)]
            for connection in held:
                connection.release()
            await watch.agrees(pool)
        assert outcomes.total() == number
        assert outcomes["cancelled"] > number * 0.6
        # a cancellation that came as the answer did may lose the race, but is not swallowed on the way
        assert outcomes["answered, although it was cancelled"] == 0
        await watch.no_session()
    for what, times in outcomes.items():
        measured(what, times)


# nodes that never answer

Call = Callable[[Pool, str, float], Coroutine[Any, Any, Any]]


async def acquire(pool: Pool, node: str, timeout: float) -> None:
    held = await pool.acquire(node=node, timeout=timeout)
    try:
        await held.fetchval("SELECT 1", timeout=timeout)
    finally:
        held.release()


async def transact(pool: Pool, node: str, timeout: float) -> None:
    """BEGIN and COMMIT have no limit but the pool's `command_timeout`: here the caller sets one."""
    async with asyncio.timeout(timeout), pool.transaction(node=node, timeout=timeout) as held:
        await held.fetchval("SELECT 1")


async def get_ready(pool: Pool, node: str, timeout: float) -> None:
    await pool.wait_ready(leaders=2, timeout=timeout)


CALLS: dict[str, Call] = {
    "execute": lambda pool, _, timeout: pool.execute("SELECT 1", timeout=timeout),
    "fetch": lambda pool, _, timeout: pool.fetch("SELECT 1", timeout=timeout),
    "fetchrow": lambda pool, _, timeout: pool.fetchrow("SELECT 1", timeout=timeout),
    "fetchval": lambda pool, _, timeout: pool.fetchval("SELECT $1::int", 1, timeout=timeout),
    "executemany": lambda pool, _, timeout: pool.executemany("SELECT $1::int", [(1,), (2,)], timeout=timeout),
    "acquire": acquire,
    "transaction": transact,
    "wait_ready": get_ready,
}


@contextmanager
def never_answering(how: str, server: PostgresServer) -> Iterator[tuple[int, int, Callable[[], None]]]:
    """The port of the pool's node at first, that of its node later, and what makes it stop answering."""
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port or 0))
        if how == "a black hole":
            yield proxy.port, stack.enter_context(black_hole()).port, lambda: None
        else:
            yield proxy.port, proxy.port, proxy.freeze if how == "frozen" else proxy.mute
        proxy.let_pass()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["frozen", "mute", "a black hole"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_with_a_timeout_ends_with_it_at_a_node_that_never_answers(
    pool_class: Any, postgres: PostgresServer, how: str, name: str, measured: Measured
) -> None:
    """Of three calls the one that may take shortest ends first, and none before its time; one without haste waits on.

    Whether there is a connection at hand, or none.
    """
    loop = asyncio.get_running_loop()
    late: list[float] = []
    with never_answering(how, postgres) as (first, later, stop):
        source = Nodes(first)
        pool = pool_class(
            postgres.dsn, dialect="postgres", ssl="disable", topology_source=source, min_size=2, max_size=2
        )
        async with pool:
            await until(lambda: pool.stats().idle == 2)
            source.ports = [later]
            await pool.refresh_topology()
            stop()
            order: list[float] = []

            async def call(timeout: float) -> None:
                began = loop.time()
                with pytest.raises((AcquireTimeout, CallTimeout, NoNodeAvailable, TimeoutError)):
                    await CALLS[name](pool, str(later), timeout)
                order.append(timeout)
                late.append(loop.time() - began - timeout)

            patient = asyncio.create_task(CALLS[name](pool, str(later), 60.0))
            await asyncio.gather(*(call(timeout) for timeout in (0.3, 0.1, 0.2)))
            assert order == [0.1, 0.2, 0.3]
            assert not (patient.done() and isinstance(patient.exception(), TimeoutError))
            pool.terminate()
            with pytest.raises((PicopynError, asyncpg.InterfaceError)):
                await patient
    measured("latest end of a call after its timeout (s)", max(late))
