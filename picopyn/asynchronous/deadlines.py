"""One timer for many deadlines of an event loop.

Nearly none of them ever comes. A timer for each would only be made and cancelled, which costs more than the rest of a
deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

#: The clock of asyncio's own loops. A test may put another in its place, in the class or in one loop.
_PASSED_ON: Final = asyncio.BaseEventLoop.time


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """What tells the time of an event loop; what asyncio's own loops only pass on is asked without them."""
    passed_on = getattr(loop.time, "__func__", None) is _PASSED_ON
    return time.monotonic if passed_on else loop.time


class Alarm:
    """A timer that is set for the first of many deadlines, and stays when that has become void.

    Args:
        loop: Whose clock counts.
        look: Called in the turn after it has rung, with the moment; ends what has to end by then, and gives the next
            moment. Who got an answer in the turn in which it rang, perhaps because the loop stood still, has taken it
            by then.

    Attributes:
        rings_at: When it rings, on the loop's clock; infinity while it is not set.
    """

    __slots__ = ("_call_at", "_call_soon", "_clock", "_look", "_timer", "rings_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[float], float]) -> None:
        self.rings_at = inf
        self._call_at = loop.call_at
        self._call_soon = loop.call_soon
        self._clock = clock_of(loop)
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def ring_at(self, moment: float) -> None:
        """Set it anew; infinity: it does not ring."""
        if self._timer is not None:
            self._timer.cancel()
        call_at = self._call_at
        self._timer = call_at(moment, self._ring) if moment < inf else None
        self.rings_at = moment

    def _ring(self) -> None:
        self._timer = None
        call_soon = self._call_soon
        call_soon(self._look_around)

    def _look_around(self) -> None:
        if self._timer is not None or self.rings_at == inf:  # it was set anew meanwhile, or stopped
            return
        clock = self._clock
        now = max(clock(), self.rings_at)  # by the timer's own measure
        self.rings_at = inf
        following = self._look(now)
        if following < self.rings_at:
            self.ring_at(following)


class Limited(Protocol):
    """What has a deadline."""

    def expire(self) -> None:
        """It has come."""
        ...


class Deadlines:
    """Deadlines that come in the order in which they are set, as nearly all do: calls have the same limits.

    Args:
        loop: Whose clock counts.
    """

    __slots__ = ("_alarm", "_entered", "_last")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = Alarm(loop, self._expire)
        self._entered: dict[Limited, float] = {}
        self._last = 0.0

    def enter(self, limited: Limited, deadline: float) -> bool:
        """Have somebody told when his deadline has come; False when another's comes later that was set before."""
        entered, alarm = self._entered, self._alarm
        if deadline < self._last and entered:
            return False
        self._last = deadline
        entered[limited] = deadline
        if deadline < alarm.rings_at:
            alarm.ring_at(deadline)
        return True

    def leave(self, limited: Limited) -> None:
        """It does not matter any more."""
        self._entered.pop(limited, None)

    def _expire(self, now: float) -> float:
        """Tell those whose deadlines have come.

        Returns:
            The next one.
        """
        for limited, deadline in tuple(self._entered.items()):
            if deadline > now:
                return deadline
            self.leave(limited)
            limited.expire()
        return inf


_deadlines: WeakKeyDictionary[Any, Deadlines] = WeakKeyDictionary()


def deadlines_of(loop: asyncio.AbstractEventLoop) -> Deadlines:
    """Those of an event loop."""
    found = _deadlines.get(loop)
    if found is None:
        found = _deadlines[loop] = Deadlines(loop)
    return found
