"""The same on an embedded Picodata cluster, where a pool has service connections as well.

See `test_cancellation.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PicodataCluster
from tests.asynchronous.servers import count
from tests.cancelling import cancel_everywhere, eventually, nothing_left_behind

READ = "SELECT v FROM moves WHERE id = $1"
WRITE = "UPDATE moves SET v = $2 WHERE id = $1"

#: Connections of a pool that are not for callers: one reads the topology, one asks about statements.
SERVICE = 2


@pytest.fixture(scope="module")
def cluster(picopyn_cluster_factory: Callable[..., PicodataCluster]) -> PicodataCluster:
    """Two replicasets of one instance, with a table of a few rows."""
    cluster = picopyn_cluster_factory(replicasets=2, replication=1)
    cluster.execute("CREATE TABLE moves (id INT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)")
    for number in range(8):
        cluster.execute(f"INSERT INTO moves VALUES ({number}, 'v{number}')")
    return cluster


@pytest.fixture(autouse=True)
async def clean(cluster: PicodataCluster) -> AsyncIterator[None]:
    """No session is left."""
    async with nothing_left_behind():
        yield
        await no_session(cluster)


async def no_session(cluster: PicodataCluster) -> None:
    async def none() -> bool:
        return not sum(cluster.sessions().values())

    await eventually(none, lambda: f"sessions are left: {cluster.sessions()}", pause=0.05)


async def sound(pool: Pool, cluster: PicodataCluster, where: str) -> None:
    """Nothing in use, as many sessions as there should be, every key with its own value."""
    seen: list[object] = []

    async def settled() -> bool:
        totals = count(pool)
        seen[:] = [where, totals, cluster.sessions()]
        return totals[1:] == (0, 0, 0) and sum(cluster.sessions().values()) <= totals[0] + SERVICE

    await eventually(settled, lambda: seen)
    values = await asyncio.gather(*(pool.fetchval(READ, number) for number in range(8)))
    assert [value[:2] for value in values] == [f"v{number}" for number in range(8)], where


async def held(pool: Pool) -> None:
    async with pool.acquire(role="leader") as connection:
        assert await connection.fetchval(READ, 3) == "v3"


CALLS: dict[str, Callable[[Pool], Coroutine[Any, Any, Any]]] = {
    "keyed read": lambda pool: pool.fetchval(READ, 1),
    "keyed write": lambda pool: pool.execute(WRITE, 1, "v1", timeout=5),
    "scan": lambda pool: pool.fetch("SELECT id FROM moves"),
    "acquire": held,
    "refresh_topology": lambda pool: pool.refresh_topology(),
    "wait_ready": lambda pool: pool.wait_ready(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_at_any_await_leaves_nothing(name: str, cluster: PicodataCluster) -> None:
    """On connections for callers and on those of the pool itself."""
    async with Pool(cluster.dsn, ssl="disable", max_size=2) as pool:
        await pool.wait_ready()

        async def prepare() -> Coroutine[Any, Any, Any]:
            return CALLS[name](pool)

        async def check(where: str) -> None:
            await sound(pool, cluster, where)

        await cancel_everywhere(prepare, check)


async def test_a_question_cancelled_at_any_await_is_answered_to_the_next(cluster: PicodataCluster) -> None:
    """`explain_route` learns a text; whoever gives up does not take the answer away from others."""
    async with Pool(cluster.dsn, ssl="disable") as pool:
        texts: list[str] = []

        async def prepare() -> Coroutine[Any, Any, Any]:
            texts.append(f"SELECT v FROM moves WHERE id = $1 AND id < {1000 + len(texts)}")
            return pool.explain_route(texts[-1], 1)

        async def check(where: str) -> None:
            explanation = await pool.explain_route(texts[-1], 1)
            assert explanation.kind is not None, where
            await sound(pool, cluster, where)

        assert await cancel_everywhere(prepare, check)


async def test_opening_cancelled_at_any_await_leaves_nothing(cluster: PicodataCluster) -> None:
    """No session, no task; and the pool can be opened again."""
    pools: list[Pool] = []

    async def prepare() -> Coroutine[Any, Any, Any]:
        pools.append(Pool(cluster.dsn, ssl="disable", max_size=2))
        return pools[-1].open()

    async def check(where: str) -> None:
        if not where.startswith("not"):
            await no_session(cluster)
            await pools[-1].open()
        assert await pools[-1].fetchval(READ, 5) == "v5", where
        await pools[-1].close()
        await no_session(cluster)

    assert await cancel_everywhere(prepare, check)


async def test_closing_cancelled_at_any_await_ends_everything(cluster: PicodataCluster) -> None:
    """As `terminate()` would."""

    async def prepare() -> Coroutine[Any, Any, Any]:
        pool = await Pool(cluster.dsn, ssl="disable", max_size=2).open()
        await pool.wait_ready()
        return pool.close(grace=5)

    async def check(where: str) -> None:
        await no_session(cluster)

    assert await cancel_everywhere(prepare, check)
