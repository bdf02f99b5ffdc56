"""What a held connection can do, and what becomes of it, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import json
import pickle
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.acquired import AcquiredConnection
from picopyn.asynchronous.connection import Connection
from picopyn.errors import (
    AcquireTimeout,
    CallTimeout,
    ConfigError,
    ConnectionLost,
    NoNodeAvailable,
    NotSupported,
    OutcomeUnknown,
    PoolClosed,
    UsageError,
    WriteLost,
    WriteTimeout,
)
from picopyn.routing.sharding import ShardingKey
from tests.asynchronous.servers import Watch, count
from tests.cancelling import eventually
from tests.threads import FACADES


@pytest.fixture
async def pool(watch: Watch) -> AsyncIterator[Pool]:
    """A pool of one connection: whoever comes next gets the same session."""
    async with watch.pool(min_size=1, max_size=1, acquire_timeout=5) as pool:
        yield pool


async def idle(pool: Pool) -> None:
    """Wait until what was given back is at rest."""

    async def at_rest() -> bool:
        return count(pool)[1:] == (0, 0, 0)

    await eventually(at_rest, lambda: count(pool))


# the surface


async def test_what_is_the_pools_cannot_be_reached_through_a_held_connection(pool: Pool) -> None:
    """How a connection is lent, cancelled and let go of; asyncpg's own methods can, also those not written out here."""

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    async with pool.acquire() as connection:
        for name in public(Connection) - public(asyncpg.Connection):
            with pytest.raises(AttributeError, match=name):
                getattr(connection, name)
        assert all(callable(getattr(connection, name)) for name in public(asyncpg.Connection))
        with pytest.raises(AttributeError, match="has no attribute '_protocol'"):
            connection._protocol  # noqa: B018


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_held_connection_has_the_methods_of_asyncpg(pool: Pool) -> None:
    """Same names, same results."""
    async with pool.acquire() as connection:
        assert await connection.execute("CREATE TEMP TABLE t (n int, s text)") == "CREATE TABLE"
        await connection.executemany("INSERT INTO t VALUES ($1, $2)", [(1, "a"), (2, "b")])
        assert [tuple(row) for row in await connection.fetch("SELECT * FROM t ORDER BY n")] == [(1, "a"), (2, "b")]
        assert (await connection.fetchrow("SELECT s FROM t WHERE n = $1", 2))["s"] == "b"
        assert await connection.fetchrow("SELECT s FROM t WHERE n = $1", 3) is None
        assert await connection.fetchval("SELECT n, s FROM t WHERE n = 1", column="s") == "a"
        assert await connection.fetchval("SELECT n FROM t WHERE n = 3") is None
        rows = await connection.fetchmany("SELECT $1::int + 1 AS n", [(1,), (2,)])
        assert [row["n"] for row in rows] == [2, 3]
        assert connection.get_server_pid() == await connection.fetchval("SELECT pg_backend_pid()")
        assert connection.get_server_version().major >= 10
        assert connection.get_settings().server_encoding == "UTF8"
        assert not connection.is_closed()
        assert not connection.is_in_transaction()
        assert connection.node.port


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_prepared_statements_and_cursors(pool: Pool) -> None:
    """As asyncpg's."""
    async with pool.acquire() as connection:
        statement = await connection.prepare("SELECT n, n * 2 AS twice FROM generate_series(1, $1::int) AS n")
        assert [type_.name for type_ in statement.get_parameters()] == ["int4"]
        assert [attribute.name for attribute in statement.get_attributes()] == ["n", "twice"]
        assert len(await statement.fetch(3)) == 3
        assert statement.get_statusmsg() == "SELECT 3"
        assert await statement.fetchval(3, column="twice") == 2
        assert (await statement.fetchrow(3))["n"] == 1
        assert statement.get_query().startswith("SELECT n")
        assert statement.get_name()
        await statement.explain(1)
        async with connection.transaction():
            assert [row["n"] async for row in statement.cursor(5, prefetch=2)] == [1, 2, 3, 4, 5]
            cursor = await connection.cursor("SELECT generate_series(1, 9)")
            assert (await cursor.fetchrow())[0] == 1
            assert await cursor.forward(3) == 3
            assert [row[0] for row in await cursor.fetch(2)] == [5, 6]


