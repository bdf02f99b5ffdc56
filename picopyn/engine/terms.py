"""What all node pools of one cluster have in common: the world, the limits, and who hears of their connections.

It also carries out what the common limit (`max_total`) decides, because that always concerns two pools.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING, Protocol

from picopyn.engine.jobs import Jobs
from picopyn.engine.runtime import Link, Runtime
from picopyn.observe import CloseReason
from picopyn.routing.budget import Budget
from picopyn.settings import PoolSettings

if TYPE_CHECKING:
    from picopyn.engine.node_pool import NodePool

#: A life ends up to this share earlier than `max_lifetime`, so that connections do not end together.
LIFETIME_JITTER = 0.1
#: How long a polite goodbye to one connection may take (seconds); then it is dropped.
GOODBYE = 1.0
#: The same when another pool waits for its place.
SHORT_GOODBYE = 0.25


class PoolListener(Protocol):
    """Who hears what happens to the connections of a node."""

    def link_opened(self, pool: NodePool, link: Link, seconds: float) -> None:
        """A connection was made."""
        ...

    def open_failed(self, pool: NodePool, error: BaseException, seconds: float) -> None:
        """A connection could not be made."""
        ...

    def opening_given_up(self, pool: NodePool) -> None:
        """An opening was cancelled, since its node was down; it counted until now."""
        ...

    def link_closed(self, pool: NodePool, link: Link, reason: CloseReason) -> None:
        """A connection ended; `broken` when it was not us who ended it."""
        ...


class Terms:
    """The common part of a cluster's node pools. Owned by the cluster.

    Args:
        runtime: The world.
        settings: Sizes and times.
        listener: Who is told of openings, failures and losses.
        jobs: Run the opening and closing of connections, and end it with their owner.
        rng: Source of the jitter.

    Attributes:
        budget: What `max_total` leaves.
        generation: How many times all connections were declared outdated.
    """

    __slots__ = ("_lock", "budget", "generation", "jobs", "listener", "rng", "runtime", "settings")

    def __init__(
        self, runtime: Runtime, settings: PoolSettings, listener: PoolListener, jobs: Jobs, rng: Random
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.listener = listener
        self.jobs = jobs
        self.rng = rng
        self.budget: Budget[NodePool] = Budget(settings.max_total)
        self.generation = 0
        self._lock = runtime.lock()

    def end_of_life(self) -> float:
        """When the life of a connection that is made now ends."""
        lifetime = self.settings.max_lifetime
        if lifetime is None:
            return inf
        return self.runtime.now() + lifetime * (1 - LIFETIME_JITTER * self.rng.random())

    def reserve(self, pool: NodePool, size: int | None = None) -> int:
        """Count connections of a pool as being opened, within its limits and the common one.

        Args:
            pool: The pool.
            size: Until how many are alive; None: for those who wait there.

        Returns:
            How many are to be opened.
        """
        with self._lock:
            if size is None:
                granted = self.budget.grant(pool, pool.slots.wanted)
            else:
                granted = self.budget.allow(pool.slots.missing(size))
            return pool.slots.reserve(granted)

    def ask_around(self, asker: NodePool) -> None:
        """A pool was refused: make another one give up a connection, where that is due."""
        with self._lock:
            hungry = self.budget.is_hungry(asker)
            donor = self.budget.donor(asker) if hungry else None
            debtors = self.budget.debtors(asker) if hungry and donor is None else []
        if donor is not None:
            donor.give_up_one()
        for debtor in debtors:
            debtor.owe_one()

    def ask_again(self) -> None:
        """A connection came, went, or will not come: those who were refused try again."""
        if self.budget.limit is not None:
            for pool in self.budget.queue():
                pool.grow()
