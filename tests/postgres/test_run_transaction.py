"""`run_transaction`: run again where that is safe, and what COMMIT did is never guessed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn import sync
from picopyn.asynchronous import Pool
from picopyn.errors import (
    CallTimeout,
    ConnectionLost,
    Fault,
    OutcomeUnknown,
    PoolClosed,
    UsageError,
    WriteLost,
    WriteTimeout,
)
from picopyn.observe import Event, OutcomeLost, StatementRetried
from picopyn.testing import FaultProxy, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.postgres.real import address, through
from tests.threads import FACADES

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)


@pytest.fixture
async def table(admin: Any) -> AsyncIterator[str]:
    """A table of this test."""
    await admin.execute("DROP TABLE IF EXISTS account; CREATE TABLE account (id int PRIMARY KEY, cents int)")
    await admin.execute("INSERT INTO account VALUES (1, 100), (2, 100)")
    yield "account"
    await admin.execute("DROP TABLE account")


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultProxy]:
    """The link to the server."""
    with FaultProxy(*address(postgres)) as proxy:
        yield proxy


async def add(connection: Any, cents: int, account: int = 1) -> None:
    await connection.execute("UPDATE account SET cents = cents + $1 WHERE id = $2", cents, account)


async def balance(admin: Any, account: int = 1) -> int:
    return int(await admin.fetchval("SELECT cents FROM account WHERE id = $1", account))


async def test_what_the_work_returns_is_committed(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """With the options of the transaction, and savepoints inside."""
    pool = await open_pool(postgres.dsn)

    async def work(connection: Any) -> tuple[str, int]:
        await add(connection, 1)
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await add(connection, 1000)
                raise ZeroDivisionError
        async with connection.transaction():
            await add(connection, 10)
        isolation = await connection.fetchval("SHOW transaction_isolation")
        return isolation, await connection.fetchval("SELECT cents FROM account WHERE id = 1")

    assert await pool.run_transaction(work, isolation="serializable") == ("serializable", 111)
    assert await balance(admin) == 111


async def test_an_error_of_the_work_rolls_back_and_is_the_answer(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Once: nobody asked to run it again. So with an error of another connection, whatever its code."""
    pool = await open_pool(postgres.dsn)
    runs: list[Exception] = []
    elsewhere = asyncpg.SerializationError("of somebody else")

    def fail(error: Exception) -> Callable[[Any], Awaitable[None]]:
        async def work(connection: Any) -> None:
            runs.append(error)
            await add(connection, 1)
            raise error

        return work

    for error in (ValueError("no"), elsewhere, ConnectionLost("of somebody else")):
        with pytest.raises(type(error)) as caught:
            await pool.run_transaction(fail(error))
        assert caught.value is error
    assert len(runs) == 3

    async def divide(connection: Any) -> None:
        runs.append(ValueError())
        await connection.execute("SELECT 1 / 0")

    with pytest.raises(asyncpg.DivisionByZeroError):
        await pool.run_transaction(divide)
    assert len(runs) == 4
    assert await balance(admin) == 100
    await until(lambda: pool.stats().in_use == 0)  # what was borrowed is cleared in the background


