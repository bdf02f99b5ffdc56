"""Ctrl-C at any moment of a call of the pool: no slot stays lost, and nothing half-read is ever used."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from picopyn.sync import Pool
from picopyn.testing import PicodataCluster, PostgresServer
from tests.sync.conftest import until
from tests.sync.finger import Finger

#: Where the finger presses: the pool's own code and the engine's, all of which runs in the calling thread.
ROOMS = ("picopyn/sync/", "picopyn/engine/", "picopyn/routing/slots")
SPARED = ("__del__", "forfeit")


@pytest.fixture
def pool(server: PostgresServer) -> Iterator[Pool]:
    """Two connections at most."""
    with Pool(server.dsn, dialect="postgres", ssl="disable", max_size=2, topology_update_interval=None) as pool:
        yield pool


#: For texts that no connection knows.
NUMBERS = count()


class OutOfTime(Exception):  # noqa: N818 - names the event
    """What a handler of a timer raises: no interruption by its type."""


def routed(pool: Pool) -> Any:
    return pool.fetchval("SELECT $1::int", 5)


def many(pool: Pool) -> Any:
    pool.executemany("SELECT $1::int", [(1,), (2,)])
    return 5


def held(pool: Pool) -> Any:
    with pool.acquire() as connection:
        return connection.fetchval("SELECT $1::int", 5)


def in_a_transaction(pool: Pool) -> Any:
    with pool.transaction() as connection:
        return connection.fetchval("SELECT $1::int", 5)


def first(pool: Pool) -> Any:
    return pool.fetchval(f"SELECT $1::int -- {next(NUMBERS)}", 5)


def copied(pool: Pool) -> Any:
    pool.execute("CREATE TABLE IF NOT EXISTS copied (v text)")
    pool.copy_records("copied", [("x" * 300_000,)] * 2)
    return 5


def nothing_is_lost(pool: Pool) -> None:
    """Once what the interrupted call has left is collected, every place is free, and answers are right."""
    gc.collect()
    until(lambda: (pool.stats().in_use, pool.stats().waiting) == (0, 0))
    connections = [pool.acquire(timeout=5).take() for _ in range(2)]
    for number, connection in enumerate(connections):
        assert connection.fetchval("SELECT $1::int", number) == number
        connection.release()
    until(lambda: pool.stats().in_use == 0)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was made, and then not begun
@pytest.mark.filterwarnings("ignore:.*was never given back to its pool:ResourceWarning")  # rightly said of some
@pytest.mark.filterwarnings("ignore:unclosed connection:ResourceWarning")
@pytest.mark.parametrize(
    ("call", "raised"),
    [
        *((call, KeyboardInterrupt) for call in (routed, many, held, in_a_transaction)),
        (routed, OutOfTime),
        (held, OutOfTime),
        (routed, TimeoutError),
        (first, TimeoutError),
        (first, OSError),
        (many, TimeoutError),
        (in_a_transaction, OSError),
        (copied, TimeoutError),
    ],
)
def test_at_any_moment(call: Callable[[Pool], Any], raised: type[BaseException], pool: Pool, full_size: bool) -> None:
    """Taking, sending, reading, giving back: wherever it is. The caller gets what the handler has raised."""
    moment, interrupted = 1, 0
    while True:
        assert call(pool) == 5
        finger = Finger(moment, ROOMS, SPARED, raised)
        try:
            with finger:
                assert call(pool) == 5
        except raised as error:
            told = finger.has_raised(error)
            interrupted += 1
        else:
            assert finger.left > 0, moment  # nobody has swallowed it
            break
        assert told, moment
        nothing_is_lost(pool)
        moment += 1 if full_size else 3 if call is routed else 7
    assert interrupted > 10


@pytest.mark.cluster
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_at_any_moment_of_the_short_way(
    raised: type[BaseException], picopyn_cluster: PicodataCluster, full_size: bool
) -> None:
    """A call whose owner is known, which needs no coroutine until something is in its way."""
    picopyn_cluster.execute("CREATE TABLE short_way (id INT PRIMARY KEY, v INT) DISTRIBUTED BY (id)")
    query = "SELECT v FROM short_way WHERE id = $1"
    try:
        with Pool(picopyn_cluster.dsn, max_size=1, acquire_timeout=30) as pool:
            pool.execute("INSERT INTO short_way VALUES ($1, $2)", 1, 5)
            until(lambda: pool.fetchval(query, 1) == 5 and query in pool._executor._express.routes)
            moment, interrupted = 1, 0
            while True:
                assert pool.fetchval(query, 1) == 5
                finger = Finger(moment, ROOMS, SPARED, raised)
                try:
                    with finger:
                        assert pool.fetchval(query, 1) == 5
                except raised as error:
                    told = finger.has_raised(error)
                    interrupted += 1
                else:
                    assert finger.left > 0, moment
                    break
                assert told, moment
                gc.collect()
                until(lambda: pool.stats().in_use == 0)
                moment += 1 if full_size else 2
            assert interrupted > 5
    finally:
        picopyn_cluster.execute("DROP TABLE short_way")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_nothing_is_sent_twice(pool: Pool, full_size: bool) -> None:
    """A statement that may be repeated when its connection breaks is not, where a handler only says so."""
    pool.execute("CREATE TABLE sent (moment int)")
    moment = 1
    while True:
        try:
            with Finger(moment, ROOMS, SPARED, ConnectionResetError):
                pool.execute(f"INSERT INTO sent VALUES ($1) -- {moment}", moment, idempotent=True)
        except ConnectionResetError:
            moment += 1 if full_size else 9
        else:
            break
        nothing_is_lost(pool)
    assert moment > 50
    assert pool.fetchval("SELECT max(n) FROM (SELECT count(*) AS n FROM sent GROUP BY moment) AS of_each") == 1


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*was never given back to its pool:ResourceWarning")
def test_while_others_wait_for_what_it_gives_back(pool: Pool, full_size: bool) -> None:
    """Whoever waits for the connection of an interrupted call gets one all the same."""
    moment = 1
    while True:
        other = pool.acquire().take()
        mine = pool.acquire().take()
        answers: list[int] = []
        waiting = threading.Thread(
            target=lambda found: found.append(pool.fetchval("SELECT 7", timeout=20)), args=(answers,)
        )
        waiting.start()
        until(lambda: pool.stats().waiting == 1)
        finished = False
        try:
            with Finger(moment, ROOMS, SPARED):
                mine.release()
            finished = True
        except KeyboardInterrupt:
            pass
        del mine
        gc.collect()
        waiting.join()
        assert answers == [7]
        other.release()
        nothing_is_lost(pool)
        if finished:
            break
        moment += 1 if full_size else 2
    assert moment > 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", ["refresh_topology", "explain_route"])
def test_of_what_the_pool_does_on_its_own_thread(
    call: str, pool: Pool, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder, full_size: bool
) -> None:
    """Nothing is said about coroutines that were made and never begun, and the pool works on."""
    ask = pool.refresh_topology if call == "refresh_topology" else lambda: pool.explain_route("SELECT $1::int", 5)
    moment = 1
    while True:
        try:
            with Finger(moment, ("picopyn/sync/",), SPARED):
                assert ask() is not None
        except KeyboardInterrupt:
            moment += 1 if full_size else 2
        else:
            break
        gc.collect()
    assert moment > 10
    assert ask() is not None
    assert not [str(warning.message) for warning in recwarn]
    assert capfd.readouterr().err == ""


@pytest.fixture
def handled() -> Iterator[None]:
    """A handler that raises what looks like an error of the system's."""

    def handle(*_: object) -> None:
        raise TimeoutError("from a handler")

    former = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, TimeoutError)])
def test_while_it_waits_for_its_turn(number: int, raised: type[BaseException], pool: Pool) -> None:
    """It leaves the queue; who comes after it is served."""
    taken = [pool.acquire().take() for _ in range(2)]

    def press() -> None:
        until(lambda: pool.stats().waiting == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(raised) as told:
        pool.fetchval("SELECT 1", timeout=60)
    pressing.join()
    assert type(told.value) is raised
    until(lambda: pool.stats().waiting == 0)
    for connection in taken:
        connection.release()
    nothing_is_lost(pool)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, TimeoutError)])
def test_while_it_waits_for_the_server(number: int, raised: type[BaseException], pool: Pool) -> None:
    """Its connection is dropped, and its place is free. Nothing is said of a limit, for there is none."""
    pid = pool.fetchval("SELECT pg_backend_pid()")

    def press() -> None:
        active = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60%' AND wait_event IS NOT NULL"
        )
        until(lambda: pool.fetchval(active))
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(raised) as told:
        pool.fetchval("SELECT pg_sleep(60)")
    pressing.join()
    assert type(told.value) is raised
    nothing_is_lost(pool)
    assert pid
