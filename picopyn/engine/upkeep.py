"""What is done for connections in the background: kept warm, retired when old, closed when unused.

One job with one timer for all connections of a cluster; a connection costs it nothing but its look. The calls' own path
knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Runtime, Waiter
from picopyn.settings import PoolSettings

#: Longest time between two looks (seconds).
LONGEST_PERIOD = 30.0
#: Shortest time between two looks (seconds).
SHORTEST_PERIOD = 0.02
#: The part of `max_idle` between two looks: a connection leaves at most two parts later than it says.
PARTS = 20


class Upkeep:
    """The job. Owned by a cluster.

    Args:
        runtime: The world.
        settings: How old and how idle connections may become.
        pools: All node pools, those of nodes that have left as long as they hold connections.
        lacking: The pools of reachable nodes that have fewer connections than they should, and how many that is.

    Attributes:
        begun: Somebody runs it, or is about to.
    """

    __slots__ = ("_lacking", "_pause", "_pools", "_runtime", "_settings", "begun")

    def __init__(
        self,
        runtime: Runtime,
        settings: PoolSettings,
        pools: Callable[[], Iterable[NodePool]],
        lacking: Callable[[], Iterable[tuple[NodePool, int]]],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._pools = pools
        self._lacking = lacking
        self._pause: Waiter[None] | None = None
        self.begun = False

    async def run(self) -> None:
        """Look again and again; ends by being cancelled."""
        while True:
            now = self._runtime.now()
            self.look(now)
            self._pause = self._runtime.waiter()
            with suppress(TimeoutError):
                await self._pause.wait(max(self._due(now), now + SHORTEST_PERIOD))

    def soon(self) -> None:
        """Something failed that has to be tried again: think anew about when to look."""
        if self._pause is not None:
            self._pause.wake(None)

    def look(self, now: float) -> None:
        """Do what is due."""
        for pool in self._pools():
            pool.discard_broken()
            pool.expire(now)
            if self._settings.max_idle is not None:
                pool.expire_unused(now, self._settings.max_idle)
        for pool, size in self._lacking():
            pool.warm(size)
        for pool in self._pools():
            if pool.slots.wanted and now >= pool.retry_at:  # an attempt for those who wait has failed
                pool.grow()

    def _due(self, now: float) -> float:
        longest = self._settings.max_idle
        period = min(LONGEST_PERIOD if longest is None else longest / PARTS, LONGEST_PERIOD, self._runtime.look_every)
        ends = min((pool.slots.next_end for pool in self._pools()), default=inf)
        lacking = {pool for pool, _ in self._lacking()}
        lacking.update(pool for pool in self._pools() if pool.slots.wanted)
        retries = min((pool.retry_at for pool in lacking if pool.retry_at > now), default=inf)
        return min(now + period, ends, retries)
