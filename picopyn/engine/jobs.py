"""The background jobs of one owner: started here, and ended with it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from picopyn.engine.runtime import Job, Runtime

#: How long jobs that were told to end may take for it (seconds).
MOMENT = 0.25


class Jobs:
    """Jobs that end with their owner.

    Args:
        runtime: The world.

    Attributes:
        closed: They were told to end; new ones are not started.
    """

    __slots__ = ("_jobs", "_runtime", "closed")

    def __init__(self, runtime: Runtime) -> None:
        self.closed = False
        self._runtime = runtime
        self._jobs: set[Job] = set()

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Start a job."""
        if self.closed:
            job.close()
            return
        self._jobs = {known for known in self._jobs if not known.done()}
        self._jobs.add(self._runtime.spawn(job, name))

    def cancel(self) -> None:
        """Tell all jobs to end."""
        self.closed = True
        for job in self._jobs:
            job.cancel()

    async def end(self) -> None:
        """Tell all jobs to end, and wait a moment until they have."""
        self.cancel()
        await self._runtime.settle(self._jobs, self._runtime.now() + MOMENT)