async def fail_inside(connection: AcquiredConnection, statement: str) -> None:
    """A block that runs a statement and then fails."""
    async with connection.transaction():
        await connection.execute(statement)
        raise ZeroDivisionError


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_transactions_commit_roll_back_and_nest(pool: Pool) -> None:
    """Blocks, savepoints, and by hand."""
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE t (n int)")
        async with connection.transaction(isolation="serializable"):
            assert connection.is_in_transaction()
            await connection.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(ZeroDivisionError):
                await fail_inside(connection, "INSERT INTO t VALUES (2)")
        by_hand = connection.transaction()
        await by_hand.start()
        await connection.execute("INSERT INTO t VALUES (3)")
        await by_hand.rollback()
        again = connection.transaction()
        await again.start()
        await connection.execute("INSERT INTO t VALUES (4)")
        await again.commit()
        assert [row[0] for row in await connection.fetch("SELECT n FROM t ORDER BY n")] == [1, 4]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_transaction_the_server_has_given_up_does_not_end_in_silence(pool: Pool) -> None:
    """COMMIT would answer as if all were well: a caught error must not lose what was written before it."""
    await pool.execute("CREATE TABLE IF NOT EXISTS given_up (n int)")

    async def swallow() -> None:
        async with pool.transaction() as connection:
            await connection.execute("INSERT INTO given_up VALUES (1)")
            with pytest.raises(asyncpg.DivisionByZeroError):
                await connection.execute("SELECT 1/0")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await swallow()
    assert await pool.fetchval("SELECT count(*) FROM given_up") == 0
    async with pool.transaction() as connection:  # an error inside a savepoint is none of the transaction
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with connection.transaction():
                await connection.execute("SELECT 1/0")
        await connection.execute("INSERT INTO given_up VALUES (1)")
    assert await pool.fetchval("SELECT count(*) FROM given_up") == 1
    await pool.execute("DROP TABLE given_up")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_copy(pool: Pool) -> None:
    """Tables, queries and records."""
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE t (n int, s text)")
        assert await connection.copy_records_to_table("t", records=[(1, "a"), (2, "b")]) == "COPY 2"
        assert await connection.copy_to_table("t", source=io.BytesIO(b"3\tc\n")) == "COPY 1"
        output = io.BytesIO()
        assert await connection.copy_from_table("t", output=output) == "COPY 3"
        assert output.getvalue() == b"1\ta\n2\tb\n3\tc\n"
        output = io.BytesIO()
        assert await connection.copy_from_query("SELECT n FROM t WHERE n > $1", 1, output=output) == "COPY 2"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_copy_whose_source_fails_costs_nobody_an_answer(pool: Pool) -> None:
    """The source's own error comes out, and the next call is answered rightly."""

    async def source() -> AsyncIterator[bytes]:
        yield b"1\n"
        raise FileNotFoundError("no more")

    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE t (n int)")
        with pytest.raises(FileNotFoundError, match="no more"):
            await connection.copy_to_table("t", source=source())
        assert await connection.fetchval("SELECT 7") == 7
    assert await pool.fetchval("SELECT 8") == 8


