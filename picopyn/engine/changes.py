"""Waiting for the cluster to change: a snapshot, a node's reachability, what is known of statements.

Calls that have to wait for any of it wait here, holding no connection and no slot of a server. They are all woken by
every change and plan again; changes are rare.
"""

from __future__ import annotations

from picopyn.engine.runtime import Runtime, Waiter


class Changes:
    """The bell that waiting calls listen to. Owned by a cluster.

    Args:
        runtime: The world.

    Attributes:
        look: Number of the newest look at the cluster whose result is known, with or without news.
        version: Rises with whatever may make a plan outdated.
    """

    __slots__ = ("_runtime", "_waiting", "look", "version")

    def __init__(self, runtime: Runtime) -> None:
        self.look = 0
        self.version = 0
        self._runtime = runtime
        self._waiting: dict[Waiter[None], None] = {}

    @property
    def waiting(self) -> int:
        """Calls that wait now."""
        return len(self._waiting)

    def ring(self) -> None:
        """Something changed: wake everybody who waits, in the order of asking."""
        self.version += 1
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.wake(None)

    def looked(self, look: int) -> None:
        """The result of a look is known: wake everybody, changed or not."""
        self.look = max(self.look, look)
        self.ring()

    async def wait(self, deadline: float | None) -> None:
        """Wait for the next change.

        Raises:
            TimeoutError: The deadline passed.
        """
        waiter = self._runtime.waiter()
        self._waiting[waiter] = None
        try:
            await waiter.wait(deadline)
        finally:
            self._waiting.pop(waiter, None)
