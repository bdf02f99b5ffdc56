"""A task that waits for its turn, until a deadline."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from picopyn.asynchronous.deadlines import Deadlines

T = TypeVar("T")


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