async def test_listeners_get_the_held_connection(pool: Pool, watch: Watch) -> None:
    """And stop with the release."""
    heard: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
    async with pool.acquire() as connection:
        await connection.add_listener("news", lambda *said: heard.put_nowait(said))
        await watch.admin.execute("NOTIFY news, 'first'")
        who, _, channel, payload = await heard.get()
        assert (who, channel, payload) == (connection, "news", "first")
    await idle(pool)
    assert await pool.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
    await watch.admin.execute("NOTIFY news, 'second'")
    await pool.execute("SELECT 1")
    assert heard.empty()
    who = connection = None  # type: ignore[assignment]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_what_is_not_described_is_passed_on(pool: Pool) -> None:
    """Every other method of asyncpg's connection, guarded as well; names it has not are an error."""
    async with pool.acquire() as connection:
        await connection.reload_schema_state()
        seen: list[str] = []
        with connection.query_logger(lambda record: seen.append(record.query)):
            await connection.execute("SELECT $1::int", 1)
        await asyncio.sleep(0)
        assert seen == ["SELECT $1::int"]
        with pytest.raises(AttributeError):
            connection.no_such_thing  # noqa: B018
    with pytest.raises(UsageError):
        await connection.reload_schema_state()


# after the release


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_after_the_release_everything_is_refused(pool: Pool) -> None:
    """The connection, and what was made on it; the next borrower's session is never touched."""
    async with pool.acquire() as connection:
        statement = await connection.prepare("SELECT 1")
        transaction = connection.transaction()
        await transaction.start()
        factory = connection.cursor("SELECT generate_series(1, 9)")
        cursor = await factory
        rows = aiter(connection.cursor("SELECT generate_series(1, 9)"))
        assert (await anext(rows))[0] == 1
        await transaction.commit()
    async with pool.acquire() as other:
        calls = [
            lambda: connection.fetch("SELECT 1"),
            lambda: connection.fetchrow("SELECT 1"),
            lambda: connection.fetchval("SELECT 1"),
            lambda: connection.fetchmany("SELECT 1", []),
            lambda: connection.execute("SELECT 1"),
            lambda: connection.executemany("SELECT 1", []),
            lambda: connection.prepare("SELECT 1"),
            lambda: connection.add_listener("a", print),
            lambda: connection.set_type_codec("json", encoder=str, decoder=str),
            lambda: connection.copy_from_table("t", output=io.BytesIO()),
            lambda: connection.reset(),
            lambda: connection.close(),
            statement.fetch,
            statement.fetchval,
            lambda: statement.executemany([()]),
            lambda: cursor.fetch(1),
            cursor.fetchrow,
            lambda: cursor.forward(1),
            lambda: anext(rows),
            transaction.start,
            transaction.commit,
            transaction.rollback,
            lambda: pool.release(connection),
        ]
        for call in calls:
            with pytest.raises(UsageError):
                await call()
        for plain in (
            connection.is_closed,
            connection.is_in_transaction,
            connection.get_server_pid,
            connection.get_settings,
            connection.release,
            connection.terminate,
            connection.transaction,
            lambda: connection.cursor("SELECT 1"),
            statement.get_query,
            statement.get_parameters,
            statement.cursor,
            lambda: aiter(factory),
        ):
            with pytest.raises(UsageError):
                plain()
        assert connection.is_released()
        assert "released" in repr(connection)
        assert await other.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_foreign_connection_is_not_taken(pool: Pool, watch: Watch) -> None:
    """Of another pool, or no connection of a pool at all."""
    async with watch.pool(min_size=0, max_size=1) as other:
        connection = await other.acquire()
        for foreign in (connection, watch.admin, None):
            with pytest.raises(UsageError, match="was not acquired from this pool"):
                await pool.release(foreign)  # type: ignore[arg-type]
        await other.release(connection)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_transaction_left_open_is_rolled_back(pool: Pool, watch: Watch) -> None:
    """Its locks do not outlive the borrower, and the next one finds a clean session."""
    await pool.execute("CREATE TABLE IF NOT EXISTS locked (n int)")
    async with pool.acquire() as connection:
        await connection.execute("BEGIN")
        await connection.execute("LOCK TABLE locked")
    await watch.admin.execute("SET lock_timeout = '1s'")
    await watch.admin.execute("DROP TABLE locked")
    async with pool.acquire() as connection:
        assert not connection.is_in_transaction()
    assert pool.stats().closes["state_unknown"] == 1


