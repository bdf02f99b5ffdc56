"""A thread that waits for its turn: exactly one of waking, failing, the deadline and leaving decides."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadWaiter(Generic[T]):
    """One waiting thread. It may be woken from any thread, also before it begins to wait."""

    __slots__ = ("_bell", "_decided", "_error", "_guard", "_value")

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()
        self._guard = threading.Lock()
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
        return None if self._decide(None, TimeoutError()) else self._value

    async def wait(self, deadline: float | None) -> T:
        """Block until the value is there.

        Raises:
            TimeoutError: The deadline came first.
        """
        timeout = -1.0 if deadline is None else min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        if not self._bell.acquire(timeout=timeout):
            self._decide(None, TimeoutError())
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _decide(self, value: T | None, error: BaseException | None) -> bool:
        rings = False
        try:
            with self._guard:
                if self._decided:
                    return False
                self._value, self._error, self._decided, rings = value, error, True, True
        finally:  # also for who is interrupted here
            if rings:
                self._bell.release()
        return True
