"""The node pools of a cluster, its current snapshot, and the reachability of its nodes.

It owns all three: snapshots are swapped here in one assignment, node pools are opened and retired here, and calls that
have to wait for *any* of it to change wait here, holding nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.engine.journal import Journal
from picopyn.engine.node_pool import HookFailed, NodePool
from picopyn.engine.runtime import Job, Link, Runtime, Waiter
from picopyn.errors import Fault
from picopyn.observe import CloseReason
from picopyn.routing.health import Health, NodeState
from picopyn.routing.membership import Membership, reconcile
from picopyn.routing.plan import Candidate, Flavour, Planner
from picopyn.settings import PoolSettings
from picopyn.topology import Node, TopologySnapshot

#: Load of a node without any connection: it comes after all that have one, for it may be hanging.
_UNCONNECTED = 1_000_000

_PURPOSES = {Flavour.PLAIN: Purpose.PLAIN, Flavour.REPLICA_READ: Purpose.REPLICA_READ}


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
        self.health = Health()
        self.refreshes = 0
        self._dialect = dialect
        self._journal = journal
        self._refresh = refresh
        self._rng = rng
        self._pools: dict[tuple[str, Purpose], NodePool] = {}
        self._waiting: set[Waiter[None]] = set()
        self._pauses: set[Waiter[None]] = set()
        self._jobs: set[Job] = set()
        self._closed = False
        # one connection per node is the watch that tells at once when a leader dies, where that makes others hang
        self._hangs = Capability.FORWARDING_NEEDS_EVERY_LEADER in dialect.capabilities
        self._least_size = max(settings.min_size, 1 if self._hangs else 0)
        self.planner = self._planner(snapshot)

    @property
    def snapshot(self) -> TopologySnapshot:
        """The cluster as last seen; immutable."""
        return self.planner.snapshot

    @property
    def pools(self) -> tuple[NodePool, ...]:
        """All node pools."""
        return tuple(self._pools.values())

    @property
    def waiting(self) -> int:
        """Calls that wait for the cluster to change."""
        return len(self._waiting)

    def adopt(self, snapshot: TopologySnapshot) -> Membership:
        """Make a snapshot the current one: open and retire node pools, and let waiting calls plan again."""
        nodes = {node.uuid: node for node in snapshot.nodes()}
        pooled = {pool.node.uuid: (pool.node.host, pool.node.port) for pool in self._pools.values()}
        membership = reconcile(pooled, nodes.values())
        self.planner = self._planner(snapshot)
        for uuid in (*membership.leave, *(node.uuid for node in membership.move)):
            self._retire(uuid)
        for node in (*membership.join, *membership.move):
            self.pool(Candidate(node)).warm(self._least_size)
        self.refreshes += 1
        self.changed()
        return membership

    def confirm(self, snapshot: TopologySnapshot) -> None:
        """A look at the cluster found nothing new: waiting calls plan again all the same."""
        self.planner.snapshot = snapshot
        self.refreshes += 1
        self.changed()

    def changed(self) -> None:
        """Something changed that a waiting call may have waited for."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            waiter.wake(None)

    async def wait_change(self, deadline: float | None) -> None:
        """Wait until the snapshot, the reachability of a node or what is known of statements changes.

        Raises:
            TimeoutError: The deadline passed.
        """
        waiter = self.runtime.waiter()
        self._waiting.add(waiter)
        self._probe_eagerly()
        try:
            await waiter.wait(deadline)
        finally:
            self._waiting.discard(waiter)

    def pool(self, candidate: Candidate) -> NodePool:
        """The pool of connections a candidate needs; made at first use."""
        key = (candidate.node.uuid, _PURPOSES[candidate.flavour])
        pool = self._pools.get(key)
        if pool is None:
            pool = NodePool(self.runtime, candidate.node, key[1], self.settings.max_size, self)
            self._pools[key] = pool
        return pool

    def load(self, uuid: str) -> int:
        """Calls a node serves now: connections held and calls waiting for one."""
        pool = self._pools.get((uuid, Purpose.PLAIN))
        if pool is None or not pool.slots.size:
            return _UNCONNECTED
        return pool.slots.load

    def is_ready(self, leaders: int | None, replicas: int | None) -> bool:
        """Whether so many leaders and other nodes are connected; None: all of them."""
        snapshot = self.snapshot
        nodes, heads = snapshot.nodes(), snapshot.nodes(role="leader")
        others = [node for node in nodes if node not in heads]
        if leaders is None and replicas is None:
            return bool(nodes) and all(self._connected(node) for node in nodes)
        found_leaders, found_others = sum(map(self._connected, heads)), sum(map(self._connected, others))
        return found_leaders >= (leaders or 0) and found_others >= (replicas or 0)

    def _connected(self, node: Node) -> bool:
        pool = self._pools.get((node.uuid, Purpose.PLAIN))
        return pool is not None and pool.slots.size > 0

    def suspect(self, node: Node, reason: str) -> None:
        """Something is wrong with a node: look at it, and at the cluster, at once."""
        if self.health.broke(node.uuid, reason, self.runtime.now()):
            self._journal.node_changed(node, "up", "suspect", reason)
            self._start_probe(node)
        self._refresh(node)

    def ask_refresh(self, doubtful: Node | None = None) -> None:
        """Ask for a new look at the cluster, without waiting; its leader is in doubt where a node is named."""
        self._refresh(doubtful)

    # what node pools report

    def link_opened(self, pool: NodePool, link: Link, seconds: float) -> None:
        """A node answered."""
        self._journal.opened(pool.node, pool.purpose.value, link, seconds)
        self._reachable(pool.node)
        if self._waiting:
            self.changed()

    def open_failed(self, pool: NodePool, error: BaseException, seconds: float) -> None:
        """A node could not be connected to."""
        self._journal.open_failed(pool.node, pool.purpose.value, error, seconds)
        if not (self._closed or pool.retired or self._is_awake(error)):
            self._unreachable(pool.node, error)
        pool.refuse_waiters(error)

    def link_closed(self, pool: NodePool, link: Link, reason: CloseReason) -> None:
        """A connection to a node ended."""
        self._journal.closed(pool.node, pool.purpose.value, link, reason)
        if self._closed or pool.retired:
            return
        if reason == "broken":
            self.suspect(pool.node, "a connection broke")
        elif pool.purpose is Purpose.PLAIN and self.health.is_up(pool.node.uuid):
            pool.warm(self._least_size)

    # life cycle

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background job that ends with the cluster."""
        self._jobs = {known for known in self._jobs if not known.done()}
        self._jobs.add(self.runtime.spawn(job, name))

    async def close(self, deadline: float) -> None:
        """Refuse what waits, let holders finish until the deadline, then drop everything."""
        idle = self._shut()
        closing = [self.runtime.spawn(self.runtime.close_link(link, deadline), "picopyn close") for link in idle]
        await self.runtime.settle((*closing, *self._jobs), deadline)
        while any(pool.slots.held for pool in self.pools) and self.runtime.now() < deadline:
            try:
                await self._next_return(deadline)
            except TimeoutError:
                break
        self._drop_held()

    def terminate(self) -> None:
        """Drop everything at once."""
        for link in self._shut():
            link.terminate()
        self._drop_held()

    async def _next_return(self, deadline: float) -> None:
        waiter = self.runtime.waiter()
        self._waiting.add(waiter)
        await waiter.wait(deadline)

    def _shut(self) -> list[Link]:
        self._closed = True
        for job in self._jobs:
            job.cancel()
        idle = [link for pool in self.pools for link in pool.retire("shutdown")]
        self.changed()
        return idle

    def _drop_held(self) -> None:
        for pool in self.pools:
            pool.terminate_held("shutdown")

    def _planner(self, snapshot: TopologySnapshot) -> Planner:
        return Planner(snapshot, self.health, self.load, self._rng, hangs=self._hangs)

    def _retire(self, uuid: str) -> None:
        self.health.forget(uuid)
        for purpose in _PURPOSES.values():
            pool = self._pools.pop((uuid, purpose), None)
            for link in pool.retire("node_gone") if pool is not None else ():
                link.terminate()

    def _fault(self, error: BaseException) -> Fault | None:
        fault = self.runtime.fault(error)
        if fault is None and (state := getattr(error, "sqlstate", None)) is not None:
            return self._dialect.fault(state, str(error))
        return fault

    def _is_awake(self, error: BaseException) -> bool:
        """Whether a failed connect says nothing against the node."""
        return isinstance(error, HookFailed) or self._fault(error) is Fault.OVERLOADED

    def _unreachable(self, node: Node, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        before = self.health.of(node.uuid).state
        news = self.health.unreachable(node.uuid, reason, self.runtime.now())
        if before is NodeState.UP:
            self._start_probe(node)
        if news:
            self._journal.node_changed(node, before.value, "down", reason)
            self._refresh(node)
            self.changed()

    # probing: the opening of a connection that is then used

    def _start_probe(self, node: Node) -> None:
        self.spawn(self._probe(node), f"picopyn probe {node.name or node.address}")

    async def _probe(self, node: Node) -> None:
        while not self._closed and not self.health.is_up(node.uuid):
            pool = self._pools.get((node.uuid, Purpose.PLAIN))
            if pool is None or pool.retired or pool.node != node:
                return
            if await pool.open_one():
                self._reachable(node)
                return
            await self._pause(node)

    def _reachable(self, node: Node) -> None:
        before = self.health.of(node.uuid).state
        if self.health.answered(node.uuid):
            self._journal.node_changed(node, before.value, "up", "a connection was made")
            self.pool(Candidate(node)).warm(self._least_size)
            self.changed()

    async def _pause(self, node: Node) -> None:
        eager = bool(self._waiting) or self._all_down()
        pause = self.health.pause(node.uuid, eager=eager, rng=self._rng)
        waiter = self.runtime.waiter()
        if not eager:
            self._pauses.add(waiter)
        try:
            await waiter.wait(self.runtime.now() + pause)
        except TimeoutError:
            pass
        finally:
            self._pauses.discard(waiter)

    def _probe_eagerly(self) -> None:
        pauses, self._pauses = self._pauses, set()
        for pause in pauses:
            pause.wake(None)

    def _all_down(self) -> bool:
        return all(self.health.is_down(node.uuid) for node in self.snapshot.nodes())
