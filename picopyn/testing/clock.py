"""Time for tests: a clock that stands until it is moved, and an event loop that jumps to its next timer.

Decides what time it is. Must not know who asks. Pure code takes `now` as an argument and needs only
`ManualClock`; shells with timers run on `AutoJumpLoop`, where an hour of waiting takes no time and keeps its
order.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_GRACE = 5.0


class ManualClock:
    """A clock that moves when told to; calling it gives the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """What time it is."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward and give the new time.

        Raises:
            ValueError: Time does not go backwards.
        """
        if seconds < 0:
            raise ValueError("time does not go backwards")
        self._now += seconds
        return self._now


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps for a timer: moves the clock instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; when nothing is, the clock jumps by `timeout`."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            ready = super().select(_GRACE)
            if not ready:
                raise RuntimeError("the loop waits, but no timer and no input will ever wake it")
            return ready
        if timeout > 0:
            self._clock.advance(timeout)
        return ready


class AutoJumpLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while anything can run, and jumps to the next timer when nothing
    can.

    For code whose waits are all timers, futures and queues. A loop with real network traffic would jump past
    its answers.
    """

    def __init__(self, start: float = 0.0) -> None:
        self.clock = ManualClock(start)
        super().__init__(_JumpingSelector(self.clock))

    def time(self) -> float:
        """The loop's own time in seconds."""
        return self.clock()


def run_jumping(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh `AutoJumpLoop`."""
    with asyncio.Runner(loop_factory=AutoJumpLoop) as runner:
        return runner.run(main)
