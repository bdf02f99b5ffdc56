"""A node pool that several threads take from and give back to."""

from __future__ import annotations

from picopyn.dialects.base import Purpose
from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import BlockingLink, Link
from picopyn.engine.terms import Terms
from picopyn.topology import Node


class SharedNodePool(NodePool):
    """A node pool whose accounts change under its lock, whoever changes them.

    Nobody hears at once that an idle connection has ended, so that is looked at when it is taken, unless it has just
    answered.
    """

    __slots__ = ()

    def __init__(self, terms: Terms, node: Node, purpose: Purpose) -> None:
        super().__init__(terms, node, purpose)
        self._guard()

    def _guard(self) -> None:
        """Let callers take and give back under the lock; they all do, so what that needs is not looked up each time."""
        lock, sound = self._lock, self._sound
        waiters, take, settle = self.slots.waiters, self.slots.take, self.slots.settle

        def try_take(owner: object) -> Link | None:
            if waiters:  # what becomes free is theirs
                return None
            with lock:
                link: BlockingLink | None = take(owner)  # type: ignore[assignment]
                return sound(link, owner) if link is not None and link.has_ended() else link

        def settle_one(link: Link) -> bool:
            if waiters:
                return False
            with lock:
                return settle(link)

        self.try_take, self.settle = try_take, settle_one
