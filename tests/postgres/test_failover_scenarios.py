"""Scenarios from bug reports of other drivers about fail-over, retries and credentials, by their names.

`tests/bug-report-scenarios.md` says where the others of these classes are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from picopyn.errors import NoNodeAvailable, OutcomeUnknown, WriteLost
from picopyn.testing import FaultProxy, PostgresServer, ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Invalidating, Talk
from tests.postgres.conftest import OpenPool, until
from tests.postgres.real import address, through
from tests.threads import FACADES

over_both_facades = pytest.mark.parametrize("facade", FACADES, indirect=True)
Measured = Callable[[str, object], None]

#: A scripted server answers 0, a real one 1.
QUESTION = "SELECT $1::int8"


class Doors:
    """The script of a server that lets nobody in for as long as it says so; sessions that exist go on.

    Attributes:
        closed: Whether it does.
        refused: How often it did.
    """

    def __init__(self, sqlstate: str, words: str) -> None:
        self.closed = False
        self.refused = 0
        self._answer = wire.error_response(sqlstate, words)

    async def play(self, talk: Talk) -> None:
        if self.closed:
            self.refused += 1
            talk.send(self._answer)
            return
        talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", "18.0"), wire.READY)
        await Invalidating().play(talk)


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultProxy]:
    """The link to the server."""
    with FaultProxy(*address(postgres)) as proxy:
        yield proxy


@over_both_facades
async def test_failover_starting_up(open_pool: OpenPool, measured: Measured) -> None:
    """A call waits while the only server is starting up, within its limit; then the error says why."""
    doors = Doors("57P03", "the database system is starting up")
    with ScriptedServer(doors, greet=False) as server, FaultProxy("127.0.0.1", server.port) as way:
        dsn = f"postgresql://admin@127.0.0.1:{way.port}/db?sslmode=disable"
        pool = await open_pool(dsn, dialect="postgres", role="any", min_size=1, reset=False)
        assert await pool.fetchval(QUESTION, 1) == 0
        doors.closed = True
        way.cut()
        await until(lambda: pool.stats().idle == 0)
        with pytest.raises(NoNodeAvailable) as caught:
            await pool.fetchval(QUESTION, 1, timeout=0.3)
        assert "starting up" in "".join(caught.value.reasons.values())
        before = doors.refused
        call = asyncio.create_task(pool.fetchval(QUESTION, 1, timeout=60))
        await until(lambda: doors.refused > before + 2)
        doors.closed = False
        assert await call == 0
        measured("attempts while it was starting", doors.refused)
        await pool.close()


@over_both_facades
async def test_failover_one_node_full(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """No call fails while a second node has room; sessions at the full one stay, and it is used again later."""
    doors = Doors("53300", "sorry, too many clients already")
    with ScriptedServer(doors, greet=False) as server:
        full = f"127.0.0.1:{server.port}"
        dsn = f"postgresql://postgres@{full},127.0.0.1:{postgres.port}/postgres?sslmode=disable"
        pool = await open_pool(dsn, dialect="postgres", role="any", min_size=1, max_size=4, reset=False)
        await pool.wait_ready(timeout=30)
        doors.closed = True
        async with pool.acquire(node=full) as connection:
            assert await asyncio.gather(*(pool.fetchval(QUESTION, 1, timeout=60) for _ in range(30))) == [1] * 30
            assert await connection.fetchval(QUESTION, 1) == 0
        doors.closed = False
        async with pool.acquire(node=full), pool.acquire(node=full, timeout=60) as second:
            assert await second.fetchval(QUESTION, 1) == 0
        await pool.close()


@over_both_facades
async def test_retry_duplicates_insert(
    postgres: PostgresServer, proxy: FaultProxy, open_pool: OpenPool, admin: Any, full_size: bool
) -> None:
    """The server has done it, and its answer is lost: never sent again, and told as what may have happened."""
    await admin.execute("DROP TABLE IF EXISTS sent_once; CREATE TABLE sent_once (id serial, what text)")
    dsn = through(postgres, proxy.port)
    pool = await open_pool(dsn, dialect="postgres", max_size=2)
    insert = "INSERT INTO sent_once (what) VALUES ($1)"
    marks = [f"mark {number:04}" for number in range(200 if full_size else 10)]
    for mark in marks:
        proxy.cut_at(mark.encode(), answered=0)
        with pytest.raises(WriteLost):
            await pool.execute(insert, mark)
    proxy.cut_at(b"of many", answered=0)
    with pytest.raises(OutcomeUnknown):
        await pool.executemany(insert, [("one of many",), ("two of many",)])
    proxy.cut_at(b"held", answered=0)
    async with pool.acquire() as connection:
        with pytest.raises(WriteLost):
            await connection.execute(insert, "held")
    found = [row["what"] for row in await admin.fetch("SELECT what FROM sent_once ORDER BY id")]
    assert found[: len(marks)] == marks
    assert len(set(found)) == len(found)
    await admin.execute("DROP TABLE sent_once")


@over_both_facades
async def test_auth_failure_is_not_node_down_for_a_database_that_is_not_there(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """Told at once, in the server's words, not as a time-out."""
    with pytest.raises(NoNodeAvailable) as caught:
        await open_pool(postgres.dsn, database="picopyn_nowhere", connect_timeout=60)
    assert 'database "picopyn_nowhere" does not exist' in "".join(caught.value.reasons.values())


async def test_notify_dead_link_silent(
    postgres: PostgresServer, proxy: FaultProxy, pool_class: Any, admin: Any
) -> None:
    """Who listens on a held connection hears of its end; no message comes twice."""
    dsn = through(postgres, proxy.port)
    heard: list[str] = []
    ended: list[object] = []
    async with pool_class(dsn, dialect="postgres") as pool, pool.acquire() as connection:
        await connection.add_listener("numbers", lambda *told: heard.append(told[-1]))
        connection.add_termination_listener(ended.append)
        for number in range(3):
            await admin.execute(f"NOTIFY numbers, '{number}'")
        await until(lambda: len(heard) == 3)
        proxy.cut()
        await until(lambda: len(ended) == 1)
        assert connection.is_closed()
    assert heard == ["0", "1", "2"]


def test_the_list_of_scenarios_names_every_one_and_only_tests_that_exist() -> None:
    """So that it stays true."""
    here = Path(__file__).parent.parent
    text = (here / "bug-report-scenarios.md").read_text("utf-8")
    ids = re.findall(r"^\| ((?:failover|topo|retry|auth|notify|dns)-[a-z0-9-]+) \|", text, re.MULTILINE)
    assert len(ids) == len(set(ids)) == 19
    written = {
        name for path in here.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))
    }
    assert set(re.findall(r"`(test_\w+)`", text)) - written == set()
    for line in text.splitlines():
        assert not line.startswith("| ") or line.startswith("| id ") or "`test_" in line
