"""The engine's world under threads: calls block in the threads of their callers, jobs run on the control thread.

A call's coroutine never suspends there, so `finished` runs it in one step.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from picopyn.asynchronous import transport
from picopyn.asynchronous.runtime import AsyncioJob, start
from picopyn.dialects.base import Purpose
from picopyn.engine.runtime import Job, Waiter
from picopyn.errors import Fault
from picopyn.sync.control import ControlThread
from picopyn.sync.link import Link
from picopyn.sync.waiters import LoopWaiter, ThreadWaiter
from picopyn.sync.wire import Wire
from picopyn.topology import Node

T = TypeVar("T")

_LOG = logging.getLogger("picopyn.sync.runtime")


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine that blocks where it waits.

    Raises:
        RuntimeError: It has suspended, which is an error of ours.
    """
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    call.close()
    raise RuntimeError("a call that should have blocked was suspended")


class ControlJob:
    """A job on the control thread, started and ended from any thread.

    Args:
        control: Where it runs.
        job: What it runs, in an empty context.
        name: Its name.
    """

    __slots__ = ("_control", "_ended", "_job", "_name", "_task", "_unwanted")

    def __init__(self, control: ControlThread, job: Coroutine[Any, Any, None], name: str) -> None:
        self._control = control
        self._job = job
        self._name = name
        self._task: AsyncioJob | None = None
        self._unwanted = False
        self._ended = threading.Event()
        if control.is_here():
            self._start()
        elif not control.post(self._start):
            self._never()

    def cancel(self) -> None:
        """Ask it to end at its next wait."""
        if self._control.is_here():
            self._cancel()
        else:
            self._control.post(self._cancel)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until it has ended, at most so long; whether it has."""
        return self._ended.wait(seconds)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """Its task, on the control thread."""
        return None if self._task is None else self._task.task

    def _start(self) -> None:
        self._task = start(self._control.loop, self._job, self._name)
        self._task.task.add_done_callback(lambda _: self._ended.set())
        if self._unwanted:
            self._task.cancel()

    def _cancel(self) -> None:
        self._unwanted = True
        if self._task is not None:
            self._task.cancel()

    def _never(self) -> None:
        self._job.close()
        self._ended.set()


class ThreadsRuntime:
    """Time, waiting, jobs and connections for a pool that is used by threads.

    Args:
        control: Where jobs run.
        dial: Opens a connection to a node for a purpose, and blocks until it is there.
        dial_probe: Opens the connection of a probe, on the control thread's loop.
        restore: Clears the session of a connection, and blocks; None: connections go from one borrower to the next as
            they are.
    """

    def __init__(
        self,
        control: ControlThread,
        dial: Callable[[Node, Purpose], Wire],
        dial_probe: Callable[[Node, Purpose], Awaitable[Any]],
        restore: Callable[[Wire, float], None] | None = None,
    ) -> None:
        self._control = control
        self._dial = dial
        self._dial_probe = dial_probe
        self._restore = restore

    def now(self) -> float:
        """Seconds on the monotonic clock, which is that of the control thread's loop as well."""
        return time.monotonic()

    def lock(self) -> threading.Lock:
        """A lock."""
        return threading.Lock()

    def waiter(self) -> Waiter[Any]:
        """A new waiter of the calling thread, or of a job on the control thread."""
        return LoopWaiter(self._control.loop) if self._control.is_here() else ThreadWaiter()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job:
        """Start a job on the control thread, in an empty context; what it raises is logged, never lost."""
        return ControlJob(self._control, job, name)

    async def settle(self, jobs: Iterable[Job], deadline: float) -> None:
        """Wait until the jobs have ended, at most until the deadline."""
        running = [job for job in jobs if isinstance(job, ControlJob) and not job.done()]
        if self._control.is_here():
            tasks = [job.task for job in running if job.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, deadline - self.now()))
            return
        for job in running:
            job.wait(max(0.0, deadline - self.now()))

    async def open_link(self, node: Node, purpose: Purpose, on_lost: Callable[[Any], None]) -> Any:
        """Open a connection to a node; see the protocol. Called by jobs only."""
        if purpose is Purpose.PROBE:
            connection = await self._dial_probe(node, purpose)
            connection.tell_when_lost(on_lost)
            return connection
        wire = await self._control.blocking(self._dial, node, purpose, give_back=Wire.terminate)
        if wire.is_closed():
            raise ConnectionError("the connection broke while it was being set up")
        link = Link(wire)
        wire.tell_when_lost(partial(self._lost, link, on_lost))
        return link

    async def restore_link(self, link: Any, deadline: float) -> bool:
        """Clear the state of a session; see the protocol. Called by jobs only."""
        if self._restore is not None:
            try:
                await self._control.blocking(self._restore, link.wire, max(deadline - self.now(), 0.001))
            except Exception as error:
                _LOG.info("a connection could not be reset and is closed: %s", type(error).__name__)
                return False
        return not (link.is_closed() or link.is_in_transaction())

    async def close_link(self, link: Any, deadline: float) -> None:
        """Close politely within the deadline, else drop. Called by jobs only."""
        seconds = max(deadline - self.now(), 0.001)
        try:
            if isinstance(link, Link):
                await self._control.blocking(_close, link.wire, seconds)
            else:
                await link.close(timeout=seconds)
        except (OSError, TimeoutError):
            link.terminate()

    def fault(self, error: BaseException) -> Fault | None:
        """What an error of the connection itself means."""
        return transport.fault(error)

    def _lost(self, link: Link, on_lost: Callable[[Any], None], _: Wire) -> None:
        """A connection was closed, by anyone and in any thread: told on the control thread, which holds no lock."""
        self._control.post(on_lost, link)


def _close(wire: Wire, seconds: float) -> None:
    wire.run(wire.close(timeout=seconds))
