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
        looks: How many times the cluster was looked at, with or without news.
        version: Rises with whatever may make a plan outdated.
    """

    __slots__ = ("_lock", "_runtime", "_waiting", "looks", "version")

    def __init__(self, runtime: Runtime) -> None:
        self.looks = 0
        self.version = 0
        self._runtime = runtime
        self._lock = runtime.lock()
        self._waiting: dict[Waiter[None], None] = {}

    @property
    def waiting(self) -> int:
        """Calls that wait now."""
        return len(self._waiting)

    def ring(self) -> None:
        """Something changed: wake everybody who waits, in the order of asking."""
        with self._lock:
            self.version += 1
            waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.wake(None)

    def looked(self) -> None:
        """The cluster was looked at: wake everybody, changed or not."""
        self.looks += 1
        self.ring()

    async def wait(self, deadline: float | None) -> None:
        """Wait for the next change.

        Raises:
            TimeoutError: The deadline passed.
        """
        waiter = self._runtime.waiter()
        with self._lock:
            self._waiting[waiter] = None
        try:
            await waiter.wait(deadline)
        finally:
            with self._lock:
                self._waiting.pop(waiter, None)
