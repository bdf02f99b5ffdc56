"""One pool and many threads; a pool in a place that is not made for it."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import pytest

from picopyn.errors import AcquireTimeout, ConfigError, OutcomeUnknown, PoolClosed, UsageError
from picopyn.observe import ConnectionClosed
from picopyn.sync import Connection, Pool, connect
from picopyn.sync.acquired import AcquiredConnection
from picopyn.sync.duplex_socket import ESTABLISHED
from picopyn.sync.link import JUST_NOW
from picopyn.testing import PostgresServer
from tests.postgres.nodes import Nodes
from tests.sync.conftest import until


def opened(server: PostgresServer, **options: Any) -> Pool:
    """A pool for a `with` block."""
    return Pool(server.dsn, **{"dialect": "postgres", "ssl": "disable", **options})


@pytest.mark.timeout(120)
def test_fifty_threads_share_ten_connections_fairly(
    server: PostgresServer, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Nobody runs into a timeout, and the slowest has at least half of what the mean has."""
    with opened(server, min_size=10, max_size=10) as pool:
        until(lambda: pool.stats().idle == 10)
        begin = threading.Barrier(51)
        end = time.monotonic() + 3600
        counts = [0] * 50
        errors: list[BaseException] = []

        def work(number: int) -> None:
            begin.wait()
            try:
                while time.monotonic() < end:
                    pool.fetchval("SELECT $1::int", number)
                    counts[number] += 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + (16 if full_size else 4)
        begin.wait()
        for thread in threads:
            thread.join()
        assert errors == []
        mean = sum(counts) / len(counts)
        measured("calls per thread", mean)
        measured("slowest thread against the mean", min(counts) / mean)
        assert min(counts) >= 0.5 * mean
        assert pool.stats().acquire_timeouts == 0


def test_a_connection_that_ends_on_its_way_is_not_used(server: PostgresServer, admin: Connection) -> None:
    """Whoever waited for it gets the next one; the one that was given back is dropped before anything is sent."""
    with opened(server, min_size=1, max_size=1) as pool:
        held = pool.acquire().take()
        pid = held.get_server_pid()
        answers: list[int] = []

        def wait() -> None:
            answers.append(pool.fetchval("SELECT $1::int", 7, timeout=20, idempotent=False))

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: pool.stats().waiting == 1)
        admin.execute(f"SELECT pg_terminate_backend({pid})")
        until(lambda: held._wire.stream.state() != ESTABLISHED)
        held.release()
        waiting.join()
        assert answers == [7]
        assert pool.stats().retries == {}


def test_an_idle_connection_that_has_ended_is_not_used(server: PostgresServer, admin: Connection) -> None:
    """It is looked at before its next use, unless it has answered within the last millisecond."""
    with opened(server, min_size=1, max_size=1) as pool:
        pid = pool.fetchval("SELECT pg_backend_pid() + $1", 0)
        with pool.acquire() as held:
            link: Any = held._loan.link
        admin.execute(f"SELECT pg_terminate_backend({pid})")
        until(lambda: link.wire.stream.state() != ESTABLISHED and time.monotonic() - link._answered > JUST_NOW)
        assert pool.fetchval("SELECT $1::int", 7, timeout=20, idempotent=False) == 7
        assert pool.stats().retries == {}


def test_a_connection_that_ends_just_after_an_answer_is_found_by_sending(
    server: PostgresServer, admin: Connection
) -> None:
    """It is not looked at then: as if it had ended under the next statement, whose outcome nobody knows."""
    with opened(server, min_size=1, max_size=1) as pool:
        pid = pool.fetchval("SELECT pg_backend_pid() + $1", 0)
        with pool.acquire() as held:
            link: Any = held._loan.link
        admin.execute(f"SELECT pg_terminate_backend({pid})")
        until(lambda: link.wire.stream.state() != ESTABLISHED)
        link._answered = inf  # that moment, for as long as the test needs
        with pytest.raises(OutcomeUnknown):
            pool.fetchval("SELECT pg_backend_pid() + $1", 0, timeout=20, idempotent=False)
        assert pool.fetchval("SELECT pg_backend_pid() + $1", 0, timeout=20, idempotent=False) != pid


