"""What routing and the pool add to a call, in client CPU, on a plain PostgreSQL.

One server process, a table of 100 000 rows, a topology of one replicaset whose only node is that server, and a route
that is injected as if it had been learned (never benchmark the driver through the accent front). Short blocks of three
clients are interleaved: a bare asyncpg connection, the pool without a route, and the pool with one. CPU is the
process's own (`time.process_time`), so what the server does costs nothing here.

    python -m benchmarks.routing_cpu [--blocks 30] [--calls 1500]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import asyncpg

from picopyn.asynchronous import Pool
from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.dialects.picodata import PicodataDialect
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.testing import PostgresServer
from picopyn.topology import BucketRange, EventBatch, EventBuckets, EventInstance, EventReplicaset, EventTier

QUERY = "SELECT id, v FROM bench WHERE id = $1"
UNKNOWN = "SELECT v, id FROM bench WHERE id = $1"
BUCKETS = 3000


class OneNode(TopologySource):
    """A cluster of one node, as if it had been read from system tables."""

    def __init__(self, host: str, port: int) -> None:
        self._batch = EventBatch(
            (
                EventTier("default", BUCKETS),
                EventReplicaset(uuid="r1", name="r1", tier="default", leader_uuid="i1"),
                EventInstance(
                    uuid="i1", name="i1", replicaset_uuid="r1", tier="default", host=host, port=port, online=True
                ),
                EventBuckets("default", (BucketRange(1, BUCKETS, "r1"),)),
            ),
            epoch=1,
            sequence=1,
            reset=True,
        )

    async def refresh(self) -> None:
        """Say it again."""
        self.emit(self._batch)

    async def close(self) -> None:
        """Nothing is open."""

    def terminate(self) -> None:
        """Nothing is open."""


async def block(call: Callable[[int], Awaitable[object]], calls: int) -> float:
    """CPU microseconds per call of one block."""
    began = time.process_time()
    for number in range(calls):
        await call(number)
    return (time.process_time() - began) / calls * 1e6


async def measure(blocks: int, calls: int) -> int:
    """Run the comparison and print it."""
    with PostgresServer(port=0) as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE TABLE bench (id bigint PRIMARY KEY, v text)")
        await connection.execute(
            "INSERT INTO bench SELECT i, 'value-' || i || repeat('x', 24) FROM generate_series(0, 99999) i"
        )
        source = OneNode("127.0.0.1", server.port or 0)
        pool = Pool(server.dsn, dialect=PicodataDialect(startup=False), topology_source=source)
        async with pool:
            await pool._control.metadata.start()
            route = StatementRoute(RouteKind.KEYED, "default", ((KeyPart(0, 20),),))
            pool._control.metadata._cache.set(QUERY, PreparedStatementMetadata(QUERY, "default", (), (20,), route))
            await report(connection, pool, blocks, calls)
        await connection.close()
    return 0


async def report(connection: asyncpg.Connection, pool: Pool, blocks: int, calls: int) -> None:
    """Interleave the blocks and print medians and differences."""
    clients: dict[str, Callable[[int], Awaitable[object]]] = {
        "asyncpg connection": lambda n: connection.fetchrow(QUERY, n),
        "picopyn pool, not routed": lambda n: pool.fetchrow(UNKNOWN, n),
        "picopyn pool, routed by key": lambda n: pool.fetchrow(QUERY, n),
    }
    for call in clients.values():
        await block(call, calls)
    times: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(blocks):
        for name, call in clients.items():
            times[name].append(await block(call, calls))
    medians = {name: statistics.median(values) for name, values in times.items()}
    bare = medians["asyncpg connection"]
    versions = f"Python {sys.version.split()[0]}, asyncpg {asyncpg.__version__}"
    print(f"client CPU per call, median of {blocks} interleaved blocks of {calls} calls; {versions}")
    for name, value in medians.items():
        print(f"  {name:30} {value:7.1f} us   {value / bare:5.2f} x   {value - bare:+6.1f} us")
    routed, unrouted = medians["picopyn pool, routed by key"], medians["picopyn pool, not routed"]
    print(f"  routing itself (routed - not routed): {routed - unrouted:+.1f} us")
    print(f"  counted: {dict(pool.stats().calls)}")


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--calls", type=int, default=1500)
    options = parser.parse_args()
    return asyncio.run(measure(options.blocks, options.calls))


if __name__ == "__main__":
    raise SystemExit(main())
