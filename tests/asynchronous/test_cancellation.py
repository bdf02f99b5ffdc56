"""Every public call, cancelled at each of its awaits, on a real PostgreSQL: nothing leaks, nobody else notices.

A cancellation comes in two moments at every await (see `tests/cancelling.py`). After each: the call ended as
cancelled; nothing is in use and nobody waits; the server has exactly the sessions the pool says; the next call gets its
own answer; asyncio has nothing to complain about.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from tests.asynchronous.servers import Watch, count
from tests.cancelling import cancel_everywhere

Call = Callable[[Pool], Coroutine[Any, Any, Any]]


@pytest.fixture
async def pool(watch: Watch) -> AsyncIterator[Pool]:
    """An open pool of two connections."""
    async with watch.pool(min_size=1, max_size=2, acquire_timeout=5) as pool:
        yield pool


async def held(pool: Pool) -> None:
    async with pool.acquire() as connection:
        assert await connection.fetchval("SELECT 3") == 3


async def by_hand(pool: Pool) -> None:
    connection = await pool.acquire()
    try:
        assert await connection.fetchval("SELECT 3") == 3
    finally:
        await pool.release(connection)


async def transaction(pool: Pool) -> None:
    async with pool.transaction() as connection:
        await connection.execute("CREATE TEMP TABLE IF NOT EXISTS mine (n int)")
        async with connection.transaction():
            await connection.execute("INSERT INTO mine VALUES ($1)", 1)


async def refused_transaction(pool: Pool) -> None:
    with contextlib.suppress(asyncpg.DivisionByZeroError):
        async with pool.transaction() as connection:
            await connection.execute("SELECT 1/0")


async def cursor(pool: Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():
        rows = [row[0] async for row in connection.cursor("SELECT generate_series(1, 5)", prefetch=2)]
        assert rows == [1, 2, 3, 4, 5]
        portal = await connection.cursor("SELECT generate_series(1, 5)")
        assert await portal.forward(2) == 2
        assert [row[0] for row in await portal.fetch(2)] == [3, 4]


async def prepared(pool: Pool) -> None:
    async with pool.acquire() as connection:
        statement = await connection.prepare("SELECT $1::int + 1")
        assert await statement.fetchval(1) == 2
        await statement.executemany([(1,), (2,)])


async def copied(pool: Pool) -> None:
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE copied (n int)")
        await connection.copy_records_to_table("copied", records=[(number,) for number in range(10)])
        parts: list[bytes] = []

        async def take(part: bytes) -> None:
            parts.append(part)

        await connection.copy_from_query("SELECT n FROM copied", output=take)
        assert b"".join(parts).count(b"\n") == 10


async def listening(pool: Pool) -> None:
    async with pool.acquire() as connection:
        await connection.add_listener("news", lambda *_: None)
        await connection.set_type_codec("json", schema="pg_catalog", encoder=str, decoder=str)
        await connection.reset()


CALLS: dict[str, Call] = {
    "execute": lambda pool: pool.execute("SELECT pg_sleep(0.001)"),
    "fetch": lambda pool: pool.fetch("SELECT $1::int", 1),
    "fetchrow": lambda pool: pool.fetchrow("SELECT $1::text", "a", timeout=5),
    "fetchval": lambda pool: pool.fetchval("SELECT 1"),
    "executemany": lambda pool: pool.executemany("SELECT $1::int", [(1,), (2,)]),
    "acquire": held,
    "await acquire and release": by_hand,
    "transaction": transaction,
    "transaction that fails": refused_transaction,
    "cursor": cursor,
    "prepare": prepared,
    "copy": copied,
    "listeners and codecs": listening,
    "wait_ready": lambda pool: pool.wait_ready(),
    "explain_route": lambda pool: pool.explain_route("SELECT 1"),
    "refresh_topology": lambda pool: pool.refresh_topology(),
}


def make(call: Call, pool: Pool) -> Callable[[], Awaitable[Coroutine[Any, Any, Any]]]:
    async def prepare() -> Coroutine[Any, Any, Any]:
        return call(pool)

    return prepare


async def sound(pool: Pool, watch: Watch, where: str) -> None:
    """The accounts agree, and every connection gives its caller's own answer."""
    await watch.agrees(pool, where)
    answers = await asyncio.gather(*(pool.fetchval("SELECT $1::int", number) for number in range(4)))
    assert answers == [0, 1, 2, 3], where


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_at_any_await_leaves_nothing(
    pool: Pool, watch: Watch, name: str, measured: Callable[[str, object], None]
) -> None:
    """With connections at hand."""

    async def check(where: str) -> None:
        await sound(pool, watch, where)

    measured("cancellations", await cancel_everywhere(make(CALLS[name], pool), check))


