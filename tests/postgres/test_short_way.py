"""Known statements go straight to asyncpg's protocol: every case is run on asyncpg's own connection too, and compared.

An asyncpg release that changes what `picopyn.asynchronous.short_way` leans on is found here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from asyncpg import protocol

from picopyn.asynchronous.short_way import ShortWayConnection
from picopyn.asynchronous.tapping import tapped
from picopyn.errors import ConnectionLost
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES

KINDS = [asyncpg.Connection, ShortWayConnection]

#: A case: what is done on a connection, and gives what is to be compared.
Case = Callable[[Any], Awaitable[object]]


class OwnRecord(asyncpg.Record):
    """Another class of rows."""


@pytest.fixture
async def table(admin: Any) -> AsyncIterator[str]:
    """A table of five rows."""
    await admin.execute("CREATE TABLE short_way (id int PRIMARY KEY, v text)")
    await admin.execute("INSERT INTO short_way SELECT n, 'v' || n FROM generate_series(1, 5) n")
    yield "short_way"
    await admin.execute("DROP TABLE short_way")


async def all_rows(connection: Any) -> object:
    return [tuple(row) for row in await connection.fetch("SELECT * FROM short_way WHERE id > $1 ORDER BY id", 2)]


async def no_rows(connection: Any) -> object:
    return await connection.fetch("SELECT * FROM short_way WHERE id > $1", 9)


async def one_row_of_many(connection: Any) -> object:
    row = await connection.fetchrow("SELECT * FROM short_way WHERE id > $1 ORDER BY id", 2)
    return tuple(row), list(row.keys()), type(row)


async def no_row(connection: Any) -> object:
    return await connection.fetchrow("SELECT * FROM short_way WHERE id = $1", 9)


async def a_value(connection: Any) -> object:
    return await connection.fetchval("SELECT v FROM short_way WHERE id = $1", 3)


async def a_status(connection: Any) -> object:
    return await connection.execute("UPDATE short_way SET v = v WHERE id > $1", 2)


async def a_status_without_arguments(connection: Any) -> object:
    return await connection.execute("SELECT * FROM short_way")


async def without_arguments(connection: Any) -> object:
    return await connection.fetch("SELECT id FROM short_way WHERE id = 1")


async def another_class_of_rows(connection: Any) -> object:
    text = "SELECT v FROM short_way WHERE id = $1"
    rows = await connection.fetch(text, 1, record_class=OwnRecord)
    return type(rows[0]), type(await connection.fetchrow(text, 1, record_class=OwnRecord))


async def too_few_arguments(connection: Any) -> object:
    return await connection.fetch("SELECT v FROM short_way WHERE id = $1 AND v = $2", 1)


async def an_argument_of_a_wrong_type(connection: Any) -> object:
    return await connection.fetchrow("SELECT v FROM short_way WHERE id = $1", "one")


async def an_error_of_the_server(connection: Any) -> object:
    return await connection.fetchrow("SELECT 1 / $1::int", 0)


async def a_time_limit(connection: Any) -> object:
    return await connection.fetchrow("SELECT pg_sleep($1::int)", 60, timeout=0.05)


async def a_time_limit_below_zero(connection: Any) -> object:
    return await connection.fetch("SELECT v FROM short_way WHERE id = $1", 1, timeout=-1)


async def two_calls_at_once(connection: Any) -> object:
    sleep = asyncio.ensure_future(connection.fetchrow("SELECT pg_sleep($1::float)", 0.1))
    await asyncio.sleep(0)
    try:
        return await connection.fetchval("SELECT v FROM short_way WHERE id = $1", 1)
    finally:
        await sleep


async def a_notice(connection: Any) -> object:
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(_: Any, message: Any) -> None:
        heard.set_result(message.message)

    connection.add_log_listener(hear)
    await connection.execute("DO $$ BEGIN RAISE NOTICE 'hello'; END $$")
    text = await heard
    connection.remove_log_listener(hear)
    return text


async def codecs_of_its_own(connection: Any) -> object:
    text = "SELECT '{}'::json FROM short_way WHERE id = $1"
    before = await connection.fetchval(text, 1)
    await connection.set_type_codec("json", encoder=repr, decoder=lambda _: "decoded", schema="pg_catalog")
    return before, await connection.fetchval(text, 1)


CASES: list[Case] = [
    all_rows,
    no_rows,
    one_row_of_many,
    no_row,
    a_value,
    a_status,
    a_status_without_arguments,
    without_arguments,
    another_class_of_rows,
    too_few_arguments,
    an_argument_of_a_wrong_type,
    an_error_of_the_server,
    a_time_limit,
    a_time_limit_below_zero,
    two_calls_at_once,
    a_notice,
    codecs_of_its_own,
]


async def outcome(case: Case, connection: Any) -> object:
    """What a case gives, or the error that it raises, with the text that people see."""
    try:
        return await case(connection)
    except (Exception, asyncio.CancelledError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("cache", [100, 0])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_all_is_as_on_asyncpgs_own_connection(
    postgres: PostgresServer, table: str, case: Case, cache: int
) -> None:
    """The first time, the second time, when the statement is known, and afterwards: the connection is as good."""
    found = []
    for kind in KINDS:
        connection = await asyncpg.connect(postgres.dsn, connection_class=kind, statement_cache_size=cache)
        try:
            outcomes = [
                await outcome(case, connection),
                await outcome(case, connection),
                await outcome(case, connection),
            ]
            found.append((outcomes, await connection.fetchval("SELECT v FROM short_way WHERE id = $1", 1)))
        finally:
            await connection.close()
    assert found[0] == found[1]
    assert found[1][1] == "v1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fetch", "fetchrow", "execute"])
async def test_a_statement_outdated_by_another_session_is_prepared_again(
    postgres: PostgresServer, table: str, admin: Any, kind: Any, method: str
) -> None:
    """`cached statement plan is invalid`: nothing was executed, so it is prepared anew; the caller does not notice."""
    connection = await asyncpg.connect(postgres.dsn, connection_class=kind)
    call = getattr(connection, method)
    text = "SELECT * FROM short_way WHERE id = $1"
    await call(text, 1)
    await admin.execute("ALTER TABLE short_way ADD COLUMN more int DEFAULT 7")
    assert await call(text, 1, timeout=5) == {"fetch": [(1, "v1", 7)], "fetchrow": (1, "v1", 7)}.get(method, "SELECT 1")
    await connection.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fetch", "fetchrow", "execute"])
async def test_in_a_transaction_it_is_an_error(
    postgres: PostgresServer, table: str, admin: Any, kind: Any, method: str
) -> None:
    """The transaction is broken by then: to prepare it again would only hide that."""
    connection = await asyncpg.connect(postgres.dsn, connection_class=kind)
    text = "SELECT * FROM short_way WHERE id = $1"
    await getattr(connection, method)(text, 1)
    await admin.execute("ALTER TABLE short_way ADD COLUMN more int DEFAULT 7")
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.InvalidCachedStatementError):
        await getattr(connection, method)(text, 1)
    await transaction.rollback()
    assert await connection.fetchval(text, 1, column=2) == 7
    await connection.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_type_changed_by_another_session_is_an_error_once(
    postgres: PostgresServer, admin: Any, kind: Any
) -> None:
    """The statement was executed and its answer cannot be read: the error is raised, and the next call knows."""
    await admin.execute("CREATE TYPE short_way_pair AS (a int)")
    connection = await asyncpg.connect(postgres.dsn, connection_class=kind)
    try:
        text = "SELECT ROW($1::int)::short_way_pair"
        await connection.fetchval(text, 1)
        await admin.execute("ALTER TYPE short_way_pair ADD ATTRIBUTE b text")
        other = "SELECT CAST(ROW($1::int, 'x') AS short_way_pair)"
        with pytest.raises(asyncpg.OutdatedSchemaCacheError):
            await connection.fetchval(other, 1)
            await connection.fetchval(other, 1)
        assert await connection.fetchval(other, 1) == (1, "x")
    finally:
        await connection.close()
        await admin.execute("DROP TYPE short_way_pair")


async def test_query_loggers_hear_of_every_call(postgres: PostgresServer, table: str) -> None:
    """Whoever logs queries has them all, the known ones too."""
    connection = await asyncpg.connect(postgres.dsn, connection_class=ShortWayConnection)
    heard: list[str] = []
    connection.add_query_logger(lambda record: heard.append(record.query))
    for _ in range(3):
        await connection.fetchval("SELECT v FROM short_way WHERE id = $1", 1)
    await asyncio.sleep(0)
    assert len(heard) == 3
    await connection.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_connection_refuses_known_statements(postgres: PostgresServer, table: str, kind: Any) -> None:
    """However it was closed: nothing is written into a dead socket, and no call waits for ever."""
    text = "SELECT v FROM short_way WHERE id = $1"
    for close in ("close", "terminate", "by the server"):
        connection = await asyncpg.connect(postgres.dsn, connection_class=kind)
        await connection.fetchval(text, 1)
        if close == "close":
            await connection.close()
        elif close == "terminate":
            connection.terminate()
        else:
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            connection.add_termination_listener(lambda _, lost=lost: lost.set_result(None))
            other = await asyncpg.connect(postgres.dsn)
            await other.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await lost
            await other.close()
        with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
            await connection.fetchrow(text, 1)


async def test_evicted_statements_are_closed_at_the_server(postgres: PostgresServer) -> None:
    """The cache is asyncpg's: it stays as small as it was set, in the order of use, at both ends."""
    connection = await asyncpg.connect(postgres.dsn, connection_class=ShortWayConnection, statement_cache_size=3)
    for number in (1, 2, 3, 1, 4, 1, 5, 1):  # the first is used again and again, so it stays
        await connection.fetchval(f"SELECT {number} + $1::int", 1)
    await connection.fetchval("SELECT 6 + $1::int", 1)  # whatever has left is closed with the next one
    rows = await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%+ $1::int'")
    kept = {row["statement"][7] for row in rows}
    assert "1" in kept
    assert len(kept) <= 4
    await connection.close()


