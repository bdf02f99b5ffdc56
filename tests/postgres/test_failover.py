"""Losing a primary, a replica or all of them costs the application milliseconds, and no wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from picopyn.testing import PostgresCluster
from tests.postgres.conftest import OpenPool
from tests.postgres.history import PATIENCE, TABLES, History
from tests.threads import FACADES

Factory = Callable[..., PostgresCluster]
Measured = Callable[[str, object], None]

over_both_facades = pytest.mark.parametrize("facade", FACADES, indirect=True)


@over_both_facades
@pytest.mark.timeout(1200)
async def test_the_primary_dies_under_load_again_and_again(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, full_size: bool, measured: Measured
) -> None:
    """SIGKILL, and a replica is promoted: repeatable calls only take longer, others may be unknown; no row is lost."""
    servers = picopyn_postgres_cluster(synchronous=1)
    servers.execute(TABLES)
    loop = asyncio.get_running_loop()
    pool = await open_pool(servers.dsn, max_size=10)
    await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
    failovers = 50 if full_size else 3
    late, began = [], loop.time()
    async with History(pool) as history:
        for _ in range(failovers):
            await history.more(200)
            primary = servers.primary
            await asyncio.to_thread(servers.kill, primary)
            killed = loop.time()
            await asyncio.to_thread(servers.promote)
            promoted = loop.time()
            await history.more(1)
            late.append(history.first_after(killed) - promoted)
            await asyncio.to_thread(servers.rejoin, primary)
        await history.more(200)
    assert len(history.unknown) <= 10 * failovers  # what was in flight
    await history.check()
    late.sort()
    measured("first write after the end of a promotion, median ms", 1000 * late[len(late) // 2])
    measured("the same, worst ms", 1000 * late[-1])
    measured("calls a second", history.answers / (loop.time() - began))
    measured("outcome unknown", len(history.unknown))
    measured("retries", dict(pool.stats().retries))
