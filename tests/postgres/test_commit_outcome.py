"""What became of a COMMIT without an answer: never guessed, and asked of the server where the caller wants that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from typing import Any

import asyncpg
import pytest

from picopyn.dialects.postgres.outcome import FATE, MARK
from picopyn.errors import ConnectionLost, OutcomeUnknown
from picopyn.testing import FaultProxy, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.postgres.real import address, through
from tests.threads import FACADES

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

#: Where the link is cut: COMMIT does not arrive, or so many bytes of its answer of 18 (`CommandComplete` has 12) come.
MOMENTS = (None, 0, 1, 5, 11, 12, 13, 17, 18)


@pytest.fixture
async def ledger(admin: Any) -> AsyncIterator[str]:
    """A table that takes the same entry twice."""
    await admin.execute("DROP TABLE IF EXISTS ledger; CREATE TABLE ledger (entry int)")
    yield "ledger"
    await admin.execute("DROP TABLE ledger")


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultProxy]:
    """The link to the server."""
    with FaultProxy(*address(postgres)) as proxy:
        yield proxy


async def entries(admin: Any) -> Counter[int]:
    return Counter({row[0]: row[1] for row in await admin.fetch("SELECT entry, count(*) FROM ledger GROUP BY entry")})


@pytest.mark.timeout(900)
@both
@pytest.mark.parametrize(
    ("dialect", "resolve"),
    [("postgres", False), ("postgres", True), ("yugabyte", False)],
    ids=["told", "resolved", "yugabyte"],
)
async def test_no_entry_is_lost_and_none_is_made_twice(
    postgres: PostgresServer,
    proxy: FaultProxy,
    open_pool: OpenPool,
    ledger: str,
    admin: Any,
    full_size: bool,
    dialect: str,
    resolve: bool,
) -> None:
    """Wherever the link is cut: what returned is there once; what is unknown, once at most. Resolved, nothing is."""
    dsn = through(postgres, proxy.port)
    pool = await open_pool(dsn, dialect=dialect)
    unknown: set[int] = set()
    count = (500 if dialect == "yugabyte" else 250) if full_size else 18  # a thousand of each in all
    moments = cycle(MOMENTS)

    def entry(number: int, cuts: list[int | None]) -> Any:
        async def work(connection: Any) -> int:
            await connection.execute("INSERT INTO ledger VALUES ($1)", number)
            if cuts:
                proxy.cut_at(b"COMMIT", answered=cuts.pop())
            return number

        return work

    for number in range(count):
        try:
            assert await pool.run_transaction(entry(number, [next(moments)]), resolve=resolve) == number
        except OutcomeUnknown:
            unknown.add(number)
    found = await entries(admin)
    assert set(found.values()) == {1}
    if resolve:
        assert not unknown
        assert found.keys() == set(range(count))
    else:
        assert unknown
        assert found.keys() | unknown == set(range(count))


@both
async def test_a_transaction_that_was_not_committed_runs_again(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool
) -> None:
    """Felled a second time, it says that nothing took effect."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")
    runs: list[int] = []

    def reading(cuts: int) -> Any:
        async def work(connection: Any) -> Any:
            runs.append(1)
            if len(runs) <= cuts:
                proxy.cut_at(b"COMMIT")
            return await connection.fetchval("SELECT 7")

        return work

    assert await pool.run_transaction(reading(1), resolve=True) == 7
    assert len(runs) == 2
    runs.clear()
    with pytest.raises(ConnectionLost, match="rolled back") as lost:
        await pool.run_transaction(reading(9), resolve=True)
    assert not isinstance(lost.value, OutcomeUnknown)


@both
async def test_a_notification_is_told_once_although_nothing_was_written_before_commit(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, admin: Any
) -> None:
    """COMMIT itself writes it, so a transaction without a number may have an effect all the same."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")
    heard: list[str] = []
    runs: list[int] = []
    await admin.add_listener("told_once", lambda *told: heard.append(told[-1]))

    async def work(connection: Any) -> None:
        runs.append(1)
        await connection.fetchval("SELECT pg_notify('told_once', $1)", f"run {len(runs)}")
        if len(runs) == 1:
            proxy.cut_at(b"COMMIT", answered=0)

    await pool.run_transaction(work, resolve=True)
    await admin.execute("NOTIFY told_once, 'end'")
    await until(lambda: heard[-1:] == ["end"])
    assert heard == ["run 1", "end"]


@both
async def test_what_the_server_cannot_tell_stays_unknown(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, ledger: str
) -> None:
    """Nobody answers within the limit that the caller set for all."""
    pool = await open_pool(through(postgres, proxy.port), dialect="postgres")

    async def work(connection: Any) -> None:
        await connection.execute("INSERT INTO ledger VALUES (1)")
        proxy.cut_at(b"COMMIT", answered=0)
        proxy.refuse()

    with pytest.raises(OutcomeUnknown):
        await pool.run_transaction(work, resolve=True, timeout=3)
    proxy.let_pass()


async def test_a_number_means_nothing_after_a_crash() -> None:
    """Numbers that had not reached the disk are given again, so the server says nothing about them."""
    with PostgresServer(port=0) as server:
        first = await asyncpg.connect(server.dsn)
        await first.execute("CREATE TABLE t (id int)")
        transaction = first.transaction()
        await transaction.start()
        await first.execute("INSERT INTO t VALUES (1)")
        mark = tuple(await first.fetchrow(MARK))
        second = await asyncpg.connect(server.dsn)
        assert await second.fetchval(FATE, *mark) == "in progress"
        await transaction.commit()
        assert await second.fetchval(FATE, *mark) == "committed"
        os.kill(second.get_server_pid(), signal.SIGKILL)
        again = await _connected(server)
        assert await again.fetchval(FATE, *mark) is None
        for connection in (first, second, again):
            connection.terminate()


async def _connected(server: PostgresServer) -> Any:
    """A connection to the server once it has noticed the crash and recovered."""
    while True:
        try:
            connection = await asyncpg.connect(server.dsn)
            await connection.fetchval("SELECT pg_sleep(0.2)")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            await asyncio.sleep(0.05)
        else:
            return connection
