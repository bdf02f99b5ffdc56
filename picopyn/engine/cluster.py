"""The node pools of a cluster, its current snapshot, and the reachability of its nodes.

It owns all three: snapshots are swapped here in one assignment, and node pools are opened and retired here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any

from picopyn.dialects.base import Capability, Dialect
from picopyn.engine.changes import Changes
from picopyn.engine.first_connection import first_connection, refuse_unknown
from picopyn.engine.flights import NODE_LEFT, Flight, Flights
from picopyn.engine.jobs import Jobs
from picopyn.engine.journal import Journal
from picopyn.engine.node_pool import HookFailed, NodePool
from picopyn.engine.node_pools import NodePools
from picopyn.engine.planners import Planners
from picopyn.engine.probes import Probes
from picopyn.engine.rebalance import Rebalance
from picopyn.engine.runtime import Link, Runtime, Waiter
from picopyn.engine.terms import GOODBYE, Terms
from picopyn.errors import AuthenticationFailed, Fault
from picopyn.observe import CloseReason
from picopyn.placement_settings import SHORTEST_INTERVAL
from picopyn.role_settings import reads_from_followers
from picopyn.routing.balance import UNCONNECTED
from picopyn.routing.health import Health, NodeState
from picopyn.routing.host_table import HostTable
from picopyn.routing.leader_table import LeaderTable
from picopyn.routing.membership import reconcile
from picopyn.routing.plan import PLAIN, REPLICA_READ, Candidate, Flavour
from picopyn.routing.server_table import ServerTable
from picopyn.routing.watch import Change, Watch
from picopyn.settings import PoolSettings
from picopyn.topology import Node, TopologySnapshot

#: A server that says so is alive: its connections go on, and nothing speaks against the node.
_AWAKE = (Fault.OVERLOADED, Fault.AUTH)

#: How long a connection may stay in use at a node that has left the cluster (seconds).
LONGEST_STAY = 60.0

#: How long the last tasks may take to end after everything was dropped (seconds); they need a few turns of the loop.
_LAST_TURNS = 0.06


class Cluster:
    """Everything the engine knows and holds of one cluster.

    Args:
        runtime: The world.
        dialect: The kind of server.
        settings: Sizes and times.
        snapshot: The first look at the cluster; empty until one exists.
        journal: Where events are counted and told.
        refresh: Asks for a new look at the cluster, without waiting; may name a node to doubt. It gives the number of
            the first look that begins after it was asked; None when there is nothing to look at.
        rng: Source of randomness.
        hosts: What is known of hosts with roles, or of servers with places; None: nodes have neither.
        leaders: Who leads tablets; None: calls do not go to their leaders.

    Attributes:
        changes: What waiting calls listen to.
        flights: Calls that are with a server now.
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
        refresh: Callable[[Node | None], int | None],
        rng: Random,
        hosts: HostTable | ServerTable | None = None,
        leaders: LeaderTable | None = None,
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.changes = Changes(runtime)
        self.flights = Flights(runtime, self._drop, self._all_pools)
        self.jobs = Jobs(runtime)
        self._dialect = dialect
        self._journal = journal
        self._refresh = refresh
        watch = Watch(Health(), runtime.now(), rng, *(_patience(settings) if isinstance(hosts, ServerTable) else ()))
        self._probes = Probes(runtime, self.jobs, watch, self.changes, self, dialect.probe_question)
        # One connection at least, where a forwarded statement can hang, is the watch that tells when a leader dies;
        # and only where there is one, calls come to a place.
        needs_one = self._hangs or isinstance(hosts, ServerTable)
        terms = Terms(runtime, settings, self, self.jobs, rng)
        self._pools = NodePools(
            terms,
            max(settings.min_size, 1 if needs_one else 0),
            self.health.is_up,
            self._is_home,
            self._is_used,
            REPLICA_READ if isinstance(hosts, ServerTable) and reads_from_followers(settings) else PLAIN,
        )
        alone = dialect.executes_alone
        self._planners = Planners(
            self.health, self.load, rng, settings, hangs=self._hangs, alone=alone, hosts=hosts, leaders=leaders
        )
        self.planner = self._planners.make(snapshot)

    @property
    def snapshot(self) -> TopologySnapshot:
        """The cluster as last seen; immutable."""
        return self.planner.snapshot

    @property
    def health(self) -> Health:
        """Reachability of the nodes."""
        return self._watch.health

    @property
    def hosts(self) -> HostTable | None:
        """What is known of hosts with roles; None where nodes have no roles beyond those of their replicasets."""
        hosts = self._planners.hosts
        return hosts if isinstance(hosts, HostTable) else None

    @property
    def pools(self) -> tuple[NodePool, ...]:
        """All node pools."""
        return self._pools.live

    @property
    def draining_pools(self) -> tuple[NodePool, ...]:
        """Those of draining nodes that still have connections."""
        return tuple(pool for uuid in self._planners.draining for pool in self._pools.leaving(uuid))

    def adopt(self, snapshot: TopologySnapshot, look: int = 0) -> None:
        """Make a snapshot the current one: open and retire node pools, and let waiting calls plan again.

        Args:
            snapshot: What is known now.
            look: Number of the newest look that it shows; a look is counted once its result is here.
        """
        pooled = {pool.node.uuid: (pool.node.host, pool.node.port) for pool in self.pools}
        self.planner = self._planners.make(snapshot)
        membership = reconcile(pooled, self.snapshot.nodes())
        for uuid in (*membership.leave, *(node.uuid for node in membership.move)):
            self._retire(uuid)
        joining = [*membership.join, *membership.move]
        self._planners.rng.shuffle(
            joining
        )  # the first to be connected gets the first call: not the same node in every process
        for node in joining:
            self._probes.join(node)
            self._pools.warm(self.pool(Candidate(node, self._pools.kept)))
        self._warm_homes()
        self.changes.looked(look)

    def confirm(self, snapshot: TopologySnapshot, look: int = 0) -> None:
        """A look at the cluster found nothing new: waiting calls plan again all the same; arguments as for `adopt`."""
        self.planner.snapshot = self._planners.seen(snapshot)
        self.changes.looked(look)

    def drain(self, node: Node, grace: float) -> None:
        """Send nothing to a node any more, until `undrain`; it may leave the cluster meanwhile, and come back.

        Its idle connections are closed now, those in use when they are given back, and what is left then after the
        grace (seconds).
        """
        self._planners.draining[node.uuid] = node
        if node.reachable:
            self._journal.node_changed(node, self.health.of(node.uuid).state.value, "draining", "drain() was called")
        self.adopt(self.snapshot.with_draining(self._planners.draining.keys()))
        self._limit_stay(node.uuid, grace)

    @property
    def drained(self) -> tuple[Node, ...]:
        """Nodes that were drained, as they were then; some may have left."""
        return tuple(self._planners.draining.values())

    def undrain(self, node: Node) -> None:
        """Use a node again; one that has left, when it comes back."""
        if self._planners.draining.pop(node.uuid, None) is None:
            return
        if self.snapshot.node(node.uuid) is not None:
            self._journal.node_changed(node, "draining", "up", "undrain() was called")
        self.adopt(self.snapshot.with_draining(self._planners.draining.keys()))

    async def vacated(self, uuid: str) -> None:
        """Wait until no connection for callers to a node that was drained is left."""
        while self._pools.leaving(uuid) and uuid in self._planners.draining and not self.jobs.closed:
            await self.changes.wait(None)

    def pool(self, candidate: Candidate) -> NodePool:
        """The pool of connections a candidate needs; made at first use."""
        return self._pools.get(candidate)

    @property
    def pools_by_key(self) -> Mapping[tuple[str, Flavour], NodePool]:
        """The node pools there are, by the key of a candidate; always as of now."""
        return self._pools.by_key

    @property
    def failure(self) -> BaseException | None:
        """Why some node could not be connected to at the last attempt, if that is so."""
        return next((pool.cause for pool in self.pools if pool.failure is not None), None)

    def load(self, uuid: str) -> int:
        """Calls a node serves now: connections held and calls waiting for one."""
        pool = self._pools.by_key.get((uuid, self._pools.kept))
        slots = None if pool is None else pool.slots
        if slots is None or not slots.size:
            return UNCONNECTED
        return slots.load if self._pools.only_kept else sum(pool.slots.load for pool in self._pools.of(uuid))

    def is_ready(self, leaders: int | None, replicas: int | None) -> bool:
        """Whether so many leaders and other nodes are connected; None for one: 0 of them, None for both: all."""
        nodes, heads = self.planner.homes(), self.snapshot.nodes(role="leader")
        # a host that has not told its role yet gets no calls, so it does not count
        others = [node for node in nodes if node not in heads and (self.hosts is None or node.replicaset_uuid)]
        if leaders is None and replicas is None:
            return bool(nodes) and all(map(self._is_connected, nodes))
        connected_heads, connected_others = (sum(map(self._is_connected, part)) for part in (heads, others))
        return connected_heads >= (leaders or 0) and connected_others >= (replicas or 0)

    def unconnected(self) -> str:
        """The nodes without a connection, in words."""
        nodes = (node for node in self.planner.homes() if not self._is_connected(node))
        return ", ".join(f"{node.name} ({node.address})" for node in nodes) or "none of the known nodes"

    def fault(self, error: BaseException) -> Fault:
        """What an error means, whether the connection or the server made it."""
        fault = self.runtime.fault(error)
        if fault is not None:
            return fault
        if isinstance(error, AuthenticationFailed):
            return Fault.AUTH
        sqlstate = getattr(error, "sqlstate", None)
        return Fault.STATEMENT if sqlstate is None else self._dialect.fault(sqlstate, str(error))

    def suspect(self, node: Node, reason: str) -> None:
        """Something is wrong with a node: look at it, and at the cluster, at once. From anywhere."""
        self.runtime.post(partial(self._suspect, node, reason))

    def _suspect(self, node: Node, reason: str) -> None:
        listed = self.snapshot.node(node.uuid)
        gone = listed is None or not listed.reachable  # a late call of a node that left brings back nothing
        if not gone and self._watch.broke(node.uuid, reason, self.runtime.now()):
            self.changes.version += 1
            self._journal.node_changed(node, "up", "suspect", reason)
            self._probes.doubt(node)
        self._refresh(node)

    async def in_doubt(self, node: Node) -> None:
        """The same, and returns when that is noted, whichever context notes it. From anywhere."""
        noted: Waiter[None] = self.runtime.waiter()
        self.suspect(node, "a connection broke")
        self.runtime.post(lambda: noted.wake(None))
        with suppress(TimeoutError):  # that context may have ended
            await noted.wait(self.runtime.now() + GOODBYE)

    def without_doubtful(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those at nodes that are not just being asked whether they live; for a call that lost a connection before."""
        return [each for each in candidates if self.health.of(each.node.uuid).state is not NodeState.SUSPECT]

    def why_down(self, node: Node) -> str | None:
        """Why a node is down, in words; None when it is not."""
        return f"the node is down ({self.health.of(node.uuid).reason})" if self.health.is_down(node.uuid) else None

    def ask_refresh(self) -> None:
        """Ask for a new look at the cluster, without waiting. From anywhere."""
        self.runtime.post(partial(self._refresh, None))

    async def next_look(self, doubtful: Node) -> int | None:
        """Ask for a new look at the cluster; the leader of a node's replicaset is in doubt. From anywhere.

        Returns:
            The number of the first look that begins after this; None when there is nothing to look at.
        """
        asked: Waiter[int | None] = self.runtime.waiter()
        self.runtime.post(lambda: asked.wake(self._refresh(doubtful)))
        return await asked.wait(None)

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Start a background job. From anywhere."""
        self.runtime.post(partial(self.jobs.spawn, job, name))

    def link_opened(self, pool: NodePool, link: Link, seconds: float) -> None:
        """A node answered."""
        self._journal.opened(pool.node, pool.purpose.value, link, seconds)
        before = self.health.of(pool.node.uuid).state
        if self._watch.opened(pool.node.uuid, seconds):
            self._came_up(pool.node, before, "a connection was made")
        self._pools.opened(pool)
        self.changes.ring()

    def open_failed(self, pool: NodePool, error: BaseException, seconds: float) -> None:
        """A node could not be connected to; what its server says against a special connection concerns that alone."""
        self._journal.open_failed(pool.node, pool.purpose.value, error, seconds)
        fault = None if isinstance(error, HookFailed) else self.fault(error)
        awake = fault is None or fault in _AWAKE
        special = not self._pools.is_kept(pool) and self.runtime.fault(error) is None
        if not (awake or special or self.jobs.closed or pool.retired):
            self._not_opened(pool.node, error)
        pool.refuse_waiters(error, full=fault is Fault.OVERLOADED)
        if pool.retired:
            self.changes.ring()
        self._pools.try_again()

    def opening_given_up(self, pool: NodePool) -> None:
        """A node was down; if it came up before its openings had ended, they stood in the way of new ones."""
        if not self.jobs.closed and self.health.is_up(pool.node.uuid):
            self._pools.warm(pool)
            pool.grow()

    def link_closed(self, pool: NodePool, link: Link, reason: CloseReason) -> None:
        """A connection to a node ended."""
        self._journal.closed(pool.node, pool.purpose.value, link, reason)
        if self.jobs.closed:
            self.changes.ring()
        elif reason == "broken" and not pool.retired:
            self._suspect(pool.node, "a connection broke")
        elif pool.retired:
            self.changes.ring()  # somebody may wait for the last one
        elif self.health.is_up(pool.node.uuid):
            self._pools.warm(pool)

    # what the probes report and ask

    def pools_of(self, uuid: str) -> Iterable[NodePool]:
        """The pools of a node."""
        return self._pools.of(uuid)

    def all_down(self) -> bool:
        """Whether no node can be reached."""
        return all(self.health.is_down(node.uuid) for node in self.snapshot.nodes())

    def probe_answered(self, node: Node) -> None:
        """A node answered a question."""
        before = self.health.of(node.uuid).state
        if self._watch.answered(node.uuid, self.runtime.now()):
            self._came_up(node, before, "it answered")

    def probe_refused(self, node: Node, error: Exception) -> None:
        """A node could not be asked; one that has no room for us, or refuses our password, is alive."""
        if self.fault(error) in _AWAKE:
            self.probe_answered(node)
        else:
            self._refused(node, error)

    def node_changed(self, change: Change) -> None:
        """A node that was silent is in another state now."""
        node = self.snapshot.node(change.uuid)
        if node is None:
            return
        if change.new is NodeState.UP:
            self._came_up(node, change.old, change.reason)
            return
        self.changes.version += 1
        self._journal.node_changed(node, change.old.value, change.new.value, change.reason)
        if change.new is NodeState.DOWN:
            self._went_down(node, TimeoutError(change.reason))
        else:
            self._refresh(node)

    def node_hangs(self, uuid: str) -> None:
        """The calls in flight at a node will not be answered: end them."""
        for pool in self.pools_of(uuid):
            self.flights.end_all(pool, self.why_down(pool.node) or "")

    def forfeit(self, owner: object) -> None:
        """A call was interrupted where no clean-up runs: what it held is dropped, and nobody waits for it."""
        self._pools.forfeit(owner)

    def search_leaders(self) -> None:
        """Calls in flight may wait, at a server, for a leader that is away: look whether there is another one."""
        away = frozenset(
            node.replicaset_uuid
            for uuid in self.health.doubted
            if (node := self.snapshot.node(uuid)) is not None
            and self.snapshot.leader(node.replicaset_uuid) in (node, None)
        )
        if away and self.stuck(away):
            self._refresh(None)

    def stuck(self, replicasets: frozenset[str]) -> list[Flight]:
        """Calls in flight that a change of these replicasets' leaders may leave hanging."""
        return self.flights.suspects(replicasets, frozenset(map(self._tier, replicasets)))

    # life cycle

    async def first_connection(self, asked_first: tuple[str, int] | None, deadline: float) -> None:
        """Wait for one connection of the node pools; see `first_connection`."""
        hosts = self._planners.hosts
        if isinstance(hosts, ServerTable):
            refuse_unknown(hosts.unknown, self.planner.mode)
            asked_first = None
            self._rebalance()
        patience = self.settings.acquire_timeout
        hopeless = deadline if patience is None else self.runtime.now() + patience
        await first_connection(self._pools, lambda: self.planner, asked_first, (deadline, hopeless), self.runtime.now)

    def expire_connections(self) -> None:
        """Replace every connection for callers, without disturbing anybody."""
        self._pools.expire()

    async def close(self, deadline: float) -> None:
        """Refuse what waits, let holders finish until the deadline, then drop everything; idle ones say goodbye."""
        goodbye = min(deadline, self.runtime.now() + GOODBYE)
        idle = self._shut()
        closing = [self.runtime.spawn(self.runtime.close_link(link, goodbye), "picopyn close") for link in idle]
        with suppress(TimeoutError):
            while any(pool.slots.held for pool in self._pools.all()):
                await self.changes.wait(deadline)
        await self.runtime.settle(closing, goodbye)
        self._pools.terminate("shutdown")
        self.flights.alarm.ring_at(inf)
        last = self.runtime.now() + _LAST_TURNS
        await self.runtime.settle(closing, last)
        await self.jobs.settle(last)
        with suppress(TimeoutError):
            while any(pool.slots.leaving for pool in self._pools.all()):
                await self.changes.wait(last)

    def terminate(self) -> None:
        """Drop everything at once."""
        links = self._shut()
        self._pools.terminate("shutdown")
        self.flights.alarm.ring_at(inf)
        for link in links:  # those of the probes belong to no pool
            link.terminate()

    def _shut(self) -> list[Link]:
        self.jobs.cancel()
        idle = self._pools.retire_all("shutdown")
        self.changes.ring()
        return idle + self._probes.end()

    def _all_pools(self) -> tuple[NodePool, ...]:
        return self._pools.all()

    def _drop(self, link: Link) -> None:
        for pool in self._all_pools():
            if link in pool.slots.held:
                pool.drop(link, "terminated")
                return
        link.terminate()

    def _retire(self, uuid: str) -> None:
        self._probes.leave(uuid)
        stuck = self.flights.aloft(self.pools_of(uuid))
        if uuid in self._planners.draining:  # it lives, and answers
            self._pools.retire(uuid, "node_gone", polite=True)
            return
        self._pools.retire(uuid, "node_gone")
        self._limit_stay(uuid, LONGEST_STAY)
        if self._hangs and stuck:
            self.jobs.spawn(self.flights.end_if_stuck(stuck, NODE_LEFT), "picopyn stuck calls")

    def _limit_stay(self, uuid: str, seconds: float) -> None:
        """Connections that are still in use at a node that is left end at last."""
        leaving = self._pools.leaving(uuid)
        if leaving:
            drained = uuid in self._planners.draining
            stay = self._end_stay(uuid, leaving, self.runtime.now() + seconds, drained=drained)
            self.jobs.spawn(stay, "picopyn end of stay")

    async def _end_stay(self, uuid: str, pools: list[NodePool], deadline: float, *, drained: bool) -> None:
        try:
            while any(pool.slots.occupied for pool in pools):
                await self.changes.wait(deadline)
        except TimeoutError:
            if drained and uuid not in self._planners.draining:
                return  # it is used again
            for pool in pools:
                pool.terminate_all("node_gone")

    # nodes

    @property
    def _watch(self) -> Watch:
        return self._probes.watch

    @property
    def _hangs(self) -> bool:
        return Capability.FORWARDING_NEEDS_EVERY_LEADER in self._dialect.capabilities

    def _tier(self, replicaset: str) -> str | None:
        """The tier of a replicaset; None when it is not known, or not any more."""
        known = self.snapshot.replicaset(replicaset)
        return (known.tier or None) if known is not None else None

    def _is_connected(self, node: Node) -> bool:
        pool = self._pools.find(node.uuid)
        return pool is not None and pool.slots.size > 0

    def _rebalance(self) -> None:
        rebalance = Rebalance(
            self.runtime,
            lambda: filter(self._pools.is_kept, self._pools.live),
            lambda: self.planner.homes(),
            lambda: self.planner.leading(),
            least=self._pools.least_size,
            batch=self.settings.rebalance_batch,
            interval=_interval(self.settings),
        )
        self.jobs.spawn(rebalance.run(), "picopyn rebalance")

    def _is_home(self, pool: NodePool) -> bool:
        """Whether connections to the node of a pool are kept ready."""
        return any(node.uuid == pool.node.uuid for node in (*self.planner.homes(), *self.planner.leading()))

    def _is_used(self, pool: NodePool) -> bool:
        """Whether the node of a pool is there, and not drained."""
        node = self.snapshot.node(pool.node.uuid)
        return node is not None and node.reachable

    def _warm_homes(self) -> None:
        """Use may go elsewhere now: have connections there."""
        for node in self.planner.homes():
            if self.health.is_up(node.uuid):
                self._pools.warm(self.pool(Candidate(node, self._pools.kept)))

    def _came_up(self, node: Node, before: NodeState, how: str) -> None:
        self._journal.node_changed(node, before.value, "up", how)
        pool = self.pool(Candidate(node, self._pools.kept))
        pool.failure, pool.retry_at = None, 0.0  # what failed before means nothing now
        if before is NodeState.DOWN:
            self._watch.revived(self.runtime.now())
        self._pools.warm(pool)
        pool.grow()
        self.changes.ring()

    def _not_opened(self, node: Node, error: BaseException) -> None:
        """A node that only takes too long may be busy, or hang: a question tells."""
        if isinstance(error, TimeoutError):
            self._suspect(node, str(error) or "no connection in time")
        else:
            self._refused(node, error)

    def _refused(self, node: Node, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        before = self.health.of(node.uuid).state
        spoke = self.runtime.fault(error) is None
        if self._watch.refused(node.uuid, reason, self.runtime.now(), spoke=spoke):
            self._journal.node_changed(node, before.value, "down", reason)
            self._went_down(node, error)
        self._probes.doubt(node)

    def _went_down(self, node: Node, error: BaseException) -> None:
        for pool in self.pools_of(node.uuid):
            pool.desert(error)
        self._warm_homes()
        self._refresh(node)
        self.changes.ring()


def _patience(settings: PoolSettings) -> tuple[float, float]:
    """How long a failed node of a YugabyteDB is left out at least, and how often it is asked (seconds)."""
    return float(settings.failed_host_reconnect_delay_secs), _interval(settings)


def _interval(settings: PoolSettings) -> float:
    return max(float(settings.yb_servers_refresh_interval), SHORTEST_INTERVAL)
