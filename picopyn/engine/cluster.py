"""The node pools of a cluster, its current snapshot, and the reachability of its nodes.

It owns all three: snapshots are swapped here in one assignment, and node pools are opened and retired here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.engine.changes import Changes
from picopyn.engine.jobs import MOMENT, Jobs
from picopyn.engine.journal import Journal
from picopyn.engine.node_pool import HookFailed, NodePool
from picopyn.engine.probes import Probes
from picopyn.engine.runtime import Link, Runtime
from picopyn.errors import Fault
from picopyn.observe import CloseReason
from picopyn.routing.health import Health, NodeState
from picopyn.routing.membership import reconcile
from picopyn.routing.plan import PLAIN, REPLICA_READ, Candidate, Flavour, Planner
from picopyn.settings import PoolSettings
from picopyn.topology import Node, TopologySnapshot

#: Load of a node without any connection: it comes after all that have one, for it may be hanging.
_UNCONNECTED = 1_000_000

#: How long a server may take to hang up an idle connection when the pool closes (seconds): a hung one never does.
GOODBYE = 1.0

_PURPOSES: dict[Flavour, Purpose] = {PLAIN: Purpose.PLAIN, REPLICA_READ: Purpose.REPLICA_READ}


class Cluster:
    """Everything the engine knows and holds of one cluster.

    Args:
        runtime: The world.
        dialect: The kind of server.
        settings: Sizes and times.
        snapshot: The first look at the cluster; empty until one exists.
        journal: Where events are counted and told.
        refresh: Asks for a new look at the cluster, without waiting; may name a node to doubt.
        rng: Source of randomness.

    Attributes:
        changes: What waiting calls listen to.
        health: Reachability of the nodes.
        jobs: Background jobs that end with the cluster.
        planner: Makes plans for the current snapshot.
    """

    def __init__(
        self,
        runtime: Runtime,
        dialect: Dialect,
        settings: PoolSettings,
        snapshot: TopologySnapshot,
        journal: Journal,
        refresh: Callable[[Node | None], None],
        rng: Random,
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.changes = Changes(runtime)
        self.health = Health()
        self.jobs = Jobs(runtime)
        self._dialect = dialect
        self._journal = journal
        self._refresh = refresh
        self._rng = rng
        self._pools: dict[tuple[str, Flavour], NodePool] = {}
        self._probes = Probes(runtime, self.jobs, self.health, self.changes, rng, self._all_down)
        self.planner = self._planner(snapshot)

    @property
    def snapshot(self) -> TopologySnapshot:
        """The cluster as last seen; immutable."""
        return self.planner.snapshot

    @property
    def pools(self) -> tuple[NodePool, ...]:
        """All node pools."""
        return tuple(self._pools.values())

    def adopt(self, snapshot: TopologySnapshot) -> None:
        """Make a snapshot the current one: open and retire node pools, and let waiting calls plan again."""
        pooled = {pool.node.uuid: (pool.node.host, pool.node.port) for pool in self._pools.values()}
        membership = reconcile(pooled, snapshot.nodes())
        self.planner = self._planner(snapshot)
        for uuid in (*membership.leave, *(node.uuid for node in membership.move)):
            self._retire(uuid)
        joining = [*membership.join, *membership.move]
        self._rng.shuffle(joining)  # the first to be connected gets the first call: not the same node in every process
        for node in joining:
            self.pool(Candidate(node)).warm(self._least_size)
        self.changes.looked()

    def confirm(self, snapshot: TopologySnapshot) -> None:
        """A look at the cluster found nothing new: waiting calls plan again all the same."""
        self.planner.snapshot = snapshot
        self.changes.looked()

    def pool(self, candidate: Candidate) -> NodePool:
        """The pool of connections a candidate needs; made at first use."""
        pool = self._pools.get(candidate.key)
        if pool is None:
            purpose = _PURPOSES[candidate.flavour]
            pool = NodePool(self.runtime, candidate.node, purpose, self.settings.max_size, self, self.jobs)
            self._pools[candidate.key] = pool
        return pool

    def load(self, uuid: str) -> int:
        """Calls a node serves now: connections held and calls waiting for one."""
        pool = self._pools.get((uuid, PLAIN))
        if pool is None or not pool.slots.size:
            return _UNCONNECTED
        return pool.slots.load

    def is_ready(self, leaders: int | None, replicas: int | None) -> bool:
        """Whether so many leaders and other nodes are connected; None for both: all of them."""
        nodes, heads = self.snapshot.nodes(), self.snapshot.nodes(role="leader")
        others = [node for node in nodes if node not in heads]
        if leaders is None and replicas is None:
            return bool(nodes) and all(map(self._is_connected, nodes))
        connected_heads, connected_others = (sum(map(self._is_connected, part)) for part in (heads, others))
        return connected_heads >= (leaders or 0) and connected_others >= (replicas or 0)

    def fault(self, error: BaseException) -> Fault:
        """What an error means, whether the connection or the server made it."""
        fault = self.runtime.fault(error)
        if fault is not None:
            return fault
        sqlstate = getattr(error, "sqlstate", None)
        return Fault.STATEMENT if sqlstate is None else self._dialect.fault(sqlstate, str(error))

    def suspect(self, node: Node, reason: str) -> None:
        """Something is wrong with a node: look at it, and at the cluster, at once."""
        if self.health.broke(node.uuid, reason, self.runtime.now()):
            self._journal.node_changed(node, "up", "suspect", reason)
            self._probe(node)
        self._refresh(node)

    def ask_refresh(self, doubtful: Node | None = None) -> None:
        """Ask for a new look at the cluster, without waiting; its leader is in doubt where a node is named."""
        self._refresh(doubtful)

    def end(self, link: Link) -> None:
        """End the call on a connection: the connection is dropped, which says nothing about its node."""
        for pool in self.pools:
            if link in pool.slots.held:
                pool.drop(link, "terminated")

    # what node pools report

    def link_opened(self, pool: NodePool, link: Link, seconds: float) -> None:
        """A node answered."""
        self._journal.opened(pool.node, pool.purpose.value, link, seconds)
        self._answered(pool)
        self.changes.ring()

    def open_failed(self, pool: NodePool, error: BaseException, seconds: float) -> None:
        """A node could not be connected to."""
        self._journal.open_failed(pool.node, pool.purpose.value, error, seconds)
        awake = isinstance(error, HookFailed) or self.fault(error) is Fault.OVERLOADED
        if not (awake or self.jobs.closed or pool.retired):
            self._unreachable(pool.node, error)
        pool.refuse_waiters(error)

    def link_closed(self, pool: NodePool, link: Link, reason: CloseReason) -> None:
        """A connection to a node ended."""
        self._journal.closed(pool.node, pool.purpose.value, link, reason)
        if self.jobs.closed or pool.retired:
            return
        if reason == "broken":
            self.suspect(pool.node, "a connection broke")
        elif pool.purpose is Purpose.PLAIN and self.health.is_up(pool.node.uuid):
            pool.warm(self._least_size)

    # life cycle

    async def close(self, deadline: float) -> None:
        """Refuse what waits, let holders finish until the deadline, then drop everything."""
        goodbye = min(deadline, self.runtime.now() + GOODBYE)
        idle = self._retire_all()
        closing = [self.runtime.spawn(self.runtime.close_link(link, goodbye), "picopyn close") for link in idle]
        await self.jobs.end()
        await self.runtime.settle(closing, goodbye + MOMENT)
        with suppress(TimeoutError):
            while any(pool.slots.held for pool in self.pools):
                await self.changes.wait(deadline)
        self._drop_held()

    def terminate(self) -> None:
        """Drop everything at once."""
        self.jobs.cancel()
        for link in self._retire_all():
            link.terminate()
        self._drop_held()

    def _retire_all(self) -> list[Link]:
        idle = [link for pool in self.pools for link in pool.retire("shutdown")]
        self.changes.ring()
        return idle

    def _drop_held(self) -> None:
        for pool in self.pools:
            pool.terminate_held("shutdown")

    def _retire(self, uuid: str) -> None:
        self.health.forget(uuid)
        for flavour in _PURPOSES:
            pool = self._pools.pop((uuid, flavour), None)
            for link in pool.retire("node_gone") if pool is not None else ():
                link.terminate()

    # nodes

    @property
    def _hangs(self) -> bool:
        return Capability.FORWARDING_NEEDS_EVERY_LEADER in self._dialect.capabilities

    @property
    def _least_size(self) -> int:
        """Connections kept to every node; one is the watch that tells at once when a leader dies."""
        return max(self.settings.min_size, 1 if self._hangs else 0)

    def _planner(self, snapshot: TopologySnapshot) -> Planner:
        return Planner(snapshot, self.health, self.load, self._rng, hangs=self._hangs)

    def _is_connected(self, node: Node) -> bool:
        pool = self._pools.get((node.uuid, PLAIN))
        return pool is not None and pool.slots.size > 0

    def _all_down(self) -> bool:
        return all(self.health.is_down(node.uuid) for node in self.snapshot.nodes())

    def _probe(self, node: Node) -> None:
        self._probes.start(self.pool(Candidate(node)), self._answered)

    def _answered(self, pool: NodePool) -> None:
        before = self.health.of(pool.node.uuid).state
        if self.health.answered(pool.node.uuid):
            self._journal.node_changed(pool.node, before.value, "up", "a connection was made")
            self.pool(Candidate(pool.node)).warm(self._least_size)
            self.changes.ring()

    def _unreachable(self, node: Node, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        before = self.health.of(node.uuid).state
        news = self.health.unreachable(node.uuid, reason, self.runtime.now())
        if before is NodeState.UP:
            self._probe(node)
        if news:
            self._journal.node_changed(node, before.value, "down", reason)
            self._refresh(node)
            self.changes.ring()
