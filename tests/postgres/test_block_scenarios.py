"""What went wrong in comparable drivers, class *block*: whatever takes long leaves the event loop to others.

That others go on is asserted by order: their calls are answered while the long thing has not ended. How long the loop
stood still at most is measured. Hand-shakes of TLS stand in `tests/tls/test_scenarios.py`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PostgresServer, ScriptedServer
from picopyn.testing.scripted_server import Invalidating
from picopyn.topology import EventBuckets, EventInstance, EventReplicaset, EventTier
from picopyn.topology.events import BucketRange
from tests.contract.one_node import OneNode
from tests.postgres.conftest import ONLY_WITH_PASSWORD, OpenPool, until
from tests.postgres.real import through
from tests.threads import FACADES

Measured = Callable[[str, object], None]


class Beside:
    """Light calls and a look at the loop, while something else goes on.

    Attributes:
        answered: Light calls that were answered so far.
        worst: Longest time in which nothing else ran (seconds).
        worst_work: Most time of the processor between two looks (seconds); what others on the machine do is not in it.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.worst = 0.0
        self.worst_work = 0.0


@asynccontextmanager
async def beside(pool: Pool) -> AsyncIterator[Beside]:
    """Light calls, one after the other, until the block ends."""
    seen, over = Beside(), asyncio.Event()

    async def call() -> None:
        while not over.is_set():
            assert await pool.fetchval("SELECT 1") == 1
            seen.answered += 1

    async def look() -> None:
        while not over.is_set():
            began, work = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            seen.worst = max(seen.worst, time.perf_counter() - began)
            seen.worst_work = max(seen.worst_work, time.thread_time() - work)

    tasks = [asyncio.create_task(call()), asyncio.create_task(look())]
    await until(lambda: seen.answered > 0)
    seen.worst = seen.worst_work = 0.0
    try:
        yield seen
    finally:
        over.set()
        await asyncio.gather(*tasks)


