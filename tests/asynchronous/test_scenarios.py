"""What went wrong in comparable drivers, classes *pool*, *cancel*, *fork*, *conc* and *metrics*, on plain PostgreSQL.

Each scenario of the public bug reports that concerns held connections, hooks, resets and cancellation; names are those
of the scenario list. Sizes are those of CI; events are asserted, times only as far as they are the scenario's point.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from itertools import product
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool, sessions
from picopyn.errors import AcquireTimeout, ConnectionLost, PicopynError, UsageError
from picopyn.observe import ConnectFailed, ConnectionClosed, ConnectionOpened, Event
from picopyn.testing import FaultProxy, PostgresServer
from tests.asynchronous.servers import Watch, count
from tests.cancelling import eventually
from tests.threads import FACADES


@pytest.fixture
def proxy(postgres: PostgresServer) -> Any:
    """Something in front of the server that delays, freezes and cuts."""
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        yield proxy


def through(proxy: FaultProxy, watch: Watch, **options: Any) -> Pool:
    """A pool behind the proxy."""
    options = {"dialect": "postgres", "ssl": "disable", "application_name": watch.application, **options}
    return watch.pool_class(f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres", **options)


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


async def intact(pool: Pool, watch: Watch, size: int) -> None:
    """All connections can be held at the same time; nothing is in use afterwards."""
    held = [await pool.acquire(timeout=2) for _ in range(size)]

    async def as_many() -> bool:  # the probe may have one of its own; those that were dropped need a moment
        return len(await watch.sessions()) in (size, size + 1)

    await eventually(as_many, lambda: f"{size} connections are held")
    for connection in held:
        connection.release()
    await watch.agrees(pool)


# pool


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_timeout_same_tick(proxy: FaultProxy, watch: Watch) -> None:
    """The deadline and the new connection come together: one of them wins, and no slot is lost."""
    rng = Random(3)
    async with through(proxy, watch, min_size=0, max_size=3) as pool:
        outcomes: Counter[str] = Counter()
        for _ in range(60):
            async with pool.acquire() as connection:
                connection.terminate()
            await asyncio.sleep(0)
            delay = rng.uniform(0, 0.004)
            proxy.delay(delay)
            try:
                async with pool.acquire(timeout=max(delay * 4 + rng.uniform(-0.002, 0.006), 0.0005)):
                    outcomes["got it"] += 1
                    await asyncio.sleep(0.001)
            except AcquireTimeout:
                outcomes["too late"] += 1
            proxy.delay(0)
        assert outcomes.total() == 60
        await intact(pool, watch, 3)


@pytest.mark.parametrize(
    ("facade", "way"),
    [*product(FACADES, ["raises", "kills its session"]), ("asynchronous", "cancels")],
    indirect=["facade"],
)
async def test_pool_hook_raises(watch: Watch, way: str) -> None:
    """Each caller gets the hook's own error; no session and no descriptor is stranded; the next one works at once."""
    calls, failing = 0, False

    async def hook(connection: Any) -> None:
        nonlocal calls
        calls += 1
        if not failing:
            return
        if way == "cancels":
            raise asyncio.CancelledError
        if way == "raises":
            raise ValueError(calls)
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async def no_more_than_two() -> bool:  # those that were dropped need a moment
        return len(await watch.sessions()) <= 2

    own = {"raises": ValueError, "cancels": RuntimeError, "kills its session": asyncpg.PostgresError}[way]
    async with watch.pool(min_size=0, max_size=2, after_connect=hook) as pool:
        async with pool.acquire() as connection:
            connection.terminate()
        await watch.no_session()
        before, failing = descriptors(), True
        for _ in range(20):
            with pytest.raises(own):
                await pool.acquire()
            await eventually(no_more_than_two, lambda: "sessions pile up")
        failing = False
        await watch.no_session()
        assert abs(descriptors() - before) <= 2
        async with pool.acquire(timeout=1) as connection:
            assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_nested_acquire(watch: Watch) -> None:
    """Everybody holds one and wants another: the inner ones time out and say why; a pool never waits without limit."""
    async with watch.pool(max_size=2, acquire_timeout=0.2) as pool:
        both = asyncio.Barrier(2)

        async def nest(timeout: float | None) -> str:
            async with pool.acquire() as connection:
                await both.wait()
                with pytest.raises(AcquireTimeout, match="all 2 in use") as caught:
                    await pool.acquire(timeout=timeout)
                await both.wait()
                assert await connection.fetchval("SELECT 1") == 1
                return str(caught.value)

        for timeout in (0.1, None):
            await asyncio.gather(nest(timeout), nest(timeout))
        await intact(pool, watch, 2)
    assert Pool("postgresql://u@h/").settings.acquire_timeout is not None


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["terminated", "cut"])
async def test_pool_idle_killed_by_server(
    proxy: FaultProxy, watch: Watch, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Idle connections that die hurt nobody, whether the server says so or the link is cut; the log says little."""
    caplog.set_level(logging.INFO, "picopyn")
    async with through(proxy, watch, min_size=5, max_size=5) as pool:

        async def warm() -> bool:
            return len(await watch.sessions()) == 5 and pool.stats().idle == 5

        await eventually(warm, lambda: count(pool))
        await watch.kill() if how == "terminated" else proxy.cut()
        await asyncio.sleep(0.1)
        for number in range(20):
            assert await pool.fetchval("SELECT $1::int", number) == number
        answers = await asyncio.gather(*(pool.fetchval("SELECT $1::int", number) for number in range(20)))
        assert answers == list(range(20))
        assert pool.stats().connects <= 10
        assert {node.state for node in pool.stats().nodes.values()} == {"up"}
    assert not [record for record in caplog.records if record.levelname == "ERROR" or record.exc_info]
    assert len([record for record in caplog.records if record.levelno >= logging.INFO]) <= 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("sqlstate", ["0A000", "42883", "42601", "XX000", "25006"])
async def test_pool_reset_unsupported(
    watch: Watch, sqlstate: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not know a statement of the reset is asked once; the session is kept, the rest is cleared."""
    text = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}', MESSAGE = 'no such thing here'; END $$"
    monkeypatch.setattr(sessions, "RESET", (text, "RESET ALL"))
    async with watch.pool(max_size=1) as pool:
        for _ in range(20):
            async with pool.acquire() as connection:
                assert await connection.fetchval("SHOW work_mem") != "99kB"
                await connection.execute("SET work_mem = '99kB'")
        assert pool.stats().connects == 1
    assert len([record for record in caplog.records if "refuses" in record.message]) == 1


