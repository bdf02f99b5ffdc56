"""`executemany`: many rows in one go over one connection; atomic on PostgreSQL, row by row on Picodata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import CallTimeout, OutcomeUnknown, PoolClosed
from picopyn.testing import PicodataCluster, PostgresServer
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES


@pytest.fixture
async def pool(postgres: PostgresServer, open_pool: OpenPool) -> AsyncIterator[Pool]:
    """A pool on one server, with a table."""
    made = await open_pool(postgres.dsn)
    await made.execute("CREATE TABLE many (id int PRIMARY KEY, name text)")
    yield made
    await made.execute("DROP TABLE many")


async def count(pool: Pool, table: str = "many") -> Any:
    """Rows of a table."""
    return await pool.fetchval(f"SELECT count(*) FROM {table}")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("kind", [list, tuple, iter])
async def test_all_rows_of_any_iterable_are_executed(pool: Pool, kind: Any) -> None:
    """A generator is put into a list first, so that the call can be sent again."""
    rows = [(number, str(number)) for number in range(1000)]
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", kind(rows))
    assert await count(pool) == 1000
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", [])
    assert await count(pool) == 1000
    await pool.execute("DELETE FROM many")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([(1, "a"), (2, "b"), (1, "c")], asyncpg.UniqueViolationError),
        ([(1, "a"), ("x", "b")], asyncpg.DataError),
        ([(1, "a"), (2,)], asyncpg.InterfaceError),
    ],
)
async def test_on_postgresql_all_rows_take_effect_or_none(pool: Pool, rows: Any, error: type[Exception]) -> None:
    """Whether the server refuses a row or it cannot be encoded; the connection stays usable."""
    with pytest.raises(error):
        await pool.executemany("INSERT INTO many VALUES ($1, $2)", rows)
    assert await count(pool) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_its_deadline_covers_all_rows(pool: Pool) -> None:
    """It ends while rows are still being executed; nothing of them stays."""
    with pytest.raises(CallTimeout) as caught:
        await pool.executemany("SELECT pg_sleep($1)", [(0.02,)] * 100, timeout=0.1)
    assert isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(ValueError, match="timeout"):
        await pool.executemany("SELECT $1", [(1,)], timeout=0)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_closed_pool_executes_nothing(pool_class: Any, pool: Pool, postgres: PostgresServer) -> None:
    """It says so at once."""
    async with pool_class(postgres.dsn) as other:
        pass
    with pytest.raises(PoolClosed):
        await other.executemany("INSERT INTO many VALUES ($1, $2)", [(1, "a")])


@pytest.fixture(scope="module")
def cluster() -> Iterator[PicodataCluster]:
    """A Picodata-shaped cluster with a table."""
    with PicodataCluster(replicasets=2, replication=1) as running:
        running.execute("CREATE TABLE many (id INT PRIMARY KEY, name TEXT) DISTRIBUTED BY (id)")
        yield running


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("cache", [0, 100])
async def test_on_picodata_one_node_gets_all_rows_and_forwards_them(
    cluster: PicodataCluster, open_pool: OpenPool, cache: int
) -> None:
    """They are not split by owner yet; the text's own route, learned or not, is not used."""
    pool = await open_pool(cluster.dsn, statement_cache_size=cache)
    await pool.execute("DELETE FROM many")
    await pool.execute("INSERT INTO many VALUES ($1, $2)", 0, "learned")
    await pool.explain_route("INSERT INTO many VALUES ($1, $2)", 0, "")
    before = pool.stats().calls["spread"]
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", [(number, "x") for number in range(1, 50)])
    assert await count(pool) == 50
    assert pool.stats().calls["spread"] == before + 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_on_picodata_the_rows_before_the_one_that_failed_stay(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """The server's own error says so in a note."""
    pool = await open_pool(cluster.dsn)
    await pool.execute("DELETE FROM many")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await pool.executemany("INSERT INTO many VALUES ($1, $2)", [(1, "a"), (2, "b"), (1, "c"), (3, "d")])
    assert any("rows before the one that failed" in note for note in caught.value.__notes__)
    assert await count(pool) == 2


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_on_picodata_a_schema_change_in_between_costs_nothing(
    cluster: PicodataCluster, open_pool: OpenPool
) -> None:
    """Its statement is prepared for the call: one kept from before would be outdated, perhaps after some rows."""
    pool = await open_pool(cluster.dsn)
    await pool.execute("DELETE FROM many")
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", [(1, "a")])
    cluster.execute("CREATE TABLE other (id INT PRIMARY KEY) DISTRIBUTED BY (id)")
    cluster.execute("DROP TABLE other")
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", [(2, "a"), (3, "b")])
    assert await count(pool) == 3
