"""A node pool that several threads take from and give back to."""

from __future__ import annotations

from picopyn.dialects.base import Purpose
from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Link
from picopyn.engine.terms import Terms
from picopyn.topology import Node


class SharedNodePool(NodePool):
    """A node pool whose accounts change under its lock, whoever changes them.

    Nobody hears at once that an idle connection has ended, so that is looked at when it is taken.
    """

    __slots__ = ()

    def __init__(self, terms: Terms, node: Node, purpose: Purpose) -> None:
        super().__init__(terms, node, purpose)
        self.try_take = self._try_take
        self.settle = self._settle

    def _try_take(self, owner: object) -> Link | None:
        if self.slots.waiters:  # what becomes free is theirs
            return None
        with self._lock:
            link = self.slots.take(owner)
            if link is None:
                return None
            is_closed = link.is_closed  # by a name of its own: see `Executor._run_directly`
            return self._sound(link, owner) if is_closed() else link

    def _settle(self, link: Link) -> bool:
        with self._lock:
            return self.slots.settle(link)