LEFT_BEHIND = {
    "a setting": ("SET work_mem = '1234kB'", "SELECT current_setting('work_mem') <> '1234kB'"),
    "a role": ("SET ROLE pg_read_all_data", "SELECT current_user <> 'pg_read_all_data'"),
    "a lock": ("SELECT pg_advisory_lock(42)", "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'"),
    "a temporary table": ("CREATE TEMP TABLE mine (n int)", "SELECT to_regclass('pg_temp.mine') IS NULL"),
    "a listener": ("LISTEN gossip", "SELECT count(*) = 0 FROM pg_listening_channels()"),
    "a cursor": (
        "DECLARE held CURSOR WITH HOLD FOR SELECT 1",
        "SELECT count(*) = 0 FROM pg_cursors WHERE name = 'held'",
    ),
}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("what", LEFT_BEHIND)
async def test_what_a_borrower_leaves_is_gone_for_the_next(pool: Pool, what: str) -> None:
    """In the same session: it is cleared in the background, nothing is waited for."""
    leave, is_gone = LEFT_BEHIND[what]
    async with pool.acquire() as connection:
        pid = connection.get_server_pid()
        await connection.execute(leave)
    assert await pool.fetchval(is_gone)
    assert await pool.fetchval("SELECT pg_backend_pid()") == pid


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_callbacks_of_a_borrower_end_with_his_loan(pool: Pool) -> None:
    """Log listeners and query loggers as well."""
    seen: list[Any] = []
    async with pool.acquire() as connection:
        connection.add_log_listener(lambda *said: seen.append(said))
        connection.add_query_logger(seen.append)
        connection.add_termination_listener(seen.append)
    await idle(pool)
    await pool.execute("DO $$ BEGIN RAISE NOTICE 'loud'; END $$")
    async with pool.acquire() as connection:
        connection.terminate()
    await asyncio.sleep(0.01)
    assert seen == []


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_other_type_codecs_cost_the_connection(pool: Pool) -> None:
    """The next caller did not ask for them; codecs that all need belong into `after_connect`."""
    async with pool.acquire() as connection:
        pid = connection.get_server_pid()
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        assert await connection.fetchval("SELECT '[1]'::json") == [1]
    assert await pool.fetchval("SELECT '[1]'::json") == "[1]"
    assert await pool.fetchval("SELECT pg_backend_pid()") != pid


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_unused_connection_is_not_reset(pool: Pool) -> None:
    """There is nothing to clear."""
    async with pool.acquire() as connection:
        assert connection.is_in_transaction() is False
    assert count(pool) == (1, 0, 0, 0)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_reset_can_be_switched_off(watch: Watch) -> None:
    """Then settings stay; a transaction is rolled back all the same, and a listener costs the connection."""
    async with watch.pool(max_size=1, reset=False) as pool:
        async with pool.acquire() as connection:
            await connection.execute("SET work_mem = '1234kB'")
        assert count(pool) == (1, 0, 0, 0)
        assert await pool.fetchval("SELECT current_setting('work_mem')") == "1234kB"
        async with pool.acquire() as connection:
            await connection.add_listener("news", print)
        assert await pool.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_reset_can_be_ones_own(watch: Watch) -> None:
    """A coroutine function gets the connection; when it fails, the connection is closed."""
    said: list[int] = []

    async def reset(connection: Any) -> None:
        said.append(connection.get_server_pid())
        if len(said) == 2:
            raise ValueError("cannot be cleared")

    async with watch.pool(max_size=1, reset=reset) as pool:
        for _ in range(3):
            async with pool.acquire() as connection:
                await connection.execute("SELECT 1")
            await eventually(lambda: _is(count(pool)[1:] == (0, 0, 0)), lambda: count(pool))
        assert said[0] == said[1] != said[2]


async def _is(fact: bool) -> bool:
    return fact


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_one_shot_calls_never_reset(pool: Pool) -> None:
    """They would pay for what they do not need."""
    await pool.execute("SET work_mem = '1234kB'")
    assert await pool.fetchval("SELECT current_setting('work_mem')") == "1234kB"


