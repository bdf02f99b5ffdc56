"""How many connections all node pools may have together, and who gives one up for whom.

The limit is asked only when a connection is to be opened. Rules:

1. What counts is every connection that exists: alive, being opened, being closed. It is summed up from the pools' own
   accounts at the moment of asking, so it cannot drift.
2. A pool where calls wait and that has no connection at all is owed one: an idle connection of another pool leaves for
   it, else the next one that is given back at the pool that has most.
3. A pool where calls wait and that has some gets an idle one of a pool that has at least two more. So shares even out
   and never swing.
4. What becomes free goes first to pools without any connection, then in the order of asking. Connections that are only
   kept warm never take anything from anybody.

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
        if granted < wanted:
            self._hungry[pool] = None
        else:
            self._hungry.pop(pool, None)
        return granted

    def allow(self, wanted: int) -> int:
        """How many of `wanted` connections may be opened now; nobody is remembered."""
        if self.limit is None:
            return wanted
        return max(0, min(wanted, self.limit - sum(pool.slots.occupied for pool in self.members)))

    def is_hungry(self, pool: P) -> bool:
        """Whether a pool was refused what it still waits for."""
        return pool in self._hungry

    @property
    def starving(self) -> bool:
        """Whether a pool where calls wait has no connection at all."""
        return any(_starves(pool) for pool in self._hungry)

    def queue(self) -> list[P]:
        """Pools that were refused, in the order in which they are to be served."""
        return sorted(self._hungry, key=lambda pool: not _starves(pool))

    def donor(self, asker: P) -> P | None:
        """Whose connection should leave for a pool that was refused.

        Returns:
            A pool with an idle connection; or, if there is none and the asker has nothing, the one with most held
            connections; or None.
        """
        starves = _starves(asker)
        others = [pool for pool in self.members if pool is not asker]
        idle = [p for p in others if p.slots.idle and (starves or p.slots.size > asker.slots.size + 1)]
        if idle:
            return max(idle, key=lambda pool: (len(pool.slots.idle), pool.slots.size))
        busy = [pool for pool in others if pool.slots.held]
        return max(busy, key=lambda pool: pool.slots.size) if starves and busy else None

    def forget(self, pool: P) -> None:
        """A pool is gone, and so are its connections."""
        self.members.pop(pool, None)
        self._hungry.pop(pool, None)


def _starves(pool: HasSlots) -> bool:
    slots = pool.slots
    return bool(slots.waiters) and not slots.size and not slots.opening