async def test_pool_stale_waiters_slow_queue(watch: Watch) -> None:
    """Clients that hang up leave the queue at once; those who stay are served, and the gauge tells the truth."""
    rng = Random(5)
    async with watch.pool(max_size=4, min_size=4) as pool:
        over = asyncio.get_running_loop().time() + 1.0
        longest, served = 0.0, 0

        async def impatient() -> None:
            async with pool.acquire():
                await asyncio.sleep(0)

        async def well_behaved() -> None:
            nonlocal longest, served
            loop = asyncio.get_running_loop()
            while loop.time() < over:
                began = loop.time()
                assert await pool.fetchval("SELECT 1") == 1
                longest, served = max(longest, loop.time() - began), served + 1

        async def noise() -> None:
            while asyncio.get_running_loop().time() < over:
                crowd = [asyncio.create_task(impatient()) for _ in range(50)]
                await asyncio.sleep(rng.uniform(0, 0.01))
                for task in crowd:
                    task.cancel()
                await asyncio.gather(*crowd, return_exceptions=True)

        await asyncio.gather(noise(), *(well_behaved() for _ in range(4)))
        assert served > 20
        assert longest < 1.0
        assert count(pool)[3] == 0
        await watch.agrees(pool)


# cancel


async def test_cancel_during_connect_orphan(proxy: FaultProxy, watch: Watch) -> None:
    """Cancelled between the open socket and the finished connection: no session, no descriptor, no complaint."""
    rng = Random(7)
    before = descriptors()
    proxy.delay(0.01)

    async def open_one() -> None:
        async with through(proxy, watch, min_size=1, max_size=1):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(open_one()) for _ in range(60)]
    await asyncio.gather(*(_cancel_after(task, rng.uniform(0, 0.15)) for task in tasks))
    proxy.delay(0)
    await watch.no_session()
    await eventually(lambda: _any([abs(descriptors() - before) <= 2]), descriptors)


