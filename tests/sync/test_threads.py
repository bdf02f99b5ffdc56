"""One connection and many threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import asyncpg
import pytest

from picopyn.sync import Connection
from tests.sync.conftest import until

BUSY = "another operation is in progress"


def test_a_second_thread_is_refused_and_gets_no_foreign_answer(connection: Connection) -> None:
    """Each answer belongs to its question, whatever the threads do."""
    refused = 0

    def work(number: int) -> int:
        told = 0
        for turn in range(300):
            mine = number * 1000 + turn
            try:
                assert (
                    connection.fetchval("SELECT $1::int" if turn % 3 else f"SELECT $1::int + {turn} * 0", mine) == mine
                )
            except asyncpg.InterfaceError:
                told += 1
        return told

    with ThreadPoolExecutor(8) as threads:
        refused = sum(threads.map(work, range(8)))
    assert refused
    assert connection.fetchval("SELECT $1::int", 1) == 1


def test_who_finds_out_that_a_connection_has_ended_is_no_second_caller(
    connection: Connection, admin: Connection
) -> None:
    """A call that comes meanwhile waits, and is told that the connection is closed: a pool sends it elsewhere."""
    entered, go = threading.Event(), threading.Event()

    def closed(_: object) -> None:
        entered.set()
        go.wait(20)

    connection.add_termination_listener(closed)
    assert admin.fetchval("SELECT pg_terminate_backend($1, 20000)", connection.get_server_pid())
    with ThreadPoolExecutor(2) as threads:
        looking = threads.submit(lambda: until(connection.is_closed))
        assert entered.wait(20)
        call = threads.submit(connection.fetchval, "SELECT $1::int", 1)
        wait([call], timeout=0.2)
        go.set()
        looking.result()
        with pytest.raises(asyncpg.InterfaceError) as caught:
            call.result()
    assert BUSY not in str(caught.value)


def test_terminate_from_another_thread_ends_a_call(connection: Connection, admin: Connection) -> None:
    """It ends with asyncpg's error for that; nothing is closed under the feet of the thread that waits."""
    pid = connection.get_server_pid()
    active = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active'"
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            connection.fetchval("SELECT pg_sleep($1)", 60)
        except asyncpg.PostgresError as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: admin.fetchval(active, pid))
    connection.terminate()
    waiting.join()
    assert isinstance(outcome[0], asyncpg.ConnectionDoesNotExistError)
    assert connection.is_closed()
    connection.terminate()
    assert connection._wire.stream.fileno() == -1


def test_no_call_from_a_callback(connection: Connection) -> None:
    """A callback is called while another call is under way; it may end the connection, no more."""
    errors: list[Exception] = []

    def heard(_: Connection, __: int, ___: str, payload: str) -> None:
        try:
            connection.execute("SELECT 1")
        except asyncpg.InterfaceError as error:
            errors.append(error)
        if payload == "end":
            connection.terminate()

    connection.add_listener("news", heard)
    connection.execute("NOTIFY news, 'go on'")
    assert BUSY in str(errors[0])
    assert not connection.is_closed()
    connection.execute("NOTIFY news, 'end'")
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        connection.execute("SELECT 1")