def test_what_it_leans_on_is_there() -> None:
    """Named here, so that whoever looks for the reason of a failure finds it."""
    assert callable(protocol.Protocol.bind_execute)
    assert callable(protocol.Protocol.is_connected)
    assert callable(protocol.Protocol.get_record_class)
    assert callable(asyncpg.Connection._drop_global_statement_cache)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_parameter_whose_type_was_changed(open_pool: OpenPool, postgres: PostgresServer, admin: Any) -> None:
    """The kept statements refuse the new values, so they are prepared anew; what is refused then is wrong.

    asyncpg.Pool goes on refusing them for as long as a connection keeps its statement.
    """
    insert = "INSERT INTO changing VALUES ($1)"
    await admin.execute("CREATE TABLE changing (v int)")
    try:
        pool = await open_pool(postgres.dsn, dialect="postgres", min_size=3, max_size=3)
        async with pool.acquire() as one, pool.acquire() as other:
            for connection in (one, other, pool):
                await connection.execute(insert, 1)
            await admin.execute("ALTER TABLE changing ALTER v TYPE text")
            for connection in (one, other, pool):
                assert await connection.execute(insert, "x") == "INSERT 0 1"
                with pytest.raises(asyncpg.DataError, match="expected str, got int"):
                    await connection.execute(insert, 2)
                assert await connection.execute(insert, "x") == "INSERT 0 1"
        assert await pool.fetchval("SELECT count(*) FROM changing") == 9
    finally:
        await admin.execute("DROP TABLE changing")


async def new_text(connection: Any) -> object:
    return await connection.fetch("SELECT $1::int + 1", 1)


async def new_text_for_many(connection: Any) -> object:
    return await connection.executemany("SELECT $1::int + 2", [(1,)])


async def listener(connection: Any) -> object:
    return await connection.add_listener("channel", print)


@pytest.mark.parametrize("call", [new_text, new_text_for_many, listener])
async def test_a_held_connection_that_is_dropped_between_two_requests_is_told_as_that(
    postgres: PostgresServer, open_pool: OpenPool, call: Case
) -> None:
    """The answer to the first one is there, and asyncpg goes on with a protocol that is not."""
    pool = await open_pool(postgres.dsn, max_size=1)
    loop = asyncio.get_running_loop()
    async with pool.acquire() as connection:
        link: Any = connection._loan.link
        at_the_answer = tapped(link._transport, lambda _: loop.call_soon(link.abort))  # asyncpg sees it after this
        with at_the_answer, pytest.raises(ConnectionLost) as caught:
            await call(connection)
        assert isinstance(caught.value.__cause__, AttributeError)
