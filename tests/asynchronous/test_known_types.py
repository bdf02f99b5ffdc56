"""Which types a connection asks the server about, and which statements it keeps there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.known_types import _ARRAYS, known_arrays
from picopyn.testing import PicodataCluster, PostgresServer

STATEMENTS = "SELECT name, statement FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared%'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for this module."""
    with PostgresServer(port=0) as running:
        yield running


@pytest.fixture
async def connection(server: PostgresServer) -> AsyncIterator[Connection]:
    """A connection of ours."""
    made = await asyncpg.connect(server.dsn, connection_class=Connection, statement_cache_size=3)
    yield made
    await made.close()


async def test_known_arrays_are_those_of_the_catalogue(connection: Connection) -> None:
    """Every OID, name and delimiter is what a server says."""
    found = await connection.fetch(
        "SELECT a.oid, a.typname AS name, e.oid AS elemtype, e.typname AS elemtype_name, e.typdelim AS elemdelim "
        "FROM pg_type a JOIN pg_type e ON e.oid = a.typelem WHERE a.oid = ANY($1::oid[])",
        list(_ARRAYS),
    )
    assert len(found) == len(_ARRAYS)
    ours = {row["oid"]: row for row in known_arrays(_ARRAYS)}
    for row in found:
        assert {name: ours[row["oid"]][name] for name in row.keys()} == dict(row)  # noqa: SIM118 - a Record


async def test_arrays_of_built_in_types_are_not_looked_up(connection: Connection) -> None:
    """Not even after a codec was set, which makes asyncpg forget what it had looked up."""
    queries: list[str] = []
    connection.add_query_logger(lambda record: queries.append(record.query))
    assert await connection.fetchval("SELECT $1::int4[]", [1, None, 2]) == [1, None, 2]
    await connection.set_type_codec("json", schema="pg_catalog", encoder=str, decoder=len)
    assert await connection.fetchval("SELECT ARRAY['{}', '[1]']::json[]") == [2, 3]
    assert await connection.fetchval("SELECT $1::text::box[]", "{(1,1),(0,0)}") == [asyncpg.Box((1, 1), (0, 0))]
    assert not [query for query in queries if "pg_type" in query]


async def test_types_of_the_database_are_looked_up(connection: Connection) -> None:
    """An enum, its array and a composite, beside an array that is known."""
    await connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE both_ AS (m mood, n int[])")
    try:
        row = await connection.fetchrow(
            "SELECT 'ok'::mood, ARRAY['sad']::mood[], ROW('ok', '{1}')::both_, '{2}'::int[]"
        )
        assert tuple(row) == ("ok", ["sad"], ("ok", [1]), [2])
    finally:
        await connection.execute("DROP TYPE both_; DROP TYPE mood")


async def test_without_a_catalogue_unknown_types_travel_as_text(connection: Connection) -> None:
    """No query is sent, whatever the server describes."""
    await connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    try:
        connection.has_catalog = False
        assert await connection.fetchval("SELECT $1::mood", "ok") == "ok"
        assert await connection.fetchval("SELECT int4range(1, 3)") == "[1,3)"
    finally:
        await connection.execute("DROP TYPE mood")


async def test_the_statement_cache_is_bounded_and_what_leaves_it_is_closed(connection: Connection) -> None:
    """Three statements are kept at the server, however many texts there are."""
    for number in range(20):
        await connection.fetch(f"SELECT {number}")
    kept = await connection.fetch(STATEMENTS)
    assert len(kept) <= 3
    connection.forget_statements()
    await connection.fetch("SELECT 'fresh'")
    assert [row["statement"] for row in await connection.fetch(STATEMENTS)] == ["SELECT 'fresh'"]


async def test_rows_executed_freshly_leave_no_statement(connection: Connection) -> None:
    """Their statement is prepared without a name."""
    await connection.execute("CREATE TEMP TABLE t (id int)")
    await connection.executemany_freshly("INSERT INTO t VALUES ($1)", [(1,), (2,)], timeout=5)
    assert await connection.fetchval("SELECT count(*) FROM t") == 2
    assert not [row for row in await connection.fetch(STATEMENTS) if "INSERT" in row["statement"]]


async def test_picodata_is_never_asked_about_types(picopyn_cluster: PicodataCluster) -> None:
    """It has no catalogue: whatever it describes is known, or travels as text."""
    async with Pool(picopyn_cluster.dsn) as pool:
        states = await pool.fetch("SELECT name, current_state, failure_domain FROM _pico_instance")
        assert all("Online" in str(row["current_state"]) for row in states)
