"""What went wrong in comparable drivers, classes *meta* and *res*: statement caches, on plain PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool
from tests.postgres.pooler import Pooler
from tests.postgres.real import together
from tests.threads import FACADES


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_plan_invalidated(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """A statement cached on ten connections of two servers outlives schema changes: no error, rows of the new shape."""
    servers = [await asyncpg.connect(server.dsn) for server in (postgres, postgres_too)]

    async def everywhere(sql: str) -> None:
        for server in servers:
            await server.execute(sql)

    pool = await open_pool(together(postgres, postgres_too), max_size=5)

    async def use_all() -> set[tuple[str, ...]]:
        rows = await asyncio.gather(*(pool.fetchrow("SELECT * FROM shape") for _ in range(60)))
        return {tuple(row.keys()) for row in rows}

    try:
        await everywhere("CREATE TABLE shape (id int); INSERT INTO shape VALUES (1)")
        assert await use_all() == {("id",)}
        for change, columns in [
            ("ALTER TABLE shape ADD COLUMN name text", ("id", "name")),
            ("ALTER TABLE shape ALTER COLUMN id TYPE text", ("id", "name")),
            ("ALTER TABLE shape DROP COLUMN name", ("id",)),
            ("DROP TABLE shape; CREATE TABLE shape (other int); INSERT INTO shape VALUES (1)", ("other",)),
        ]:
            await everywhere(change)
            assert await use_all() == {columns}
    finally:
        await everywhere("DROP TABLE IF EXISTS shape")
        for server in servers:
            await server.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_plan_invalidated_in_a_transaction(
    postgres: PostgresServer, admin: Any, open_pool: OpenPool
) -> None:
    """At most one failure per connection, with the server's own 0A000; the second try works."""
    pool = await open_pool(postgres.dsn, max_size=1)
    await admin.execute("CREATE TABLE shape (id int); INSERT INTO shape VALUES (1)")
    try:
        assert len(await pool.fetchrow("SELECT * FROM shape")) == 1
        await admin.execute("ALTER TABLE shape ADD COLUMN name text")
        failures: list[str | None] = []
        for _ in range(5):
            async with pool.acquire() as connection:
                try:
                    async with connection.transaction():
                        assert len(await connection.fetchrow("SELECT * FROM shape")) == 2
                except asyncpg.PostgresError as error:
                    failures.append(error.sqlstate)
        assert failures in ([], ["0A000"])
    finally:
        await admin.execute("DROP TABLE shape")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("dialect", ["auto", "postgres"])
async def test_meta_named_statements_behind_pooler(
    postgres: PostgresServer, admin: Any, open_pool: OpenPool, full_size: bool, dialect: str
) -> None:
    """With the statement cache off, the pool works behind a transaction-level pooler that swaps and wipes sessions.

    Statements with and without parameters, types of the database, cursors, transactions, `executemany`: no error, and
    nothing is prepared under a name, by callers or by the driver.
    """
    await admin.execute(
        "DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE moods (id int, m mood)"
    )
    rng = Random(5)
    try:
        async with Pooler("127.0.0.1", postgres.port or 0, sessions=2) as pooler:
            pool = await open_pool(pooler.dsn, dialect=dialect, statement_cache_size=0, max_size=3)

            async def cursor() -> None:
                async with pool.acquire() as connection, connection.transaction():
                    rows = [row[0] async for row in connection.cursor("SELECT generate_series(1, $1::int)", 60)]
                    assert rows == list(range(1, 61))

            async def one() -> None:
                match rng.randrange(7):
                    case 0:
                        assert await pool.fetchval("SELECT 1") == 1
                    case 1:
                        assert await pool.fetchval("SELECT $1::int + 1", 1) == 2
                    case 2:
                        assert await pool.fetchval("SELECT $1::mood", "ok") == "ok"
                    case 3:
                        assert await pool.fetchval("SELECT ARRAY[$1]::mood[]", "sad") == ["sad"]
                    case 4:
                        await pool.executemany("INSERT INTO moods VALUES ($1, $2)", [(1, "ok"), (2, "sad")])
                    case 5:
                        await pool.execute("INSERT INTO moods VALUES (1, 'ok')")
                    case 6:
                        await cursor()

            for _ in range((500 if full_size else 150) // 3):
                await asyncio.gather(one(), one(), one())
            await pool.refresh_topology()
            await pool.close()
            assert pooler.names == {""}
            assert pooler.left == 0
    finally:
        await admin.execute("DROP TABLE moods; DROP TYPE mood")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_statement_that_the_session_lost_is_prepared_again(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """Somebody has deallocated it: nothing was done, so it is sent once more, and the caller notices nothing."""
    pool = await open_pool(postgres.dsn, max_size=1)
    for number in range(3):
        assert await pool.fetchval("SELECT $1::int", number) == number
        await pool.execute("DEALLOCATE ALL")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_res_dynamic_sql(postgres: PostgresServer, open_pool: OpenPool, full_size: bool) -> None:
    """Thousands of different texts: the server never keeps more statements than the cache is large."""
    pool = await open_pool(postgres.dsn, max_size=1, statement_cache_size=20)
    most = 0
    for number in range(20_000 if full_size else 600):
        if number % 2:
            await pool.fetch(f"SELECT {number}")
        else:
            places = ", ".join(f"${n + 1}::int" for n in range(number % 50 + 1))
            await pool.fetch(f"SELECT 1 WHERE 1 IN ({places})", *range(number % 50 + 1))
        if number % 50 == 49:
            most = max(most, await pool.fetchval("SELECT count(*) FROM pg_prepared_statements"))
    assert most <= 21


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("size", [0, 1, 20])
async def test_res_dynamic_sql_while_tables_change(
    postgres: PostgresServer, open_pool: OpenPool, full_size: bool, size: int
) -> None:
    """Texts that are never said twice, on a table that keeps changing: the bound holds at every look, 0 means none."""
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=1, statement_cache_size=size)
    await pool.execute("CREATE TABLE changing (n int)")
    try:
        for number in range(2000 if full_size else 200):
            rows = await pool.fetch(f"SELECT *, {number} FROM changing WHERE n > $1", number)
            assert rows == []
            if number % 20 == 19:
                await pool.execute(f"ALTER TABLE changing ADD COLUMN c{number} int")
                await pool.execute(f"ALTER TABLE changing DROP COLUMN c{number}")
                assert await pool.fetchval("SELECT count(*) FROM pg_prepared_statements") <= size
        assert pool.stats().connects == 1
    finally:
        await pool.execute("DROP TABLE changing")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_res_dynamic_sql_costs_no_memory(postgres: PostgresServer, open_pool: OpenPool, full_size: bool) -> None:
    """After the caches are full, texts by the thousand leave nothing behind at the client."""
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=1, statement_cache_size=20)

    async def many(first: int, number: int) -> None:
        for n in range(first, first + number):
            await pool.fetch(f"SELECT {n}, $1::int, {'1, ' * 50} 1", n)

    number = 10_000 if full_size else 1000
    await many(0, number)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await many(number, number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # twenty kept statements of some kilobytes each replace others that were made before memory was traced
    assert grown < 1 << 20
