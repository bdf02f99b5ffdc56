"""Work of one call that runs beside it: at several nodes at the same time, in tasks or in threads.

The caller waits here for what his crew does. When he is interrupted, what his crew has with servers is dropped, and he
waits a moment for it to end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from picopyn.dialects.base import Dialect
from picopyn.engine.executor import Executor
from picopyn.engine.place import ANYHOW, Destination
from picopyn.engine.request import Request
from picopyn.engine.runtime import Job, Runtime, Waiter
from picopyn.errors import UsageError
from picopyn.routing.plan import Plan, Planner, Role

#: How long an interrupted caller waits for his crew to end (seconds).
LAST_WAIT = 1.0


class Crew:
    """Those who work for one caller. He alone starts and awaits them.

    Args:
        runtime: The world.
        executor: Runs their calls.

    Attributes:
        running: How many work now.
        abandoned: The caller was interrupted; nothing is sent for him any more.
    """

    __slots__ = ("_executor", "_flying", "_jobs", "_lock", "_runtime", "_trouble", "_waiter", "abandoned", "running")

    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        self.running = 0
        self.abandoned = False
        self._runtime = runtime
        self._executor = executor
        self._lock = runtime.lock()
        self._flying: dict[int, Request] = {}
        self._jobs: list[Job] = []
        self._waiter: Waiter[None] | None = None
        self._trouble: Exception | None = None

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Let somebody work beside the caller."""
        with self._lock:
            self.running += 1
        self._jobs = [job for job in self._jobs if not job.done()]
        self._jobs.append(self._runtime.beside(self._watched(work), name))

    async def call(self, request: Request) -> Any:
        """Run one call of a member of the crew."""
        request.place = _AsLongAsWanted(self, request.place or ANYHOW)
        self._flying[id(request)] = request
        try:
            await self._executor.run(request)
            return request.answer
        finally:
            self._flying.pop(id(request), None)

    def ring(self) -> None:
        """Something happened that the caller may wait for."""
        waiter = self._waiter
        if waiter is not None:
            waiter.wake(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; it is looked at whenever somebody rings."""
        while True:
            self._waiter = waiter = self._runtime.waiter()  # first this, then the look: whoever rings does it after
            if self._trouble is not None:
                raise self._trouble
            if condition():
                return
            await waiter.wait(None)

    async def abandon(self) -> None:
        """The caller was interrupted: drop what is under way, and wait a moment."""
        self.abandoned = True
        for job in self._jobs:
            job.cancel()
        self._executor.withdraw(tuple(self._flying.values()))
        deadline = self._runtime.now() + LAST_WAIT
        with suppress(TimeoutError):
            while True:
                self._waiter = waiter = self._runtime.waiter()
                if not self.running:
                    return
                await waiter.wait(deadline)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # nothing that a call may end with comes here
            self._trouble = error
        finally:
            with self._lock:
                self.running -= 1
            self.ring()


@dataclass(frozen=True, slots=True)
class _AsLongAsWanted:
    """A place for a call that is sent nowhere once its caller was interrupted.

    Attributes:
        crew: Who makes it.
        place: Where it goes until then.
    """

    crew: Crew
    place: Destination

    def plan(self, planner: Planner, dialect: Dialect, role: Role, *, read: bool) -> Plan:
        """Where to send it, as of now.

        Raises:
            UsageError: Nowhere.
        """
        if self.crew.abandoned:
            raise UsageError("the caller was interrupted before this was sent")
        return self.place.plan(planner, dialect, role, read=read)