# where to


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_is_named_by_its_address_name_or_uuid(pool: Pool, watch: Watch) -> None:
    """Others are listed when there is none of that name."""
    (node,) = pool.topology.nodes()
    for name in (node.name, node.uuid, node.address):
        async with pool.acquire(node=name) as connection:
            assert connection.node == node
    with pytest.raises(NoNodeAvailable, match="'elsewhere'") as caught:
        await pool.acquire(node="elsewhere")
    assert node.address in caught.value.reasons
    with pytest.raises(UsageError, match="leave key=, tier=, bucket= and role= out"):
        pool.acquire(node=node.name, role="leader")
    with pytest.raises(NotSupported, match="sharded"):
        await pool.acquire(key=ShardingKey(values=(1,)))
    with pytest.raises(ConfigError):
        pool.acquire(role="nobody")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_timeout_ends_the_wait(pool: Pool) -> None:
    """It says that all are in use, and how many wait."""
    async with pool.acquire() as connection:
        with pytest.raises(AcquireTimeout, match="all 1 in use"):
            await pool.acquire(timeout=0.02)
        for wrong in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                await pool.acquire(timeout=wrong)
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_acquire_is_good_for_one_block(pool: Pool) -> None:
    """Not for two at a time; one after the other is fine."""
    acquiring = pool.acquire()
    async with acquiring:
        with pytest.raises(UsageError, match="already in use"):
            await acquiring.__aenter__()
    async with acquiring as connection:
        assert await connection.fetchval("SELECT 1") == 1
    async with pool.acquire() as connection:
        connection.release()  # inside the block: nothing is left to do at its end


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_closed_pool_lends_nothing(watch: Watch) -> None:
    """At once."""
    pool = await watch.pool().open()
    connection = await pool.acquire()
    closing = asyncio.create_task(pool.close(grace=5))
    await asyncio.sleep(0)
    with pytest.raises(PoolClosed):
        await pool.acquire()
    assert await connection.fetchval("SELECT 1") == 1
    connection.release()
    await closing


# errors


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_errors_of_the_server_are_its_own_and_name_the_node(pool: Pool) -> None:
    """The class and SQLSTATE of asyncpg; the connection stays usable."""
    async with pool.acquire() as connection:
        with pytest.raises(asyncpg.UndefinedTableError) as caught:
            await connection.fetch("SELECT * FROM nowhere")
        assert any(connection.node.address in note for note in caught.value.__notes__)
        with pytest.raises(asyncpg.DataError):
            await connection.fetch("SELECT $1::int", "no number")
        assert await connection.fetchval("SELECT 1") == 1
    assert pool.stats().connects == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_lost_connection_says_what_may_have_happened(pool: Pool) -> None:
    """Outside a transaction a statement may have taken effect; inside, only COMMIT is uncertain."""

    async def lose(*, inside: bool) -> BaseException:
        try:
            async with pool.acquire() as connection:
                if inside:
                    await connection.execute("BEGIN")
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except ConnectionLost as error:
            return error
        raise AssertionError("not lost")

    outside = await lose(inside=False)
    assert isinstance(outside, WriteLost)
    assert isinstance(outside.__cause__, asyncpg.PostgresError)
    assert "127.0.0.1" in str(outside)
    assert not isinstance(await lose(inside=True), OutcomeUnknown)
    async with pool.acquire() as connection:
        connection.terminate()
        assert connection.is_closed()
        with pytest.raises(ConnectionLost) as caught:
            await connection.execute("SELECT 1")
        assert not isinstance(caught.value, OutcomeUnknown)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_every_method_says_that_the_connection_is_lost(pool: Pool) -> None:
    """Also those that send nothing; the driver's own errors, never the transport's."""
    async with pool.acquire() as connection:
        statement = await connection.prepare("SELECT 1")
        async with connection.transaction():
            factory = connection.cursor("SELECT 1")
            cursor = await connection.cursor("SELECT 1")
        connection.terminate()
        plain = [
            connection.transaction,
            lambda: connection.cursor("SELECT 1"),
            connection.get_server_pid,
            connection.get_settings,
            statement.get_name,
            statement.get_parameters,
            statement.cursor,
            lambda: aiter(factory),
        ]
        for call in plain:
            with pytest.raises(ConnectionLost, match="is lost"):
                call()
        for step in (lambda: connection.fetch("SELECT 1"), statement.fetch, cursor.fetchrow, factory.__await__):
            with pytest.raises(ConnectionLost):
                await _awaited(step)


