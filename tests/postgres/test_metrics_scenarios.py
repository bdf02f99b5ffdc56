"""What went wrong in comparable drivers, class *metrics*: gauges, missing nodes and events, with several nodes.

The rest of the class stands in `tests/asynchronous/test_scenarios.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.errors import ConnectionLost, PicopynError, UsageError
from picopyn.observe import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    Event,
    NodeStateChanged,
    TopologyChanged,
)
from picopyn.stats import PoolStats
from picopyn.testing import FaultProxy, PostgresServer
from tests.asynchronous.servers import Watch, count
from tests.cancelling import eventually
from tests.postgres.conftest import until
from tests.postgres.nodes import Nodes
from tests.postgres.real import address, through
from tests.threads import FACADES


@pytest.fixture
def proxies(postgres: PostgresServer) -> Iterator[list[FaultProxy]]:
    """Three nodes, which are one server."""
    with ExitStack() as running:
        yield [running.enter_context(FaultProxy(*address(postgres))) for _ in range(3)]


def in_bounds(stats: PoolStats, most: int) -> None:
    """No gauge of any node is outside of its bounds, and the totals are the sums."""
    nodes = stats.nodes.values()
    for node in nodes:
        assert min(node.idle, node.in_use, node.connecting, node.waiting) >= 0
        assert node.idle + node.in_use + node.connecting == node.size <= most
    assert stats.size == sum(node.size for node in nodes)
    assert stats.idle == sum(node.idle for node in nodes)
    assert stats.in_use == sum(node.in_use for node in nodes)
    assert stats.waiting == sum(node.waiting for node in nodes)


@pytest.mark.parametrize("seed", range(3))
async def test_metrics_negative_with_nodes_that_come_and_go(
    pool_class: Any, postgres: PostgresServer, proxies: list[FaultProxy], seed: int
) -> None:
    """Cuts, refusals, failing hooks, cancelled and doubled releases, nodes leaving while in use, a close at the end.

    No sample of any gauge is out of its bounds. A moment after the faults the server has as many sessions as the pool
    says, and after a close with users inside there are none.
    """
    rng, failing = Random(seed), True

    async def hook(connection: Any) -> None:
        if failing and rng.random() < 0.1:
            raise LookupError("now and then")

    source = Nodes(*(proxy.port for proxy in proxies))
    pool = pool_class(
        postgres.dsn,
        topology_source=source,
        dialect="postgres",
        ssl="disable",
        application_name=f"gauges_{seed}",
        min_size=1,
        max_size=4,
        max_total=8,
        after_connect=hook,
        acquire_timeout=0.3,
        connect_timeout=0.5,
    )
    over = closed = False
    samples = 0

    async def caller() -> None:
        while not closed:
            with suppress(PicopynError, LookupError, TimeoutError, asyncpg.PostgresError):
                async with asyncio.timeout(rng.choice([0.001, 0.01, 1])), pool.acquire() as connection:
                    await connection.execute("SELECT pg_sleep(0.001)")
                    if rng.random() < 0.3:
                        connection.release()
                        with pytest.raises(UsageError):
                            connection.release()
            await asyncio.sleep(0)

    async def sampler() -> None:
        nonlocal samples
        while not closed:
            in_bounds(pool.stats(), 4)
            assert pool.stats().size <= 8
            samples += 1
            await asyncio.sleep(0.002)

    async def faults() -> None:
        ports = list(source.ports)
        for _ in range(40):
            proxy = rng.choice(proxies)
            await asyncio.sleep(0.02)
            rng.choice([proxy.cut, proxy.refuse, proxy.let_pass])()
            if rng.random() < 0.4:
                source.ports = sorted(rng.sample(ports, rng.randint(1, 3)))
                await pool.refresh_topology()
        source.ports = ports
        for proxy in proxies:
            proxy.let_pass()
        await pool.refresh_topology()

    async with Watch(postgres, f"gauges_{seed}") as watch:
        while not over:
            with suppress(PicopynError):
                await pool.open()
                over = True
        users = [asyncio.create_task(caller()) for _ in range(12)]
        watcher = asyncio.create_task(sampler())
        await faults()
        failing = False
        held = await pool.acquire(timeout=5)
        assert pool.stats().in_use >= 1
        closing = asyncio.create_task(pool.close(grace=0.1))
        await closing
        closed = True
        held.release()
        await asyncio.gather(watcher, *users)
        assert samples > 20
        assert count(pool) == (0, 0, 0, 0)
        await watch.no_session()


async def test_metrics_negative_after_the_faults(postgres: PostgresServer, proxies: list[FaultProxy]) -> None:
    """Every node was cut while in use and has left and come back: at rest the server agrees with the gauges."""
    source = Nodes(*(proxy.port for proxy in proxies))
    async with Watch(postgres, "at_rest") as watch, watch.pool(topology_source=source, min_size=1, max_size=3) as pool:
        await pool.wait_ready()
        for proxy in proxies:
            held = [await pool.acquire(node=str(proxy.port)) for _ in range(3)]
            ports, source.ports = source.ports, [port for port in source.ports if port != proxy.port]
            await pool.refresh_topology()
            in_bounds(pool.stats(), 3)
            proxy.cut()
            for connection in held:
                connection.release()
            source.ports = ports
            await pool.refresh_topology()
            in_bounds(pool.stats(), 3)
        await pool.wait_ready()
        await watch.agrees(pool)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_metrics_while_node_missing_or_leaving(
    pool_class: Any, postgres: PostgresServer, proxies: list[FaultProxy]
) -> None:
    """One never connected, one that leaves: statistics, topology and `repr` answer, from any thread."""
    proxies[0].refuse()
    source = Nodes(*(proxy.port for proxy in proxies))
    pool = pool_class(postgres.dsn, dialect="postgres", ssl="disable", topology_source=source, connect_timeout=2)

    async def look() -> tuple[PoolStats, int]:
        seen = [(pool.stats(), pool.topology, repr(pool), repr(pool.topology), repr(pool.stats()))]
        seen.append(
            await asyncio.to_thread(
                lambda: (pool.stats(), pool.topology, repr(pool), repr(pool.topology), repr(pool.stats()))
            )
        )
        assert seen[0][1] == seen[1][1]
        return seen[0][0], len(seen[0][1].nodes())

    async with pool:
        await until(lambda: pool.stats().nodes[str(proxies[0].port)].state == "down")
        stats, nodes = await look()
        assert nodes == len(stats.nodes) == 3
        missing = stats.nodes[str(proxies[0].port)]
        assert (missing.idle, missing.in_use) == (0, 0)
        held = await pool.acquire(node=str(proxies[1].port))
        source.ports = source.ports[2:]
        await pool.refresh_topology()
        stats, nodes = await look()
        assert nodes == 1
        assert stats.in_use <= 1
        held.release()
        source.ports = []
        with suppress(PicopynError):
            await pool.refresh_topology()
        await look()
    stats, _ = await look()
    assert (stats.size, stats.in_use, stats.waiting) == (0, 0, 0)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_metrics_event_callbacks_in_order(
    pool_class: Any, postgres: PostgresServer, proxies: list[FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    """Each connection: opened, then closed once with a reason; or failed, and nothing else. Others' listeners too."""
    seen: list[Event] = []
    proxies[2].refuse()
    dsn = through(postgres, proxies[0].port, proxies[1].port)
    pool = pool_class(
        dsn,
        dialect="postgres",
        ssl="disable",
        max_size=2,
        topology_source=Nodes(*(proxy.port for proxy in proxies)),
        on_event=seen.append,
        connect_timeout=1,
    )
    async with pool:
        await until(lambda: any(isinstance(event, ConnectFailed) for event in seen))
        await asyncio.gather(*(pool.execute("SELECT pg_sleep(0.01)") for _ in range(6)))
        async with pool.acquire() as held:
            held.terminate()
            with pytest.raises(ConnectionLost):
                await held.fetchval("SELECT 1")
        with pytest.raises(TimeoutError):
            await pool.execute("SELECT pg_sleep(60)", timeout=0.02)
        proxies[0].cut()
        await pool.expire_connections()
        assert await pool.fetchval("SELECT 1", idempotent=True, timeout=5) == 1
    lives: dict[int, list[ConnectionEvent]] = {}
    for event in seen:
        if isinstance(event, ConnectionEvent):
            lives.setdefault(event.connection, []).append(event)
    kinds = {number: [type(event) for event in life] for number, life in lives.items()}
    assert {tuple(life) for life in kinds.values()} == {(ConnectionOpened, ConnectionClosed), (ConnectFailed,)}
    reasons = {event.reason for event in seen if isinstance(event, ConnectionClosed)}
    assert "shutdown" in reasons
    assert len(reasons) >= 3
    assert all(event.error for event in seen if isinstance(event, ConnectFailed))
    first = next(number for number, event in enumerate(seen) if isinstance(event, TopologyChanged))
    assert first < next(number for number, event in enumerate(seen) if isinstance(event, ConnectionOpened))
    assert any(isinstance(event, NodeStateChanged) and event.new == "down" for event in seen)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_metrics_event_callbacks_that_come_back(
    pool_class: Any, postgres: PostgresServer, proxies: list[FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raises is logged once per kind of event; one that calls into the pool deadlocks nothing."""
    kinds: set[str] = set()
    answers: list[asyncio.Task[Any]] = []

    def listener(event: Event) -> None:
        kinds.add(type(event).__name__)
        pool.stats()
        repr(pool)
        if isinstance(event, ConnectionOpened | ConnectionClosed) and len(answers) < 30:
            answers.append(asyncio.ensure_future(pool.fetchval("SELECT $1::int", len(answers))))
            pool.topology.nodes()
            pool.update_topology_interval(3.0)
        raise LookupError("a listener of little use")

    source = Nodes(*(proxy.port for proxy in proxies))
    pool = pool_class(
        postgres.dsn, dialect="postgres", ssl="disable", topology_source=source, on_event=listener, max_size=2
    )
    async with pool:
        await pool.wait_ready()
        for _ in range(3):
            async with pool.acquire() as held:
                held.terminate()
        source.ports = source.ports[1:]
        await pool.refresh_topology()
        assert await pool.fetchval("SELECT 1") == 1
        told = await asyncio.gather(*answers, return_exceptions=True)
    assert len(told) > 3
    # what was called before the pool was open, or for a node that left meanwhile, may say so; nothing is mixed up
    assert all(isinstance(answer, PicopynError) or answer == number for number, answer in enumerate(told))
    assert any(not isinstance(answer, BaseException) for answer in told)
    complaints = [record.getMessage() for record in caplog.records if "on_event raised" in record.getMessage()]
    assert len(complaints) == len(kinds)
    assert {"TopologyChanged", "ConnectionOpened", "ConnectionClosed"} <= kinds

    async def settled() -> bool:
        return count(pool) == (0, 0, 0, 0)

    await eventually(settled, lambda: count(pool))
