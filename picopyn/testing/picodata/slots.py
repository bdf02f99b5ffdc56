"""The places for running statements of one instance: at most so many at a time, first come, first served.

Decides who runs next. Must not know statements. A statement that waits for another instance keeps its place.

*Source*: `picodata-recorded.md` section 1 (`sql_runtime_concurrency_max` = 50; hanging statements poison the
healthy).
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """Owner: one instance; used on its event loop only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many stand in the queue."""
        return sum(not waiter.done() for waiter in self._queue)

    def try_take(self) -> bool:
        """Take a place if one is free and nobody waits."""
        if self.taken < self.limit and not self._queue:
            self.taken += 1
            return True
        return False

    async def take(self) -> None:
        """Take a place, in turn."""
        if self.try_take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Give a place back; the first in the queue gets it."""
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.taken -= 1