async def _awaited(step: Callable[[], Any]) -> None:
    made = step()
    await made if hasattr(made, "__await__") else list(made)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_call_that_times_out_leaves_its_connection_to_nobody(pool: Pool, watch: Watch) -> None:
    """The holder may go on once the server has cancelled it; afterwards the connection is closed."""
    async with pool.acquire() as connection:
        pid = connection.get_server_pid()
        with pytest.raises(WriteTimeout, match=r"execute\(\) got no .* within 0\.05 s; give it a longer timeout"):
            await connection.execute("SELECT pg_sleep(30)", timeout=0.05)
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(CallTimeout) as caught:
            await connection.execute("SELECT pg_sleep(30)", timeout=0.05)
        assert not isinstance(caught.value, OutcomeUnknown)
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await connection.execute("SELECT 1")
        await transaction.rollback()
        assert await connection.fetchval("SELECT 5") == 5
    assert await pool.fetchval("SELECT pg_backend_pid()") != pid


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_pools_command_timeout_holds_here_too(watch: Watch) -> None:
    """For every call that names no limit of its own."""
    async with watch.pool(max_size=1, command_timeout=0.05) as pool:
        async with pool.acquire() as connection:
            with pytest.raises(CallTimeout, match=r"within 0\.05 s"):
                await connection.execute("SELECT pg_sleep(30)")
        async with pool.acquire() as connection:
            await connection.execute("SELECT pg_sleep(0.06)", timeout=5)


# one call at a time, one loop, no leaks


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_one_call_at_a_time(pool: Pool) -> None:
    """A second one is refused before anything is sent; the first is not disturbed."""
    async with pool.acquire() as connection:
        first = asyncio.create_task(connection.fetchval("SELECT 1 FROM pg_sleep(0.02)"))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match=r"fetchval\(\) runs on this connection; execute\(\) has to wait"):
            await connection.execute("SELECT 2")
        assert await first == 1
        assert await connection.fetchval("SELECT 2") == 2


async def test_a_connection_given_back_during_a_call_goes_back_when_it_ends(pool: Pool) -> None:
    """The call of the other task is not damaged, and nobody gets a busy session."""
    connection = await pool.acquire()
    running = asyncio.create_task(connection.fetchval("SELECT 1 FROM pg_sleep(0.02)"))
    await asyncio.sleep(0.001)
    connection.release()
    assert count(pool)[1] == 1
    assert await pool.fetchval("SELECT 2") == 2
    assert await running == 1
    with pytest.raises(UsageError):
        await connection.execute("SELECT 1")


async def collected(step: Coroutine[Any, Any, None]) -> None:
    """Do it, and have the garbage collected."""
    await step
    gc.collect()


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
async def test_a_connection_cannot_be_copied(made: Callable[[Any], Any], pool: Pool) -> None:
    """A copy that is forgotten would give back what the original still uses."""
    async with pool.acquire() as connection:
        prepared: Any = await connection.prepare("SELECT 1")
        async with connection.transaction() as transaction:
            factory: Any = prepared.cursor()
            for each in (prepared, transaction, factory, aiter(factory), await connection.cursor("SELECT 1")):
                with pytest.raises(UsageError, match="neither copied nor sent to another process"):
                    made(each)
        for each in (connection, connection._connection):
            with pytest.raises(UsageError, match="neither copied nor sent to another process"):
                made(each)
        gc.collect()
        await asyncio.sleep(0)
        assert pool.stats().in_use == 1
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_forgotten_connection_is_told_and_goes_back(pool: Pool) -> None:
    """When nobody can give it back any more; in debug mode with where it was acquired."""

    async def forget() -> None:
        connection = await pool.acquire()
        assert await connection.fetchval("SELECT 1") == 1

    with pytest.warns(ResourceWarning, match="never given back to its pool; with debug=True"):
        await collected(forget())
    assert await pool.fetchval("SELECT 2", timeout=1) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_forgotten_connection_goes_back_even_where_warnings_are_errors(pool: Pool) -> None:
    """The warning is the last thing that happens."""

    async def forget() -> None:
        await pool.acquire()

    await collected(forget())
    assert await pool.fetchval("SELECT 2", timeout=1) == 2


