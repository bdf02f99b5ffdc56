"""Transactions on a YugabyteDB: conflicts run again, and what became of a COMMIT is never guessed.

The laws are those of `tests/postgres/test_run_transaction.py` and `test_commit_outcome.py`; here they run over nodes,
and over a real cluster where one is named. What cuts a connection is a proxy on the client's side.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import asyncpg
import pytest

from picopyn.errors import OutcomeUnknown
from picopyn.testing import FaultProxy
from tests.postgres.conftest import OpenPool
from tests.postgres.test_commit_outcome import MOMENTS
from tests.threads import FACADES
from tests.yugabyte.conftest import LONG, Cluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

TABLE = "picopyn_ledger"


@pytest.fixture
def ledger(target: Cluster) -> Iterator[Cluster]:
    """The cluster with a table that takes the same entry twice, and one with a counter."""
    target.execute(f"DROP TABLE IF EXISTS {TABLE}; DROP TABLE IF EXISTS {TABLE}_sum")
    target.execute(f"CREATE TABLE {TABLE} (entry int)")
    target.execute(f"CREATE TABLE {TABLE}_sum (id int PRIMARY KEY, total int)")
    target.execute(f"INSERT INTO {TABLE}_sum VALUES (1, 0)")
    yield target
    target.execute(f"DROP TABLE {TABLE}; DROP TABLE {TABLE}_sum")


@both
async def test_transactions_that_meet_on_different_nodes_run_again(
    ledger: Cluster, open_pool: OpenPool, facade: str
) -> None:
    """Each reads and writes the same row, serializable: none is lost, none counts twice."""
    pool = await open_pool(ledger.dsn, load_balance=True, min_size=2, max_size=4)
    await pool.wait_ready(timeout=LONG)
    runs: list[int] = []

    async def add(connection: Any) -> None:
        runs.append(1)
        total = await connection.fetchval(f"SELECT total FROM {TABLE}_sum WHERE id = 1")
        await connection.execute(f"UPDATE {TABLE}_sum SET total = $1 WHERE id = 1", total + 1)

    callers, each = (4, 3) if facade == "asynchronous" else (3, 2)

    async def caller() -> None:
        for _ in range(each):
            await pool.run_transaction(add, isolation="serializable", retries=200)

    await asyncio.gather(*(caller() for _ in range(callers)))
    assert ledger.execute(f"SELECT total FROM {TABLE}_sum") == [(str(callers * each),)]
    assert len(runs) >= callers * each


@both
async def test_an_error_of_the_server_is_the_answer_and_leaves_nothing(ledger: Cluster, open_pool: OpenPool) -> None:
    """Also inside a block that is held: what came before it is undone, and the connection is good again."""
    pool = await open_pool(ledger.dsn, load_balance=True, max_size=1)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with pool.transaction() as connection:
            await connection.execute(f"INSERT INTO {TABLE} VALUES (1)")
            await connection.execute(f"INSERT INTO {TABLE}_sum VALUES (1, 1)")
    assert await pool.fetchval(f"SELECT count(*) FROM {TABLE}") == 0
    async with pool.transaction() as connection:
        await connection.execute(f"INSERT INTO {TABLE} VALUES (2)")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with connection.transaction():
                await connection.execute(f"INSERT INTO {TABLE}_sum VALUES (1, 1)")
    assert await pool.fetchval(f"SELECT entry FROM {TABLE}") == 2


@pytest.mark.timeout(900)
@both
async def test_no_entry_is_lost_and_none_is_made_twice(ledger: Cluster, open_pool: OpenPool, full_size: bool) -> None:
    """Wherever the link is cut around COMMIT: what returned is there once, what is unknown once at most."""
    with FaultProxy(*ledger.address_of("n1")) as proxy:
        dsn = ledger.dsn_of("n1").replace("{}:{}".format(*ledger.address_of("n1")), f"127.0.0.1:{proxy.port}")
        pool = await open_pool(dsn, dialect="yugabyte")
        unknown: set[int] = set()
        count = 250 if full_size else 9
        moments = cycle(MOMENTS)

        def entry(number: int, cuts: list[int | None]) -> Any:
            async def work(connection: Any) -> int:
                await connection.execute(f"INSERT INTO {TABLE} VALUES ($1)", number)
                if cuts:
                    proxy.cut_at(b"COMMIT", answered=cuts.pop())
                return number

            return work

        for number in range(count):
            try:
                assert await pool.run_transaction(entry(number, [next(moments)])) == number
            except OutcomeUnknown:
                unknown.add(number)
        await pool.close()
    rows = ledger.execute(f"SELECT entry FROM {TABLE}")
    found = Counter(int(entry or 0) for [entry] in rows)
    assert unknown
    assert set(found.values()) == {1}
    assert found.keys() | unknown == set(range(count))
