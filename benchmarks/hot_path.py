"""Where the microseconds of a call go, without a network: the real pool, over connections that answer at once.

Each layer is run alone, many times; the least of many repeats counts, since everything that disturbs only adds. The
layers of one call by key are: making the request, looking up its owner (the short way), taking and giving a connection.
`rest` is what is left of it: the coroutines, the deadline, sending, the counters. A call without a key is planned.

With a real server on the same core the same code runs slower, for between two calls others have used the processor's
caches. How much it then takes is read from the clock, before the connection is called and after it has answered.

    python -m benchmarks.hot_path [--calls 3000] [--repeats 60] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import machine, results
from benchmarks.comparing import today
from benchmarks.results import Layers
from benchmarks.server import BenchServer, bench_server

_CORES = machine.cores()
_WORKER = str(Path(__file__).parent / "worker")
READ = "SELECT id, v FROM bench WHERE id = $1"
SCAN = "SELECT count(*) FROM bench WHERE id <> $1"
ROW = (1, "one")


async def answer_at_once(connection: Any, method: str, query: str, args: Any, timeout: float | None) -> Any:
    """In the place of a connection's `ask`: the server has answered before it was asked."""
    return [ROW]


class Stopwatch:
    """Least CPU of many repeats.

    Args:
        calls: Calls per repeat.
        repeats: How many repeats.
    """

    def __init__(self, calls: int, repeats: int) -> None:
        self._calls, self._repeats = calls, repeats
        self._nothing = 0.0
        self._nothing = self.plain(lambda: None)

    def plain(self, what: Callable[[], object]) -> float:
        """Microseconds of one call of a function, without the call itself."""
        calls = range(self._calls)
        best = float("inf")
        for _ in range(self._repeats):
            began = time.process_time()
            for _ in calls:
                what()
            best = min(best, time.process_time() - began)
        return best / self._calls * 1e6 - self._nothing

    async def awaited(self, what: Callable[[], Awaitable[object]]) -> float:
        """Microseconds of awaiting what a function gives."""
        calls = range(self._calls)
        best = float("inf")
        for _ in range(self._repeats):
            began = time.process_time()
            for _ in calls:
                await what()
            best = min(best, time.process_time() - began)
        return best / self._calls * 1e6 - self._nothing


async def layers(server: BenchServer, calls: int, repeats: int, profile: bool = False) -> dict[str, float]:
    """Open a pool, make its connections answer at once, run each layer alone, then the whole."""
    _reach_worker()
    import this_picopyn

    from picopyn.asynchronous import Pool
    from picopyn.asynchronous.connection import Connection
    from picopyn.dialects.picodata import PicodataDialect

    topology = this_picopyn.ToldTopology(server.hosts, server.port)
    async with Pool(server.dsn, dialect=PicodataDialect(startup=False), topology_source=topology) as pool:
        await this_picopyn.inject(pool, READ, this_picopyn.route(keyed=True))
        await this_picopyn.inject(pool, SCAN, this_picopyn.route(keyed=False))
        with patch.object(Connection, "ask", answer_at_once):
            if profile:
                await _profile(pool, calls)
            return await _layers(pool, Stopwatch(calls, repeats))


async def _layers(pool: Any, watch: Stopwatch) -> dict[str, float]:
    executor = pool._executor
    request = pool._request("fetchrow", READ, (7,), None, None, None)
    scan = pool._request("fetchrow", SCAN, (7,), None, None, None)
    plan = executor.plan(request)
    node_pool = executor._cluster.pool(plan.candidates[0])
    link = await node_pool.take(None)

    def take_and_give() -> None:
        node_pool.give(node_pool.try_take())

    bare = await watch.awaited(lambda: link.ask("fetchrow", READ, (7,), None))
    way = executor._express.way
    assert way(request) is not None, "calls by key go the short way"
    found = {
        "request": watch.plain(lambda: pool._request("fetchrow", READ, (7,), None, None, None)),
        "way, by key": watch.plain(lambda: way(request)),
        "plan, no key": watch.plain(lambda: executor.plan(scan)),
    }
    node_pool.give(link)
    found["take and give"] = watch.plain(take_and_give)
    found["whole, by key"] = await watch.awaited(lambda: pool.fetchrow(READ, 7)) - bare
    found["whole, no key"] = await watch.awaited(lambda: pool.fetchrow(SCAN, 7)) - bare
    found["whole, by key, timeout="] = await watch.awaited(lambda: pool.fetchrow(READ, 7, timeout=5.0)) - bare
    explained = sum(found[name] for name in ("request", "way, by key", "take and give"))
    found["rest, by key"] = found["whole, by key"] - explained
    return {name: round(value, 3) for name, value in found.items()}


async def beside_a_server(server: BenchServer, calls: int) -> dict[str, float]:
    """Median microseconds that the pool's own code runs in a real call by key, before and after the connection's."""
    if server.core is not None:
        os.sched_setaffinity(0, {server.core})
    try:
        return await _beside(server, calls)
    finally:
        if server.core is not None:
            os.sched_setaffinity(0, set(_CORES))


async def _beside(server: BenchServer, calls: int) -> dict[str, float]:
    _reach_worker()
    import this_picopyn
    from clients import Target

    from picopyn.asynchronous.connection import Connection

    clock, asked, answered = time.perf_counter, 0.0, 0.0
    ask = Connection.ask

    async def watched(connection: Any, method: str, query: str, args: Any, timeout: float | None) -> Any:
        nonlocal asked, answered
        asked = clock()
        rows = await ask(connection, method, query, args, timeout)
        answered = clock()
        return rows

    before, after = [], []
    async with this_picopyn.pool(Target(server.dsn, 1, True, server.hosts, server.port), routed=True) as pool:
        Connection.ask = watched
        try:
            for number in range(calls):
                began = clock()
                await pool.calls[0](number)
                ended = clock()
                before.append(asked - began)
                after.append(ended - answered)
        finally:
            Connection.ask = ask
    middle = {"before": median(before) * 1e6, "after": median(after) * 1e6}
    return {f"beside a server, {name}": round(value, 3) for name, value in middle.items()}


def _reach_worker() -> None:
    if _WORKER not in sys.path:
        sys.path.append(_WORKER)


async def _profile(pool: Any, calls: int) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(calls):
        await pool.fetchrow(READ, 7)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main(words: list[str] | None = None) -> int:
    """Parse the command line, run, print, save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hot_path", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--profile", action="store_true", help="print a profile first")
    parser.add_argument("--save", type=Path, default=results.RESULTS / results.LAYERS)
    options = parser.parse_args(words)
    with bench_server() as server:
        found = asyncio.run(layers(server, options.calls, options.repeats, options.profile))
        found |= asyncio.run(beside_a_server(server, options.calls * 5))
    results.save(Layers(today(), machine.describe(), found), options.save)
    for name, value in found.items():
        print(f"{name:26} {value:6.2f} µs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
