"""The picopyn of this repository, on a plain PostgreSQL.

Routed: the topology is told, as if it had been read from system tables; the route is injected, as if it had been
learned; every call then computes its bucket and goes to the owner's node. Not routed: plain PostgreSQL as it is where
the driver has that dialect, else the same topology with a statement known to have no key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clients import PATIENCE, Opened, Target

from picopyn.asynchronous import Pool
from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.dialects.picodata import PicodataDialect
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.settings import DIALECTS
from picopyn.topology import BucketRange, EventBatch, EventBuckets, EventInstance, EventReplicaset, EventTier

BUCKETS = 3000
INT8 = 20
TIER = "default"


class ToldTopology(TopologySource):
    """A cluster of one replicaset per address, all buckets shared out evenly."""

    def __init__(self, hosts: tuple[str, ...], port: int) -> None:
        events: list[object] = [EventTier(TIER, BUCKETS)]
        ranges = []
        for number, host in enumerate(hosts):
            replicaset, instance = f"r{number}", f"i{number}"
            first, last = BUCKETS * number // len(hosts) + 1, BUCKETS * (number + 1) // len(hosts)
            ranges.append(BucketRange(first, last, replicaset))
            events.append(EventReplicaset(uuid=replicaset, name=replicaset, tier=TIER, leader_uuid=instance))
            events.append(
                EventInstance(
                    uuid=instance,
                    name=instance,
                    replicaset_uuid=replicaset,
                    tier=TIER,
                    host=host,
                    port=port,
                    online=True,
                )
            )
        events.append(EventBuckets(TIER, tuple(ranges)))
        self._batch = EventBatch(tuple(events), epoch=1, sequence=1, reset=True)  # type: ignore[arg-type]

    async def refresh(self) -> None:
        """Say it again."""
        self.emit(self._batch)

    async def close(self) -> None:
        """Nothing is open."""

    def terminate(self) -> None:
        """Nothing is open."""


def route(*, keyed: bool) -> StatementRoute:
    """What would have been learned of a statement whose first parameter is its key, or of one without a key."""
    if keyed:
        return StatementRoute(RouteKind.KEYED, TIER, ((KeyPart(0, INT8),),))
    return StatementRoute(RouteKind.NOT_KEYED, TIER, reason="no key")


async def inject(pool: Any, query: str, learned: StatementRoute) -> None:
    """Let a pool know a statement, as if it had been learned. It runs where the pool's control plane does."""
    service = pool._control.metadata
    await service.start()  # a new service connection would forget what is known
    service._cache.set(query, PreparedStatementMetadata(query, TIER, (), (INT8,), learned))


def options(target: Target, *, routed: bool) -> tuple[dict[str, Any], str]:
    """What a pool is opened with, and what a reader has to know about it."""
    size = max(1, target.size // len(target.hosts))
    sizes = {"min_size": size, "max_size": size, "acquire_timeout": PATIENCE}
    if not routed and DIALECTS.get("postgres", False):
        return {"dialect": "postgres", **sizes}, "dialect postgres"
    told = {"dialect": PicodataDialect(startup=False), "topology_source": ToldTopology(target.hosts, target.port)}
    return {**told, **sizes}, f"{len(target.hosts)} node(s) told, route injected"


@asynccontextmanager
async def pool(target: Target, *, routed: bool, deadline: float | None = None) -> AsyncIterator[Opened]:
    chosen, note = options(target, routed=routed)
    note += "" if deadline is None else f", command_timeout {deadline:g} s"
    async with Pool(target.dsn, command_timeout=deadline, **chosen) as opened:
        if "topology_source" in chosen:
            await inject(opened, target.query, route(keyed=routed))
        yield Opened([target.bind(opened)], note=note, counted=lambda: dict(opened.stats().calls))


@asynccontextmanager
async def connection(target: Target) -> AsyncIterator[Opened]:
    """One of its pool's own connections, called without the pool."""
    async with Pool(
        target.dsn,
        dialect=PicodataDialect(startup=False),
        topology_source=ToldTopology(target.hosts, target.port),
    ) as opened:
        node_pool = opened._executor._cluster.pools[0]
        link = await node_pool.take(None)
        try:
            yield Opened([target.bind(link)], exclusive=True)
        finally:
            node_pool.give(link)
