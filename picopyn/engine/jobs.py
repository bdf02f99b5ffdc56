"""The background jobs of one owner: started here, and ended with it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from picopyn.engine.runtime import Job, Runtime


class Jobs:
    """Jobs that end with their owner.

    Args:
        runtime: The world.

    Attributes:
        closed: They were told to end; new ones are not started.
    """

    __slots__ = ("_jobs", "_lock", "_runtime", "closed")

    def __init__(self, runtime: Runtime) -> None:
        self.closed = False
        self._runtime = runtime
        self._lock = runtime.lock()
        self._jobs: set[Job] = set()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job | None:
        """Start a job; None when jobs are over."""
        if self.closed:
            job.close()
            return None
        started = self._runtime.spawn(job, name)
        with self._lock:
            self._jobs = {known for known in self._jobs if not known.done()} | {started}
        if self.closed:  # just now, by another thread
            started.cancel()
        return started

    def cancel(self) -> None:
        """Tell all jobs to end."""
        self.closed = True
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()

    async def settle(self, deadline: float) -> None:
        """Wait until they have ended, at most until the deadline."""
        await self._runtime.settle(self._jobs, deadline)
