"""The accounts of one node pool: who holds which connection, who waits, how many are being opened, who must leave.

Rules of this file:

1. Every connection is in exactly one place: idle, held, promised to a waiter (which counts as held), or leaving (being
   closed). The accounts are sets of live connections, not counters, so nothing can drift.
2. Idle connections are taken last-in-first-out (few stay warm); waiters are served first-in-first-out, and a connection
   that becomes free goes straight to the first waiter, never past it.
3. It opens, closes and wakes nothing. It returns what to do; the caller does it outside its lock.
4. Taking and giving back cost no look at a clock. How long a connection has been idle follows from two stacks: what was
   not touched between two looks (`cool`) lies in the lower one, with the date of the first of them.
5. Who holds, waits or hands on is remembered, so that what somebody leaves who is interrupted in the middle of it
   (`KeyboardInterrupt`) can be found. Python looks for interruptions after calls of functions; so between a
   connection's one place and the next, no function is called.

It knows no clock, no network and no thread: moments are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

C = TypeVar("C")
W = TypeVar("W")

#: Stands for "whichever is given back next" among the connections that must leave.
_NEXT: Final = None


class Slots(Generic[C, W]):
    """The accounts of one pool of connections to one node.

    Args:
        max_size: Most connections that may be alive or being opened at the same time.
        max_opening: Most connections that may be being opened at the same time.

    Attributes:
        held: Connections in use or promised to a waiter → whose they are.
        opening: How many are being opened.
        waiters: Who waits, in the order of asking → on whose behalf.
        promised: Waiters that a connection is on its way to → the connection, and who sends it.
        leaving: Connections being closed → why; they are of no use any more, but not gone yet.
        condemned: Held connections that leave when they are given back → why.
    """

    __slots__ = (
        "_cold",
        "_ends",
        "_warm",
        "condemned",
        "held",
        "leaving",
        "max_opening",
        "max_size",
        "opening",
        "promised",
        "waiters",
    )

    def __init__(self, max_size: int, max_opening: int = 2) -> None:
        self.max_size = max_size
        self.max_opening = max_opening
        self.held: dict[C, object] = {}
        self.opening = 0
        self.waiters: OrderedDict[W, object] = OrderedDict()
        self.promised: dict[W, tuple[C, object]] = {}
        self.leaving: dict[C, str] = {}
        self.condemned: dict[C | None, str] = {}
        self._warm: list[C] = []
        self._cold: list[tuple[float, C]] = []
        self._ends: dict[C, float] = {}

    @property
    def idle(self) -> list[C]:
        """Connections nobody uses, the one used last at the end."""
        return [*(connection for _, connection in self._cold), *self._warm]

    @property
    def size(self) -> int:
        """Connections alive: idle and held."""
        return len(self._warm) + len(self._cold) + len(self.held)

    @property
    def occupied(self) -> int:
        """Connections that exist in any way: alive, being opened, being closed."""
        return self.size + self.opening + len(self.leaving)

    @property
    def load(self) -> int:
        """Calls this pool serves or owes: held connections and waiters."""
        return len(self.held) + len(self.waiters)

    @property
    def has_room(self) -> bool:
        """Whether there may be more connections while none is idle, which costs less than to count what is wanted."""
        return len(self.held) + self.opening < self.max_size

    @property
    def wanted(self) -> int:
        """How many more connections should be opened for those who wait, within the pool's own limits."""
        return max(0, min(len(self.waiters) - self.opening, self._room))

    @property
    def _room(self) -> int:
        return min(self.max_size - self.size - self.opening, self.max_opening - self.opening)

    def missing(self, size: int) -> int:
        """How many more connections should be opened so that `size` are alive, within the pool's own limits."""
        return max(0, min(size - self.size - self.opening, self._room))

    # use

    def take(self, owner: object = None) -> C | None:
        """Take the connection used last, if one is idle, on somebody's behalf."""
        warm = self._warm
        if warm:
            connection = warm[-1]
            self.held[connection] = owner
            del warm[-1]
        elif self._cold:
            connection = self._cold[-1][1]
            self.held[connection] = owner
            del self._cold[-1]
        else:
            return None
        return connection

    def give(self, connection: C) -> W | None:
        """Give a held connection back.

        Returns:
            The waiter it now belongs to (it stays held), or None when it became idle. The caller says when it has
            `arrived`; if that waiter turns out to have left, he gives the connection again.
        """
        if connection not in self.held:
            return None
        if self.waiters:
            waiter = next(iter(self.waiters))
            self.promised[waiter] = connection, self.held[connection]
            self.held[connection] = self.waiters[waiter]
            del self.waiters[waiter]
            return waiter
        del self.held[connection]
        self._warm.append(connection)
        return None

    def settle(self, connection: C) -> bool:
        """Give a held connection back that may be used at once by whoever comes: what most calls need.

        Returns:
            False when somebody waits, or a connection has to leave: then nothing was done, and `give` does it.
        """
        if self.waiters or self.condemned:
            return False
        if connection in self.held:  # else it is lost, and not to be found here any more
            del self.held[connection]
            self._warm.append(connection)
        return True

    def arrived(self, waiter: W) -> None:
        """A waiter has its connection, or will not take it."""
        self.promised.pop(waiter, None)

    def wait(self, waiter: W, owner: object = None) -> None:
        """Queue a waiter, on somebody's behalf."""
        self.waiters[waiter] = owner

    def forfeit(self, owner: object) -> tuple[list[C], dict[W, C], list[W]]:
        """Somebody was interrupted, and does nothing any more: he waits no longer.

        Returns:
            The connections he holds, to be dropped, those he has given without their having `arrived`, and his waiters.
        """
        gone = [waiter for waiter, other in self.waiters.items() if other is owner]
        for waiter in gone:
            del self.waiters[waiter]
        sent = {waiter: connection for waiter, (connection, other) in self.promised.items() if other is owner}
        for waiter in sent:
            self.arrived(waiter)
        return [connection for connection, other in self.held.items() if other is owner], sent, gone

    def leave(self, waiter: W) -> bool:
        """A waiter gives up.

        Returns:
            False when it was no longer queued: a connection is on its way to it, or it was told something else.
        """
        return self.waiters.pop(waiter, self) is not self

    def drain_waiters(self) -> list[W]:
        """Take all waiters off the queue, to be told something else."""
        waiters = list(self.waiters)
        self.waiters.clear()
        return waiters

    def send_on(self, may_leave: Callable[[object], bool]) -> list[W]:
        """Take those waiters off the queue on whose behalf somebody else may be asked as well."""
        leaving = [waiter for waiter, owner in self.waiters.items() if may_leave(owner)]
        for waiter in leaving:
            del self.waiters[waiter]
        return leaving

    # coming

    def reserve(self, count: int) -> int:
        """Count up to `count` connections as being opened, within the pool's own limits.

        Returns:
            How many were granted.
        """
        granted = max(0, min(count, self._room))
        self.opening += granted
        return granted

    def opened(self, connection: C, end: float = inf) -> W | None:
        """A connection that was being opened is there; see `give` for the result.

        Args:
            connection: The connection.
            end: The moment its life ends.
        """
        self.opening -= 1
        self.held[connection] = None
        if end != inf:
            self._ends[connection] = end
        return self.give(connection)

    def opened_in_vain(self, connection: C, why: str) -> None:
        """A connection that was being opened is there, and of no use any more: it leaves."""
        self.opening -= 1
        self.leaving[connection] = why

    def open_failed(self) -> None:
        """A connection that was being opened will not come."""
        self.opening -= 1

    # going

    def part(self, connection: C, why: str) -> bool:
        """A connection is about to be closed: nobody may take it any more. The first reason counts.

        Returns:
            False when it was neither idle nor held.
        """
        if not self._remove(connection):
            return False
        self.leaving[connection] = why
        return True

    def lost(self, connection: C) -> None:
        """A connection is known to be of no use; `gone` follows, if it was not before."""
        self._remove(connection)

    def ended(self, connection: C) -> None:
        """A connection has just ended; `gone` follows. Nobody takes it any more, but who holds it still does.

        What flies on it is a call in flight until it has heard of the end itself, and so are all that end with it.
        """
        if connection in self.held:
            self.condemned.setdefault(connection, "broken")
        else:
            self._remove(connection)

    def gone(self, connection: C) -> str | None:
        """A connection is gone, wherever it was.

        Returns:
            Why it had to leave, or None when nobody here wanted it to.
        """
        self._remove(connection)
        return self.leaving.pop(connection, None)

    def verdict(self, connection: C) -> str | None:
        """Why a held connection must leave now that it is given back; None when it may stay. Asked once."""
        why = self.condemned.pop(connection, None)
        return self.condemned.pop(_NEXT, None) if why is None else why

    def owe(self, why: str) -> None:
        """The connection that is given back next must leave, whichever it is."""
        if self.held:
            self.condemned[_NEXT] = why

    def release_debt(self) -> None:
        """The connection that is given back next may stay after all."""
        self.condemned.pop(_NEXT, None)

    # age

    @property
    def next_end(self) -> float:
        """When the first life ends, of those that have not been condemned; infinite when there is none."""
        return min((end for connection, end in self._ends.items() if connection not in self.condemned), default=inf)

    def expire(self, now: float, why: str) -> list[C]:
        """Lives that have ended: held connections are condemned, idle ones leave.

        Returns:
            The connections to close now.
        """
        return self._expel([connection for connection, end in self._ends.items() if end <= now], why)

    def expire_all(self, why: str) -> list[C]:
        """The same for every connection, whatever its age."""
        return self._expel([*self.held, *self.idle], why)

    def cool(self, now: float) -> None:
        """Look which connections lie idle: what is not taken from now on will have been unused since `now`."""
        self._cold += [(now, connection) for connection in self._warm]
        self._warm.clear()

    def expire_unused(self, since: float, why: str) -> list[C]:
        """Connections that have not been used since a moment, or longer, leave.

        Returns:
            The connections to close now, at most those that `cool` has seen.
        """
        return self._expel([connection for seen, connection in self._cold if seen <= since], why)

    def spare(self, why: str) -> C | None:
        """The connection that has been idle for longest leaves.

        Returns:
            The connection to close now; None when none is idle.
        """
        idle = self.idle
        return self._expel(idle[:1], why)[0] if idle else None

    # inside

    def _expel(self, connections: list[C], why: str) -> list[C]:
        """Condemn those that are held, let the others leave."""
        for connection in connections:
            if connection in self.held:
                self.condemned.setdefault(connection, why)
        return [connection for connection in connections if connection not in self.held and self.part(connection, why)]

    def _remove(self, connection: C) -> bool:
        self._ends.pop(connection, None)
        if connection in self.held:
            del self.held[connection]
            self.condemned.pop(connection, None)
            if not self.held:
                self.condemned.clear()
            return True
        if connection in self._warm:
            self._warm.remove(connection)
            return True
        before = len(self._cold)
        self._cold = [(seen, other) for seen, other in self._cold if other != connection]
        return len(self._cold) < before
