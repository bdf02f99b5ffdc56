"""Calls of one server, which answers everything: with arguments they go where a plan would send them, without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from picopyn.errors import PicopynError, PoolClosed
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)


async def test_every_call_is_counted_once(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """With arguments and without, of texts seen before and new ones, many at once."""
    pool = await open_pool(postgres.dsn, max_size=4)
    await pool.fetchval("SELECT $1::int", 0)
    before = sum(pool.stats().calls.values())

    async def use(caller: int) -> None:
        for number in range(100):
            assert await pool.fetchval("SELECT $1::int", number) == number
            if number % 10 == 0:
                assert await pool.fetchval(f"SELECT {number}") == number
                assert await pool.fetchval(f"SELECT {caller} + $1::int", number) == caller + number

    await asyncio.gather(*(use(caller) for caller in range(8)))
    assert sum(pool.stats().calls.values()) - before == 8 * 120


async def test_a_transaction_that_a_call_leaves_open_ends_with_its_connection(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """Only statements without arguments can begin one, so only after those it is looked."""
    pool = await open_pool(postgres.dsn, max_size=1)
    session = await pool.fetchval("SELECT pg_backend_pid() WHERE $1 = 1", 1)
    assert await pool.fetchval("SELECT pg_backend_pid() WHERE $1 = 1", 1) == session
    await pool.execute("BEGIN")
    watching = await open_pool(postgres.dsn)
    while await watching.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", session):
        await asyncio.sleep(0.005)
    assert await pool.fetchval("SELECT pg_backend_pid() WHERE $1 = 1", 1) != session


async def test_a_call_that_fells_its_connection_harms_nobody_else(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """It gets an error of the driver's; the calls before and after it are answered."""
    pool = await open_pool(postgres.dsn, max_size=1)
    assert await pool.fetchval("SELECT $1::int", 1) == 1
    with pytest.raises(PicopynError):
        await pool.execute("SELECT pg_terminate_backend(pg_backend_pid()) WHERE $1 = 1", 1)
    assert await pool.fetchval("SELECT $1::int", 2) == 2


async def test_a_closed_pool_refuses_them(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Also the one that goes by a plan that is kept."""
    pool: Any = await open_pool(postgres.dsn)
    assert await pool.fetchval("SELECT $1::int", 1) == 1
    await pool.close(grace=1)
    with pytest.raises(PoolClosed):
        await pool.fetchval("SELECT $1::int", 1)