async def _cancel_after(task: asyncio.Task[None], seconds: float) -> None:
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_cancel_swallowed_by_check(proxy: FaultProxy, watch: Watch) -> None:
    """A caller's own time limit holds against a node that hangs; `close()` can be cancelled there, too."""
    pool = await through(proxy, watch, min_size=0, max_size=1).open()
    async with pool.acquire() as connection:
        connection.terminate()
    proxy.freeze()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.acquire().__aenter__(), 0.1)
    closing = asyncio.create_task(pool.close(grace=30))
    await asyncio.sleep(0.01)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await closing
    proxy.let_pass()
    await watch.no_session()


async def test_cancel_in_transaction(watch: Watch) -> None:
    """Wherever a transaction is cancelled, its locks are gone within a second; the task ends as cancelled."""
    await watch.admin.execute("CREATE TABLE IF NOT EXISTS rows_locked (id int PRIMARY KEY, v int)")
    await watch.admin.execute("INSERT INTO rows_locked VALUES (1, 0) ON CONFLICT DO NOTHING")
    await watch.admin.execute("SET lock_timeout = '1s'")
    async with watch.pool(max_size=2) as pool:

        async def work(*, slow: bool) -> None:
            async with pool.acquire() as connection:
                await connection.execute("BEGIN")
                await connection.fetch("SELECT * FROM rows_locked WHERE id = 1 FOR UPDATE")
                await (connection.execute("SELECT pg_sleep(60)") if slow else asyncio.Event().wait())

        for point in range(20):
            task = asyncio.create_task(work(slow=bool(point % 2)))
            await asyncio.sleep(0.0005 * point)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            await watch.admin.execute("UPDATE rows_locked SET v = v + 1 WHERE id = 1")
        await intact(pool, watch, 2)
    await watch.admin.execute("DROP TABLE rows_locked")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_cancel_abandoned_cursor(proxy: FaultProxy, watch: Watch) -> None:
    """A link cut in the middle of a cursor is told as what it is; a cursor left behind costs nothing."""

    async def read(pool: Pool, at_row: int, then: Callable[[], None] | None) -> None:
        async with pool.acquire() as connection, connection.transaction():
            async for row in connection.cursor("SELECT generate_series(1, 1000)", prefetch=5):
                if row[0] == at_row:
                    if then is None:
                        break
                    then()

    async with through(proxy, watch, max_size=1) as pool:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1") as caught:
            await read(pool, 25, proxy.cut)
        assert caught.value.__cause__ is not None
        assert "transaction" not in str(caught.value)
        assert await pool.fetchval("SELECT 1", idempotent=True) == 1
        with pytest.raises(ConnectionLost):
            await read(pool, 25, lambda: _kill(watch))
        await read(pool, 25, None)
        assert await pool.fetchval("SELECT count(*) FROM pg_cursors WHERE name <> ''") == 0


def _kill(watch: Watch) -> None:
    text = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{watch.application}'"
    step = f"import asyncio, asyncpg\nasync def main():\n    c = await asyncpg.connect({watch.server.dsn!r})\n"
    step += f"    await c.execute({text!r})\n    await c.close()\nasyncio.run(main())"
    subprocess.run([sys.executable, "-c", step], check=True)


# conc


