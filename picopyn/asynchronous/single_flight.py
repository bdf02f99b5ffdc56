"""One run at a time of the same job, shared by everybody who asked before it began.

This file decides whose request a run serves. It knows neither what the job is nor when it should run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from picopyn.asynchronous.background import unlamented

#: Seconds a cancelled caller waits for the run it cancelled; a job that ignores its cancellation costs no
#: more.
_CANCEL_GRACE = 1.0


class SingleFlight:
    """Runs a job, never twice at once.

    A caller is served only by a run that began after it asked, so what it reads afterwards is never older
    than its request. Callers that wait for the same run share it. Each run is a task of its own, so it
    can be ended without touching its callers; it is cancelled when the caller that began it is.

    The owner is the object that created it; everything happens on one loop.

    Args:
        job: What to run. It must not raise; what it raises all the same is dropped.
        name: Name of the tasks.
    """

    def __init__(self, job: Callable[[], Awaitable[None]], name: str) -> None:
        self._job = job
        self._name = name
        self._begun = 0
        self._ended = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def begun(self) -> int:
        """How many runs have begun; the number of the newest one."""
        return self._begun

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._task is not None

    async def run(self) -> None:
        """Return after a run that began later than this call has ended, or after `close`."""
        needed = self._begun + 1
        while self._ended < needed and not self._closed:
            if self._task is None:
                await self._lead(self._begin())
            else:
                await asyncio.wait({self._task})

    def close(self) -> asyncio.Task[None] | None:
        """Cancel the run under way and begin no other; returns that run, for whoever wants to wait for its end."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _begin(self) -> asyncio.Task[None]:
        self._begun += 1
        number = self._begun
        task = unlamented(asyncio.create_task(self._run_job(), name=self._name, context=contextvars.Context()))
        task.add_done_callback(lambda done: self._finished(done, number))
        self._task = task
        return task

    async def _run_job(self) -> None:
        await self._job()

    async def _lead(self, task: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_GRACE)
            raise

    def _finished(self, task: asyncio.Task[None], number: int) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it
            self._ended = number
