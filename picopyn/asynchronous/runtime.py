"""The engine's world under asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from math import inf
from typing import Any

from picopyn.asynchronous import transport
from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.deadlines import Alarm, clock_of, deadlines_of
from picopyn.asynchronous.task_waiter import TaskWaiter
from picopyn.dialects.base import Purpose
from picopyn.engine.runtime import Job, Link
from picopyn.errors import Fault
from picopyn.topology import Node

_log = logging.getLogger("picopyn.runtime")


class AsyncioJob:
    """A task that is never cancelled before its first step, so that what it has to give back is given back.

    Args:
        loop: Where it runs.
        job: What it runs, in an empty context.
        name: Its name.
    """

    __slots__ = ("_begun", "_unwanted", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop, job: Coroutine[Any, Any, None], name: str) -> None:
        self._begun = False
        self._unwanted = False
        self.task = unlamented(loop.create_task(self._run(job), name=name, context=contextvars.Context()))

    def cancel(self) -> None:
        """Ask it to end at its next wait."""
        self._unwanted = True
        if self._begun:
            self.task.cancel()

    def done(self) -> bool:
        """Whether it has ended."""
        return self.task.done()

    async def _run(self, job: Coroutine[Any, Any, None]) -> None:
        self._begun = True
        if self._unwanted:
            self.task.cancel()
        await job


class AsyncioRuntime:
    """Time, waiting, jobs and connections for a pool that lives on one event loop.

    Args:
        open_connection: Opens an authenticated connection to a node for a purpose.
        restore: Clears the session of a connection; None: connections go from one borrower to the next as they are.

    Attributes:
        now: Seconds on the loop's monotonic clock.
        look_every: Never: the loop tells when a connection has ended.
        parallel: No: between two awaits nobody comes.
    """

    look_every = inf
    parallel = False

    def __init__(
        self,
        open_connection: Callable[[Node, Purpose], Awaitable[Any]],
        restore: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadlines = deadlines_of(self._loop)
        self.now = clock_of(self._loop)
        self._open_connection = open_connection
        self._restore = restore

    def lock(self) -> threading.Lock:
        """A lock nobody ever contends for: everything runs on one loop, and nothing is awaited inside."""
        return threading.Lock()

    def waiter(self) -> TaskWaiter[Any]:
        """A new waiter."""
        return TaskWaiter(self._loop, self._deadlines)

    def alarm(self, look: Callable[[float], float]) -> Alarm:
        """An alarm on the loop."""
        return Alarm(self._loop, look)

    def post(self, step: Callable[[], object]) -> None:
        """Take a step where the state of the cluster lives: here."""
        step()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job:
        """Start a task in an empty context; what it raises is logged, never lost."""
        started = AsyncioJob(self._loop, job, name)
        started.task.add_done_callback(_report)
        return started

    def beside(self, work: Coroutine[Any, Any, None], name: str) -> Job:
        """Run a part of a caller's own work in a task beside him."""
        return self.spawn(work, name)

    async def settle(self, jobs: Iterable[Job], deadline: float) -> None:
        """Wait until the jobs have ended, at most until the deadline."""
        tasks = [job.task for job in jobs if isinstance(job, AsyncioJob)]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, deadline - self.now()))

    async def open_link(
        self, node: Node, purpose: Purpose, on_lost: Callable[[Any], None], at_once: Callable[[Any], None] | None = None
    ) -> Link:
        """Open a connection to a node; see the protocol."""
        connection = await self._open_connection(node, purpose)
        if connection.is_closed():
            raise ConnectionError("the connection broke while it was being set up")
        connection.tell_when_lost(on_lost, at_once)
        return connection  # type: ignore[no-any-return]

    async def restore_link(self, link: Any, deadline: float) -> bool:
        """Clear the state of a session; see the protocol."""
        try:
            async with asyncio.timeout_at(deadline):
                if self._restore is not None:
                    await self._restore(link)
        except Exception as error:
            _log.info("a connection could not be reset and is closed: %s", type(error).__name__)
            return False
        return not (link.is_closed() or link.is_in_transaction())

    async def close_link(self, link: Any, deadline: float) -> None:
        """Close politely within the deadline, else drop."""
        try:
            await link.close(timeout=max(deadline - self.now(), 0.001))
        except (OSError, TimeoutError):
            link.terminate()

    def fault(self, error: BaseException) -> Fault | None:
        """What an error of the connection itself means."""
        return transport.fault(error)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s failed", task.get_name(), exc_info=error)
