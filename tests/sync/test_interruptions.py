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
#: The same, with what runs in a task: asyncio's code, and what asyncpg has in Python.
WIDE = (*ROOMS, "picopyn/asynchronous/", "/asyncio/", "/asyncpg/")
#: What is told where asyncpg has swallowed Ctrl-C.
SWALLOWED = "asyncpg was interrupted, and went on"

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


def many_pieces(connection: Connection) -> Any:
    connection.executemany("SELECT $1::text", [("x" * 70_000,)] * 5)
    return 5


def copied(connection: Connection) -> Any:
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS copied (v text)")
    connection.copy_records_to_table("copied", records=[("x" * 300_000,)] * 3)
    return 5


def iterated(connection: Connection) -> Any:
    with connection.transaction():
        return len(list(connection.cursor("SELECT generate_series(1, $1::int)", 5, prefetch=2)))


class Late(TimeoutError):  # noqa: N818 - names the event
    """What a handler raises that ends what takes too long."""


def ring(_number: int, _frame: object) -> None:
    """A signal's handler."""
    raise Late


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Lets a signal come to the main thread."""
    former = signal.signal(signal.SIGUSR1, ring)
    try:
        yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("call", [prepared, not_prepared, many_pieces, copied, in_a_transaction, iterated])
def test_while_nothing_comes(
    call: Callable[[Connection], Any],
    alarm: Callable[[], None],
    proxy: Callable[..., FaultProxy],
    opened: Open,
) -> None:
    """A handler ends a call to a server that hangs, without any limit of its own, with its own error."""
    front = proxy()
    connection = opened(front, sslmode="disable")
    assert call(connection) == 5
    front.freeze()
    caller = connection._wire.caller
    ringing = threading.Thread(target=lambda: (until(caller.in_use.locked), alarm()))
    ringing.start()
    with pytest.raises(Late) as raised:
        call(connection)
    ringing.join()
    assert type(raised.value) is Late
    assert connection.is_closed()


@pytest.mark.parametrize("way", ["copy_out", "copy_in", "executemany", "prepared"])
def test_in_rows_of_the_caller(way: str, alarm: Callable[[], None], connection: Connection) -> None:
    """A handler's error is taken neither for one of the caller's rows nor for a limit of asyncpg's."""
    connection.execute("CREATE TEMP TABLE t (id int)")

    def rows() -> Iterator[tuple[int]]:
        yield (1,)
        alarm()

    with pytest.raises(Late):
        if way == "copy_in":
            connection.copy_records_to_table("t", records=rows())
        elif way == "prepared":
            connection.prepare("INSERT INTO t VALUES ($1)").executemany(rows())
        elif way == "executemany":
            connection.executemany("INSERT INTO t VALUES ($1)", rows())
        else:
            connection.copy_from_query("SELECT 1", output=lambda _: alarm())


@pytest.mark.parametrize(
    ("way", "count", "raised"),
    [
        ("execute", 3, Late),
        ("execute", 3, KeyboardInterrupt),
        *(("executemany", count, raised) for count in (1, 3, 50_000) for raised in (Late, KeyboardInterrupt)),
        *(("copy", count, KeyboardInterrupt) for count in (1, 50_000)),
    ],
)
def test_in_what_encodes(
    way: str, count: int, raised: type[BaseException], alarm: Callable[[], None], connection: Connection
) -> None:
    """What is raised there asyncpg takes for a wrong value, or swallows it and would wait for ever."""
    seen: list[int] = []

    def encode(value: int) -> bytes:
        seen.append(value)
        if len(seen) == count and raised is KeyboardInterrupt:
            raise KeyboardInterrupt
        if len(seen) == count:
            alarm()
        return value.to_bytes(4, "big")

    connection.set_type_codec("int4", schema="pg_catalog", encoder=encode, decoder=bytes, format="binary")
    connection.execute("CREATE TEMP TABLE t (id int)")
    rows = [(number,) for number in range(count)]
    with pytest.raises(raised):
        if way == "executemany":
            connection.executemany("INSERT INTO t VALUES ($1)", rows)
        elif way == "copy":
            connection.copy_records_to_table("t", records=rows)
        else:
            for (number,) in rows:
                connection.execute("INSERT INTO t VALUES ($1)", number)
    assert len(seen) == count


def test_in_a_callback(alarm: Callable[[], None], connection: Connection) -> None:
    """What a listener raises is logged; but not what interrupts it."""
    connection.add_listener("news", lambda *_: alarm())
    with pytest.raises(Late):
        connection.execute("NOTIFY news")
    assert connection.is_closed()


def test_in_a_rollback(alarm: Callable[[], None], proxy: Callable[..., FaultProxy], opened: Open) -> None:
    """The error that ended the block is what the handler's was raised in."""
    front = proxy()
    connection = opened(front, sslmode="disable")
    caller = connection._wire.caller
    ringing = threading.Thread(target=lambda: (until(caller.in_use.locked), alarm()))
    with pytest.raises(Late) as raised, connection.transaction():
        front.freeze()
        ringing.start()
        raise ValueError
    ringing.join()
    assert isinstance(raised.value.__context__, ValueError)
    assert connection.is_closed()


def test_while_another_error_is_handled(connection: Connection) -> None:
    """A call that is made because the one before was interrupted is not taken for interrupted."""
    try:
        ring(0, None)
    except Late:
        with pytest.raises(asyncpg.UndefinedTableError):
            connection.fetch("SELECT * FROM nothing")
    assert connection.fetchval("SELECT 1") == 1


def is_usable(connection: Connection, number: int) -> bool:
    """Whether it answers, and then rightly; else it is closed."""
    if connection.is_closed():
        return False
    assert connection.fetchval("SELECT $1::int", number) == number
    return True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was made, and then not begun
@pytest.mark.filterwarnings(
    "ignore:.*(CursorFactory|PreparedStatement).__del__:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    ("call", "raised"),
    [
        *((prepared, raised) for raised in (KeyboardInterrupt, TimeoutError, BlockingIOError, ConnectionError)),
        *((not_prepared, raised) for raised in (KeyboardInterrupt, TimeoutError, OSError)),
        *((many_pieces, raised) for raised in (KeyboardInterrupt, TimeoutError, OSError)),
        *((copied, raised) for raised in (KeyboardInterrupt, TimeoutError, OSError)),
        *((in_a_transaction, raised) for raised in (KeyboardInterrupt, TimeoutError)),
        (many, KeyboardInterrupt),
        (iterated, TimeoutError),
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
    rooms = ROOMS if call in (prepared, iterated) else WIDE
    stride = 1 if full_size or call is prepared else 11
    moment, interrupted = 1, 0
    while True:
        connection.fetchval("SELECT $1::int", 0)
        finger = Finger(moment, rooms, raised=raised)
        try:
            with finger:
                assert call(connection) == 5
        except raised as error:
            told = finger.has_raised(error) or str(error) == SWALLOWED
            interrupted += 1
            moment += stride
        else:
            assert finger.left > 0  # nobody has swallowed it
            break
        assert told
        assert asyncio._get_running_loop() is None
        if is_usable(connection, moment):
            assert not connection.is_in_transaction() or call in (in_a_transaction, iterated)
            if not connection.is_in_transaction():
                continue
        connection.terminate()
        connection = opened()
    gc.collect()  # what nobody begins to wait for is told here
    assert interrupted > 10


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
