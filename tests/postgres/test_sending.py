"""Rows for a server that takes no more of them for now: whatever ends the call, it ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import CallTimeout, ConnectionLost, OutcomeUnknown, PoolClosed
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool, until

#: More than sockets and buffers between two processes hold: a kernel may let them grow to 40 MB.
#: The first row waits for a lock.
ROWS = [(number, "x" * 100_000) for number in range(1200)]
INSERT = "INSERT INTO sent VALUES ($1, $2)"


async def by_the_pool(pool: Pool) -> None:
    """One call of the pool, for which it has a connection."""
    await pool.executemany(INSERT, ROWS)


async def on_a_held_connection(pool: Pool) -> None:
    """A call of asyncpg's connection."""
    async with pool.acquire() as connection:
        await connection.executemany(INSERT, ROWS)


async def by_a_prepared_statement(pool: Pool) -> None:
    """A call of asyncpg's statement."""
    async with pool.acquire() as connection:
        statement = await connection.prepare(INSERT)
        await statement.executemany(ROWS)


async def by_copy(pool: Pool) -> None:
    """COPY, whose rows have to wait in another place."""
    async with pool.acquire() as connection:
        await connection.copy_records_to_table("sent", records=ROWS)


def links(pool: Pool) -> list[Any]:
    """The connections in use."""
    return [link for node_pool in pool._cluster.pools for link in node_pool.slots.held]


async def cancel(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """The caller is cancelled."""
    call.cancel()


async def terminate(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """The pool is dropped."""
    pool.terminate()


async def hang(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """The node is found to hang."""
    for node_pool in pool._cluster.pools:
        pool._cluster.flights.end_all(node_pool, "the node hangs")


async def die(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """The server ends the connection."""
    for link in links(pool):
        assert await admin.fetchval("SELECT pg_terminate_backend($1, 20000)", link.get_server_pid())


async def hang_and_cancel(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """Both in one turn: the cancellation is not lost."""
    await hang(pool, call, admin)
    call.cancel()


async def cancel_and_hang(pool: Pool, call: asyncio.Task[None], admin: Any) -> None:
    """The other way round."""
    call.cancel()
    await hang(pool, call, admin)


@pytest.mark.parametrize("send", [by_the_pool, on_a_held_connection, by_a_prepared_statement, by_copy])
async def test_who_waits_until_he_may_send_more_is_told_of_every_end(
    send: Callable[[Pool], Awaitable[None]], postgres: PostgresServer, open_pool: OpenPool, admin: Any
) -> None:
    """Left to itself, asyncpg would wait for an answer to what it had not sent; and a cancellation was lost there."""
    await admin.execute("CREATE TABLE sent (id int PRIMARY KEY, name text)")
    blocking = admin.transaction()
    await blocking.start()
    await admin.execute("INSERT INTO sent VALUES (0, '')")
    for end in (cancel, hang, die, hang_and_cancel, cancel_and_hang, terminate):
        pool = await open_pool(postgres.dsn, max_size=1)
        call = asyncio.create_task(send(pool))  # type: ignore[arg-type]
        await until(lambda: call.done() or any(not link._sending._event.is_set() for link in links(pool)))  # noqa: B023
        assert not call.done(), call.result()
        await end(pool, call, admin)
        done, _ = await asyncio.wait({call}, timeout=20)
        assert done, f"{send.__name__}, {end.__name__}: it waits on"
        if "cancel" in end.__name__:
            assert call.cancelled(), f"{send.__name__}, {end.__name__}: {call.exception()!r}"
        else:
            assert isinstance(call.exception(), OutcomeUnknown | ConnectionLost | PoolClosed), end.__name__
        pool.terminate()
    await blocking.rollback()
    await admin.execute("DROP TABLE sent")


async def test_a_limit_of_many_calls_holds_where_one_of_them_waits_until_it_may_send_more(
    postgres: PostgresServer, open_pool: OpenPool, admin: Any
) -> None:
    """What a transaction does is cancelled when its time is over; asyncpg's own limit ends the call of a statement."""
    await admin.execute("CREATE TABLE sent (id int PRIMARY KEY, name text)")
    blocking = admin.transaction()
    await blocking.start()
    await admin.execute("INSERT INTO sent VALUES (0, '')")
    pool = await open_pool(postgres.dsn, max_size=2)

    async def work(connection: Any) -> None:
        await connection.executemany(INSERT, ROWS)

    async def statement() -> None:
        async with pool.acquire() as connection:
            await (await connection.prepare(INSERT)).executemany(ROWS, timeout=1.0)

    calls = asyncio.gather(pool.run_transaction(work, timeout=1.0), statement(), return_exceptions=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            await calls
    assert calls.done(), "it waits on"
    assert all(isinstance(error, CallTimeout) for error in calls.result()), calls.result()
    pool.terminate()
    await blocking.rollback()
    await admin.execute("DROP TABLE sent")
