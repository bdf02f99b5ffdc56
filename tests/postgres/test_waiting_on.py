"""Who waits is served as soon as that can be, and no call outlives its limit, whatever it takes at the server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import pytest

from picopyn.errors import OutcomeUnknown
from picopyn.observe import Event, OutcomeLost
from picopyn.testing import FaultProxy, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.postgres.real import address, through
from tests.threads import FACADES

#: How far the server is away in these tests, one way (seconds).
FAR = 0.3


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_waiter_is_served_after_an_attempt_for_it_failed(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """There is room for more connections: the next attempt is made by itself, not with the next call."""
    attempts = 0

    async def hook(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            raise ValueError("once")

    pool = await open_pool(postgres.dsn, after_connect=hook, max_size=3, acquire_timeout=None, dialect="postgres")
    held = await pool.acquire()
    async with asyncio.timeout(30):
        assert await pool.fetchval("SELECT 1") == 1
    await pool.release(held)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_waiter_is_served_when_the_server_answers_again(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """One connection is held, and opening another one failed while the server was mute."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await open_pool(
            through(postgres, proxy.port), max_size=3, connect_timeout=0.3, acquire_timeout=None, dialect="postgres"
        )
        held = await pool.acquire()
        proxy.mute()
        waiting = asyncio.create_task(pool.fetchval("SELECT 1"))
        await until(lambda: pool.stats().connect_failures > 0)
        proxy.let_pass()
        async with asyncio.timeout(30):
            assert await waiting == 1
        await pool.release(held)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("what", ["outdated", "evicted", "look-up of a type"])
async def test_one_limit_covers_every_request_that_a_call_takes(
    postgres: PostgresServer, open_pool: OpenPool, admin: Any, what: str
) -> None:
    """Preparing again, closing what left the cache, asking about types: no round trip has a limit of its own."""
    await admin.execute("DROP TABLE IF EXISTS far; CREATE TABLE far (id int); DROP TYPE IF EXISTS mood")
    await admin.execute("CREATE TYPE mood AS ENUM ('good')")
    with FaultProxy(*address(postgres)) as proxy:
        cache = 1 if what == "evicted" else 100
        pool = await open_pool(
            through(postgres, proxy.port), dialect="postgres", max_size=1, statement_cache_size=cache, reset=False
        )
        async with pool.acquire() as connection:
            await connection.fetch("SELECT * FROM far WHERE id = $1", 1)
            text = "SELECT * FROM far WHERE id = $1"
            if what == "outdated":
                await admin.execute("ALTER TABLE far ADD COLUMN more int")
            elif what == "evicted":
                text = "SELECT id FROM far WHERE id > $1"
            else:
                text = "SELECT 'good'::mood, $1::int"
            proxy.delay(FAR)
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await connection.fetch(text, 1, timeout=2.5 * FAR)
            assert time.monotonic() - began < 5 * FAR


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_answer_that_cannot_be_read_is_no_lost_connection(
    postgres: PostgresServer, open_pool: OpenPool, admin: Any
) -> None:
    """A composite type was changed: asyncpg's own error, and the connection is kept."""
    await admin.execute("DROP TABLE IF EXISTS read; DROP TYPE IF EXISTS pair; CREATE TYPE pair AS (x int)")
    await admin.execute("CREATE TABLE read (v pair); INSERT INTO read VALUES (ROW(1))")
    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")
    text = "SELECT v FROM read WHERE $1::int = 1"
    await pool.fetch(text, 1)
    await admin.execute("ALTER TYPE pair ADD ATTRIBUTE y int")
    with pytest.raises(asyncpg.OutdatedSchemaCacheError):
        await pool.fetch(text, 1)
    assert [tuple(row["v"]) for row in await pool.fetch(text, 1)] == [(1, None)]
    stats = pool.stats()
    assert (stats.outcome_unknown, stats.closes.get("broken", 0), stats.connects) == (0, 0, 1)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_write_that_was_sent_is_never_told_as_unsent(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """It may be repeated, so it was to be sent again; when no node can be reached any more, it may have happened."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await open_pool(through(postgres, proxy.port), dialect="postgres", max_size=1, connect_timeout=0.3)
        call = asyncio.create_task(pool.execute("SELECT pg_sleep($1::float)", 5.0, idempotent=True, timeout=1.5))
        await until(lambda: pool.stats().in_use > 0)
        proxy.refuse()
        proxy.cut()
        with pytest.raises(OutcomeUnknown):
            await call
        assert pool.stats().outcome_unknown == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_lost_outcome_on_a_held_connection_is_told(
    postgres: PostgresServer, open_pool: OpenPool, admin: Any
) -> None:
    """Counted, and an event like that of a call of the pool."""
    events: list[Event] = []
    with FaultProxy(*address(postgres)) as proxy:
        pool = await open_pool(through(postgres, proxy.port), dialect="postgres", max_size=1, on_event=events.append)
        async with pool.acquire() as connection:
            call = asyncio.create_task(connection.execute("SELECT pg_sleep(7)"))
            while not await admin.fetchval("SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(7)'"):
                await asyncio.sleep(0.01)
            proxy.cut()
            with pytest.raises(OutcomeUnknown):
                await call
        assert pool.stats().outcome_unknown == 1
        assert [event.reason for event in events if isinstance(event, OutcomeLost)] == ["connection lost"]
