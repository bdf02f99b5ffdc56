"""How a party waits for another one: a thread blocks, a job on the control thread's loop is suspended.

Whoever wakes may be in any thread. Exactly one of `wake`, `fail`, the deadline and leaving decides.
"""

from __future__ import annotations

import asyncio
import time
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Waiter(Generic[T]):
    """What both kinds have in common: who comes first decides."""

    __slots__ = ("_decided", "_deciding", "_error", "_value")

    def __init__(self) -> None:
        self._deciding = Lock()
        self._decided = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def wake(self, value: T) -> bool:
        """Hand it its value; False when something else was first."""
        return self._decide(value, None)

    def fail(self, error: BaseException) -> bool:
        """Make its wait raise; False when something else was first."""
        return self._decide(None, error)

    def abandon(self) -> T | None:
        """The waiting party leaves; a value that already arrived is returned so that it is not lost."""
        with self._deciding:
            value, self._value = self._value, None
            self._decided = True
        return value

    def _decide(self, value: T | None, error: BaseException | None) -> bool:
        with self._deciding:
            if self._decided:
                return False
            self._decided = True
            self._value, self._error = value, error
        self._go()
        return True

    def _go(self) -> None:
        raise NotImplementedError

    def _taken(self) -> T:
        value, self._value = self._value, None
        if self._error is not None:
            raise self._error
        return value  # type: ignore[return-value]


class ThreadWaiter(_Waiter[T]):
    """A waiting thread, over a lock that is released once."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        super().__init__()
        self._gate = Lock()
        self._gate.acquire()

    async def wait(self, deadline: float | None) -> T:
        """Block until there is a value; `TimeoutError` at the deadline."""
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._gate.acquire(timeout=left):
            self._decide(None, TimeoutError())
        return self._taken()

    def _go(self) -> None:
        self._gate.release()


class LoopWaiter(_Waiter[T]):
    """A waiting job, over a future of the control thread's loop."""

    __slots__ = ("_gate", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._gate: asyncio.Future[None] = loop.create_future()

    async def wait(self, deadline: float | None) -> T:
        """Wait for the value; `TimeoutError` at the deadline."""
        timer = None if deadline is None else self._loop.call_at(deadline, self.fail, TimeoutError())
        try:
            await self._gate
        finally:
            if timer is not None:
                timer.cancel()
        return self._taken()

    def _go(self) -> None:
        try:
            self._loop.call_soon_threadsafe(_open, self._gate)
        except RuntimeError:  # the loop is closed, and nobody waits
            return


def _open(gate: asyncio.Future[Any]) -> None:
    if not gate.done():
        gate.set_result(None)
