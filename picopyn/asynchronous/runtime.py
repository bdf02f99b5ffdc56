"""The engine's world under asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from picopyn.asynchronous import transport
from picopyn.dialects.base import Purpose
from picopyn.engine.runtime import Job, Link
from picopyn.errors import Fault
from picopyn.topology import Node

T = TypeVar("T")
_log = logging.getLogger("picopyn.runtime")


class AsyncioWaiter(Generic[T]):
    """One waiting task, over a future of its loop."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[T] = loop.create_future()

    def wake(self, value: T) -> bool:
        """Hand it its value; False when something else was first."""
        if self._future.done():
            return False
        self._future.set_result(value)
        return True

    def fail(self, error: BaseException) -> bool:
        """Make its wait raise; False when something else was first."""
        if self._future.done():
            return False
        self._future.set_exception(error)
        return True

    def abandon(self) -> T | None:
        """The waiting party leaves; a value that already arrived is returned so that it is not lost."""
        if not self._future.done():
            self._future.cancel()
            return None
        if self._future.cancelled() or self._future.exception() is not None:
            return None
        return self._future.result()

    async def wait(self, deadline: float | None) -> T:
        """Wait for the value; `TimeoutError` at the deadline."""
        if deadline is None:
            return await self._future
        timer = self._loop.call_at(deadline, self._expire)
        try:
            return await self._future
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self.fail(TimeoutError())


class AsyncioRuntime:
    """Time, waiting, jobs and connections for a pool that lives on one event loop.

    Args:
        open_connection: Opens an authenticated connection to a node for a purpose.
    """

    def __init__(self, open_connection: Callable[[Node, Purpose], Awaitable[Any]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._open_connection = open_connection

    def now(self) -> float:
        """Seconds on the loop's monotonic clock."""
        return self._loop.time()

    def lock(self) -> threading.Lock:
        """A lock nobody ever contends for: everything runs on one loop, and nothing is awaited inside."""
        return threading.Lock()

    def waiter(self) -> AsyncioWaiter[Any]:
        """A new waiter."""
        return AsyncioWaiter(self._loop)

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job:
        """Start a task in an empty context; what it raises is logged, never lost."""
        task = self._loop.create_task(job, name=name, context=contextvars.Context())
        task.add_done_callback(_report)
        return task

    async def settle(self, jobs: Iterable[Job], deadline: float) -> None:
        """Wait until the jobs have ended, at most until the deadline."""
        tasks = [job for job in jobs if isinstance(job, asyncio.Task)]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, deadline - self.now()))

    async def open_link(self, node: Node, purpose: Purpose, on_lost: Callable[[Any], None]) -> Link:
        """Open a connection to a node; see the protocol."""
        connection = await self._open_connection(node, purpose)
        if connection.is_closed():
            raise ConnectionError("the connection broke while it was being set up")
        connection.add_termination_listener(on_lost)
        return connection  # type: ignore[no-any-return]

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
