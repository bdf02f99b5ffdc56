"""`executemany` on PostgreSQL: many rows in one go over one connection, or in chunks; each is atomic."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.errors import BulkError, CallTimeout, NotSupported, OutcomeUnknown, PoolClosed, UsageError
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
async def test_in_chunks_each_takes_effect_as_a_whole(pool: Pool) -> None:
    """Rows are taken as they are needed; the chunk that fails is rolled back, those before it stay."""
    taken: list[int] = []

    def rows(count: int) -> Iterator[tuple[int, str]]:
        for number in range(count):
            taken.append(number)
            yield number if number != 777 else 3, "x"

    told: list[int] = []
    with pytest.raises(BulkError) as caught:
        await pool.executemany("INSERT INTO many VALUES ($1, $2)", rows(100_000), chunk_size=100, progress=told.append)
    report = caught.value.report
    assert isinstance(caught.value.__cause__, asyncpg.UniqueViolationError)
    assert report.acknowledged == 700 == await count(pool)
    assert report.positions(RowState.FAILED) == tuple(range(700, 800))
    assert len(taken) == report.taken <= 1000
    assert told == sorted(told)
    assert told[-1] == 700
    good = [(number, "y") for number in range(1000)]
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", good, resume=pickle.loads(pickle.dumps(report)))
    assert await count(pool) == 1000
    assert await pool.fetchval("SELECT count(*) FROM many WHERE name = 'y'") == 300


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_interrupted_load_in_chunks_tells_which_took_effect(pool: Pool) -> None:
    """The chunk under way is unknown as a whole; once somebody has looked, the load goes on."""
    text, running = "INSERT INTO many VALUES ($1, $2)", "query LIKE 'INSERT INTO many%' AND state <> 'idle'"
    rows = [(number, "x") for number in range(3000)]

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        await pool.executemany(text, iter(rows), chunk_size=100, progress=interrupt)
    report = BulkReport.of(caught.value)
    assert report is not None
    assert 100 <= report.acknowledged < 3000
    unknown = report.positions(RowState.UNKNOWN)
    assert len(unknown) in (0, 100)
    while await pool.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {running}"):
        await asyncio.sleep(0.01)
    there = {row["id"] for row in await pool.fetch("SELECT id FROM many")}
    assert all(report.is_acknowledged(number) == (number in there) for number in range(3000) if number not in unknown)
    assert len(there.intersection(unknown)) in (0, len(unknown))
    await pool.executemany(text, rows, resume=report.settled(there.intersection(unknown)))
    assert await count(pool) == 3000


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_what_cannot_be_gone_on_with_is_refused(pool: Pool) -> None:
    """Before anything is taken or sent."""
    text = "INSERT INTO many VALUES ($1, $2)"
    unknown = BulkReport(text, 10, (Unfinished(RowState.UNKNOWN, (4, 5)),))
    for wrong in (
        {"chunk_size": 0},
        {"chunk_size": True},
        {"chunk_size": 1.5},
        {"resume": "a report"},
        {"resume": BulkReport("another text", 0)},
        {"resume": unknown},
    ):
        with pytest.raises(UsageError):
            await pool.executemany(text, iter(()), **wrong)
    with pytest.raises(UsageError, match="row 6 is not among"):
        unknown.settled([6])
    settled = unknown.settled([4])
    assert (settled.acknowledged, settled.positions(RowState.NOT_EXECUTED)) == (9, (5,))
    assert not settled.is_acknowledged(5)
    assert settled.is_acknowledged(4)
    await pool.executemany(text, [(number, "") for number in range(12)], resume=settled)
    assert [row["id"] for row in await pool.fetch("SELECT id FROM many ORDER BY id")] == [5, 10, 11]


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


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_records_are_copied_through_the_pool(pool: Pool, facade: str) -> None:
    """All of them or none, from any iterable; keys may be fetched and rows split there as well."""
    assert (
        await pool.copy_records("many", ((number, "x") for number in range(2000)), columns=["id", "name"])
        == "COPY 2000"
    )
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.copy_records("many", [(3000, "x"), (5, "again")], timeout=20)
    assert await count(pool) == 2000
    rows = await pool.fetch_by_keys("SELECT * FROM many WHERE id IN ($1)", range(1999, 1800, -1), order_by="id")
    assert [row["id"] for row in rows] == list(range(1999, 1800, -1))
    with pytest.raises(NotSupported):
        await pool.execute("SELECT 1", bucket=1)
    text = "INSERT INTO many VALUES ($1, $2), ($3, $4)"
    assert await pool.execute(text, 5001, "a", 5002, "b", splittable=True) == "INSERT 0 2"
    with pytest.raises(NotSupported):
        await pool.sharding_key_factory("many")


async def test_records_may_be_awaited(pool: Pool) -> None:
    """Of the asynchronous pool."""

    async def records() -> AsyncIterator[tuple[int, str]]:
        for number in range(100):
            yield number, "x"

    assert await pool.copy_records("many", records()) == "COPY 100"
    await pool.execute("DELETE FROM many")
    await pool.executemany("INSERT INTO many VALUES ($1, $2)", records())
    assert await count(pool) == 100