async def test_conc_two_tasks_one_connection(watch: Watch) -> None:
    """One call at a time: the others are refused, the first is never damaged, and no busy session goes back."""
    async with watch.pool(max_size=1) as pool:
        for turn in range(20):
            async with pool.acquire() as connection:
                calls = [connection.fetchval("SELECT $1::int FROM pg_sleep(0.001)", number) for number in range(10)]
                told = await asyncio.gather(*calls, return_exceptions=True)
                assert told[0] == 0
                assert all(isinstance(error, UsageError) for error in told[1:])
                assert await connection.fetchval("SELECT 5") == 5
                mixed = await asyncio.gather(
                    _iterate(connection), _later(connection.execute, "SELECT 1"), return_exceptions=True
                )
                assert any(mixed)
                assert all(error is None or isinstance(error, UsageError) for error in mixed)
                running = asyncio.create_task(connection.fetchval("SELECT $1::int FROM pg_sleep(0.002)", turn))
                await asyncio.sleep(0)
            assert await pool.fetchval("SELECT $1::int", -turn) == -turn
            assert await running == turn
        await watch.agrees(pool)


async def _iterate(connection: Any) -> None:
    async with connection.transaction():
        async for _ in connection.cursor("SELECT pg_sleep(0.001) FROM generate_series(1, 3)", prefetch=1):
            pass


