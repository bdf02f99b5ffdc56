"""What went wrong in comparable drivers, class *cancel*: passwords, looks in the background, servers that are killed.

The rest of the class stands in `tests/asynchronous/test_scenarios.py` and `tests/tls/test_scenarios.py`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing, suppress
from random import Random
from typing import Any

import pytest

from picopyn.asynchronous import Pool, cancel_requests
from picopyn.errors import CallTimeout, ConnectionLost, PicopynError
from picopyn.sync import cancel_request
from picopyn.testing import FaultProxy, PostgresServer
from tests.asynchronous.servers import Watch
from tests.cancelling import cancelled_at, eventually
from tests.login import with_words
from tests.postgres.conftest import OpenPool, set_password, until
from tests.postgres.late_cancels import LateCancels
from tests.postgres.nodes import Nodes
from tests.postgres.real import address, through
from tests.threads import FACADES


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("late", [False, True])
async def test_cancel_during_connect_orphan(strict_servers: list[PostgresServer], late: bool) -> None:
    """Cancelled at each step of a hand-shake with a password: no session, no descriptor, no complaint."""
    await set_password(strict_servers[0], "secret")
    application = f"orphan_{late}"
    dsn = f"postgresql://app:secret@127.0.0.1:{strict_servers[0].port}/postgres?sslmode=disable"
    async with Watch(strict_servers[0], application) as watch:
        before = descriptors()
        for stop in range(1, 200):
            pool = Pool(dsn, application_name=application, dialect="postgres", max_size=1)
            attempt = await cancelled_at(pool.open(), stop, late=late)
            await pool.close()
            if not attempt.reached:
                assert attempt.outcome.startswith("returned")
                break
            assert attempt.task.cancelled()
        await watch.no_session()

        async def settled() -> bool:
            return abs(descriptors() - before) <= 2

        await eventually(settled, descriptors)


async def test_cancel_during_connect_orphan_by_many_at_once(
    strict_servers: list[PostgresServer], full_size: bool
) -> None:
    """At random moments of a slow hand-shake with a password: each ends as cancelled, and nothing is left."""
    rng = Random(17)
    await set_password(strict_servers[0], "secret")
    before = descriptors()

    async def open_one(port: int) -> None:
        dsn = f"postgresql://app:secret@127.0.0.1:{port}/postgres?sslmode=disable&application_name=orphans"
        async with Pool(dsn, dialect="postgres", max_size=1):
            await asyncio.Event().wait()

    async def cancelled(port: int) -> bool:
        task = asyncio.create_task(open_one(port))
        await asyncio.wait({task}, timeout=rng.uniform(0, 0.25))
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    async with Watch(strict_servers[0], "orphans") as watch:
        with FaultProxy("127.0.0.1", strict_servers[0].port or 0) as proxy:
            proxy.delay(0.02)
            assert all(await asyncio.gather(*(cancelled(proxy.port) for _ in range(300 if full_size else 60))))
            await watch.no_session()

        async def settled() -> bool:
            return abs(descriptors() - before) <= 3

        await eventually(settled, descriptors)


class Slow(Nodes):
    """A source whose answer can be held back."""

    def __init__(self, *ports: int | None) -> None:
        super().__init__(*ports)
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    async def refresh(self) -> None:
        self.asked.set()
        await self.open.wait()
        await super().refresh()


async def test_cancel_swallowed_by_check_of_the_cluster(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """Who is cancelled while the cluster is looked at ends as cancelled; others, and the background, go on looking."""
    source = Slow(postgres.port)
    pool = await open_pool(postgres.dsn, dialect="postgres", topology_source=source, topology_update_interval=1.0)
    source.open.clear()
    source.asked.clear()
    cancelled, other = (asyncio.create_task(pool.refresh_topology()) for _ in range(2))
    await source.asked.wait()
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert cancelled.cancelled()
    assert not other.done()
    source.open.set()
    assert len((await other).nodes()) == 1
    source.ports.append(postgres_too.port or 0)
    await until(lambda: len(pool.topology.nodes()) == 2)


async def test_cancel_swallowed_by_check_of_a_node(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Who waits for a node in doubt is cancelled at once; the doubt is cleared all the same when the node answers."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await open_pool(through(postgres, proxy.port), dialect="postgres", max_size=2)
        proxy.freeze()
        with pytest.raises(TimeoutError):
            await pool.fetchval("SELECT 1", timeout=0.05)

        def states() -> set[str]:
            return {node.state for node in pool.stats().nodes.values()}

        await until(lambda: states() != {"up"})

        async def acquire() -> None:
            await pool.acquire()

        for call in (acquire, lambda: pool.fetchval("SELECT 1"), lambda: pool.wait_ready(leaders=9)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call(), 0.05)
        proxy.let_pass()
        await until(lambda: states() == {"up"})
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_cancel_abandoned_cursor_of_a_server_that_is_killed(open_pool: OpenPool) -> None:
    """The loop over a cursor ends with the loss of the connection, named with its node; a new server is used again."""
    server = PostgresServer(port=0).start()
    try:
        pool = await open_pool(server.dsn, dialect="postgres", max_size=1)

        async def read() -> None:
            async with pool.acquire() as connection, connection.transaction():
                async for row in connection.cursor("SELECT generate_series(1, 1000)", prefetch=5):
                    if row[0] == 25:
                        await asyncio.to_thread(server.stop)

        with pytest.raises(ConnectionLost, match=rf"127\.0\.0\.1:{server.port}") as caught:
            await read()
        assert caught.value.__cause__ is not None
        assert "transaction" not in str(caught.value)
        server.start()
        answer: Any = None
        while answer is None:
            with suppress(PicopynError):
                answer = await pool.fetchval("SELECT 1", timeout=5)
        assert answer == 1
        assert await pool.fetchval("SELECT count(*) FROM pg_cursors WHERE name <> ''") == 0
    finally:
        server.stop()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_cancel_that_comes_late_ends_nothing_else(
    facade: str, postgres: PostgresServer, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A borrower's call ran out of time: his next one does not begin before the server knows, or is refused."""
    for module in (cancel_request, cancel_requests):
        monkeypatch.setattr(module, "LIMIT", 0.1)
    with closing(LateCancels(*address(postgres))) as way:
        dsn = with_words(through(postgres, way.port), "sslmode=disable")
        pool = await open_pool(dsn, max_size=1, dialect="postgres")
        async with pool.acquire() as connection:
            with pytest.raises(CallTimeout):
                await connection.execute("SELECT pg_sleep(0.2)", timeout=0.05)
            running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.3)"))
            assert await asyncio.to_thread(way.held.acquire, timeout=30)
            await asyncio.to_thread(way.deliver)
            with suppress(ConnectionLost):
                await running
        await pool.execute("SELECT 1")
