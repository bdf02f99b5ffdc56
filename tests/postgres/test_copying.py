"""COPY on a held connection: what asyncpg leaves open when a sink fails or a server stands still."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from typing import Any

import pytest

from picopyn.asynchronous import cancel_requests
from picopyn.errors import CallTimeout, ConnectionLost, PicopynError, UsageError
from picopyn.sync import cancel_request
from picopyn.testing import FaultProxy, PostgresServer
from tests.login import with_words
from tests.postgres.conftest import OpenPool
from tests.postgres.late_cancels import LateCancels
from tests.postgres.real import address, through
from tests.threads import FACADES

#: Much more than sockets and buffers between two processes hold.
MUCH = 64 * 2**20


class SinkFailed(Exception):  # noqa: N818 - names the event
    """The sink's own error."""


async def refusing(data: bytes) -> None:
    """A sink that fails at the first byte."""
    raise SinkFailed


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("rows", [1, 200_000])
async def test_after_a_sink_that_failed_no_call_waits_for_ever(
    facade: str, postgres: PostgresServer, open_pool: OpenPool, rows: int
) -> None:
    """Its error is told. asyncpg cancels the COPY, and waits for that for ever where it had ended.

    So the asynchronous connection is dropped; the blocking one takes the rest of the COPY, and goes on.
    """
    pool = await open_pool(postgres.dsn, max_size=1, reset=False)
    async with pool.acquire() as connection:
        with pytest.raises(SinkFailed):
            await connection.copy_from_query(f"SELECT * FROM generate_series(1, {rows})", output=refusing)
        with pytest.raises(ConnectionLost) if facade == "asynchronous" else nullcontext():
            assert await connection.fetchval("SELECT 1") == 1
    assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("query", ["SELECT 1", "SELECT 1 / (20000 - n) FROM generate_series(1, 20000) n"])