async def test_a_statement_that_times_out_is_the_answer(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """What took too long once mostly does so again; what the work did before is undone."""
    pool = await open_pool(postgres.dsn)
    runs = 0

    async def work(connection: Any) -> None:
        nonlocal runs
        runs += 1
        await add(connection, 1)
        await connection.execute("SELECT pg_sleep(30)", timeout=0.1)

    with pytest.raises(CallTimeout) as caught:
        await pool.run_transaction(work, retries=3)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert (runs, await balance(admin)) == (1, 100)


async def met(barrier: threading.Barrier) -> None:
    """Wait for the others, whatever event loop they are in."""
    await asyncio.to_thread(barrier.wait, 20)


async def test_transactions_that_meet_run_again_until_all_are_done(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Serialization failures (40001): the counter is exact, and nobody sees an error."""
    events: list[Event] = []
    pool = await open_pool(postgres.dsn, max_size=4, on_event=events.append)
    both_have_read = threading.Barrier(2)
    runs: list[int] = []

    def increment(number: int) -> Callable[[Any], Awaitable[None]]:
        async def work(connection: Any) -> None:
            cents = await connection.fetchval("SELECT cents FROM account WHERE id = 1")
            runs.append(number)
            if runs.count(number) == 1:
                await met(both_have_read)
            await connection.execute("UPDATE account SET cents = $1 WHERE id = 1", cents + 1)

        return work

    await asyncio.gather(*(pool.run_transaction(increment(n), isolation="serializable") for n in (0, 1)))
    assert await balance(admin) == 102
    assert sorted(runs) in ([0, 0, 1], [0, 1, 1])
    assert [event.fault for event in events if isinstance(event, StatementRetried)] == [Fault.CONFLICT]
    assert pool.stats().retries == {"CONFLICT": 1}


async def test_a_deadlock_ends_well(postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any) -> None:
    """The one whom the server picks (40P01) runs again, after the other."""
    pool = await open_pool(postgres.dsn)
    both_hold_one = threading.Barrier(2)
    runs: list[int] = []

    def transfer(source: int, target: int) -> Callable[[Any], Awaitable[None]]:
        async def work(connection: Any) -> None:
            await connection.execute("SET LOCAL deadlock_timeout = '10ms'")
            await add(connection, -10, source)
            runs.append(source)
            if runs.count(source) == 1:
                await met(both_hold_one)
            await add(connection, 10, target)

        return work

    await asyncio.gather(pool.run_transaction(transfer(1, 2)), pool.run_transaction(transfer(2, 1)))
    assert (await balance(admin, 1), await balance(admin, 2)) == (100, 100)
    assert len(runs) == 3


async def test_the_number_of_retries_is_the_callers(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Afterwards the error is the server's own, and tells of every attempt; no value is in the notes."""
    pool = await open_pool(postgres.dsn)
    runs: list[int] = []

    async def work(connection: Any) -> None:
        runs.append(1)
        await add(connection, 1)
        await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '40001'; END $$")

    for retries in (0, 2):
        runs.clear()
        with pytest.raises(asyncpg.SerializationError) as caught:
            await pool.run_transaction(work, retries=retries)
        assert len(runs) == retries + 1
        notes = [note for note in caught.value.__notes__ if "attempt" in note]
        assert len(notes) == retries
        assert "secret" not in "".join(notes)
    assert await balance(admin) == 100


async def test_what_the_server_refuses_at_commit_is_rolled_back(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """The server says so, so nothing is unknown; and what cannot succeed is not run again."""
    pool = await open_pool(postgres.dsn)
    runs: list[int] = []

    async def work(connection: Any) -> None:
        runs.append(1)
        await add(connection, 1)
        await connection.execute("CREATE TEMP TABLE a (id int PRIMARY KEY)")
        await connection.execute("CREATE TEMP TABLE b (id int REFERENCES a DEFERRABLE INITIALLY DEFERRED)")
        await connection.execute("INSERT INTO b VALUES (1)")

    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await pool.run_transaction(work)
    assert runs == [1]
    assert await balance(admin) == 100

    async def swallow(connection: Any) -> None:
        await add(connection, 1)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 1 / 0")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await pool.run_transaction(swallow)
    assert await balance(admin) == 100


async def test_a_connection_that_breaks_before_commit_costs_an_attempt(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Nothing took effect, so all of it runs again; one that fells its session twice does not a third time."""
    events: list[Event] = []
    pool = await open_pool(postgres.dsn, on_event=events.append)
    runs: list[int] = []

    def suicides(times: int) -> Callable[[Any], Awaitable[None]]:
        async def work(connection: Any) -> None:
            runs.append(1)
            await add(connection, 1)
            if len(runs) <= times:
                async with connection.transaction():  # a savepoint decides nothing
                    await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        return work

    await pool.run_transaction(suicides(1))
    assert await balance(admin) == 101
    runs.clear()
    with pytest.raises(ConnectionLost) as caught:
        await pool.run_transaction(suicides(9))
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(runs) == 2
    assert await balance(admin) == 101
    assert not [event for event in events if isinstance(event, OutcomeLost)]
    assert pool.stats().outcome_unknown == 0


async def test_a_link_cut_before_commit_is_sent(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Known before COMMIT: it is not sent, so everybody can tell; the work runs again."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")
    runs: list[int] = []

    async def work(connection: Any) -> None:
        runs.append(1)
        await add(connection, 1)
        if len(runs) == 1:
            proxy.cut()
            while not connection.is_closed():
                await asyncio.sleep(0.005)

    await pool.run_transaction(work)
    assert len(runs) == 2
    assert await balance(admin) == 101


#: COMMIT's answer: `CommandComplete` has 12 bytes, `ReadyForQuery` 6.
@pytest.mark.parametrize(
    ("answered", "committed"),
    [
        pytest.param(None, False, id="sent, never arrived"),
        pytest.param(0, True, id="arrived, answer lost"),
        pytest.param(7, True, id="answer lost in the middle"),
    ],
)
async def test_a_commit_without_an_answer_is_unknown(
    postgres: PostgresServer,
    proxy: FaultProxy,
    open_pool: OpenPool,
    table: str,
    admin: Any,
    answered: int | None,
    committed: bool,
) -> None:
    """Nobody here can tell; so it is told as unknown, and not run again."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")
    runs: list[int] = []

    async def work(connection: Any) -> None:
        runs.append(1)
        await add(connection, 1)
        proxy.cut_at(b"COMMIT", answered=answered)

    with pytest.raises(WriteLost, match="commit"):
        await pool.run_transaction(work)
    assert runs == [1]
    assert await balance(admin) == 100 + committed
    assert pool.stats().outcome_unknown == 1


async def test_a_commit_whose_answer_came_is_committed(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """Whatever happens to the link right afterwards."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")

    async def work(connection: Any) -> str:
        await add(connection, 1)
        proxy.cut_at(b"COMMIT", answered=18)
        return "done"

    assert await pool.run_transaction(work) == "done"
    assert await balance(admin) == 101
    assert pool.stats().outcome_unknown == 0


async def test_the_limit_is_for_all_attempts(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """In the work, nothing took effect; with COMMIT on its way, it may have; while resting, the last error is told."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")

    async def hang(connection: Any) -> None:
        await add(connection, 1)
        await connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(CallTimeout, match=r"0\.5 s") as caught:
        await pool.run_transaction(hang, timeout=0.5)
    assert not isinstance(caught.value, OutcomeUnknown)
    await admin.execute("UPDATE account SET cents = cents WHERE id = 1")  # no lock was left behind
    assert await balance(admin) == 100

    async def conflict(connection: Any) -> None:
        await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")

    with pytest.raises(CallTimeout) as caught:
        await pool.run_transaction(conflict, retries=10**9, timeout=0.3)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert any("attempt 1 " in note for note in caught.value.__notes__)

    async def silence(connection: Any) -> None:
        await add(connection, 1)
        proxy.mute()

    with pytest.raises(WriteTimeout):
        await pool.run_transaction(silence, timeout=1)
    proxy.let_pass()
    proxy.cut()


@pytest.mark.parametrize(
    "text", ["COMMIT", "rollback work", "-- so\nEND", "/* so */ Abort;", "PREPARE TRANSACTION 'x'"]
)
async def test_a_statement_that_would_end_the_transaction_is_not_sent(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any, text: str
) -> None:
    """The transaction is the pool's to end; who minds the error goes on in it, and who does not is rolled back."""
    pool = await open_pool(postgres.dsn)

    def ending(swallow: bool) -> Callable[[Any], Awaitable[None]]:
        async def work(connection: Any) -> None:
            await add(connection, 1)
            try:
                await connection.execute(text)
            except UsageError as error:
                if not swallow:
                    raise
                assert "execute() was not sent: it would end the transaction" in str(error)  # noqa: PT017
            await connection.execute("SAVEPOINT here")
            await add(connection, 1000)
            await connection.execute("ROLLBACK TO here")

        return work

    with pytest.raises(UsageError, match="leave the block to commit"):
        await pool.run_transaction(ending(swallow=False))
    assert await balance(admin) == 100
    await pool.run_transaction(ending(swallow=True))
    assert await balance(admin) == 101


@pytest.mark.parametrize(("last", "cents"), [("ROLLBACK", 100), ("COMMIT", 101)])
async def test_a_text_that_ends_the_transaction_on_its_way_is_told(
    postgres: PostgresServer, open_pool: OpenPool, table: str, admin: Any, last: str, cents: int
) -> None:
    """By that call, and by all after it, none of which is sent; never as committed. The connection goes on."""
    pool = await open_pool(postgres.dsn, max_size=1)
    text = f"UPDATE account SET cents = cents + 1 WHERE id = 1; {last}"

    async def work(connection: Any) -> None:
        with pytest.raises(UsageError, match=r"execute\(\) has ended the transaction"):
            await connection.execute(text)
        with pytest.raises(UsageError, match="was not sent: a call before it has ended"):
            await add(connection, 1000)

    async def in_a_block(connection: Any) -> None:
        async with connection.transaction():
            await work(connection)

    for attempt in (work, in_a_block):
        with pytest.raises(UsageError, match="was not sent: a call before it has ended"):
            await pool.run_transaction(attempt)
        assert await balance(admin) == cents
        await admin.execute("UPDATE account SET cents = 100")
    async with pool.acquire() as connection:
        with pytest.raises(UsageError, match=r"commit\(\) was not sent"):
            async with connection.transaction():
                await work(connection)
        await admin.execute("UPDATE account SET cents = 100")
        async with connection.transaction():
            await add(connection, 1)
        await connection.execute("BEGIN")  # who begins it himself ends it himself
        await add(connection, 1)
        await connection.execute("COMMIT")
    assert await balance(admin) == 102


async def test_a_text_that_ends_the_transaction_and_gets_no_answer_is_unknown(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, table: str, admin: Any
) -> None:
    """It may have been committed, so it is not run again."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")
    runs: list[int] = []

    async def work(connection: Any) -> None:
        runs.append(1)
        proxy.cut_at(b"COMMIT", answered=0)
        await connection.execute("UPDATE account SET cents = cents + 1 WHERE id = 1; COMMIT")

    with pytest.raises(WriteLost):
        await pool.run_transaction(work)
    assert runs == [1]
    assert await balance(admin) == 101


async def test_work_is_what_the_facade_can_run(postgres: PostgresServer, facade: str) -> None:
    """A coroutine function where calls are awaited, a plain function where they block; else it says so.

    A plain function may give something to await: that it does not is seen when it was called, and is rolled back.
    """

    async def awaited(connection: Any) -> None:
        raise AssertionError

    def plain(connection: Any) -> None:
        return None

    def generates(connection: Any) -> Iterator[int]:
        yield 1

    async def generates_later(connection: Any) -> AsyncIterator[int]:
        yield 1

    class Awaited:
        async def __call__(self, connection: Any) -> None:
            raise AssertionError

    never: list[tuple[Any, str]] = [
        (None, "of the connection, not None"),
        ("SELECT 1", "of the connection, not an object of type str"),
        (generates, "not a generator function"),
        (generates_later, "not an async generator function"),
    ]

    def in_a_thread() -> None:
        pool = sync.Pool(postgres.dsn)
        for work, match in [*never, (awaited, "a plain function .* not a coroutine"), (Awaited(), "not a coroutine")]:
            with pytest.raises(TypeError, match=match):  # not open: no connection was asked for
                pool.run_transaction(work)
        with pool:
            with pytest.raises(TypeError, match="gave a coroutine"):
                pool.run_transaction(lambda connection: awaited(connection))
            assert pool.run_transaction(plain) is None

    if facade == "sync":
        await asyncio.to_thread(in_a_thread)
        return
    waiting = Pool(postgres.dsn)
    for work, match in never:
        with pytest.raises(TypeError, match=match):
            await waiting.run_transaction(work)
    async with waiting:
        with pytest.raises(TypeError, match="takes a coroutine function"):
            await waiting.run_transaction(plain)  # type: ignore[arg-type]
        assert await waiting.run_transaction(lambda connection: connection.fetchval("SELECT 1")) == 1


async def test_bad_input_is_refused_before_anything_is_sent(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """In words that say what it should be."""
    pool = await open_pool(postgres.dsn, min_size=1)

    async def work(connection: Any) -> None:
        raise AssertionError

    wrong: list[dict[str, Any]] = [{"retries": -1}, {"retries": True}, {"retries": 1.5}]
    for options in wrong:
        with pytest.raises(ValueError, match="retries must be a whole number of at least 0"):
            await pool.run_transaction(work, **options)
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout must be"):
            await pool.run_transaction(work, timeout=timeout)
    with pytest.raises(ValueError, match="role must be one of"):
        await pool.run_transaction(work, role="boss")
    with pytest.raises(ValueError, match="isolation"):
        await pool.run_transaction(work, isolation="none")
    await pool.close()
    with pytest.raises(PoolClosed):
        await pool.run_transaction(work)


async def test_the_primary_dies_under_a_transaction(
    picopyn_postgres_cluster: Any, open_pool: OpenPool, facade: str
) -> None:
    """It runs again at the one that was promoted, and is there once."""
    servers = picopyn_postgres_cluster(replicas=1)
    servers.execute("CREATE TABLE account (id int PRIMARY KEY, cents int)")
    servers.execute("INSERT INTO account VALUES (1, 100)")
    servers.wait_caught_up()
    old = servers.primary
    pool = await open_pool(servers.dsn, acquire_timeout=30)
    runs: list[int] = []

    async def work(connection: Any) -> None:
        await add(connection, 1)
        runs.append(connection.node.port)
        if len(runs) == 1:
            await asyncio.to_thread(servers.kill, old)
            await asyncio.to_thread(servers.promote)
        await connection.execute("SELECT 1")

    await pool.run_transaction(work, timeout=60)
    assert len(runs) == 2
    assert runs[1] == servers.address_of(servers.primary)[1] != runs[0]
    assert servers.execute("SELECT cents FROM account", servers.primary) == [("101",)]
