"""What a server answers is seen on its way, on every kind of transport, so acknowledged rows are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.connection import Connection
from picopyn.engine.row_acks import RowAcks
from picopyn.testing import PostgresServer

INSERT = "INSERT INTO tapped VALUES ($1, $2)"


async def counts(dsn: str, *, kept_buffer: bool) -> None:
    """Count what is acknowledged of good rows, of rows with one that the server refuses, and with one that is none."""
    connection: Any = await asyncpg.connect(dsn, connection_class=Connection)
    try:
        if kept_buffer:
            assert connection.read_less_at_once()
        await connection.execute("CREATE TEMP TABLE tapped (id int PRIMARY KEY, v text)")
        before = connection._transport.get_protocol()
        for rows, error, acknowledged in (
            ([(n, "x" * 100) for n in range(5000)], None, 5000),
            ([(n, "x") for n in (10_001, 10_002, 5, 10_003)], asyncpg.UniqueViolationError, 2),
            ([(20_001, "x"), ("no number", "x")], asyncpg.DataError, 0),
            ([], None, 0),
        ):
            acks = RowAcks()
            if error is None:
                await connection.executemany_freshly(INSERT, rows, acks)
            else:
                with pytest.raises(error):
                    await connection.executemany_freshly(INSERT, rows, acks)
            assert acks.acknowledged == acknowledged
            assert connection._transport.get_protocol() is before
        assert await connection.fetchval("SELECT count(*) FROM tapped") == 5000
        pid = connection.get_server_pid()
        killer = await asyncpg.connect(dsn)
        slow = [(n, 0.0 if n < 700 else 60.0) for n in range(1000)]
        acks = RowAcks()
        load = asyncio.ensure_future(
            connection.executemany_freshly("SELECT pg_sleep($2) WHERE $1::int >= 0", slow, acks, timeout=60)
        )
        waits = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1"
        async with asyncio.timeout(60):
            while not await killer.fetchval(waits, pid):
                await asyncio.sleep(0.01)
        await killer.execute("SELECT pg_terminate_backend($1)", pid)
        await killer.close()
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, ConnectionError)):
            await load
        assert acks.acknowledged <= 700
    finally:
        connection.terminate()


@pytest.mark.parametrize("kept_buffer", [True, False])
async def test_acknowledged_rows_are_counted(postgres: PostgresServer, kept_buffer: bool) -> None:
    """With our buffer between the socket and asyncpg, and without."""
    await counts(postgres.dsn, kept_buffer=kept_buffer)


async def test_acknowledged_rows_are_counted_under_uvloop(postgres: PostgresServer) -> None:
    """Its transports have no buffer of ours."""
    uvloop = pytest.importorskip("uvloop")

    def run(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(make())

    await asyncio.to_thread(run, lambda: counts(postgres.dsn, kept_buffer=False))
