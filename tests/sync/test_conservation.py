"""Thousands of operations of many threads, of which most end in another way than they were meant to."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.errors import AcquireTimeout, CallTimeout, ConnectionLost, NoNodeAvailable, UsageError
from picopyn.sync import Connection, Pool
from picopyn.sync.acquired import AcquiredConnection
from picopyn.testing import PostgresServer
from tests.sync.conftest import until

THREADS = 24
SIZE = 8

#: What an operation may end with when its time is short, or when somebody drops its connection.
EXPECTED = (AcquireTimeout, CallTimeout, ConnectionLost, NoNodeAvailable, asyncpg.InterfaceError)


class Interrupt(BaseException):
    """What a thread is stopped with, wherever it is; like `KeyboardInterrupt`, no `Exception`."""


def interrupt(thread: int, error: type[BaseException] | None) -> None:
    """Raise something in a thread, wherever it is; None: take back what has not been raised yet."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


class Worker:
    """One thread that makes operations, one after the other, and what others may do to it meanwhile."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.rng = Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.held: AcquiredConnection | None = None
        self._guard = threading.Lock()
        self._interruptible = False
        self.thread = threading.Thread(target=self._work, name=f"worker {seed}")
        self._numbers = range(0)

    def start(self, numbers: range) -> None:
        self._numbers = numbers
        self.thread.start()

    def join(self) -> None:
        self.thread.join()

    @property
    def is_at_work(self) -> bool:
        return self.thread.is_alive()

    # what others do to it

    def interrupt(self) -> None:
        """Stop its operation, once at most."""
        with self._guard:
            if self._interruptible:
                self._interruptible = False
                self._raise(Interrupt)

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Nothing strikes here."""
        with self._guard:
            was, self._interruptible = self._interruptible, False
        yield
        self._interruptible = was

    def disconnect(self) -> None:
        """Drop the connection that it holds."""
        held = self.held
        if held is not None:
            with suppress(UsageError):  # it has been given back in the same moment
                held.terminate()

    def _raise(self, error: type[BaseException] | None) -> None:
        interrupt(self.thread.ident or 0, error)

    # what it does

    def _work(self) -> None:
        for number in self._numbers:
            self.outcomes[self._outcome(number)] += 1

    def _outcome(self, number: int) -> str:
        step = self.rng.choices([self._one_shot, self._borrowed, self._transaction, self._many], [5, 3, 1, 1])[0]
        timeout = self.rng.choice([60.0, 60.0, 0.02, 0.002])
        doomed, told = self.rng.random() < 0.5, ""
        try:
            try:
                self._interruptible = doomed
                step(number, timeout)
                told = "answered"
            except EXPECTED as error:
                told = type(error).__name__
            finally:
                self.held = None
                self._end()
        except Interrupt:
            self._end()
            return "interrupted"
        return told

    def _end(self) -> None:
        """From here on nothing reaches it."""
        with self._guard:
            self._interruptible = False
            self._raise(None)

    def _one_shot(self, number: int, timeout: float) -> None:
        assert self.pool.fetchval("SELECT $1::int", number, timeout=timeout) == number

    def _borrowed(self, number: int, timeout: float) -> None:
        with self.pool.acquire(timeout=timeout) as held:
            self.held = held
            assert held.fetchval("SELECT $1::int", number) == number
            assert held.fetchval("SELECT $1::int FROM pg_sleep(0.001)", -number, timeout=timeout) == -number

    def _transaction(self, number: int, timeout: float) -> None:
        with self.pool.transaction(timeout=timeout) as held:
            self.held = held
            assert held.fetchval("SELECT $1::int", number) == number
            assert held.execute("SELECT 1") == "SELECT 1"

    def _many(self, number: int, timeout: float) -> None:
        self.pool.executemany("SELECT $1::int", [(number,), (number + 1,)], timeout=timeout)


def spare_new_threads(workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment a new thread has the number of the one that starts it: CPython would strike it in its place."""
    start = threading.Thread.start

    def spared_start(thread: threading.Thread) -> None:
        here = threading.current_thread()
        worker = next((worker for worker in workers if worker.thread is here), None)
        with nullcontext() if worker is None else worker.spared():
            start(thread)

    monkeypatch.setattr(threading.Thread, "start", spared_start)


def trouble(workers: list[Worker], rng: Random) -> None:
    """Interrupt them and drop their connections, until all are done."""
    pause = threading.Event()
    while any(worker.is_at_work for worker in workers):
        for worker in rng.sample(workers, 3):
            worker.interrupt() if rng.random() < 0.8 else worker.disconnect()
        pause.wait(rng.choice([0.0, 0.0005, 0.002]))


@pytest.fixture
def no_interruption_stays() -> Iterator[None]:
    """One that was taken back, or sent to a thread that had ended, stays noted in the interpreter.

    CPython 3.11 then looks for it before the first instruction of every function; where functions are traced, as other
    tests do, it never goes on. One that arrives takes the note away.
    """
    yield
    with suppress(Interrupt):
        interrupt(threading.get_ident(), Interrupt)
        while True:
            time.sleep(0.001)


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*was never given back to its pool:ResourceWarning")
@pytest.mark.filterwarnings("ignore:unclosed connection:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may strike in a finaliser
@pytest.mark.usefixtures("no_interruption_stays")
def test_everything_is_accounted_for_whatever_happens(
    server: PostgresServer,
    admin: Connection,
    monkeypatch: pytest.MonkeyPatch,
    full_size: bool,
    measured: Callable[[str, object], None],
) -> None:
    """Time-outs, dropped connections, interruptions: every answer is one's own, every place is free in the end."""
    number, began = 100_000 if full_size else 10_000, time.monotonic()
    options: dict[str, Any] = {"dialect": "postgres", "ssl": "disable", "application_name": "conservation"}
    with Pool(server.dsn, max_size=SIZE, acquire_timeout=60, **options) as pool:
        workers = [Worker(pool, seed) for seed in range(THREADS)]
        spare_new_threads(workers, monkeypatch)
        for first, worker in enumerate(workers):
            worker.start(range(first, number, THREADS))
        trouble(workers, Random(5))
        for worker in workers:
            worker.join()
        outcomes = sum((worker.outcomes for worker in workers), Counter[str]())
        monkeypatch.undo()
        del workers, worker
        gc.collect()
        measured("seconds", time.monotonic() - began)
        for what, times in outcomes.items():
            measured(what, times)
        assert outcomes.total() == number
        assert min(outcomes["answered"], outcomes["interrupted"]) > number / 20
        until(lambda: (pool.stats().in_use, pool.stats().waiting) == (0, 0))
        held = [pool.acquire(timeout=20).take() for _ in range(SIZE)]
        assert [one.fetchval("SELECT $1::int", n) for n, one in enumerate(held)] == list(range(SIZE))
        for one in held:
            one.release()
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'conservation'"
        # one more may be a probe's, one that of the connection that told the servers apart
        until(lambda: pool.stats().in_use == 0 and 0 <= admin.fetchval(sessions) - pool.stats().size <= 2)
    until(lambda: admin.fetchval(sessions) == 0)
