"""The accounts of one node pool: who holds which connection, who waits, how many are being opened.

Rules of this file:

1. Every connection is in exactly one place: idle, held, or promised to a waiter (which counts as held). The accounts
   are sets of live connections, not counters, so nothing can drift.
2. Idle connections are taken last-in-first-out (few stay warm); waiters are served first-in-first-out, and a connection
   that becomes free goes straight to the first waiter, never past it.
3. It opens, closes and wakes nothing. It returns what to do; the caller does it outside its lock.

It knows no clock, no network and no thread.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

C = TypeVar("C")
W = TypeVar("W")


class Slots(Generic[C, W]):
    """The accounts of one pool of connections to one node.

    Args:
        max_size: Most connections that may be alive or being opened at the same time.
        max_opening: Most connections that may be being opened at the same time.
    """

    __slots__ = ("held", "idle", "max_opening", "max_size", "opening", "waiters")

    def __init__(self, max_size: int, max_opening: int = 2) -> None:
        self.max_size = max_size
        self.max_opening = max_opening
        self.idle: list[C] = []
        self.held: set[C] = set()
        self.opening = 0
        self.waiters: deque[W] = deque()

    @property
    def size(self) -> int:
        """Connections alive: idle and held."""
        return len(self.idle) + len(self.held)

    @property
    def load(self) -> int:
        """Calls this pool serves or owes: held connections and waiters."""
        return len(self.held) + len(self.waiters)

    def take(self) -> C | None:
        """Take the connection used last, if one is idle."""
        if not self.idle:
            return None
        connection = self.idle.pop()
        self.held.add(connection)
        return connection

    def wait(self, waiter: W) -> int:
        """Queue a waiter.

        Returns:
            How many connections to start opening for it: 0 or 1.
        """
        self.waiters.append(waiter)
        return self.grow()

    def grow(self) -> int:
        """Whether one more connection should be opened for those who wait; counts it as opening if so.

        Returns:
            How many connections to start opening: 0 or 1.
        """
        wanted = len(self.waiters) > self.opening and self.opening < self.max_opening
        return self.reserve(1) if wanted else 0

    def reserve(self, count: int) -> int:
        """Count up to `count` connections as being opened, within the limits.

        Returns:
            How many were granted.
        """
        room = min(self.max_size - self.size - self.opening, self.max_opening - self.opening)
        granted = max(0, min(count, room))
        self.opening += granted
        return granted

    def give(self, connection: C) -> W | None:
        """Give a held connection back.

        Returns:
            The waiter it now belongs to (it stays held), or None when it became idle. If that waiter turns out to have
            left, the caller gives the connection again.
        """
        if connection not in self.held:
            return None
        if self.waiters:
            return self.waiters.popleft()
        self.held.discard(connection)
        self.idle.append(connection)
        return None

    def opened(self, connection: C) -> W | None:
        """A connection that was being opened is there; see `give` for the result."""
        self.opening -= 1
        self.held.add(connection)
        return self.give(connection)

    def open_failed(self) -> None:
        """A connection that was being opened will not come."""
        self.opening -= 1

    def lost(self, connection: C) -> int:
        """A connection is gone, wherever it was; unknown ones are ignored.

        Returns:
            How many connections to start opening for those who wait.
        """
        if connection in self.held:
            self.held.discard(connection)
        elif connection in self.idle:
            self.idle.remove(connection)
        else:
            return 0
        return self.grow()

    def leave(self, waiter: W) -> bool:
        """A waiter gives up.

        Returns:
            False when it was no longer queued: a connection is on its way to it, or it was told something else.
        """
        try:
            self.waiters.remove(waiter)
        except ValueError:
            return False
        return True

    def drain_waiters(self) -> list[W]:
        """Take all waiters off the queue, to be told something else."""
        waiters = list(self.waiters)
        self.waiters.clear()
        return waiters

    def drain_idle(self) -> list[C]:
        """Take all idle connections out of the accounts, to be closed."""
        idle, self.idle = self.idle, []
        return idle
