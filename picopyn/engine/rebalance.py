"""Closing, little by little, the idle connections that use has left behind when it moved to other nodes.

Which ones is decided in `routing.surplus`. Nothing that is in use is touched, and nothing is sent to a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Runtime, Waiter
from picopyn.routing.surplus import Holding, surplus
from picopyn.topology import Node


class Rebalance:
    """The job. Owned by a cluster.

    Args:
        runtime: The world.
        pools: All node pools of connections that are kept ready.
        homes: Where use goes now.
        leading: Where calls go because of their keys, so that how many connections a node needs is not for us to say.
        least: Connections kept to each of those in any case.
        batch: Most connections closed at a time.
        interval: Time from one time to the next (seconds).
    """

    __slots__ = ("_batch", "_homes", "_interval", "_leading", "_least", "_pools", "_runtime")

    def __init__(
        self,
        runtime: Runtime,
        pools: Callable[[], Iterable[NodePool]],
        homes: Callable[[], Iterable[Node]],
        leading: Callable[[], Iterable[Node]],
        *,
        least: int,
        batch: int,
        interval: float,
    ) -> None:
        self._runtime = runtime
        self._pools = pools
        self._homes = homes
        self._leading = leading
        self._least = least
        self._batch = batch
        self._interval = interval

    async def run(self) -> None:
        """Look again and again; ends by being cancelled."""
        while True:
            pause: Waiter[None] = self._runtime.waiter()
            with suppress(TimeoutError):
                await pause.wait(self._runtime.now() + self._interval)
            self.look()

    def look(self) -> None:
        """Close one batch, if there is anything to close."""
        homes = {node.uuid for node in self._homes()}
        leading = {node.uuid for node in self._leading()}
        pools = {pool.node.uuid: pool for pool in self._pools()}
        held = {uuid: self._holding(pool, uuid in homes, uuid in leading) for uuid, pool in pools.items()}
        for uuid in surplus(held, self._batch):
            pools[uuid].give_up_one()

    def _holding(self, pool: NodePool, home: bool, leads: bool) -> Holding:
        size, idle = pool.slots.size, len(pool.slots.idle)
        return Holding(size, idle, size if leads else self._least if home else 0, home)