@pytest.fixture
def slow_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The look-up of the name `slow.test` ends when this is set; it is this machine."""
    answer, resolve = threading.Event(), socket.getaddrinfo

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if host in ("slow.test", b"slow.test"):
            answer.wait(30)
            host = "127.0.0.1"
        return resolve(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield answer
    answer.set()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_block_connect_in_loop_by_a_slow_name(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, slow_name: threading.Event
) -> None:
    """While a name is looked up the pool opens by its other host, and its calls are answered; then it is a node."""
    hosts = f"slow.test:{postgres.port},127.0.0.1:{postgres_too.port}"
    pool = await open_pool(f"postgresql://postgres@{hosts}/postgres", dialect="postgres", ssl="disable", min_size=1)
    assert not slow_name.is_set()
    for _ in range(20):
        assert await pool.fetchval("SELECT inet_server_port()") == postgres_too.port
    slow_name.set()
    await pool.wait_ready()
    async with pool.acquire(node=f"slow.test:{postgres.port}") as held:
        assert await held.fetchval("SELECT inet_server_port()") == postgres.port


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_block_connect_in_loop_by_a_large_result(
    postgres: PostgresServer, open_pool: OpenPool, full_size: bool, measured: Measured
) -> None:
    """While a result with very many rows arrives others are answered; a cursor gives it in portions."""
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=2)
    rows = 1_000_000 if full_size else 200_000
    async with beside(pool) as seen:
        before = seen.answered
        large = await pool.fetch("SELECT n, n::text FROM generate_series(1, $1::int) n", rows)
        assert seen.answered > before + 5
    measured(f"longest stop of the loop while {rows} rows arrived (s)", seen.worst)
    assert len(large) == rows
    async with pool.acquire() as held, held.transaction():
        portions = await held.cursor("SELECT generate_series(1, $1::int)", rows)
        assert len(await portions.fetch(1000)) == 1000


@pytest.fixture
def laborious_server() -> Iterator[PostgresServer]:
    """A server whose passwords cost many rounds of hashing."""
    place = Path(tempfile.mkdtemp(prefix="pcp-scram-"))
    place.chmod(0o755)
    hba = place / "hba.conf"
    hba.write_text(ONLY_WITH_PASSWORD)
    hba.chmod(0o644)
    with PostgresServer(port=0, settings={"hba_file": str(hba), "scram_iterations": "50000"}) as server:
        yield server
    shutil.rmtree(place)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_block_connect_in_loop_by_laborious_passwords(
    laborious_server: PostgresServer, postgres: PostgresServer, open_pool: OpenPool, measured: Measured
) -> None:
    """While connections are opened with a password that is hard to check, others are answered in between."""
    admin = await asyncpg.connect(laborious_server.dsn)
    await admin.execute("CREATE ROLE app LOGIN PASSWORD 'p'")
    await admin.close()
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=1)
    answered: list[int] = []
    async with beside(pool) as seen:
        dsn = f"postgresql://app:p@127.0.0.1:{laborious_server.port}/postgres"
        slow = await open_pool(dsn, dialect="postgres", ssl="disable", min_size=10)
        while slow.stats().idle < 10:
            answered.append(seen.answered)
            await asyncio.sleep(0)
    measured("longest stop of the loop in ten log-ins with 50 000 rounds (s)", seen.worst)
    assert answered[-1] > answered[0]
    await slow.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
async def test_block_connect_in_loop_by_files_that_never_end(
    postgres: PostgresServer,
    open_pool: OpenPool,
    environment: Callable[[Any], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pipe in the place of a password file is not read: one warning, and the pool works."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    environment({"PGPASSFILE": str(tmp_path / "pipe")})
    dsn = through(postgres, postgres.port or 0)  # without a password, so that the file is wanted
    pool = await open_pool(dsn, dialect="postgres", ssl="disable", min_size=3)
    await until(lambda: pool.stats().idle == 3)
    assert await pool.fetchval("SELECT 1") == 1
    assert len([record for record in caplog.records if "password file" in record.getMessage()]) == 1


class Large(OneNode):
    """A cluster of many replicasets, whose buckets lie in as many ranges as there can be.

    Every other look finds a bucket in another place. What is told is made beforehand: that is not the driver's work.
    """

    def __init__(self, host: str, port: int, nodes: int, buckets: int) -> None:
        super().__init__(host, port, buckets)
        self.nodes = nodes
        self.count = buckets
        self.looks = cycle([self._made(0), self._made(0), self._made(1), self._made(1)])

    def events(self) -> tuple[EventInstance | EventReplicaset | EventTier | EventBuckets, ...]:
        return next(self.looks)

    def _made(self, moved: int) -> tuple[EventInstance | EventReplicaset | EventTier | EventBuckets, ...]:
        instance, leader, tier, _ = super().events()
        more: list[EventReplicaset | EventInstance] = []
        for number in range(2, self.nodes + 1):
            uuid, node = f"r{number}", f"i{number}"
            more.append(EventReplicaset(uuid=uuid, name=f"only_{number}", tier="only", leader_uuid=node))
            more.append(
                EventInstance(
                    uuid=node, name=f"only_{number}_1", replicaset_uuid=uuid, tier="only", host="127.0.0.1",
                    port=number, online=False, current_state="Offline", target_state="Offline",
                )
            )  # fmt: skip
        owners = (f"r{(number + moved * (number == 7)) % self.nodes + 1}" for number in range(self.count))
        ranges = tuple(BucketRange(number, number, owner) for number, owner in enumerate(owners, 1))
        return instance, leader, tier, *more, EventBuckets("only", ranges, complete=True)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_block_connect_in_loop_by_a_large_cluster(
    postgres: PostgresServer, open_pool: OpenPool, full_size: bool, measured: Measured
) -> None:
    """While a large map is read again and again, calls of others are answered between two looks."""
    other = await open_pool(postgres.dsn, dialect="postgres", max_size=1)
    nodes, buckets = (1000, 30_000) if full_size else (100, 3000)
    with ScriptedServer(Invalidating()) as server:
        source = Large(server.host, server.port, nodes, buckets)
        pool = await open_pool(server.dsn, topology_source=source, dialect="picodata", min_size=0)
        async with beside(other) as seen:
            answered = [seen.answered]
            for _ in range(5):
                await pool.refresh_topology()
                answered.append(seen.answered)
                await until(lambda: seen.answered > answered[-1])
            assert source.refreshes >= 6
        assert len(pool.topology.all_nodes()) == nodes
        await pool.close()
    what = f"for {nodes} nodes, {buckets} ranges (s)"
    measured(f"longest stop of the loop {what}", seen.worst)
    measured(f"most work without a pause {what}", seen.worst_work)
