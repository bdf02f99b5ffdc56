"""Time, waiting, jobs and connections for a pool whose callers have threads of their own.

The state of the cluster lives on the event loop of one control thread, and all jobs run there. What blocks (opening a
connection, clearing its session, saying goodbye) is done by worker threads, so that nothing there waits for a server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from math import inf
from typing import Any

from picopyn.asynchronous import transport
from picopyn.asynchronous.runtime import AsyncioRuntime
from picopyn.asynchronous.sessions import Sessions
from picopyn.dialects.base import Purpose
from picopyn.engine.runtime import Alarm, Job, Waiter
from picopyn.errors import Fault
from picopyn.sync.control_thread import ControlThread
from picopyn.sync.driving import drive
from picopyn.sync.link import Link
from picopyn.sync.sessions import BlockingSessions
from picopyn.sync.waiting import ThreadWaiter
from picopyn.sync.workers import Workers
from picopyn.topology import Node


class ThreadsRuntime:
    """The world of one pool of threads. It is made on the control thread.

    Args:
        control: Where the state of the cluster lives.
        workers: Do what blocks.
        sessions: Open the connections of the control thread itself.
        blocking: Open and look after the connections of callers.

    Attributes:
        look_every: How often idle connections are looked at (seconds); nobody listens to them.
        parallel: Callers are threads.
    """

    look_every = 0.5
    parallel = True

    def __init__(
        self, control: ControlThread, workers: Workers, sessions: Sessions, blocking: BlockingSessions
    ) -> None:
        self.now: Callable[[], float] = time.monotonic
        self._control = control
        self._workers = workers
        self._blocking = blocking
        self._there = AsyncioRuntime(sessions.open)

    def lock(self) -> threading.Lock:
        """A lock."""
        return threading.Lock()

    def waiter(self) -> Waiter[Any]:
        """A new waiter of the calling party: a thread that blocks, or a task of the control thread."""
        return self._there.waiter() if threading.get_ident() == self._control.ident else ThreadWaiter()

    def alarm(self, look: Callable[[float], float]) -> Alarm:
        """None: a caller waits for his answer himself, and not longer than he may."""
        return _NEVER

    def post(self, step: Callable[[], object]) -> None:
        """Take a step on the control thread."""
        self._control.post(step)

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job:
        """Start a job there."""
        return self._there.spawn(job, name)

    def beside(self, work: Coroutine[Any, Any, None], name: str) -> Job:
        """Run a part of a caller's own work in a thread beside him; what it waits for, it waits for there."""
        return self._workers.step(partial(drive, work))

    async def settle(self, jobs: Iterable[Job], deadline: float) -> None:
        """Wait until the jobs have ended, at most until the deadline."""
        await self._there.settle(jobs, deadline)

    async def open_link(
        self, node: Node, purpose: Purpose, on_lost: Callable[[Any], None], at_once: object = None
    ) -> Any:
        """Open a connection; see the protocol. Those of probes belong to the control thread."""
        if purpose is Purpose.PROBE:
            return await self._there.open_link(node, purpose, on_lost)
        link = await self._workers.run(partial(self._blocking.open, node, purpose), _drop)
        if link.is_closed():
            raise ConnectionError("the connection broke while it was being set up")
        # Never at once: it may be seen where accounts are locked.
        link.tell_when_lost(lambda lost: self._control.later(partial(on_lost, lost)))
        return link

    async def restore_link(self, link: Any, deadline: float) -> bool:
        """Clear the state of a session; see the protocol."""
        try:
            return await self._workers.run(partial(self._blocking.restore, link, deadline), _nothing)
        except BaseException:  # nobody waits for it any more, and the server shall not either
            link.abort()
            raise

    async def close_link(self, link: Any, deadline: float) -> None:
        """Close politely within the deadline, else drop."""
        if not isinstance(link, Link):
            await self._there.close_link(link, deadline)
            return
        timeout = max(deadline - self.now(), 0.001)
        try:
            await self._workers.run(partial(link.close, timeout), _nothing)
        except BaseException:
            link.terminate()
            raise

    def fault(self, error: BaseException) -> Fault | None:
        """What an error of the connection itself means."""
        return transport.fault(error)


class _Silent:
    """An alarm that need not be told anything."""

    rings_at = -inf

    def ring_at(self, moment: float) -> None:
        """Nothing rings."""


_NEVER = _Silent()


def _nothing(_: object) -> None:
    """Nobody wants the result, and nothing is lost by that."""


def _drop(link: Link) -> None:
    """Nobody wants the connection any more."""
    link.terminate()
