"""Looking after nodes that gave cause for doubt, until they answer or leave.

A probe is the opening of a connection that is then used: there is no other way to know that a node would let us in. It
is flat and fast while calls wait or everything is down, and backs off otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from picopyn.engine.changes import Changes
from picopyn.engine.jobs import Jobs
from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Runtime
from picopyn.routing.health import Health


class Probes:
    """One probe per doubtful node. Owned by a cluster.

    Args:
        runtime: The world.
        jobs: Where probes run.
        health: Which nodes are doubtful.
        changes: Tells whether calls wait.
        rng: Source of the jitter.
        all_down: Whether no node of the cluster can be reached.
    """

    __slots__ = ("_all_down", "_changes", "_health", "_jobs", "_rng", "_runtime")

    def __init__(
        self,
        runtime: Runtime,
        jobs: Jobs,
        health: Health,
        changes: Changes,
        rng: Random,
        all_down: Callable[[], bool],
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._health = health
        self._changes = changes
        self._rng = rng
        self._all_down = all_down

    def start(self, pool: NodePool, answered: Callable[[NodePool], None]) -> None:
        """Probe a node until it answers.

        Args:
            pool: The node's pool; the connection goes there.
            answered: Called when the node answers.
        """
        name = f"picopyn probe {pool.node.name or pool.node.address}"
        self._jobs.spawn(self._probe(pool, answered), name)

    async def _probe(self, pool: NodePool, answered: Callable[[NodePool], None]) -> None:
        uuid = pool.node.uuid
        while not (pool.retired or self._jobs.closed or self._health.is_up(uuid)):
            if await pool.open_one():
                answered(pool)
                return
            await self._pause(uuid)

    async def _pause(self, uuid: str) -> None:
        eager = bool(self._changes.waiting) or self._all_down()
        pause = self._health.pause(uuid, eager=eager, rng=self._rng)
        waiter = self._runtime.waiter()
        if not eager:
            self._changes.eager.add(waiter)
        with suppress(TimeoutError):
            await waiter.wait(self._runtime.now() + pause)
        self._changes.eager.discard(waiter)
