"""A task that waits for its turn, until a deadline; and one timer for all whose deadlines come in the order of waiting.

Calls that wait for a connection nearly always wait equally long at most, so who came first has to leave first, and a
timer for each would only ever be made and cancelled, which is what waiting would cost most.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deadlines:
    """The deadlines of waiting tasks that come in the order of waiting. Owned by a runtime.

    Args:
        loop: Whose clock counts.
    """

    __slots__ = ("_last", "_loop", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last = 0.0
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[TaskWaiter[Any], float] = {}

    def enter(self, waiter: TaskWaiter[Any], deadline: float) -> bool:
        """Have a wait ended at its deadline; False when it comes before another's: then it needs a timer of its own."""
        if deadline < self._last and self._waiting:
            return False
        self._last = deadline
        self._waiting[waiter] = deadline
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._ring)
        return True

    def leave(self, waiter: TaskWaiter[Any]) -> None:
        """It waits no longer."""
        del self._waiting[waiter]
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        """End the waits whose deadlines have come, by the timer's own measure; for the next one, set it again."""
        now = max(self._loop.time(), self._timer.when() if self._timer is not None else 0.0)
        self._timer = None
        for waiter, deadline in self._waiting.items():
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._ring)
                break
            waiter.expire()


class TaskWaiter(Generic[T]):
    """One waiting task, over a future of its loop.

    Args:
        loop: The loop.
        deadlines: Where its deadline is entered.
    """

    __slots__ = ("_deadlines", "_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
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
        future = self._future
        if deadline is None or future.done():
            return await future
        if self._deadlines.enter(self, deadline):
            try:
                return await future
            finally:
                self._deadlines.leave(self)
        timer = self._loop.call_at(deadline, self.expire)
        try:
            return await future
        finally:
            timer.cancel()

    def expire(self) -> None:
        """Its deadline has come."""
        self.fail(TimeoutError())
