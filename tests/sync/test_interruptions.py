"""Ctrl-C at any moment: the call ends, and nothing half-read is ever used."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.sync import Connection
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.duplex_socket import DuplexSocket
from picopyn.sync.stream import Stream
from picopyn.testing import FaultProxy
from tests.sync.conftest import Open, until
from tests.sync.finger import Finger

#: Where the finger presses.
ROOMS = ("picopyn/sync",)

ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND wait_event IS NOT NULL"


@pytest.mark.parametrize("query", ["SELECT pg_sleep($1::int)", "SELECT pg_sleep(60)"])
def test_while_it_waits_for_the_server(query: str, connection: Connection, admin: Connection) -> None:
    """The connection is dropped, and the server is told that nobody waits any more."""
    pid = connection.get_server_pid()
    args = [60] if "$1" in query else []
    if args:
        connection.fetchval(query, 0)

    def press() -> None:
        until(lambda: admin.fetchval(ACTIVE, pid))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        connection.fetchval(query, *args)
    pressing.join()
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
        connection.fetchval("SELECT 1")
    until(lambda: not admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid))


@pytest.mark.parametrize("mode", ["disable", "require"])
def test_while_it_connects(mode: str, proxy: Callable[..., FaultProxy], opened: Open) -> None:
    """To a node that says nothing: nothing is left of the attempt."""
    front = proxy()
    front.mute()

    def press() -> None:
        until(lambda: front.open)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        opened(front, sslmode=mode)
    pressing.join()
    gc.collect()
    until(lambda: not front.open)


def test_in_rows_that_are_being_brought(connection: Connection) -> None:
    """Of `executemany` and of COPY: asyncpg would swallow it and wait for ever in the first."""
    connection.execute("CREATE TEMP TABLE t (id int)")

    def rows(count: int) -> Iterator[tuple[int]]:
        for number in range(count):
            yield (number,)
        raise KeyboardInterrupt

    for count in (0, 1, 50_000):
        with pytest.raises(KeyboardInterrupt):
            connection.executemany("INSERT INTO t VALUES ($1)", rows(count))
        assert connection.fetchval("SELECT count(*) FROM t") == 0
    with pytest.raises(KeyboardInterrupt):
        connection.copy_records_to_table("t", records=rows(50_000))
    assert connection.is_closed()


def test_in_what_takes_bytes(connection: Connection) -> None:
    """Who copies out is interrupted while he writes."""

    def write(_: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connection.copy_from_query("SELECT generate_series(1, 100000)", output=write)
    assert connection.is_closed()


def prepared(connection: Connection) -> Any:
    return connection.fetchval("SELECT $1::int", 5)


def not_prepared(connection: Connection) -> Any:
    return connection.fetchval("SELECT $1::int + 0", 5)


def in_a_transaction(connection: Connection) -> Any:
    with connection.transaction():
        return connection.fetchval("SELECT $1::int", 5)


def many(connection: Connection) -> Any:
    connection.executemany("SELECT $1::int", [(1,), (2,)])
    return 5


def is_usable(connection: Connection, number: int) -> bool:
    """Whether it answers, and then rightly; else it is closed."""
    if connection.is_closed():
        return False
    assert connection.fetchval("SELECT $1::int", number) == number
    return True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was made, and then not begun
@pytest.mark.parametrize(
    ("call", "raised"),
    [
        *((call, KeyboardInterrupt) for call in (prepared, not_prepared, in_a_transaction, many)),
        *((prepared, raised) for raised in (TimeoutError, BlockingIOError, ConnectionError)),
    ],
)
def test_at_any_moment(
    call: Callable[[Connection], Any], raised: type[BaseException], opened: Open, full_size: bool
) -> None:
    """After it the connection answers what it is asked, or refuses; it never has another question's answer.

    What a signal's handler raises may be of a class of the system's errors. It is not taken for one: the caller gets
    it, and does not wait for an answer that was lost by it.
    """
    connection = opened()
    stride = 1 if full_size or call is prepared else 5
    moment, interrupted = 1, 0
    while True:
        connection.fetchval("SELECT $1::int", 0)
        finger = Finger(moment, ROOMS, raised=raised)
        try:
            with finger:
                assert call(connection) == 5
        except raised:
            interrupted += 1
            moment += stride
        else:
            assert finger.left > 0  # nobody has swallowed it
            break
        assert asyncio._get_running_loop() is None
        if is_usable(connection, moment):
            assert not connection.is_in_transaction() or call is in_a_transaction
            if not connection.is_in_transaction():
                continue
        connection.terminate()
        connection = opened()
    assert interrupted > 15


def test_nothing_is_sent_twice() -> None:
    """Interrupted right after it was sent, a statement is not sent once more while its connection is dropped."""
    moment = 1
    while True:
        listening = socket.create_server(("127.0.0.1", 0))
        ours = DuplexSocket(socket.AF_INET, socket.SOCK_STREAM)
        ours.settimeout(None)
        ours.connect(listening.getsockname())
        ours.settimeout(0)
        theirs, _ = listening.accept()
        listening.close()
        stream = Stream(ours, asyncio.Protocol(), CallerLoop())
        stream.write(b"INSERT")
        finished = False
        try:
            with Finger(moment, ("picopyn/sync/stream",)):
                stream.flush()
            finished = True
        except KeyboardInterrupt:
            moment += 1
        stream.write(b"X")
        stream.abort()
        with theirs, theirs.makefile("rb") as arrived:
            assert arrived.read() in (b"INSERTX", b"X")
        if finished:
            break
    assert moment > 3
