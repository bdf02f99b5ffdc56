"""The engine under threads: waiting, jobs, connections, and its node pools over a real server."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.journal import Journal
from picopyn.engine.request import Request
from picopyn.engine.route_table import RouteTable
from picopyn.errors import AcquireTimeout
from picopyn.observe import Publisher
from picopyn.routing.plan import Role
from picopyn.settings import PoolSettings
from picopyn.stats import Counters
from picopyn.sync import Connection
from picopyn.sync.control import ControlThread
from picopyn.sync.dialing import BlockingDialer
from picopyn.sync.link import Link
from picopyn.sync.runtime import ThreadsRuntime, finished
from picopyn.sync.waiters import LoopWaiter, ThreadWaiter
from picopyn.sync.wire import Wire
from picopyn.testing import PostgresServer
from picopyn.topology import EventInstance, Node, Topology, TopologySnapshot
from tests.sync.conftest import until

WAITING = 0.01


@pytest.fixture
def control() -> Iterator[ControlThread]:
    """A control thread."""
    thread = ControlThread()
    yield thread
    thread.stop()


# waiting


@pytest.mark.parametrize("kind", ["thread", "job"])
def test_who_comes_first_decides(kind: str, control: ControlThread) -> None:
    """Waking, failing, the deadline and leaving, each against the others, from another thread."""

    async def outcome(act: Callable[[Any], Any], deadline: float | None) -> Any:
        waiter: Any = ThreadWaiter() if kind == "thread" else LoopWaiter(control.loop)
        acting = threading.Thread(target=act, args=(waiter,))
        acting.start()
        try:
            return await waiter.wait(deadline)
        except Exception as error:
            return type(error)
        finally:
            if kind == "thread":
                acting.join()

    def run(act: Callable[[Any], Any], deadline: float | None = None) -> Any:
        return finished(outcome(act, deadline)) if kind == "thread" else control.run(outcome(act, deadline), 10)

    told: list[bool] = []
    assert run(lambda waiter: told.append(waiter.wake(5))) == 5
    assert run(lambda waiter: told.append(waiter.fail(KeyError()))) is KeyError
    assert run(lambda waiter: None, time.monotonic() + WAITING) is TimeoutError
    assert run(lambda waiter: told.extend([waiter.wake(1), waiter.wake(2), waiter.fail(KeyError())])) == 1
    until(lambda: len(told) == 5)
    assert told == [True, True, True, False, False]


def test_who_leaves_takes_along_what_has_come() -> None:
    """And whoever comes later is told that nobody waits."""
    for waiter in (ThreadWaiter[int](), ThreadWaiter[int]()):
        assert waiter.wake(7)
        assert waiter.abandon() == 7
        assert not waiter.wake(8)
    late: ThreadWaiter[int] = ThreadWaiter()
    with pytest.raises(TimeoutError):
        finished(late.wait(time.monotonic()))
    assert late.abandon() is None
    assert not late.wake(1)


def test_a_call_that_suspends_is_an_error_of_ours() -> None:
    """Nothing would ever go on with it."""

    async def suspending() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        finished(suspending())


# jobs


def runtime_of(control: ControlThread) -> ThreadsRuntime:
    """A runtime in which nothing can be opened."""

    def refuse(node: Node, purpose: Purpose) -> Any:
        raise ConnectionRefusedError("connection refused")

    return ThreadsRuntime(control, refuse, refuse)


def test_jobs_run_on_the_control_thread_in_an_empty_context(control: ControlThread) -> None:
    """Whoever starts them; what the caller has in its context is not theirs."""
    runtime = runtime_of(control)
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine")
    mine.set(5)
    seen: list[Any] = []

    async def job() -> None:
        seen.append((threading.current_thread().name, mine.get(None)))
        if len(seen) == 1:
            runtime.spawn(job(), "second")

    first = runtime.spawn(job(), "first")
    until(lambda: len(seen) == 2)
    finished(runtime.settle([first], runtime.now() + 5))
    assert first.done()
    assert seen == [("picopyn control", None)] * 2


def test_jobs_end_when_they_are_told_to(control: ControlThread) -> None:
    """From any thread, also before they have begun; settling waits no longer than its deadline."""
    runtime = runtime_of(control)
    ended: list[bool] = []

    async def job() -> None:
        try:
            await runtime.waiter().wait(None)
        finally:
            ended.append(True)

    jobs = [runtime.spawn(job(), f"job {number}") for number in range(3)]
    finished(runtime.settle(jobs, runtime.now()))
    assert not any(job.done() for job in jobs)
    for each in jobs:
        each.cancel()
    finished(runtime.settle(jobs, runtime.now() + 5))
    assert all(job.done() for job in jobs)
    assert len(ended) == 3


def test_a_job_of_a_control_thread_that_has_stopped_never_runs() -> None:
    """It counts as ended."""
    control = ControlThread()
    runtime = runtime_of(control)
    control.stop()

    async def job() -> None: ...

    assert runtime.spawn(job(), "late").done()


def test_what_blocks_does_not_hold_up_the_control_thread(control: ControlThread) -> None:
    """A node that hangs is dialled beside; a result that comes when nobody waits any more is given back."""
    gate, given_back = threading.Event(), list[str]()

    def hang() -> str:
        gate.wait()
        return "late"

    async def wait_a_little() -> None:
        async with asyncio.timeout(WAITING):
            await control.blocking(hang, give_back=given_back.append)

    with pytest.raises(TimeoutError):
        control.run(wait_a_little(), 10)
    gate.set()
    until(lambda: given_back == ["late"])


# connections and calls


class Knowledge:
    """Nothing is known of any text."""

    def tell_forgotten(self, listener: Any) -> None: ...

    def request_if_missing(self, query: str) -> None:
        return None

    async def get_query_metadata(self, query: str, *, ask_without_parameters: bool = False) -> None:
        return None

    def evict(self, query: str) -> None: ...

    def check_later(self, query: str, args: Any) -> int:
        return 1000


class Engine:
    """The engine over one PostgreSQL, used by threads."""

    def __init__(self, control: ControlThread, server: PostgresServer, **settings: Any) -> None:
        told = PoolSettings.from_dsn(f"postgresql://postgres@127.0.0.1:{server.port}/postgres", **settings)
        dialect = PostgresDialect()
        dialer, for_probes = BlockingDialer(told, dialect), Dialer(told, dialect)
        self.opened: list[Wire] = []

        def dial(node: Node, purpose: Purpose) -> Wire:
            wire = dialer.dial((node.host, node.port), purpose)
            self.opened.append(wire)
            return wire

        self.control = control
        self.runtime = ThreadsRuntime(
            control, dial, lambda node, purpose: for_probes.dial((node.host, node.port), purpose)
        )
        counters = Counters()
        journal = Journal(counters, Publisher(None), self.runtime.now)
        topology = Topology()
        topology.apply([EventInstance(uuid="n", name="n", host="127.0.0.1", port=server.port or 0, online=True)])

        async def make() -> Executor:
            self.cluster = Cluster(
                self.runtime, dialect, told, TopologySnapshot(), journal, lambda node: None, Random(1)
            )
            knowledge: Any = Knowledge()
            routes = RouteTable(knowledge, dialect.key_hash, lambda: self.cluster.snapshot.bucket_counts)
            executor = Executor(self.cluster, routes, knowledge, dialect, journal)
            self.cluster.adopt(topology.snapshot)
            return executor

        self.executor = control.run(make(), 10)

    def call(self, method: str, query: str, *args: Any, timeout: float | None = None) -> Any:
        """One call, in the calling thread."""
        deadline = None if timeout is None else self.runtime.now() + timeout
        return finished(self.executor.run(Request(method, query, args, Role.LEADER, timeout, deadline, None)))

    def close(self) -> None:
        """End it."""
        self.executor.closed = True

        async def end() -> None:
            await self.cluster.close(self.runtime.now() + 5)

        self.control.run(end(), 10)


@pytest.fixture
def engine(control: ControlThread, server: PostgresServer) -> Iterator[Callable[..., Engine]]:
    """Makes engines; they are closed at the end."""
    made: list[Engine] = []

    def make(**settings: Any) -> Engine:
        made.append(Engine(control, server, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_many_threads_share_few_connections(engine: Callable[..., Engine], full_size: bool) -> None:
    """Every thread gets its own answers, no more connections are opened than allowed, and nobody starves."""
    few = engine(max_size=4)
    sessions: Counter[int] = Counter()
    barrier = threading.Barrier(16)

    def work(number: int) -> int:
        barrier.wait()
        for turn in range(500 if full_size else 60):
            mine = number * 1000 + turn
            value, pid = few.call("fetchrow", "SELECT $1::int, pg_backend_pid()", mine)
            assert value == mine
            sessions[pid] += 1
        return number

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(work, range(16))) == [*range(16)]
    assert len(sessions) <= 4
    assert few.call("execute", "SELECT 1") == "SELECT 1"


def test_who_waits_too_long_for_a_connection_is_told(engine: Callable[..., Engine], admin: Connection) -> None:
    """And the connection goes to those who still wait."""
    one = engine(max_size=1, acquire_timeout=10)
    holding = threading.Thread(target=lambda: one.call("fetchval", "SELECT pg_sleep($1), 'held'", 0.3))
    holding.start()
    until(
        lambda: (
            admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%held%' AND state = 'active'") > 1
        )
    )
    with pytest.raises(AcquireTimeout):
        one.call("fetchval", "SELECT 1", timeout=0.05)
    assert one.call("fetchval", "SELECT $1::int", 3) == 3
    holding.join()


def test_a_connection_that_the_server_closes_is_replaced_unseen(
    engine: Callable[..., Engine], admin: Connection
) -> None:
    """It is seen before it is used, and the account is right afterwards."""
    two = engine(max_size=2, application_name="closed by the server")
    assert two.call("fetchval", "SELECT 1") == 1
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'closed by the server'"
    for _ in range(3):
        there = list(two.opened)
        admin.fetch(ending)
        until(lambda there=there: all(wire.is_closed() for wire in there))
        assert two.call("fetchval", "SELECT $1::int", 1) == 1
    until(lambda: two.cluster.pools[0].slots.size == sum(not wire.is_closed() for wire in two.opened))


def test_an_interrupted_call_gives_up_its_connection(engine: Callable[..., Engine], admin: Connection) -> None:
    """Its place is free for the next call."""
    one = engine(max_size=1)
    assert one.call("fetchval", "SELECT $1::int", 1) == 1
    link = one.cluster.pools[0].try_take()
    assert isinstance(link, Link)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    link.wire.stream.receive = interrupted  # type: ignore[method-assign]
    one.cluster.pools[0].give(link)
    with pytest.raises(KeyboardInterrupt):
        one.call("fetchval", "SELECT $1::int", 1)
    assert link.is_closed()
    assert one.call("fetchval", "SELECT $1::int", 2) == 2


def test_errors_are_those_of_the_asynchronous_pool(engine: Callable[..., Engine]) -> None:
    """Server errors keep their class and get a note."""
    one = engine(max_size=1)
    with pytest.raises(asyncpg.DivisionByZeroError) as caught:
        one.call("fetchval", "SELECT 1 / $1::int", 0)
    assert any("attempt 1 at n" in note for note in caught.value.__notes__)
