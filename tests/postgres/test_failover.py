"""Losing a primary, a replica or all of them costs the application milliseconds, and no wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PostgresCluster, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.postgres.history import PATIENCE, TABLES, History
from tests.threads import FACADES

Factory = Callable[..., PostgresCluster]
Measured = Callable[[str, object], None]

ROWS = "SELECT (SELECT count(*) FROM once), (SELECT count(*) FROM repeatable)"

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
    failovers, between = (50, 1000) if full_size else (3, 200)
    late, served, seconds = [], 0, 0.0
    async with History(pool) as history:
        for _ in range(failovers):
            began, before = loop.time(), history.answers
            await history.more(between)
            primary = servers.primary
            await asyncio.to_thread(servers.kill, primary)
            killed = loop.time()
            served, seconds = served + history.answers - before, seconds + killed - began
            await pool.fetchval("SELECT 1", role="prefer_leader", idempotent=True, timeout=PATIENCE)
            await asyncio.to_thread(servers.promote)
            promoted = loop.time()
            await history.more(1)
            late.append(history.first_after(killed) - promoted)
            await asyncio.to_thread(servers.rejoin, primary)
        await history.more(200)
    await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
    assert leaders(pool) == {servers.address_of(servers.primary)[1]}
    await until(lambda: [node.current_state for node in pool.topology.nodes(role="replica")] == ["standby"] * 2)
    assert len(history.unknown) <= 10 * failovers  # what was in flight
    await history.check()
    late.sort()
    for share in (50, 90, 98, 100):
        measured(
            f"first write after the end of a promotion, ms, {share} %", 1000 * late[(len(late) - 1) * share // 100]
        )
    measured("writes a second while there was a primary", served / seconds)
    measured("writes", history.answers)
    measured("outcome unknown", len(history.unknown))
    measured("retries", dict(pool.stats().retries))


@over_both_facades
async def test_all_nodes_are_restarted_one_after_the_other_under_load(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, full_size: bool, measured: Measured
) -> None:
    """Each is shut down and started again, the primary too: repeatable calls all succeed, no row is lost or doubled."""
    servers = picopyn_postgres_cluster()
    servers.execute(TABLES)
    pool = await open_pool(servers.dsn, max_size=10)
    await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
    rounds = 10 if full_size else 1
    async with History(pool, rate=1000.0, readers=5) as history:
        for name in servers.nodes * rounds:
            await history.more(100)
            await history.more_reads(20)
            await asyncio.to_thread(servers.stop, name)
            await asyncio.to_thread(servers.restart, name)
            await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
        await history.more(100)
    assert len(history.unknown) <= 10 * rounds
    await history.check()
    measured("writes", history.answers)
    measured("outcome unknown", len(history.unknown))
    measured("retries", dict(pool.stats().retries))


@over_both_facades
async def test_a_frozen_primary_holds_up_no_read_and_its_successor_takes_the_writes(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, measured: Measured
) -> None:
    """SIGSTOP: its kernel goes on accepting connections. Thawed, it gets no write, although it would take it."""
    servers = picopyn_postgres_cluster(synchronous=1)
    servers.execute(TABLES)
    loop = asyncio.get_running_loop()
    pool = await open_pool(servers.dsn, max_size=10, refresh_delay=0.2, refresh_timeout=0.5)
    await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
    async with History(pool, rate=1000.0, readers=5) as history:
        await history.more(200)
        await asyncio.to_thread(servers.freeze, "n1")
        frozen = loop.time()
        await history.more_reads(200)
        await until(lambda: state_of(pool, servers, "n1") == "down")
        await asyncio.to_thread(servers.promote)
        promoted = loop.time()
        await history.more(200)
        late = history.first_after(frozen + 0.1) - promoted
        measured("first write after the end of the promotion, ms", 1000 * late)
        await asyncio.to_thread(servers.thaw, "n1")
        before = servers.execute(ROWS, "n1")
        await until(lambda: state_of(pool, servers, "n1") == "up")
        await history.more(400)
        await history.more_reads(100)
    assert leaders(pool) == {servers.address_of(servers.primary)[1]}
    await history.check()
    assert servers.execute(ROWS, "n1") == before


@over_both_facades
async def test_after_an_outage_of_everything_the_pool_is_back_without_a_call(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, full_size: bool, measured: Measured
) -> None:
    """Nobody has to trigger it: connections are there before the next call."""
    servers = picopyn_postgres_cluster()
    loop = asyncio.get_running_loop()
    pool = await open_pool(servers.dsn, min_size=1)
    await pool.wait_ready(leaders=1, replicas=2, timeout=PATIENCE)
    for name in servers.nodes:
        await asyncio.to_thread(servers.kill, name)
    await until(lambda: {node.state for node in pool.stats().nodes.values()} == {"down"})
    await until(lambda: pool.stats().size == 0)  # where threads call, idle connections are looked at twice a second
    await asyncio.sleep(3.0 if full_size else 0.0)
    calls = sum(pool.stats().calls.values())
    for name in servers.nodes:
        await asyncio.to_thread(servers.restart, name)
        accepts = loop.time()
        await until(lambda name=name: idle_at(pool, servers, name) > 0)
        measured(f"a connection to {name} after it accepts, ms", 1000 * (loop.time() - accepts))
    assert sum(pool.stats().calls.values()) == calls
    assert await pool.fetchval("SELECT 1", timeout=PATIENCE) == 1
    assert leaders(pool) == {servers.address_of("n1")[1]}


@over_both_facades
async def test_a_schema_change_under_load_fails_no_call(
    postgres: PostgresServer, open_pool: OpenPool, facade: str
) -> None:
    """Ten connections have the statement prepared; each notices by itself, and rows have the new columns."""
    table = f"shape_under_load_{facade}"
    pool = await open_pool(postgres.dsn, max_size=10)
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"CREATE TABLE {table} (id int); INSERT INTO {table} VALUES (1)")
    seen: list[tuple[str, ...]] = []
    over = asyncio.Event()

    async def read() -> None:
        while not over.is_set():
            row = await pool.fetchrow(f"SELECT *, $1::int AS mine FROM {table}", 7, timeout=PATIENCE)
            assert row["mine"] == 7
            seen.append(tuple(row.keys()))

    readers = [asyncio.create_task(read()) for _ in range(20)]
    try:
        for change, columns in [
            ("ADD COLUMN name text", ("id", "name", "mine")),
            ("ALTER COLUMN id TYPE text", ("id", "name", "mine")),
            ("DROP COLUMN name", ("id", "mine")),
        ]:
            await until(lambda: len(seen) > 50)
            await admin.execute(f"ALTER TABLE {table} {change}")
            seen.clear()
            await until(lambda columns=columns: seen[-50:].count(columns) == 50 or any(map(asyncio.Task.done, readers)))
            assert not any(map(asyncio.Task.done, readers))
    finally:
        over.set()
        await asyncio.gather(*readers)
        await admin.execute(f"DROP TABLE {table}")
        await admin.close()


def leaders(pool: Any) -> set[int]:
    return {node.port for node in pool.topology.nodes(role="leader")}


def at(pool: Any, servers: PostgresCluster, name: str) -> Any:
    """What the pool counts at a node."""
    host, port = servers.address_of(name)
    (found,) = (node for node in pool.stats().nodes.values() if node.address == f"{host}:{port}")
    return found


def state_of(pool: Any, servers: PostgresCluster, name: str) -> str:
    return str(at(pool, servers, name).state)


def idle_at(pool: Any, servers: PostgresCluster, name: str) -> int:
    return int(at(pool, servers, name).idle)
