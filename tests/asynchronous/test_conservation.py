"""Random schedules of calls, loans, cancellations, timeouts and killed sessions: everything is accounted for.

Whatever the order: a caller gets his own answer or an error that he may get; only who was cancelled ends as cancelled;
the gauges never leave their bounds; in the end nothing is in use, the server has as many sessions as the pool says, and
none after the close; no task is left, and asyncio complains of nothing. 2 000 operations by default, 100 000 with
`--full`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from picopyn.asynchronous.acquired import AcquiredConnection
from picopyn.errors import PicopynError
from picopyn.testing import PostgresServer
from tests.asynchronous.servers import Watch, count
from tests.cancelling import nothing_left_behind

T = TypeVar("T")

#: Steps of one schedule; some find nothing to do, so a schedule has about 25 operations.
STEPS = 40

PAUSES = st.sampled_from([0.0, 0.0, 0.001, 0.002, 0.005])
TIMEOUTS = st.sampled_from([None, None, 0.001, 0.003, 0.01, 1.0])

#: When a call is cancelled after its start (seconds); about 70 % are.
DOOMS = st.sampled_from([None, None, None, 0.0, 0.0, 0.001, 0.001, 0.002, 0.004, 0.01])
NUMBERS = itertools.count(1)


class Schedule(RuleBasedStateMachine):
    """A pool of three connections, and callers who come, go and are killed."""

    server: PostgresServer
    operations: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.AsyncExitStack()
        self.tasks: list[asyncio.Task[Any]] = []
        self.held: list[AcquiredConnection] = []
        self.cancelled: set[asyncio.Task[Any]] = set()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(step)

    @initialize(max_size=st.integers(1, 3), min_size=st.integers(0, 1), reset=st.booleans())
    def begin(self, max_size: int, min_size: int, reset: bool) -> None:
        async def begin() -> None:
            await self.stack.enter_async_context(nothing_left_behind())
            self.watch = await self.stack.enter_async_context(Watch(self.server, f"schedule {next(NUMBERS)}"))
            self.pool = self.watch.pool(
                min_size=min_size, max_size=max_size, reset=reset, acquire_timeout=0.5, connect_timeout=2
            )
            self.max_size = max_size
            await self.pool.open()

        self.run(begin())

    def start(self, what: str, step: Coroutine[Any, Any, Any], after: float, doom: float | None = None) -> None:
        async def start() -> None:
            self.tasks.append(task := asyncio.create_task(step, name=what))
            if doom is not None:
                self.operations["doomed"] += 1
                self.loop.call_later(doom, self.end, task)
            await asyncio.sleep(after)

        self.operations[what] += 1
        self.run(start())
        self.look()

    def end(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            self.cancelled.add(task)
            task.cancel()

    def look(self) -> None:
        """Judge what has ended."""
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if task.cancelled():
                assert task in self.cancelled, f"{task.get_name()} ended as cancelled, and nobody had cancelled it"
                self.operations["ended as cancelled"] += 1
            elif (error := task.exception()) is not None:
                assert isinstance(error, PicopynError | asyncpg.PostgresError), repr(error)
                sqlstate = getattr(error, "sqlstate", None)
                assert sqlstate in (None, "57P01", "57014", "25P02"), repr(error)
                self.operations[f"ended with {type(error).__name__}"] += 1
            else:
                self.operations["answered"] += 1
            self.cancelled.discard(task)

    # what callers do

    @rule(lasts=PAUSES, timeout=TIMEOUTS, after=PAUSES, doom=DOOMS)
    def call(self, lasts: float, timeout: float | None, after: float, doom: float | None) -> None:
        async def call(number: int) -> None:
            text = "SELECT $1::int FROM pg_sleep($2)"
            assert await self.pool.fetchval(text, number, lasts, timeout=timeout) == number, "somebody else's answer"

        self.start("call", call(next(NUMBERS)), after, doom)

    @rule(timeout=TIMEOUTS, after=PAUSES, doom=DOOMS)
    def borrow(self, timeout: float | None, after: float, doom: float | None) -> None:
        async def borrow() -> None:
            connection = await self.pool.acquire(timeout=timeout)
            self.held.append(connection)

        self.start("borrow", borrow(), after, doom)

    @rule(lasts=PAUSES, after=PAUSES, doom=DOOMS, fails=st.booleans())
    def transact(self, lasts: float, after: float, doom: float | None, fails: bool) -> None:
        async def transact(number: int) -> None:
            async with self.pool.transaction() as connection:
                assert await connection.fetchval("SELECT $1::int FROM pg_sleep($2)", number, lasts) == number
                rows = [row[0] async for row in connection.cursor("SELECT generate_series(1, 3)", prefetch=1)]
                assert rows == [1, 2, 3]
                if fails:
                    raise PicopynError("on purpose")

        self.start("transaction", transact(next(NUMBERS)), after, doom)

    @rule(which=st.integers(0, 5), text=st.sampled_from(["SELECT 1", "BEGIN", "LISTEN x", "SELECT pg_sleep(0.003)"]))
    def use(self, which: int, text: str) -> None:
        if not self.held:
            return
        connection = self.held[which % len(self.held)]
        self.start("use", connection.execute(text, timeout=0.5), 0.0)

    @rule(which=st.integers(0, 5))
    def give_back(self, which: int) -> None:
        if not self.held:
            return

        async def give_back() -> None:
            self.held.pop(which % len(self.held)).release()

        self.operations["give back"] += 1
        self.run(give_back())

    @rule(which=st.integers(0, 5))
    def forget(self, which: int) -> None:
        if not self.held or self.tasks:
            return
        del self.held[which % len(self.held)]
        gc.collect()
        self.operations["forget"] += 1

    # what happens to them

    @rule(which=st.integers(0, 20), late=st.booleans(), after=PAUSES)
    def cancel(self, which: int, late: bool, after: float) -> None:
        if not self.tasks:
            return
        task = self.tasks[which % len(self.tasks)]
        self.cancelled.add(task)
        waits_for: Any = getattr(task, "_fut_waiter", None)
        if late and waits_for is not None:
            waits_for.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()
        self.operations["cancel"] += 1
        self.run(asyncio.sleep(after))
        self.look()

    @rule(which=st.integers(0, 5))
    def kill(self, which: int) -> None:
        async def kill() -> None:
            sessions = await self.watch.sessions()
            if sessions:
                await self.watch.admin.execute("SELECT pg_terminate_backend($1)", sessions[which % len(sessions)])

        self.operations["kill"] += 1
        self.run(kill())
        self.look()

    @rule(seconds=PAUSES)
    def let_time_pass(self, seconds: float) -> None:
        self.operations["time"] += 1
        self.run(asyncio.sleep(seconds))
        self.look()

    @invariant()
    def gauges_are_within_bounds(self) -> None:
        if hasattr(self, "pool"):
            idle, in_use, connecting, waiting = count(self.pool)
            assert min(idle, in_use, connecting, waiting) >= 0
            assert idle + in_use + connecting <= self.max_size

    def teardown(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            self.cancelled.update(self.tasks)
            if self.tasks:
                await asyncio.wait(self.tasks, timeout=5)
                assert all(task.done() for task in self.tasks), self.tasks
            self.look()
            for connection in self.held:
                connection.release()
            self.held.clear()
            await asyncio.sleep(0.01)  # the last killed session may still seem alive
            await self.watch.agrees(self.pool, "at the end")
            assert await self.pool.fetchval("SELECT 1", idempotent=True) == 1
            await self.pool.close(grace=2)
            await self.watch.no_session()
            await self.stack.aclose()

        try:
            if hasattr(self, "pool"):
                self.run(end())
        finally:
            self.loop.close()


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:.*was never given back to its pool:ResourceWarning")
def test_everything_is_accounted_for_whatever_the_schedule(
    postgres: PostgresServer, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Random schedules on a real server."""
    size = 10_000 if full_size else 2_000

    operations: Counter[str] = Counter()
    on_this_server = type("OnThisServer", (Schedule,), {"server": postgres, "operations": operations})

    run_state_machine_as_test(
        on_this_server,
        settings=settings(
            max_examples=size // 20,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not full_size,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert sum(times for what, times in operations.items() if not what.startswith(("answered", "ended"))) >= size
    for what, times in sorted(operations.items()):
        measured(what, times)
