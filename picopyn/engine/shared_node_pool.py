"""A node pool that several threads take from and give back to."""

from __future__ import annotations

from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Link


class SharedNodePool(NodePool):
    """A node pool whose accounts change under its lock, whoever changes them."""

    __slots__ = ()

    def try_take(self, owner: object = None) -> Link | None:
        """See `NodePool`."""
        with self._lock:
            link = self.slots.take(owner)
            return self._sound(link, owner) if link is not None and link.is_closed() else link

    def give(self, link: Link) -> None:
        """See `NodePool`."""
        if not link.is_idle() or self.slots.condemned:
            self._give_unfit(link)
            return
        with self._lock:
            waiter = self.slots.give(link)
        if waiter is not None:
            self._hand_over(waiter, link)
