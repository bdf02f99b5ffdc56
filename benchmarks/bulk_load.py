"""Loads of many rows: the rate beside row by row, what sorting costs, and how many rows are held at a time.

The nodes are addresses of one plain PostgreSQL on one core, and the route is injected, as everywhere here. So what
counts is one node: the ratio of two rates at the same server, taken in turn in one run. It depends on where the client
runs:

- *own core*: a node is another machine, so this is the ratio that is promised. A row by itself costs a way to the other
  core and back, at which both sides sleep and are woken; in a load neither of them waits.
- *same core*: no side has to be woken on another core, so a row by itself costs less, and in a load the client takes
  its processor time from the server. Both make the ratio smaller, and say nothing about a node.
- *free*: the system puts them on the same core or not as it likes, which gives anything in between.

What sorting adds for one more node is the client's CPU a row. With `--nodes 3` rows are sorted by three owners, all of
which are still that one server.

    python -m benchmarks.bulk_load [--rows 100000] [--nodes 1] [--single 5000] [--held 10000000] …
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.comparing import core_of_client, placements
from benchmarks.hot_path import _reach_worker
from benchmarks.server import BenchServer, bench_server

INSERT = "INSERT INTO written VALUES ($1, $2)"
#: For more rows than there is room for: the server takes them, and keeps none.
SINK = "INSERT INTO written SELECT $1::bigint, $2::text WHERE $1::bigint IS NULL"
VALUE = "value-" + "x" * 34


class Held(tuple[int, str]):
    """A row that knows how many of its kind there are."""

    alive = 0
    most = 0

    def __new__(cls, key: int) -> Held:
        cls.alive += 1
        cls.most = max(cls.most, cls.alive)
        return super().__new__(cls, (key, VALUE))

    def __del__(self) -> None:
        Held.alive -= 1


def rows(count: int) -> Iterator[tuple[int, str]]:
    """Rows that are made when they are asked for."""
    return ((number, VALUE) for number in range(count))


def held_rows(count: int) -> Iterator[Held]:
    """The same, counted as long as they exist."""
    Held.alive = Held.most = 0
    return (Held(number) for number in range(count))


async def open_pool(server: BenchServer) -> Any:
    """A pool that sorts the rows by the owners of their first value."""
    _reach_worker()
    import this_picopyn

    from picopyn.asynchronous import Pool
    from picopyn.dialects.picodata import PicodataDialect
    from picopyn.query_metadata import PreparedStatementMetadata

    topology = this_picopyn.ToldTopology(server.hosts, server.port)
    pool = await Pool(server.dsn, dialect=PicodataDialect(startup=False), topology_source=topology).open()
    service = pool._control.metadata
    await service.start()
    learned = this_picopyn.route(keyed=True)
    for text in (INSERT, SINK):
        service._cache.set(text, PreparedStatementMetadata(text, this_picopyn.TIER, (), (20, 25), learned))
    await pool.wait_ready(leaders=len(server.hosts))
    return pool


async def rate(count: int, what: Callable[[], Awaitable[object]]) -> float:
    """Rows per second."""
    began = time.perf_counter()
    await what()
    return count / (time.perf_counter() - began)


async def measure(server: BenchServer, count: int, single: int, held: int, rounds: int) -> dict[str, float]:
    """The ways to load in turn, several times, of which the medians count; then the memory, once, if any are held."""
    pool = await open_pool(server)
    try:

        async def one_by_one() -> None:
            for row in rows(single):
                await pool.execute(INSERT, *row)

        async def bare() -> None:
            async with pool.acquire() as connection:
                await connection.executemany(INSERT, list(rows(count)))

        singles, loads, bares, costs = [], [], [], []
        for _ in range(rounds):
            singles.append(await rate(single, one_by_one))
            before = time.process_time()
            loads.append(await rate(count, lambda: pool.executemany(INSERT, rows(count))))
            costs.append((time.process_time() - before) / count * 1e6)
            bares.append(await rate(count, bare))
        found = {
            "rounds": float(rounds),
            "row by row, rows/s": median(singles),
            "executemany, rows/s": median(loads),
            "times the rate of row by row": median(map(truediv, loads, singles)),
            "executemany, µs of CPU a row": median(costs),
            "asyncpg, one connection, rows/s": median(bares),
            "share of asyncpg's rate": median(map(truediv, loads, bares)),
        }
        return found | (await memory(pool, held) if held else {})
    finally:
        await pool.close()


async def memory(pool: Any, count: int) -> dict[str, float]:
    """How many rows of a long generator exist at a time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await pool.executemany(SINK, held_rows(count))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rows of the generator": float(count),
        "most rows held at a time": float(Held.most),
        "rows left over": float(Held.alive),
        "growth of memory, MiB": (after - before) / 1024,
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--single", type=int, default=5_000)
    parser.add_argument("--held", type=int, default=1_000_000, help="rows of the generator; 0: memory is not measured")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    with bench_server(nodes=wanted.nodes) as server:
        everywhere = set(machine.cores())
        for number, placement in enumerate(dict.fromkeys((*placements(server), "free"))):
            core = None if placement == "free" else core_of_client(server, placement)
            os.sched_setaffinity(0, everywhere if core is None else {core})
            held = 0 if number else wanted.held
            found[placement] = asyncio.run(measure(server, wanted.rows, wanted.single, held, wanted.rounds))
            server.empty()
            print(f"{placement}:")
            for name, value in found[placement].items():
                print(f"  {name:40} {value:14.4g}")
        os.sched_setaffinity(0, everywhere)
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