async def test_a_forgotten_connection_that_broke_frees_its_place(pool: Pool) -> None:
    """The transport may give up a connection without telling anybody; there is nothing to warn of."""

    async def forget() -> None:
        connection = await pool.acquire()
        connection._connection._protocol.abort()

    await collected(forget())
    assert await pool.fetchval("SELECT 2", timeout=1) == 2


async def test_in_debug_mode_the_warning_tells_where_it_was_acquired(watch: Watch) -> None:
    """The stack of the `acquire` call."""
    async with watch.pool(max_size=1, debug=True) as pool:

        async def forget() -> None:
            await pool.acquire()

        with pytest.warns(ResourceWarning, match=r"(?s)acquired here:.*test_acquired\.py.*await pool\.acquire\(\)"):
            await collected(forget())
        asyncio.get_running_loop().set_debug(True)
        try:
            with pytest.warns(ResourceWarning, match="acquired here"):
                await collected(forget())
        finally:
            asyncio.get_running_loop().set_debug(False)
        assert await pool.fetchval("SELECT 2", timeout=1) == 2


async def test_a_connection_given_back_in_time_is_no_leak(pool: Pool) -> None:
    """No warning, whatever is collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with pool.acquire() as connection:
            statement = await connection.prepare("SELECT 1")
            assert isinstance(connection, AcquiredConnection)
        del connection, statement
        gc.collect()


async def test_another_loop_is_refused(pool: Pool) -> None:
    """With a clear error and at once; the loop it belongs to notices nothing."""
    connection = await pool.acquire()

    def elsewhere() -> list[str]:
        async def use() -> list[str]:
            told = []
            calls = [
                lambda: pool.execute("SELECT 1"),
                lambda: pool.fetchval("SELECT 1"),
                lambda: pool.acquire().__aenter__(),
                lambda: pool.wait_ready(),
                lambda: pool.refresh_topology(),
                lambda: pool.explain_route("SELECT 1"),
                lambda: pool.open(),
                lambda: connection.execute("SELECT 1"),
                lambda: pool.release(connection),
            ]
            for call in calls:
                with pytest.raises(UsageError, match="loop") as caught:
                    await call()
                told.append(str(caught.value))
            return told

        return asyncio.run(use())

    told = await asyncio.to_thread(elsewhere)
    assert len(told) == 9
    assert await connection.fetchval("SELECT 1") == 1
    connection.release()


# pool.transaction


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_transaction_of_the_pool(pool: Pool) -> None:
    """Committed at the end, rolled back on an error, given back in both cases."""
    await pool.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
    async with pool.transaction(isolation="repeatable_read") as connection:
        assert await connection.fetchval("SHOW transaction_isolation") == "repeatable read"
        await connection.execute("INSERT INTO kept VALUES (1)")

    async def fail() -> None:
        async with pool.transaction() as connection:
            await connection.execute("INSERT INTO kept VALUES (2)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(UsageError):
        await connection.fetch("SELECT 1")
    with pytest.raises(ValueError, match="isolation"):
        await pool.transaction(isolation="none").__aenter__()
    assert [row[0] for row in await pool.fetch("SELECT n FROM kept")] == [1]
    await pool.execute("DROP TABLE kept")
    await idle(pool)