def test_hooks_are_plain_functions(server: PostgresServer) -> None:
    """A coroutine function would never be awaited: refused at once, each by its name; what gives one, at its call."""

    async def hook(_: object) -> None:
        raise AssertionError

    class Hook:
        async def __call__(self, _: object) -> None:
            raise AssertionError

    for kind in (hook, partial(hook), Hook()):
        with pytest.raises(ConfigError) as caught:
            Pool(server.dsn, after_connect=kind, reset=kind)
        assert [problem.partition(" ")[0] for problem in caught.value.problems] == ["after_connect", "reset"]
    with pytest.raises(UsageError, match="a hook of a pool of threads is a plain function"):
        opened(server, after_connect=lambda connection: hook(connection), connect_timeout=1).open()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_hook_cannot_end_the_pool(error: type[BaseException], server: PostgresServer) -> None:
    """It runs in a thread of ours, which has no process to end; whoever waits learns what it raised."""
    fails = False

    def hook(_: object) -> None:
        if fails:
            raise error

    def observe(event: object) -> None:
        if fails and isinstance(event, ConnectionClosed):
            raise error

    with opened(server, after_connect=hook, reset=hook, on_event=observe, max_size=1) as pool:
        fails = True
        with pool.acquire() as connection:  # given back, it is reset: that fails, and so does the observer
            assert connection.fetchval("SELECT 1") == 1
        until(lambda: pool.stats().closes)
        with pytest.raises(RuntimeError, match=f"after_connect raised {error.__name__}"):
            pool.fetchval("SELECT 2")
        fails = False
        assert pool.fetchval("SELECT 3", timeout=20) == 3
        assert pool.refresh_topology()


def test_a_hook_that_is_late_without_asking_the_server(server: PostgresServer) -> None:
    """It cannot be interrupted; the error tells of the limit, not of the connection that was dropped by it."""

    def hook(_: object) -> None:
        time.sleep(0.3)

    with pytest.raises(AcquireTimeout, match=r"after_connect did not finish within 0\.1 s"):
        opened(server, after_connect=hook, after_connect_timeout=0.1).open()


@pytest.mark.parametrize("timeout", [3e6, 1e300, float("inf")])
def test_a_limit_may_be_longer_than_the_system_can_wait(timeout: float, server: PostgresServer) -> None:
    """Also for what runs in a task, and for a first connection."""
    with opened(server, connect_timeout=min(timeout, 1e300)) as pool:
        assert pool.fetchval("SELECT 1", timeout=timeout) == 1
        with pool.acquire(timeout=timeout) as connection:
            assert connection.fetchval("SELECT 2", timeout=timeout) == 2


@pytest.mark.parametrize("way", ["call", "acquire", "transaction", "run_transaction"])
def test_in_a_running_event_loop_it_works_and_warns_once(way: str, server: PostgresServer) -> None:
    """Whoever uses it there learns that his loop stands still."""
    with opened(server) as pool:

        def ask(query: str) -> int:
            if way == "run_transaction":
                return pool.run_transaction(lambda connection: connection.fetchval(query))
            if way == "call":
                return pool.fetchval(query)
            with getattr(pool, way)() as connection:
                return connection.fetchval(query)

        async def call() -> list[int]:
            return [ask("SELECT 1"), ask("SELECT 2")]

        with pytest.warns(RuntimeWarning, match="picopyn.sync is used in a running event loop") as told:
            assert asyncio.run(call()) == [1, 2]
        assert len(told) == 1
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert asyncio.run(call()) == [1, 2]