@pytest.mark.parametrize("name", ["fetchval", "acquire", "await acquire and release", "transaction", "wait_ready"])
async def test_a_call_cancelled_while_it_waits_for_a_connection_leaves_nothing(
    watch: Watch, name: str, measured: Callable[[str, object], None]
) -> None:
    """With none at hand: it has to be opened."""
    async with watch.pool(min_size=int(name == "wait_ready"), max_size=1) as pool:

        async def emptied() -> Coroutine[Any, Any, Any]:
            async with pool.acquire() as connection:
                connection.terminate()
            await asyncio.sleep(0)
            return CALLS[name](pool)

        async def check(where: str) -> None:
            await sound(pool, watch, where)

        cancellations = await cancel_everywhere(emptied, check)
        assert cancellations
        measured("cancellations", cancellations)


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_hands_it_on(pool: Pool, watch: Watch) -> None:
    """The connection goes to the next one who waits, in order."""
    for late in (False, True):
        both = [await pool.acquire(), await pool.acquire()]
        first = asyncio.create_task(pool.fetchval("SELECT 1"))
        second = asyncio.create_task(pool.fetchval("SELECT 2"))
        await asyncio.sleep(0.01)
        assert count(pool)[3] == 2
        if late:
            both[0].release()
            first.cancel()
        else:
            first.cancel()
            both[0].release()
        assert await second == 2
        assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        both[1].release()
        await sound(pool, watch, "")


async def test_opening_cancelled_at_any_await_leaves_nothing(
    watch: Watch, measured: Callable[[str, object], None]
) -> None:
    """And the pool can be opened again afterwards."""
    pools: list[Pool] = []

    async def prepare() -> Coroutine[Any, Any, Any]:
        pools.append(watch.pool(min_size=2, max_size=2))
        return pools[-1].open()

    async def check(where: str) -> None:
        if not where.startswith("not"):
            await watch.no_session()
            await pools[-1].open()
        assert await pools[-1].fetchval("SELECT 5") == 5, where
        await pools[-1].close()
        await watch.no_session()

    measured("cancellations", await cancel_everywhere(prepare, check))


@pytest.mark.parametrize("busy", [False, True])
async def test_closing_cancelled_at_any_await_ends_everything(
    watch: Watch, busy: bool, measured: Callable[[str, object], None]
) -> None:
    """Whoever cancels `close()` gets what `terminate()` does: no session outlives it."""
    callers: list[asyncio.Task[Any]] = []

    async def prepare() -> Coroutine[Any, Any, Any]:
        pool = await watch.pool(min_size=2, max_size=2).open()
        await pool.wait_ready()
        if busy:
            callers.append(asyncio.create_task(pool.execute("SELECT pg_sleep(0.05)")))
            await asyncio.sleep(0.01)
        return pool.close(grace=5)

    async def check(where: str) -> None:
        await watch.no_session()
        await asyncio.gather(*callers, return_exceptions=True)
        assert not any(caller.cancelled() for caller in callers), where
        callers.clear()

    measured("cancellations", await cancel_everywhere(prepare, check))