async def test_a_request_to_end_a_copy_that_comes_late_ends_nothing_else(
    facade: str, postgres: PostgresServer, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """It is under way when the COPY has ended by itself: the connection is not used before it has arrived, or never."""
    for module in (cancel_request, cancel_requests):
        monkeypatch.setattr(module, "LIMIT", 0.1)
    with closing(LateCancels(*address(postgres))) as way:
        dsn = with_words(through(postgres, way.port), "sslmode=disable")
        pool = await open_pool(dsn, max_size=1, dialect="postgres", reset=False)
        async with pool.acquire() as connection:
            with pytest.raises(SinkFailed):
                await connection.copy_from_query(query, output=refusing)
            assert await asyncio.to_thread(way.held.acquire, timeout=30)
            running = asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.3)"))
            await asyncio.to_thread(way.deliver)
            with suppress(ConnectionLost):
                await running
        await pool.execute("SELECT 1")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_sink_of_the_wrong_kind_costs_nothing(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """It is refused before anything is sent."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as connection:
        with pytest.raises(TypeError):
            await connection.copy_from_query("SELECT 1", output=7)
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_servers_word_in_a_copy_costs_nothing(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """The COPY has ended by it."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as connection:
        with pytest.raises(Exception, match="division by zero"):
            await connection.copy_from_query("SELECT 1 / (5 - n) FROM generate_series(1, 9) n", output=io.BytesIO())
        assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize(("end", "rows"), [("terminate", 1), ("terminate", 300_000), ("cut", 300_000)])
async def test_a_connection_that_ends_while_a_sink_takes_its_bytes_is_lost(
    postgres: PostgresServer, open_pool: OpenPool, end: str, rows: int
) -> None:
    """Whoever ends it."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await open_pool(through(postgres, proxy.port), max_size=1)
        async with pool.acquire() as connection:

            async def sink(_: bytes) -> None:
                connection.terminate() if end == "terminate" else proxy.cut()

            with pytest.raises(ConnectionLost):
                await connection.copy_from_query(f"SELECT * FROM generate_series(1, {rows})", output=sink)
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["table", "records"])
async def test_a_copy_to_a_server_that_stands_still_ends_with_its_timeout(
    postgres: PostgresServer, open_pool: OpenPool, how: str
) -> None:
    """Also where it waits for permission to write: asyncpg looks at the timeout nowhere there."""
    with FaultProxy(*address(postgres)) as proxy:
        dsn = through(postgres, proxy.port)
        pool = await open_pool(dsn, max_size=1, dialect="postgres")
        async with pool.acquire() as connection:
            await connection.execute("CREATE TEMP TABLE much (v text)")

            async def source() -> Any:
                for number in range(MUCH // 2**16):
                    if number == 1:
                        proxy.freeze()
                    yield b"x" * (2**16 - 1) + b"\n"

            async def records() -> Any:
                async for line in source():
                    yield (line.decode().strip(),)

            with pytest.raises(CallTimeout):
                async with asyncio.timeout(30):
                    if how == "table":
                        await connection.copy_to_table("much", source=source(), timeout=0.5)
                    else:
                        await connection.copy_records_to_table("much", records=records(), timeout=0.5)
        proxy.let_pass()


class Full:
    """A file on a disk that is full."""

    def write(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")


class Late:
    """A file on a disk that does not answer."""

    def write(self, data: bytes) -> None:
        raise TimeoutError("the sink's own")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("rows", [1, 300_000])
@pytest.mark.parametrize(
    ("output", "error"), [(Full(), "No space left"), ("/dev/full", "No space left"), (Late(), "the sink's own")]
)
async def test_an_error_of_the_sink_is_told_as_it_is(
    postgres: PostgresServer, open_pool: OpenPool, output: Any, error: str, rows: int
) -> None:
    """Whatever type it has: no word of a lost connection, no node in doubt, nothing that may have taken effect.

    Of one row a file learns as late as when it is closed.
    """
    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")
    async with pool.acquire() as connection:
        with pytest.raises(OSError, match=error) as caught:
            await connection.copy_from_query("SELECT * FROM generate_series(1, $1::int)", rows, output=output)
    assert not isinstance(caught.value, PicopynError)
    assert await pool.fetchval("SELECT 1") == 1
    stats = pool.stats()
    assert (stats.outcome_unknown, [node.state for node in stats.nodes.values()]) == (0, ["up"])


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("error", [TimeoutError("the rows' own"), OSError("the rows' own"), SystemExit(3)])
async def test_an_error_where_rows_are_made_is_told_as_it_is(
    postgres: PostgresServer, open_pool: OpenPool, error: BaseException
) -> None:
    """Whatever type it has; asyncpg waits for ever after one that is no `Exception`."""
    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")

    def rows() -> Any:
        yield (1,)
        raise error

    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE made (i int)")
        with pytest.raises(type(error)) as caught:
            async with asyncio.timeout(20):
                await connection.executemany("INSERT INTO made VALUES ($1)", rows())
        assert caught.value is error
    assert await pool.fetchval("SELECT 1") == 1
    assert pool.stats().outcome_unknown == 0


#: Rows of which one has another width than the table (2) → what is said of it.
WRONG_WIDTHS: list[tuple[list[Any], str]] = [
    ([(1, 2), (3, 4, 5)], "row 1 has 3 values, 2 are expected"),
    ([(1, 2, 3)], "row 0 has 3 values, 2 are expected"),
    ([(1, 2), [3, 4], (4141,)], "row 2 has 1 values, 2 are expected"),
    ([()], "row 0 has 0 values, 2 are expected"),
]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_row_of_another_width_is_refused_and_nothing_copied(
    postgres: PostgresServer, open_pool: OpenPool, facade: str
) -> None:
    """Whatever brings it; no value is told, and the connection or another one goes on."""

    async def awaited(rows: list[Any]) -> Any:
        for row in rows:
            yield row

    brought: list[Callable[[list[Any]], Any]] = [list, iter, *([awaited] if facade == "asynchronous" else [])]
    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")
    await pool.execute("DROP TABLE IF EXISTS pairs; CREATE TABLE pairs (a int, b int)")
    try:
        for rows, text in WRONG_WIDTHS:
            for bring in brought:
                for columns in (None, ["b", "a"]):
                    with pytest.raises(UsageError, match=text) as caught:
                        await pool.copy_records("pairs", bring(rows), columns=columns)
                    assert "4141" not in str(caught.value)
        with pytest.raises(UsageError, match="row 1 has 2 values, 1 are expected"):
            await pool.copy_records("pairs", [(1,), (1, 2)], columns=["a"])
        async with pool.acquire() as connection:
            with pytest.raises(UsageError, match="row 1 has 3 values, 2 are expected"):
                await connection.copy_records_to_table("pairs", records=[(1, 2), (3, 4, 5)])
        assert await pool.fetchval("SELECT count(*) FROM pairs") == 0
        assert await pool.copy_records("pairs", [(1, 2), [3, None]]) == "COPY 2"
        assert {node.state for node in pool.stats().nodes.values()} == {"up"}
    finally:
        await pool.execute("DROP TABLE pairs")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_table_that_gets_another_width_is_asked_again_after_a_refusal(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """What is known of it may be of an earlier COPY."""
    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE grows (a int)")
        await connection.copy_records_to_table("grows", records=[(1,)])
        await connection.execute("ALTER TABLE grows ADD b int")
        with pytest.raises(UsageError):
            await connection.copy_records_to_table("grows", records=[(1, 2)])
        assert await connection.copy_records_to_table("grows", records=[(1, 2)]) == "COPY 1"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_rows_that_end_with_a_timeout_of_their_own_end_the_copy(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """It is not taken for the call's, and a generator is closed where another row is refused."""
    closed: list[bool] = []

    def late() -> Any:
        yield (1,)
        raise TimeoutError("the source's own")

    def wide() -> Any:
        try:
            yield (1, 2)
        finally:
            closed.append(True)

    pool = await open_pool(postgres.dsn, max_size=1, dialect="postgres")
    async with pool.acquire() as connection:
        await connection.execute("CREATE TEMP TABLE copied (a int)")
        rows = wide()
        with pytest.raises(UsageError):
            await connection.copy_records_to_table("copied", records=rows)
        assert closed == [True]
        with pytest.raises(TimeoutError, match="the source's own"):
            await connection.copy_records_to_table("copied", records=late())
