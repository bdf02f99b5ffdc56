"""Scenarios of class "shutdown" (and one of class "cancellation" that is about closing) from public bug reports.

Each test is named after its scenario. What must be seen from outside (warnings, exit, sessions at the server) is
watched in a program of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import ConfigError, ConnectionLost, PicopynError, PoolClosed, UsageError
from picopyn.testing import FaultProxy, PostgresServer
from tests.login import with_words
from tests.postgres.conftest import OpenPool
from tests.postgres.real import address, through
from tests.threads import FACADES

Measured = Callable[[str, object], None]


def of(server: PostgresServer, name: str, *ways: FaultProxy) -> str:
    """A connection string whose sessions can be counted; through proxies, if there are some."""
    dsn = through(server, *(way.port for way in ways)) if ways else server.dsn
    return with_words(dsn, f"application_name={name}&dialect=postgres")


async def until_gone(admin: Any, name: str, limit: float = 20.0) -> None:
    """Wait until the server has no session of that name."""
    until = time.monotonic() + limit
    while await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name):
        assert time.monotonic() < until, "sessions are left at the server"
        await asyncio.sleep(0.01)


def program(text: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program with every warning and asyncio's debug mode on."""
    head = "import asyncio, sys, time, warnings, logging\nfrom picopyn.asynchronous import Pool\n"
    environment = {**os.environ, "PYTHONASYNCIODEBUG": "1", "PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", head + textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def output(text: str, *arguments: str) -> tuple[str, str]:
    """What a program writes; it ends by itself."""
    out, err = program(text, *arguments).communicate(timeout=60)
    return out.strip(), err


def warned(err: str) -> list[str]:
    """Lines of standard error that tell of something; slow steps of the test machine are none of our business."""
    lines = [line for line in err.splitlines() if line.strip() and "Executing <" not in line]
    return [line for line in lines if not line.startswith((" ", "Object allocated", "Traceback"))]


# shutdown-close-with-leak


class Leaky:
    """A pool with a connection that is never released, one in a long statement, and calls that wait."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> Leaky:
        self.held = await self.pool.acquire()
        self.tasks = [asyncio.create_task(self.pool.fetchval("SELECT pg_sleep(60)"))]
        while self.pool.stats().in_use < 2:
            await asyncio.sleep(0.01)
        self.tasks += [asyncio.create_task(self._acquire()) for _ in range(2)]
        while self.pool.stats().waiting < 2:
            await asyncio.sleep(0.01)
        return self

    async def _acquire(self) -> None:
        await self.pool.acquire()

    async def check(self) -> None:
        """Everybody who waited or ran knows that it is over, and so does the holder at his next step."""
        ended = await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 20)
        assert isinstance(ended[0], ConnectionLost | PoolClosed)
        assert [type(error) for error in ended[1:]] == [PoolClosed, PoolClosed]
        with pytest.raises((ConnectionLost, asyncpg.InterfaceError)):
            await self.held.fetchval("SELECT 1")
        self.held.release()


@pytest.mark.parametrize(
    ("facade", "how"),
    [*product(FACADES, ["grace", "terminate", "terminate from a thread", "no grace"]), ("asynchronous", "cancelled")],
    indirect=["facade"],
)
async def test_shutdown_close_with_leak(
    pool_class: Any, postgres: PostgresServer, admin: Any, how: str, measured: Measured
) -> None:
    """A forgotten connection, a long statement and waiting calls hold nothing up longer than they may."""
    name = f"leak_{how.replace(' ', '_')}"
    pool = await pool_class(of(postgres, name), max_size=2, min_size=2).open()
    leaky = await Leaky(pool).begin()
    began = time.monotonic()
    if how == "grace":
        closing = asyncio.create_task(pool.close(grace=1))
        await asyncio.sleep(0)
        with pytest.raises(PoolClosed):
            await pool.fetchval("SELECT 1")
        await asyncio.wait({leaky.tasks[1], leaky.tasks[2]}, timeout=20)
        assert leaky.tasks[1].done()
        assert leaky.tasks[2].done()
        await closing
        assert 1 <= time.monotonic() - began < 15
        measured("close(grace=1) with a leak, seconds", time.monotonic() - began)
    elif how == "no grace":
        await pool.close(grace=0)
    elif how == "cancelled":
        closing = asyncio.create_task(pool.close())
        await asyncio.wait({closing}, timeout=0.5)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    elif how == "terminate":
        pool.terminate()
    else:
        thread = threading.Thread(target=pool.terminate)
        thread.start()
        thread.join()
    await leaky.check()
    await until_gone(admin, name)
    await pool.close()
    pool.terminate()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_shutdown_close_with_a_frozen_node(pool_class: Any, postgres: PostgresServer, measured: Measured) -> None:
    """A node that hangs costs the grace, and no more."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await pool_class(of(postgres, "frozen", proxy), max_size=4, min_size=4).open()
        while pool.stats().idle < 4:
            await asyncio.sleep(0.01)
        held = await pool.acquire()
        proxy.freeze()
        late = asyncio.create_task(pool.fetchval("SELECT 2"))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await pool.close(grace=0.3)
        took = time.monotonic() - began
        measured("close(grace=0.3) with a frozen node, seconds", took)
        assert took < 0.8
        ended = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(ended[0], PicopynError)
        held.release()
        proxy.let_pass()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_second_close_waits_for_the_first(pool_class: Any, postgres: PostgresServer, admin: Any) -> None:
    """Whatever its own grace; when one returns, the pool is closed."""
    pool = await pool_class(of(postgres, "twice")).open()
    held = await pool.acquire()
    first = asyncio.create_task(pool.close(grace=20))
    while "closed" not in repr(pool):  # a thread may begin later than the next one
        await asyncio.sleep(0.001)
    second = asyncio.create_task(pool.close(grace=0))
    third = asyncio.create_task(pool.close())
    await asyncio.sleep(0.1)
    third.cancel()
    await asyncio.wait({third})
    assert not first.done()
    assert not second.done()
    assert await held.fetchval("SELECT 1") == 1
    held.release()
    await asyncio.gather(first, second)
    await until_gone(admin, "twice")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("grace", [-1, float("nan")])
async def test_a_grace_is_a_number_of_seconds(postgres: PostgresServer, open_pool: OpenPool, grace: float) -> None:
    """Anything else is refused, and the pool stays open."""
    pool = await open_pool(of(postgres, "grace"))
    with pytest.raises(ValueError, match="grace"):
        await pool.close(grace=grace)
    assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_holder_may_close_the_pool(pool_class: Any, postgres: PostgresServer) -> None:
    """He is waited for like anybody else, and dropped after the grace: no deadlock."""
    pool = await pool_class(of(postgres, "holder")).open()
    began = time.monotonic()
    async with pool.acquire() as held:
        await pool.close(grace=0.2)
        assert held.is_closed()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("what", ["close", "terminate"])
async def test_a_hook_may_end_the_pool(pool_class: Any, postgres: PostgresServer, what: str) -> None:
    """`after_connect` runs inside of what is ended."""
    reached = asyncio.Event()

    async def hook(connection: Any) -> None:
        if pools[0].stats().connects:
            reached.set()
            if what == "close":
                await pools[0].close(grace=1)
            else:
                pools[0].terminate()

    pools = [pool_class(of(postgres, f"hook_{what}"), after_connect=hook, max_size=2, min_size=1)]
    pool = await pools[0].open()
    held = await pool.acquire()
    calls = [asyncio.create_task(pool.fetchval("SELECT 1")) for _ in range(2)]
    await asyncio.wait_for(reached.wait(), 20)
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert {type(error) for error in ended} == {PoolClosed}
    held.release()
    await pool.close()


@pytest.mark.parametrize(
    ("facade", "what"),
    [("asynchronous", "close"), ("asynchronous", "terminate"), ("sync", "terminate")],
    indirect=["facade"],
)
async def test_an_observer_may_end_the_pool(pool_class: Any, postgres: PostgresServer, what: str) -> None:
    """`on_event` is called in the midst of things."""
    ends: list[asyncio.Task[None]] = []

    def observe(event: Any) -> None:
        if type(event).__name__ == "ConnectionClosed" and not ends:
            if what == "close":
                ends.append(asyncio.ensure_future(pool.close(grace=1)))
            else:
                pool.terminate()

    pool = pool_class(of(postgres, f"observer_{what}"), on_event=observe, max_size=3, min_size=3)
    await pool.open()
    async with pool.acquire() as connection:
        await connection.close()
    for _ in range(100):
        await asyncio.sleep(0.01)
        if pool.stats().size == 0:
            break
    await asyncio.gather(*ends)
    with pytest.raises(PoolClosed):
        await pool.fetchval("SELECT 1")


# shutdown-pending-tasks


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_after_terminating_waits_for_the_last_of_it(pool_class: Any, postgres: PostgresServer) -> None:
    """`terminate()` drops everything at once; who wants to know when it is gone closes the pool too."""
    before = asyncio.all_tasks()
    pool = await pool_class(of(postgres, "after_terminate"), min_size=5, max_size=5).open()
    call = asyncio.create_task(pool.fetchval("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    pool.terminate()
    await pool.close()
    await pool.close()
    assert {task.get_name() for task in asyncio.all_tasks() - before - {call}} == set()
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], PicopynError)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_shutdown_pending_tasks_nothing_is_left_in_the_same_tick(
    pool_class: Any, postgres: PostgresServer
) -> None:
    """When `close()` returns, no task and no timer of the driver exists any more."""
    loop: Any = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    pool = await pool_class(of(postgres, "tick"), min_size=3).open()
    await asyncio.gather(*(pool.fetchval("SELECT 1", timeout=60) for _ in range(20)))
    await pool.close()
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()
    assert [timer for timer in loop._scheduled if not timer.cancelled() and "picopyn" in repr(timer)] == []


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_shutdown_pending_tasks_while_a_reconnect_backs_off(pool_class: Any, postgres: PostgresServer) -> None:
    """A pool that waits to try again closes at once."""
    with FaultProxy(*address(postgres)) as proxy:
        pool = await pool_class(of(postgres, "backs_off", proxy), min_size=2).open()
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(0.05)
        call = asyncio.create_task(pool.fetchval("SELECT 1"))
        await asyncio.sleep(0.3)
        before = time.monotonic()
        await pool.close()
        assert time.monotonic() - before < 5
        with pytest.raises(PoolClosed):
            await call


CLOSED = """
    async def main():
        async with Pool(sys.argv[1], min_size=2) as pool:
            await asyncio.gather(*(pool.fetchval("SELECT 1") for _ in range(5)))
        return pool
    pool = asyncio.run(main())
    print("done")
"""

SAME_TICK = """
    async def main():
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        await pool.close()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    print("done")
"""


@pytest.mark.parametrize("text", [CLOSED, SAME_TICK], ids=["asyncio.run", "the loop is closed in the same tick"])
async def test_shutdown_pending_tasks_a_closed_pool_is_quiet(postgres: PostgresServer, text: str) -> None:
    """Not one line on standard error."""
    out, err = await asyncio.to_thread(output, text, of(postgres, "quiet"))
    assert (out, warned(err)) == ("done", [])


FORGOTTEN_BY_MAIN = """
    async def main():
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        print("done")
    asyncio.run(main())
"""

FORGOTTEN_GLOBAL = """
    async def main():
        global pool
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        print("done")
    asyncio.run(main())
"""

FORGOTTEN_IN_A_CYCLE = """
    class Application:
        def __init__(self):
            self.pool = Pool(sys.argv[1], min_size=2, on_event=self.hear)
        def hear(self, event):
            pass
    async def main():
        application = Application()
        await application.pool.open()
        await application.pool.fetchval("SELECT 1")
        print("done")
    asyncio.run(main())
"""

FORGOTTEN_WHILE_RUNNING = """
    import gc
    async def main():
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        del pool
        gc.collect()
        await asyncio.sleep(0.2)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        print("done" if not left else left)
    asyncio.run(main())
"""

LOOP_CLOSED_UNDER_IT = """
    async def main():
        global pool
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        while pool.stats().idle < 2:
            await asyncio.sleep(0.01)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    print("done")
"""

LOOP_STOPPED_UNDER_IT = """
    async def main():
        pool = await Pool(sys.argv[1], min_size=2).open()
        await pool.fetchval("SELECT 1")
        while pool.stats().idle < 2:
            await asyncio.sleep(0.01)
        return pool
    loop = asyncio.new_event_loop()
    pool = loop.run_until_complete(main())
    del pool
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    print("done")
"""


@pytest.mark.parametrize(
    "text",
    [
        FORGOTTEN_BY_MAIN,
        FORGOTTEN_GLOBAL,
        FORGOTTEN_IN_A_CYCLE,
        FORGOTTEN_WHILE_RUNNING,
        LOOP_CLOSED_UNDER_IT,
        LOOP_STOPPED_UNDER_IT,
    ],
    ids=["local", "global", "in a cycle", "while running", "loop closed", "loop stopped"],
)
async def test_shutdown_pending_tasks_a_forgotten_pool_warns_once(
    postgres: PostgresServer, admin: Any, text: str
) -> None:
    """One `ResourceWarning` that says what to do, and nothing else; its sessions end."""
    began = time.monotonic()
    out, err = await asyncio.to_thread(output, text, of(postgres, "forgotten"))
    assert out == "done"
    told = warned(err)
    assert len(told) == 1, err
    assert "ResourceWarning: <Pool" in told[0]
    assert "was never closed" in told[0]
    await until_gone(admin, "forgotten")
    assert time.monotonic() - began < 10


INTERRUPTED = """
    async def main():
        {head}
            tasks = [asyncio.create_task(pool.fetchval("SELECT pg_sleep(60)")) for _ in range(3)]
            print("running", flush=True)
            await asyncio.gather(*tasks)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("block", [True, False], ids=["async with", "never closed"])
async def test_shutdown_pending_tasks_at_an_interrupt(
    postgres: PostgresServer, admin: Any, block: bool, measured: Measured
) -> None:
    """Ctrl-C ends a program within a second, quietly; a pool without a block says that it was never closed."""
    head = (
        "async with Pool(sys.argv[1]) as pool:" if block else "pool = await Pool(sys.argv[1]).open()\n        if True:"
    )
    running = program(INTERRUPTED.format(head=head), of(postgres, "interrupted"))
    assert running.stdout is not None
    assert await asyncio.to_thread(running.stdout.readline) == "running\n"
    await asyncio.sleep(0.3)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    out, err = await asyncio.to_thread(running.communicate, timeout=20)
    measured(f"Ctrl-C to exit, block: {block}, seconds", time.monotonic() - began)
    assert time.monotonic() - began < 9
    assert out == "interrupted\n"
    told = warned(err)
    assert len(told) == (0 if block else 1), err
    await until_gone(admin, "interrupted")


# shutdown-wrong-or-closed-loop


class OtherLoop:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, step: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self.loop).result(20)

    def end(self) -> None:
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def test_shutdown_wrong_loop_is_refused_and_harmless(postgres: PostgresServer) -> None:
    """Closing in a loop that is not the pool's says so at once; the pool's users notice nothing."""
    other = OtherLoop()
    try:
        pool = Pool(of(postgres, "other_loop"))  # made where another loop runs, bound where it is opened
        other.run(pool.open())
        for step in (pool.close(), pool.fetchval("SELECT 1"), pool.open(), pool.wait_ready()):
            began = time.monotonic()
            with pytest.raises(UsageError, match="event loop"):
                await step
            assert time.monotonic() - began < 9
        assert other.run(pool.fetchval("SELECT 1")) == 1
        other.run(pool.close())
        with pytest.raises(PoolClosed):
            other.run(pool.fetchval("SELECT 1"))
    finally:
        other.end()


async def test_terminate_works_from_any_thread(postgres: PostgresServer, admin: Any) -> None:
    """Also while the pool's loop runs elsewhere."""
    other = OtherLoop()
    try:
        pool = other.run(Pool(of(postgres, "any_thread"), min_size=2).open())
        pool.terminate()
        await until_gone(admin, "any_thread")
        with pytest.raises(PoolClosed):
            other.run(pool.fetchval("SELECT 1"))
        other.run(pool.close())
    finally:
        other.end()


async def test_shutdown_wrong_loop_that_is_stopped(postgres: PostgresServer, admin: Any) -> None:
    """It may go on later, so the pool stays its own: every use is refused at once; only `terminate` works."""
    home = asyncio.new_event_loop()

    def at_home(step: Callable[[], Any]) -> Any:
        return home.run_until_complete(step())

    async def open_whole() -> Pool:  # a connection that is being opened ends when its loop goes on, not before
        pool = await Pool(of(postgres, "stopped_loop"), min_size=2).open()
        while pool.stats().idle < 2:
            await asyncio.sleep(0.01)
        return pool

    pool = await asyncio.to_thread(at_home, open_whole)
    held = await asyncio.to_thread(at_home, lambda: pool.acquire().__aenter__())
    for step in (pool.close(), pool.fetchval("SELECT 1"), pool.open(), held.fetchval("SELECT 1"), pool.release(held)):
        with pytest.raises(UsageError, match="event loop"):
            next(step.__await__())
    assert await asyncio.to_thread(at_home, lambda: held.fetchval("SELECT 1")) == 1
    pool.terminate()
    await until_gone(admin, "stopped_loop")
    await asyncio.to_thread(at_home, pool.close)
    home.close()
    with pytest.raises(PoolClosed):
        await pool.fetchval("SELECT 1")
    held.release()


@pytest.mark.parametrize("how", ["close", "terminate", "collected"])
async def test_shutdown_closed_loop_leaves_no_session(postgres: PostgresServer, admin: Any, how: str) -> None:
    """When its loop has died, a pool still lets go of its sockets, at once and without a complaint."""
    other = OtherLoop()
    pool = other.run(Pool(of(postgres, f"dead_loop_{how}"), min_size=2).open())
    other.run(pool.wait_ready())
    while pool.stats().idle < 2:
        await asyncio.sleep(0.01)
    other.end()
    with pytest.raises(UsageError, match="closed"):
        await pool.fetchval("SELECT 1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "close":
            await pool.close()
        elif how == "terminate":
            pool.terminate()
        del pool
        gc.collect()
    assert [warning.category for warning in caught] == ([ResourceWarning] if how == "collected" else [])
    await until_gone(admin, f"dead_loop_{how}", limit=1.0)


@pytest.mark.parametrize("number", range(3))
def test_shutdown_one_loop_per_test_with_a_pool_for_each(postgres: PostgresServer, number: int) -> None:
    """The pattern of test suites."""

    async def main() -> None:
        async with Pool(of(postgres, "per_test")) as pool:
            assert await pool.fetchval("SELECT 1") == 1

    asyncio.run(main())


# shutdown-reopen


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_shutdown_reopen(facade: str, pool_class: Any, postgres: PostgresServer, admin: Any) -> None:
    """Opening twice is nothing, opening at the same time is refused, a closed pool stays closed."""
    pool = pool_class(of(postgres, "reopen"), min_size=2, max_size=2)
    with pytest.raises(UsageError, match="not open yet"):
        await pool.fetchval("SELECT 1")
    outcomes = await asyncio.gather(*(pool.open() for _ in range(10)), return_exceptions=True)
    assert pool in outcomes
    assert {type(outcome) for outcome in outcomes if outcome is not pool} <= {UsageError}
    assert facade == "sync" or outcomes.count(pool) == 1  # a thread may come when another has opened it already
    assert await pool.open() is pool
    await pool.wait_ready()
    await asyncio.gather(*(pool.fetchval("SELECT pg_sleep(0.01)") for _ in range(20)))
    count = await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reopen'")
    assert count == 2
    async with pool:
        await pool.close()
    with pytest.raises(PoolClosed):
        await pool.open()
    with pytest.raises(PoolClosed):
        await pool.wait_ready()


@pytest.mark.parametrize("sizes", [{"max_size": 0}, {"min_size": 3, "max_size": 2}, {"min_size": 3, "max_total": 2}])
def test_shutdown_reopen_impossible_sizes(sizes: dict[str, int]) -> None:
    """They are found before anything is opened."""
    with pytest.raises(ConfigError):
        Pool("postgresql://h", **sizes)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["close", "terminate"])
@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_shutdown_closing_while_opening(
    pool_class: Any, postgres: PostgresServer, admin: Any, how: str, turns: int
) -> None:
    """The opening ends with `PoolClosed`, and nothing is left of it."""
    name = f"half_open_{how}"
    with FaultProxy(*address(postgres)) as proxy:
        if turns == 10:
            proxy.freeze()
        pool = pool_class(of(postgres, name, *([proxy] if turns == 10 else [])), min_size=2)
        opening = asyncio.create_task(pool.open())
        for _ in range(turns):
            await asyncio.sleep(0.002 if turns == 10 else 0)
        began = time.monotonic()
        if how == "close":
            await pool.close()
        else:
            pool.terminate()
        ended = await asyncio.wait_for(asyncio.gather(opening, return_exceptions=True), 20)
        assert isinstance(ended[0], PoolClosed)
        assert time.monotonic() - began < 5
        proxy.let_pass()
        await until_gone(admin, name)
    with pytest.raises(PoolClosed):
        await pool.open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_call_that_waits_for_readiness_ends_when_the_pool_closes(
    pool_class: Any, postgres: PostgresServer
) -> None:
    """At once, with `PoolClosed`."""
    pool = await pool_class(of(postgres, "ready")).open()
    waiting = asyncio.create_task(pool.wait_ready(leaders=5, timeout=30))
    await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(PoolClosed):
        await waiting


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_async_with_block_that_fails_closes_the_pool(
    pool_class: Any, postgres: PostgresServer, admin: Any
) -> None:
    """The error comes out as it is."""
    with pytest.raises(ZeroDivisionError):
        async with pool_class(of(postgres, "fails"), min_size=2) as pool:
            await pool.fetchval("SELECT 1")
            raise ZeroDivisionError
    await until_gone(admin, "fails")


async def test_a_cancelled_block_does_not_wait_for_other_tasks(postgres: PostgresServer) -> None:
    """Whoever cancels wants it over: a quarter of a second of grace."""
    calls: list[asyncio.Task[Any]] = []

    async def main() -> None:
        async with Pool(of(postgres, "block")) as pool:
            calls.append(asyncio.create_task(pool.fetchval("SELECT pg_sleep(60)")))
            await asyncio.sleep(60)

    task = asyncio.create_task(main())
    while not calls:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 5
    with pytest.raises(PicopynError):
        await calls[0]


# cancel-then-close-pool


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_cancel_then_close_pool(postgres: PostgresServer, admin: Any, turns: int) -> None:
    """A cancelled `acquire` leaves nothing that closing would wait for."""
    pool = await Pool(of(postgres, "cancelled_acquire"), min_size=1, max_size=1).open()
    held = await pool.acquire()

    async def acquire() -> None:
        await pool.acquire(timeout=200)

    waiting = asyncio.create_task(acquire())
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    held.release()
    began = time.monotonic()
    await pool.close()
    assert time.monotonic() - began < 5
    assert waiting.done()
    await until_gone(admin, "cancelled_acquire")
