"""COPY on a held connection: what asyncpg leaves open when a sink fails or a server stands still."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from picopyn.errors import CallTimeout, ConnectionLost
from picopyn.testing import FaultProxy, PostgresServer
from tests.postgres.conftest import OpenPool

#: Much more than sockets and buffers between two processes hold.
MUCH = 64 * 2**20


class SinkFailed(Exception):  # noqa: N818 - names the event
    """The sink's own error."""


async def refusing(data: bytes) -> None:
    """A sink that fails at the first byte."""
    raise SinkFailed


@pytest.mark.parametrize("rows", [1, 200_000])
async def test_after_a_sink_that_failed_no_call_waits_for_ever(
    postgres: PostgresServer, open_pool: OpenPool, rows: int
) -> None:
    """Its error is told. asyncpg cancels the COPY, and waits for that for ever where it had ended: so it is dropped."""
    pool = await open_pool(postgres.dsn, max_size=1, reset=False)
    async with pool.acquire() as connection:
        with pytest.raises(SinkFailed):
            await connection.copy_from_query(f"SELECT * FROM generate_series(1, {rows})", output=refusing)
        with pytest.raises(ConnectionLost):
            await connection.fetchval("SELECT 1")
    assert await pool.fetchval("SELECT 1") == 1


async def test_a_sink_of_the_wrong_kind_costs_nothing(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """It is refused before anything is sent."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as connection:
        with pytest.raises(TypeError):
            await connection.copy_from_query("SELECT 1", output=7)
        assert await connection.fetchval("SELECT 1") == 1


async def test_the_servers_word_in_a_copy_costs_nothing(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """The COPY has ended by it."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as connection:
        with pytest.raises(Exception, match="division by zero"):
            await connection.copy_from_query("SELECT 1 / (5 - n) FROM generate_series(1, 9) n", output=io.BytesIO())
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("how", ["table", "records"])
async def test_a_copy_to_a_server_that_stands_still_ends_with_its_timeout(
    postgres: PostgresServer, open_pool: OpenPool, how: str
) -> None:
    """Also where it waits for permission to write: asyncpg looks at the timeout nowhere there."""
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        dsn = postgres.dsn.replace(str(postgres.port), str(proxy.port))
        pool = await open_pool(dsn, max_size=1, dialect="postgres")
        async with pool.acquire() as connection:
            await connection.execute("CREATE TEMP TABLE much (v text)")

            async def source() -> Any:
                for number in range(MUCH // 2**16):
                    if number == 1:
                        proxy.freeze()
                    yield b"x" * (2**16 - 1) + b"\n"

            async def records() -> Any:
                async for line in source():
                    yield (line.decode().strip(),)

            with pytest.raises(CallTimeout):
                async with asyncio.timeout(30):
                    if how == "table":
                        await connection.copy_to_table("much", source=source(), timeout=0.5)
                    else:
                        await connection.copy_records_to_table("much", records=records(), timeout=0.5)
        proxy.let_pass()