@pytest.mark.parametrize("way", ["executemany", "copy", "listener"])
@pytest.mark.filterwarnings("error:picopyn.sync is used in a running event loop:RuntimeWarning")
def test_a_loop_of_ours_is_none_of_the_users(way: str, server: PostgresServer) -> None:
    """Rows that are read with the same pool, and callbacks that use it: not a word about an event loop."""
    with opened(server, max_size=2) as pool:
        heard: list[int] = []

        def rows() -> Iterator[tuple[int]]:
            for number in range(3):
                yield (pool.fetchval("SELECT $1::int", number),)

        with pool.acquire() as connection:
            connection.execute("CREATE TEMP TABLE t (id int)")
            if way == "executemany":
                connection.executemany("INSERT INTO t VALUES ($1)", rows())
            elif way == "copy":
                connection.copy_records_to_table("t", records=rows())
            else:
                connection.add_listener("news", lambda *_: heard.extend(number for (number,) in rows()))
                connection.execute("NOTIFY news")
                connection.execute("INSERT INTO t SELECT generate_series(0, 2)")
            assert [row["id"] for row in connection.fetch("SELECT id FROM t ORDER BY id")] == [0, 1, 2]
        assert heard == ([0, 1, 2] if way == "listener" else [])


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_cannot_be_copied(made: Callable[[Any], Any], server: PostgresServer) -> None:
    """A copy that is forgotten would give back what the original still uses."""
    with opened(server, max_size=1) as pool, connect(server.dsn, ssl="disable") as own, pool.acquire() as lent:
        for connection in (own, lent):
            with connection.transaction() as transaction:
                prepared = connection.prepare("SELECT 1")
                for each in (connection, transaction, prepared, prepared.cursor(), connection.cursor("SELECT 1")):
                    with pytest.raises(UsageError, match="neither copied nor sent to another process"):
                        made(each)
        gc.collect()
        assert pool.stats().in_use == 1
        assert (own.fetchval("SELECT 1"), lent.fetchval("SELECT 2")) == (1, 2)


def test_a_forgotten_connection_is_told_and_goes_back(server: PostgresServer) -> None:
    """Also one whose borrower was collected on a thread that was just about to use the same accounts."""
    with opened(server, min_size=1, max_size=1) as pool:
        held = [pool.acquire().take()]
        pid = held[0].get_server_pid()
        with pytest.warns(ResourceWarning, match="was never given back"):  # noqa: PT031
            held.clear()
            gc.collect()
        until(lambda: (pool.stats().idle, pool.stats().in_use) == (1, 0))
        assert pool.fetchval("SELECT pg_backend_pid()") == pid


def test_listeners_get_the_held_connection(server: PostgresServer) -> None:
    """Until it is given back; the next borrower hears nothing."""
    heard: list[tuple[Any, str]] = []
    with opened(server, min_size=1, max_size=1) as pool:
        with pool.acquire() as connection:
            connection.add_listener("news", lambda c, _, __, payload: heard.append((c, payload)))
            connection.execute("NOTIFY news, 'one'")
            assert heard == [(connection, "one")]
            assert isinstance(heard[0][0], AcquiredConnection)
        with pool.acquire() as other:
            other.execute("NOTIFY news, 'two'")
        assert len(heard) == 1


def test_an_observer_cannot_close_the_pool_but_terminate_it(server: PostgresServer) -> None:
    """It runs on the pool's own thread, which cannot wait for itself: a clear error, and nothing has changed."""
    told: list[str] = []
    calls = (lambda: pool.close(), lambda: pool.refresh_topology(), lambda: pool.explain_route("SELECT 1"))

    def observe(event: object) -> None:
        if not isinstance(event, ConnectionClosed) or told:
            return
        for call in calls:
            try:
                call()
            except UsageError as error:
                told.append(str(error))

    pool = opened(server, max_size=2, on_event=observe)
    with pool:
        with pool.acquire() as connection:
            connection.terminate()
        until(lambda: len(told) == len(calls))
        assert set(told) == {"on_event runs on the pool's own thread, which cannot wait for itself: use another thread"}
        assert pool.fetchval("SELECT 1") == 1


class Held(Nodes):
    """A source whose later answers never come."""

    asked = 0

    async def refresh(self) -> None:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()
        await super().refresh()


@pytest.mark.parametrize("name", ["close", "refresh_topology"])
def test_who_waits_for_the_pool_learns_of_its_termination(name: str, server: PostgresServer) -> None:
    """Whatever it was that he waited for: closing is done then, the rest ends with `PoolClosed`."""
    source = Held(server.port)
    pool = opened(server, topology_source=source).open()
    held = pool.acquire().take()
    calls: dict[str, Callable[[], object]] = {
        "close": lambda: pool.close(grace=60),
        "refresh_topology": pool.refresh_topology,
    }
    told: list[object] = []

    def wait() -> None:
        try:
            told.append(calls[name]())
        except PoolClosed as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: "closed" in repr(pool) if name == "close" else source.asked > 1)
    pool.terminate()
    waiting.join(30)
    assert not waiting.is_alive()
    assert [type(outcome) for outcome in told] == [type(None) if name == "close" else PoolClosed]
    held.release()
