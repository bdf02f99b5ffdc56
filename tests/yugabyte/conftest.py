"""Clusters with zones, pools that are closed at the end, and where the connections of a pool are."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from picopyn import asynchronous, sync
from picopyn.asynchronous import census
from picopyn.testing import YugabyteCluster
from tests.postgres.conftest import nothing_left_behind, open_pool, until
from tests.yugabyte import containers

__all__ = ["held", "nothing_left_behind", "open_pool", "until"]

Factory = Callable[..., YugabyteCluster]
Connect = Callable[..., Coroutine[Any, Any, Any]]
Note = Callable[[str, object], None]

REAL = "PICOPYN_TEST_YUGABYTE_DSN"

#: Three nodes of the primary cluster in dc1 to dc3, three read replicas in dc2 to dc4.
PRIMARIES = ("c.r.dc1", "c.r.dc2", "c.r.dc3")
REPLICAS = ("c.r.dc2", "c.r.dc3", "c.r.dc4")
#: Three zones of three nodes.
NINE = tuple(f"aws.west.{zone}" for zone in "abc" for _ in range(3))

#: What tests of failures want: looks as often as possible, and no node left out for longer than it must.
SOON = {"yb_servers_refresh_interval": 1, "failed_host_reconnect_delay_secs": 0}
#: Longest wait for what takes a moment (seconds).
LONG = 30.0


@pytest.fixture(scope="module")
def six() -> Iterator[YugabyteCluster]:
    """Primaries n1 to n3, read replicas n4 to n6, for tests that leave them as they found them."""
    with YugabyteCluster(PRIMARIES, read_replicas=REPLICAS, public="own") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def running() -> Iterator[dict[Any, YugabyteCluster]]:
    """Clusters that tests share, by what they were asked for with."""
    started: dict[Any, YugabyteCluster] = {}
    yield started
    for cluster in started.values():
        cluster.shutdown()


@pytest.fixture
def shared_cluster(running: dict[Any, YugabyteCluster]) -> Iterator[Factory]:
    """A function from settings to a cluster whose nodes a test may kill, freeze and move: they are put back afterwards.

    One that adds nodes, or takes some from the list or rights from users, needs a cluster of its own.
    """
    used: list[tuple[YugabyteCluster, dict[str, str]]] = []

    def ask(zones: tuple[str, ...], **settings: Any) -> YugabyteCluster:
        key = (zones, *sorted(settings.items()))
        cluster = running[key] = running.get(key) or YugabyteCluster(zones, **settings).start()
        used.append((cluster, {name: cluster.node(name).zone for name in cluster.nodes}))
        return cluster

    yield ask
    for cluster, zones in used:
        for name, state in cluster.states().items():
            if state != "running":
                (cluster.thaw if state == "frozen" else cluster.restart)(name)
            if cluster.node(name).zone != zones[name]:
                cluster.move(name, zones[name])


@pytest.fixture(scope="session")
def real_dsn() -> Iterator[str]:
    """Connection string of a real cluster: one that is named, or three containers where Docker has the image."""
    dsn = os.environ.get(REAL)
    if dsn:
        yield dsn
    elif containers.are_possible():
        with containers.three_zones() as dsn:
            yield dsn
    else:
        pytest.skip(f"{REAL} names no cluster, and Docker has no {containers.IMAGE}")


class Blocking:
    """A connection that blocks, awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        return method if name in ("is_closed", "terminate") else functools.partial(asyncio.to_thread, method)


@pytest.fixture
async def connect(facade: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """`connect` of the facade, as in a process that never connected before; what it opened is closed at the end."""
    monkeypatch.setattr(census, "_CENSUSES", {})
    opened: list[Any] = []

    async def open_one(dsn: str, **options: Any) -> Any:
        if facade == "asynchronous":
            opened.append(await asynchronous.connect(dsn, **options))
        else:
            opened.append(Blocking(await asyncio.to_thread(sync.connect, dsn, **options)))
        return opened[-1]

    yield open_one
    for connection in opened:
        with suppress(Exception):
            await connection.close()


def names(cluster: YugabyteCluster) -> dict[str, str]:
    """Address of a node → its name, by whichever of its addresses."""
    found = {}
    for name in cluster.nodes:
        node = cluster.node(name)
        found[f"{node.host}:{node.port}"] = name
        if node.public_ip:
            found[f"{node.public_ip}:{node.port}"] = name
    return found


async def acquire(pool: Any, count: int) -> list[Any]:
    """So many connections, one after the other."""
    return [await pool.acquire() for _ in range(count)]


async def release(pool: Any, connections: list[Any]) -> None:
    """Give them back."""
    for connection in connections:
        await pool.release(connection)


def where(cluster: YugabyteCluster, connections: list[Any]) -> dict[str, int]:
    """How many of them lead to each node."""
    known = names(cluster)
    return dict(sorted(Counter(known[connection.node.address] for connection in connections).items()))


async def held(pool: Any, cluster: YugabyteCluster, count: int = 12) -> dict[str, int]:
    """Where so many connections lead that are held at the same time."""
    connections = await acquire(pool, count)
    try:
        return where(cluster, connections)
    finally:
        await release(pool, connections)


def connected(pool: Any, cluster: YugabyteCluster) -> set[str]:
    """The nodes that the pool has connections to."""
    known = names(cluster)
    return {known[node.address] for node in pool.stats().nodes.values() if node.idle + node.in_use}


def states(pool: Any, cluster: YugabyteCluster) -> dict[str, str]:
    """What the pool thinks of each node."""
    known = names(cluster)
    return {known[node.address]: node.state for node in pool.stats().nodes.values()}


async def in_thread(step: Callable[..., Any], *args: Any) -> Any:
    """A step that blocks."""
    return await asyncio.to_thread(step, *args)
