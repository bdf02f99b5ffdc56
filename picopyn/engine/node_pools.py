"""Which node pools there are: one for each node and purpose, made at first use, retired when the node leaves.

A retired pool stays here until its last connection has been given back, so that nothing is forgotten when the cluster
closes. This file decides nothing about a single connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from picopyn.dialects.base import Purpose
from picopyn.engine.changes import Changes
from picopyn.engine.node_pool import NodePool
from picopyn.engine.runtime import Link
from picopyn.engine.shared_node_pool import SharedNodePool
from picopyn.engine.terms import Terms
from picopyn.engine.upkeep import Upkeep
from picopyn.observe import CloseReason
from picopyn.routing.plan import PLAIN, REPLICA_READ, STRICT, Candidate, Flavour

_PURPOSES: dict[Flavour, Purpose] = {
    PLAIN: Purpose.PLAIN,
    REPLICA_READ: Purpose.REPLICA_READ,
    STRICT: Purpose.STRICT,
}


class NodePools:
    """The node pools of a cluster. Owned by it.

    Args:
        terms: What they have in common.
        least_size: Connections kept to every node.
        is_up: Whether a node, by uuid, may be asked for more connections.
        is_home: Whether connections are kept ready in a pool.
        is_used: Whether the node of a pool may be used at all, as of now.
        kept: The kind of connections that are kept ready; all others are opened when they are needed.

    Attributes:
        attempts: Rings when an attempt to connect has ended, well or not, and when there is a new pool.
        least_size: Connections kept to every node.
        by_key: The pools in use, by what a candidate calls its key; not to be changed outside.
        kept: See above.
        only_kept: There never was one for another kind of connection.
    """

    __slots__ = (
        "_is_home",
        "_is_up",
        "_is_used",
        "_live",
        "_retired",
        "_terms",
        "_upkeep",
        "attempts",
        "by_key",
        "kept",
        "least_size",
        "only_kept",
    )

    def __init__(
        self,
        terms: Terms,
        least_size: int,
        is_up: Callable[[str], bool],
        is_home: Callable[[NodePool], bool],
        is_used: Callable[[NodePool], bool],
        kept: Flavour = PLAIN,
    ) -> None:
        self.attempts = Changes(terms.runtime)
        self.least_size = least_size
        self.kept: Flavour = kept
        self.only_kept = True
        self._terms = terms
        self._is_up = is_up
        self._is_home = is_home
        self._is_used = is_used
        self._live: dict[tuple[str, Flavour], NodePool] = {}
        self.by_key: Mapping[tuple[str, Flavour], NodePool] = self._live
        self._retired: set[NodePool] = set()
        self._upkeep = Upkeep(terms.runtime, terms.settings, self.all, self._lacking)

    @property
    def live(self) -> tuple[NodePool, ...]:
        """The pools in use."""
        return tuple(self._live.values())

    def all(self) -> tuple[NodePool, ...]:
        """The pools in use, and the retired ones that still have connections."""
        self._retired = {pool for pool in self._retired if pool.slots.occupied}
        return (*self._live.values(), *self._retired)

    def forfeit(self, owner: object) -> list[Link]:
        """Somebody was interrupted in the middle of what he did; see `NodePool.forfeit`."""
        return [link for pool in self.all() for link in pool.forfeit(owner)]

    def find(self, uuid: str, flavour: Flavour | None = None) -> NodePool | None:
        """The pool of a node, if there is one; of what is kept ready, unless something else is asked for."""
        return self._live.get((uuid, flavour or self.kept))

    def is_kept(self, pool: NodePool) -> bool:
        """Whether a pool has the kind of connections that are kept ready."""
        return pool.purpose is _PURPOSES[self.kept]

    def of(self, uuid: str) -> list[NodePool]:
        """All pools of a node."""
        return [pool for flavour in _PURPOSES if (pool := self.find(uuid, flavour)) is not None]

    def get(self, candidate: Candidate) -> NodePool:
        """The pool of connections a candidate needs; made at first use."""
        pool = self._live.get(candidate.key)
        if pool is None:
            kind = SharedNodePool if self._terms.runtime.parallel else NodePool
            made = kind(self._terms, candidate.node, _PURPOSES[candidate.flavour])
            self.only_kept = self.only_kept and candidate.flavour == self.kept
            pool = self._live.setdefault(candidate.key, made)
            if pool is made:
                self._terms.runtime.post(partial(self._welcome, pool))
        return pool

    def _welcome(self, pool: NodePool) -> None:
        self._terms.budget.members[pool] = None
        if not self._is_used(pool):  # a thread planned its call before the node was drained, or left
            self.retire(pool.node.uuid, "node_gone", polite=True)
        self.attempts.ring()
        if not self._upkeep.begun:
            self._upkeep.begun = True
            self._terms.jobs.spawn(self._upkeep.run(), "picopyn upkeep")

    def warm(self, pool: NodePool) -> None:
        """Keep as many connections as every node gets where use goes."""
        if self.is_kept(pool) and not pool.retired and self._is_home(pool):
            pool.warm(self.least_size)

    def opened(self, pool: NodePool) -> None:
        """A connection was made."""
        self.warm(pool)
        self.attempts.ring()

    def try_again(self) -> None:
        """A connection could not be opened: what is missing is tried again by itself, with growing pauses."""
        self._upkeep.soon()
        self.attempts.ring()

    def expire(self) -> None:
        """Replace every connection: idle ones now, those in use when they are given back, those coming on arrival."""
        self._terms.generation += 1
        for pool in self.all():
            pool.expire_all()
        for pool in self._live.values():
            self.warm(pool)

    def retire(self, uuid: str, reason: CloseReason, *, polite: bool = False) -> None:
        """A node has left: its idle connections are dropped, those in use when they are given back.

        Args:
            uuid: The node.
            reason: Why they are closed.
            polite: It lives: say goodbye.
        """
        for flavour in _PURPOSES:
            pool = self._live.pop((uuid, flavour), None)
            if pool is not None:
                self._retired.add(pool)
                idle = pool.retire(reason)
                if polite:
                    pool.say_goodbye(idle)
                else:
                    _drop(idle)

    def leaving(self, uuid: str) -> list[NodePool]:
        """The retired pools of a node that still have connections."""
        return [pool for pool in self.all() if pool.retired and pool.node.uuid == uuid and pool.slots.occupied]

    def retire_all(self, reason: CloseReason) -> list[Link]:
        """Everything ends.

        Returns:
            The idle connections, for the caller to close.
        """
        return [link for pool in self.all() for link in pool.retire(reason)]

    def terminate(self, reason: CloseReason) -> None:
        """Drop every connection, in use or being closed."""
        for pool in self.all():
            pool.terminate_all(reason)

    def _lacking(self) -> Iterable[tuple[NodePool, int]]:
        size = self.least_size
        return [
            (pool, size)
            for pool in self._live.values()
            if pool.slots.missing(size) and self.is_kept(pool) and self._is_up(pool.node.uuid) and self._is_home(pool)
        ]


def _drop(links: Iterable[Link]) -> None:
    for link in links:
        link.terminate()
