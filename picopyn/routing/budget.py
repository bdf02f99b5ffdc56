"""How many connections all node pools may have together, and who gives one up for whom.

The limit is asked only when a connection is to be opened. Rules:

1. What counts is every connection that exists: alive, being opened, being closed. It is summed up from the pools' own
   accounts at the moment of asking, so it cannot drift.
2. A pool where calls wait and that has no connection at all is owed one: an idle connection of another pool leaves for
   it, else the next one that is given back anywhere.
3. A pool where calls wait and that has some gets an idle one of a pool that has at least two more. So shares even out
   and never swing.
4. What becomes free goes first to pools without any connection, then in the order of asking; who got or gave up one
   asks anew. Connections that are only kept warm never take anything from anybody.

It knows no clock, no network and no thread; it opens and closes nothing.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from picopyn.routing.slots import Slots


class HasSlots(Protocol):
    """A pool of connections to one node."""

    @property
    def slots(self) -> Slots[Any, Any]:
        """Its accounts."""
        ...


P = TypeVar("P", bound=HasSlots)


class Budget(Generic[P]):
    """The common limit of a set of pools.

    Args:
        limit: Most connections of all pools together; None: no limit.

    Attributes:
        members: The pools, dead ones too as long as connections of theirs exist.
    """

    __slots__ = ("_hungry", "limit", "members")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.members: dict[P, None] = {}
        self._hungry: dict[P, None] = {}

    def grant(self, pool: P, wanted: int) -> int:
        """How many of the connections that waiters want may be opened; the caller opens (or at least reserves) them.

        A pool that gets fewer is remembered until it gets what it wants.
        """
        granted = self.allow(wanted)
        if granted or not wanted:
            self._hungry.pop(pool, None)
        if granted < wanted:
            self._hungry[pool] = None
        return granted

    def gave_up(self, pool: P) -> None:
        """A pool parted with a connection for another one: whatever it wants itself, others come first."""
        if pool in self._hungry:
            del self._hungry[pool]
            self._hungry[pool] = None

    def allow(self, wanted: int) -> int:
        """How many of `wanted` connections may be opened now; nobody is remembered."""
        if self.limit is None:
            return wanted
        return max(0, min(wanted, self.limit - sum(pool.slots.occupied for pool in self.members)))

    def is_hungry(self, pool: P) -> bool:
        """Whether a pool was refused what it still waits for."""
        return pool in self._hungry

    @property
    def needs_more(self) -> bool:
        """Whether more pools wait without any connection than places are, or become, free."""
        starving = sum(map(_starves, self._hungry))
        return starving > 0 and starving > self.allow(starving) + sum(len(p.slots.leaving) for p in self.members)

    def queue(self) -> list[P]:
        """Pools that were refused, in the order in which they are to be served."""
        return sorted(self._hungry, key=lambda pool: not _starves(pool))

    def donor(self, asker: P) -> P | None:
        """Whose idle connection should leave for a pool that was refused; None when none should."""
        starves = _starves(asker)
        idle = [
            pool
            for pool in self.members
            if pool is not asker and pool.slots.idle and (starves or pool.slots.size > asker.slots.size + 1)
        ]
        return max(idle, key=lambda pool: (len(pool.slots.idle), pool.slots.size), default=None)

    def debtors(self, asker: P) -> list[P]:
        """Who has to part with the connection given back next, where nothing is idle and a pool has none at all."""
        return [pool for pool in self.members if pool is not asker and pool.slots.held] if _starves(asker) else []

    def forget(self, pool: P) -> None:
        """A pool is gone, and so are its connections."""
        self.members.pop(pool, None)
        self._hungry.pop(pool, None)


def _starves(pool: HasSlots) -> bool:
    slots = pool.slots
    return bool(slots.waiters) and not slots.size and not slots.opening
