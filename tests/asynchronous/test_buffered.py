"""How replies are read on asyncio's own loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import buffered
from picopyn.asynchronous.buffered import BUFFER_SIZE, BufferedFront, read_less_at_once
from picopyn.asynchronous.connection import Connection
from picopyn.testing import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A plain PostgreSQL."""
    with PostgresServer(port=0) as server:
        yield server


@pytest.fixture
async def connection(server: PostgresServer) -> AsyncIterator[Connection]:
    """A connection that reads less at once than asyncio would."""
    connection = await asyncpg.connect(server.dsn, connection_class=Connection)
    assert connection.read_less_at_once(), "this asyncpg release hides its transport or protocol"
    yield connection
    await connection.close()


async def test_small_and_large_replies_arrive_whole(connection: Connection) -> None:
    """Smaller than the buffer, of its size, and many times larger."""
    for size in (1, BUFFER_SIZE - 100, BUFFER_SIZE, 3_000_000):
        assert len(await connection.fetchval("SELECT repeat('x', $1)", size)) == size
    assert len(await connection.fetch("SELECT generate_series(1, 50000)")) == 50_000


async def test_connections_of_one_loop_share_the_buffer(server: PostgresServer) -> None:
    """Interleaved replies never mix."""
    connections = [await asyncpg.connect(server.dsn, connection_class=Connection) for _ in range(4)]
    assert all(connection.read_less_at_once() for connection in connections)

    async def ask(number: int) -> None:
        for turn in range(50):
            text = f"{number}-{turn}-" * 2000
            assert await connections[number].fetchval("SELECT $1::text", text) == text

    await asyncio.gather(*(ask(number) for number in range(4)))
    await asyncio.gather(*(connection.close() for connection in connections))


async def test_copy_and_large_writes_work(connection: Connection) -> None:
    """Pausing and resuming of writing reach the protocol."""
    await connection.execute("CREATE TEMP TABLE copied (v text)")
    await connection.copy_records_to_table("copied", records=[("y" * 1000,) for _ in range(20_000)])
    assert await connection.fetchval("SELECT sum(length(v)) FROM copied") == 20_000_000


async def test_the_end_of_a_connection_is_seen(server: PostgresServer) -> None:
    """At once, also while idle."""
    connection = await asyncpg.connect(server.dsn, connection_class=Connection)
    other = await asyncpg.connect(server.dsn)
    connection.read_less_at_once()
    ended = asyncio.get_running_loop().create_future()
    connection.add_termination_listener(ended.set_result)
    await other.fetch("SELECT pg_terminate_backend($1)", connection.get_server_pid())
    await asyncio.wait_for(ended, 5)
    assert connection.is_closed()
    await other.close()


async def test_asyncios_own_transport_reads_less_at_once(connection: Connection) -> None:
    """Nothing stands in between there; what has no such size gets a front with a buffer."""
    transport: Any = connection._transport
    assert type(transport).max_size == 262_144, "asyncio has another size now: measure whether it still matters"
    assert transport.max_size == BUFFER_SIZE
    assert transport.get_protocol() is connection._protocol

    class Other:
        """As a transport of TLS."""

        def __init__(self, protocol: asyncio.BaseProtocol) -> None:
            self.protocol = protocol

        def get_protocol(self) -> asyncio.BaseProtocol:
            return self.protocol

        def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
            self.protocol = protocol

    other = Other(connection._protocol)
    assert read_less_at_once(other, connection._protocol)
    assert isinstance(other.protocol, BufferedFront)


async def test_what_cannot_be_buffered_works_without_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """A release that hides its transport costs speed, nothing else."""
    buffered._complained.clear()
    with caplog.at_level(logging.WARNING):
        assert not read_less_at_once(None, None)
        assert not read_less_at_once(None, None)
    assert len(caplog.records) == 1
    buffered._complained.clear()


async def test_the_front_passes_everything_on() -> None:
    """End of input, loss, and both directions of flow control."""
    calls: list[tuple[str, object]] = []

    class Behind(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            calls.append(("data", data))

        def eof_received(self) -> bool:
            calls.append(("eof", None))
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            calls.append(("lost", exc))

        def pause_writing(self) -> None:
            calls.append(("pause", None))

        def resume_writing(self) -> None:
            calls.append(("resume", None))

    front = BufferedFront(Behind(), memoryview(bytearray(8)))
    front.get_buffer(-1)[:3] = b"abc"
    front.buffer_updated(3)
    front.pause_writing()
    front.resume_writing()
    assert front.eof_received() is True
    front.connection_lost(None)
    assert [name for name, _ in calls] == ["data", "pause", "resume", "eof", "lost"]
    assert calls[0] == ("data", b"abc")
