"""One timer for all deadlines that come in the order in which they are set: of waiting calls, and of statements.

They nearly all are: calls have the same limits. And nearly none of them ever comes. A timer for each would only be made
and cancelled, which costs more than the rest of a deadline; one that is out of order gets its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary


class Limited(Protocol):
    """What has a deadline."""

    def expire(self) -> None:
        """It has come."""
        ...


class Deadlines:
    """The deadlines on one event loop.

    The timer stays when nothing is left to wait for: it is set anew when it rings, if then there is something.

    Args:
        loop: Whose clock counts.
    """

    __slots__ = ("_call_at", "_entered", "_last", "_rings_at", "_time", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_at = loop.call_at
        self._entered: dict[Limited, float] = {}
        self._last = 0.0
        self._rings_at = 0.0
        self._time = loop.time
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, limited: Limited, deadline: float) -> bool:
        """Have somebody told when his deadline has come; False when another's comes later that was set before."""
        entered = self._entered
        if deadline < self._last and entered:
            return False
        self._last = deadline
        entered[limited] = deadline
        if self._timer is None or deadline < self._rings_at:
            self._set(deadline)
        return True

    def leave(self, limited: Limited) -> None:
        """It does not matter any more."""
        self._entered.pop(limited, None)

    def _set(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        call_at = self._call_at
        self._timer, self._rings_at = call_at(deadline, self._ring), deadline

    def _ring(self) -> None:
        """Tell those whose deadlines have come, by the timer's own measure; for the next one, set it again."""
        time = self._time
        now = max(time(), self._rings_at)
        self._timer = None
        for limited, deadline in tuple(self._entered.items()):
            if deadline > now:
                self._set(deadline)
                return
            self.leave(limited)
            limited.expire()


_deadlines: WeakKeyDictionary[Any, Deadlines] = WeakKeyDictionary()


def deadlines_of(loop: asyncio.AbstractEventLoop) -> Deadlines:
    """Those of an event loop."""
    found = _deadlines.get(loop)
    if found is None:
        found = _deadlines[loop] = Deadlines(loop)
    return found


class StatementLimit:
    """The time limit of the statement that runs on one connection, which asyncpg takes for a timer of its loop.

    Args:
        loop: The loop; a second timer at the same time is made there.
    """

    __slots__ = ("_call", "_deadlines", "_loop", "_time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call: tuple[Callable[..., object], tuple[Any, ...]] | None = None
        self._deadlines = deadlines_of(loop)
        self._loop = loop
        self._time = loop.time

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **more: Any) -> Any:
        """Have a call made so many seconds from now; what it gives can be cancelled."""
        time = self._time
        if self._call is None and not more and self._deadlines.enter(self, time() + delay):
            self._call = callback, args
            return self
        return self._loop.call_later(delay, callback, *args, **more)

    def cancel(self) -> None:
        """The statement has ended."""
        self._call = None
        self._deadlines.leave(self)

    def expire(self) -> None:
        """Its time is over."""
        call, self._call = self._call, None
        if call is not None:
            callback, args = call
            callback(*args)