async def _later(call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
    for _ in range(100):
        await asyncio.sleep(0)
        await call(*args)


# metrics


async def test_metrics_negative(proxy: FaultProxy, watch: Watch) -> None:
    """Under every kind of fault at once no gauge leaves its bounds; a second later all is at rest."""
    rng, failing = Random(11), True

    async def hook(connection: Any) -> None:
        if failing and rng.random() < 0.2:
            raise ValueError("now and then")

    pool = through(proxy, watch, min_size=1, max_size=4, after_connect=hook, acquire_timeout=0.3, connect_timeout=0.5)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            with contextlib.suppress(PicopynError, ValueError):
                await stack.enter_async_context(pool)
                break
        over = asyncio.get_running_loop().time() + 1.5
        samples = 0

        async def caller() -> None:
            while asyncio.get_running_loop().time() < over:
                with contextlib.suppress(PicopynError, ValueError, TimeoutError, asyncpg.PostgresError):
                    async with asyncio.timeout(rng.choice([0.001, 0.01, 1])), pool.acquire() as connection:
                        await connection.execute("SELECT pg_sleep(0.001)")
                        if rng.random() < 0.3:
                            connection.release()
                            with pytest.raises(UsageError):
                                connection.release()
                await asyncio.sleep(0)

        async def faults() -> None:
            while asyncio.get_running_loop().time() < over:
                await asyncio.sleep(0.02)
                rng.choice([proxy.cut, proxy.refuse, proxy.let_pass, proxy.let_pass, proxy.cut])()
            proxy.let_pass()

        async def sampler() -> None:
            nonlocal samples
            while asyncio.get_running_loop().time() < over:
                for node in pool.stats().nodes.values():
                    assert min(node.idle, node.in_use, node.connecting, node.waiting) >= 0
                    assert node.idle + node.in_use + node.connecting == node.size <= 4
                    samples += 1
                await asyncio.sleep(0.005)

        await asyncio.gather(faults(), sampler(), *(caller() for _ in range(12)))
        failing = False
        assert samples > 10
        await watch.agrees(pool, "after the faults")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_metrics_while_node_missing(pool_class: Any, watch: Watch) -> None:
    """Statistics, topology and `repr` answer in every state of a pool, whoever asks."""
    states: list[str] = []

    async def look(pool: Pool, name: str) -> None:
        for ask in (pool.stats, lambda: repr(pool)):
            ask()
            await asyncio.to_thread(ask)
        states.append(name)

    dsn = f"postgresql://postgres@127.0.0.1:{watch.server.port},127.0.0.1:1/postgres"
    pool = pool_class(dsn, dialect="postgres", ssl="disable", application_name=watch.application)
    await look(pool, "new")
    await pool.open()
    await look(pool, "open")
    assert {node.address for node in pool.topology.nodes()} == {f"127.0.0.1:{watch.server.port}", "127.0.0.1:1"}
    assert len(pool.stats().nodes) == 2
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    await look(pool, "closing")
    await closing
    await look(pool, "closed")
    assert count(pool) == (0, 0, 0, 0)
    assert states == ["new", "open", "closing", "closed"]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_metrics_event_callbacks(watch: Watch, proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    """Every connection is opened and closed once, in that order; a listener that raises or asks back harms nothing."""
    seen: list[Event] = []

    def listener(event: Event) -> None:
        seen.append(event)
        pool.stats()
        raise ValueError("a listener of little use")

    pool = through(proxy, watch, max_size=2, on_event=listener, acquire_timeout=0.3, connect_timeout=0.3)
    async with pool:
        await pool.execute("SELECT 1")
        async with pool.acquire() as connection:
            connection.terminate()
        await asyncio.gather(pool.execute("SELECT pg_sleep(0.01)"), pool.execute("SELECT pg_sleep(0.01)"))
        proxy.refuse()
        proxy.cut()
        while not any(isinstance(event, ConnectFailed) for event in seen):
            with pytest.raises(PicopynError):
                await pool.execute("SELECT 1")
        proxy.let_pass()
        assert await pool.fetchval("SELECT 1", timeout=5, idempotent=True) == 1
    opened = [event.connection for event in seen if isinstance(event, ConnectionOpened)]
    closed = [event.connection for event in seen if isinstance(event, ConnectionClosed)]
    failed = [event.connection for event in seen if isinstance(event, ConnectFailed)]
    assert len(set(opened)) == len(opened)
    assert sorted(closed) == sorted(opened)
    assert failed
    assert not set(failed) & set(opened)


async def _any(facts: Iterable[bool]) -> bool:
    return any(facts)


# fork

#: Arguments: a connection string, and a name for the sessions.
FORK = """
import asyncio, json, os, socket, sys
from picopyn.asynchronous import Pool
from picopyn.errors import UsageError

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
pool = Pool(sys.argv[1], dialect="postgres", application_name=sys.argv[2], min_size=3, max_size=3)

async def many(number):
    return await asyncio.gather(*(pool.fetchval("SELECT $1::int", n) for n in range(number)))

async def pids():
    seen = set()
    while len(seen) < 3:
        calls = [pool.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.01)") for _ in range(3)]
        seen |= set(await asyncio.gather(*calls))
    return seen

async def fresh():
    async with Pool(sys.argv[1], dialect="postgres", application_name=sys.argv[2]) as own:
        return await asyncio.gather(*(own.fetchval("SELECT $1::int", n) for n in range(100)))

def of_the_pool():  # descriptors that lead to the server
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                if one.getpeername()[1:2] == (pool.settings.endpoints[0].port,):
                    found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return found

loop.run_until_complete(pool.open())
before = sorted(loop.run_until_complete(pids()))
held = loop.run_until_complete(pool.acquire().__aenter__())
children, sockets = [], of_the_pool()
assert len(sockets) >= 3
for number in range(4):
    child = os.fork()
    if child:
        children.append(child)
        continue
    code = 3 if set(of_the_pool().values()) & set(sockets.values()) else 0
    try:
        asyncio.run(many(1))
        code = 1
    except UsageError:
        pass
    if asyncio.run(fresh()) != list(range(100)):
        code = 2
    if number % 2:
        del pool, held, loop
        asyncio.set_event_loop(None)
        sys.exit(code)
    os._exit(code)
answers = loop.run_until_complete(many(500))
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
answers += loop.run_until_complete(many(500))
value = loop.run_until_complete(held.fetchval("SELECT 9"))
held_is_whole = value == 9
async def give_back():
    held.release()
loop.run_until_complete(give_back())
after = sorted(loop.run_until_complete(pids()))
loop.run_until_complete(pool.close())
print(json.dumps([answers == list(range(500)) * 2, codes, held_is_whole, before == after]))
"""


async def after_forks(dsn: str, application: str) -> None:
    """Run the program, and see that nobody got an answer of somebody else and the parent's sessions are whole."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", FORK, dsn, application,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            said, complaints = await running.communicate()
    except TimeoutError:
        os.killpg(running.pid, signal.SIGKILL)
        raise
    assert running.returncode == 0, complaints.decode()
    assert json.loads(said) == [True, [0, 0, 0, 0], True, True], complaints.decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_fork_after_pool(watch: Watch) -> None:
    """A child gets a clear error and can have a pool of its own; the parent's sessions never notice."""
    await after_forks(f"{watch.server.dsn}?sslmode=disable", watch.application)
