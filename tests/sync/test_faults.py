"""Deadlines, and both sides writing, on networks that do what they like; without TLS and with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import asyncpg
import pytest

from picopyn.errors import NoNodeAvailable
from picopyn.sync import Connection
from picopyn.testing import FaultProxy, TlsFront
from tests.sync.conftest import Open, until
from tests.tls.certificates import Authority

Measured = Callable[[str, object], None]
Front = Callable[[], FaultProxy]

BIG = "x" * 30_000_000


@pytest.fixture(params=["plain", "tls"])
def front(request: pytest.FixtureRequest, proxy: Callable[..., FaultProxy], authority: Authority) -> FaultProxy:
    """A proxy that takes what `opened` sends by default, or that speaks TLS."""
    if request.param == "plain":
        return proxy()
    return proxy(TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side()))


def test_a_deadline_while_nothing_comes(front: FaultProxy, opened: Open, measured: Measured) -> None:
    """Of a call whose statement is prepared, and of one whose statement is not."""
    for prepared in (True, False):
        connection = opened(front)
        query = "SELECT $1::int"
        assert connection.fetchval(query, 1) == 1
        front.freeze()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.fetchval(query if prepared else f"{query} + 1", 1, timeout=0.1)
        measured("timeout of 0.1 s", time.monotonic() - began)
        connection.terminate()
        front.let_pass()


def test_a_deadline_in_the_middle_of_an_answer(front: FaultProxy, opened: Open) -> None:
    """Bytes that came in time do not put it off."""
    connection = opened(front)
    query = "SELECT repeat('x', $1) FROM generate_series(1, 100)"
    assert len(connection.fetch(query, 1)) == 100
    front.cut_after(1_000_000)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        connection.fetch(query, 100_000, timeout=20)
    assert connection.is_closed()
    front.let_pass()
    slow = opened(front)
    answered = "SELECT pg_sleep(0.02), $1::int FROM generate_series(1, 1000)"
    with pytest.raises(TimeoutError):
        slow.fetch(answered, 1, timeout=0.2)
    slow.terminate()


def test_a_deadline_while_nothing_is_taken(front: FaultProxy, opened: Open) -> None:
    """Writing waits no longer than reading: for one large value, many rows, and COPY."""
    calls: list[Callable[[Connection], object]] = [
        lambda connection: connection.fetchval("SELECT length($1)", BIG, timeout=0.2),
        lambda connection: connection.executemany(
            "SELECT $1::text", ((BIG[:1000],) for _ in range(50_000)), timeout=0.2
        ),
        lambda connection: connection.copy_to_table("t", source=(b"x" * 100_000 for _ in range(1000)), timeout=0.2),
    ]
    for call in calls:
        connection = opened(front)
        connection.execute("CREATE TEMP TABLE t (v text)")
        connection.fetchval("SELECT length($1)", "x")
        front.freeze()
        with pytest.raises(TimeoutError):
            call(connection)
        connection.terminate()
        front.let_pass()


def test_no_connection_within_the_connect_timeout(front: FaultProxy, opened: Open) -> None:
    """Whether the server says nothing at all, or nobody is there."""
    front.mute()
    with pytest.raises(NoNodeAvailable, match=r"no answer within 0\.2 s"):
        opened(front, connect_timeout=0.2)
    front.refuse()
    with pytest.raises(NoNodeAvailable, match="refused"):
        opened(front, connect_timeout=5)


def test_after_its_deadline_a_statement_ends_at_the_server(opened: Open, admin: Connection) -> None:
    """And the connection can be used again: the next call waits for that."""
    connection = opened()
    pid = connection.get_server_pid()
    for query in ("SELECT pg_sleep(60)", "SELECT pg_sleep($1::int)"):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                connection.fetchval(query, *([60] if "$1" in query else []), timeout=0.05)
            until(lambda: admin.fetchval("SELECT state FROM pg_stat_activity WHERE pid = $1", pid) == "idle")
            assert connection.fetchval("SELECT $1::int", 3) == 3
            assert connection.fetchval("SELECT $1::int", 4, timeout=30) == 4
    with pytest.raises(TimeoutError):
        connection.execute("SELECT pg_sleep(60)", timeout=0.05)
    assert connection.execute("SELECT 1") == "SELECT 1"


def test_a_server_that_cannot_be_told_costs_the_connection(front: FaultProxy, opened: Open) -> None:
    """Nobody knows what goes on there; the next call waits for its own deadline only."""
    connection = opened(front)
    connection.fetchval("SELECT $1::int", 1)
    front.freeze()
    with pytest.raises(TimeoutError):
        connection.fetchval("SELECT $1::int", 1, timeout=0.05)
    with pytest.raises(TimeoutError):
        connection.fetchval("SELECT $1::int", 1, timeout=0.05)
    assert connection.is_closed()
    front.let_pass()


def test_both_sides_write(front: FaultProxy, opened: Open, full_size: bool) -> None:
    """Neither waits for the other: while there is more to send than the network holds, what comes is read."""
    connection = opened(front)
    count = 1_000_000 if full_size else 50_000
    answer = connection.fetchmany("SELECT repeat('x', 400), $1::text", ((BIG[:100],) for _ in range(count)))
    assert len(answer) == count
    connection.execute("CREATE TEMP TABLE t (id int, v text)")
    connection.executemany("INSERT INTO t VALUES ($1, $2)", ((n, "v") for n in range(count)))
    assert connection.fetchval("SELECT count(*) FROM t") == count
    assert connection.fetchval("SELECT length($1 || $1)", BIG) == 2 * len(BIG)
    copied: list[int] = []
    connection.copy_from_table("t", output=lambda chunk: copied.append(len(chunk)))
    connection.copy_to_table("t", source=(b"1\tv\n" * 10_000 for _ in range(count // 10_000)))
    assert connection.fetchval("SELECT count(*) FROM t") == 2 * count


def test_rows_that_fail_on_their_way(front: FaultProxy, opened: Open) -> None:
    """The server's error, or one's own, ends an `executemany`; the connection goes on."""
    connection = opened(front)
    connection.execute("CREATE TEMP TABLE t (id int PRIMARY KEY)")
    with pytest.raises(asyncpg.UniqueViolationError):
        connection.executemany("INSERT INTO t VALUES ($1)", ((n % 60_000,) for n in range(100_000)))
    with pytest.raises(ZeroDivisionError):
        connection.executemany("INSERT INTO t VALUES ($1)", ((n + 0 // (70_000 - n),) for n in range(100_000)))
    assert connection.fetchval("SELECT count(*) FROM t") == 0


def test_a_connection_that_breaks_while_a_call_waits(front: FaultProxy, opened: Open, admin: Connection) -> None:
    """The call ends with an error of asyncpg's, and the connection is closed."""
    connection = opened(front, application_name="breaks")
    connection.fetchval("SELECT pg_sleep($1)", 0)
    running = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'breaks' AND state = 'active'"

    def cut() -> None:
        until(lambda: admin.fetchval(running))
        front.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, OSError)):
        connection.fetchval("SELECT pg_sleep($1)", 60)
    cutting.join()
    assert connection.is_closed()
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'breaks'")


def test_deadlines_leave_no_timers_behind(connection: Connection) -> None:
    """A long limit of a call that was answered keeps nothing alive."""
    for _ in range(200):
        connection.fetchval("SELECT $1::int", 1, timeout=600)
        connection.execute("SELECT 1", timeout=600)
    caller = connection._wire.caller
    caller.run(asyncio.sleep(0))
    assert len(caller._timers) < 10
