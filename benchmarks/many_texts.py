"""Thousands of texts that come once, as ORMs make them: what learning about them costs the calls of a text in use.

Texts come at a steady pace, so a slow machine does not pile them up. For a minute they have a parameter, so that the
server is asked about them. Before and afterwards, for half as long, they have none: then nobody is asked, and the
server has as much to parse and to execute. What differs is discovery.

The server is the embedded cluster, for only that one answers such questions; all its instances are one process, so the
one that is asked delays those that work. The latencies are not those of a Picodata, and their ratio is an upper bound.
It needs two free cores.

    python -m benchmarks.many_texts [--texts 10000] [--seconds 60] [--facade asynchronous|sync] …
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from picopyn import sync
from picopyn.asynchronous import Pool
from picopyn.sync.driving import drive
from picopyn.testing import PicodataCluster

HOT = "SELECT id FROM many WHERE id = $1"
ASKED = "UPDATE many SET v = v + 1 WHERE id = $1 AND v >= -{number}"
NOT_ASKED = "UPDATE many SET v = v + 1 WHERE id = 1 AND v >= -{number}"
#: Texts between two looks at what discovery does.
STRIDE = 20

Pause = Callable[[float], Awaitable[None]]


async def done(answer: Any) -> Any:
    """The answer of a call of either pool."""
    return await answer if inspect.isawaitable(answer) else answer


async def paced(pool: Any, text: str, numbers: range, seconds: float, pause: Pause) -> tuple[list[float], int, float]:
    """Run texts at a steady pace, each followed by a call of the one in use.

    Returns:
        How long those took (seconds), the most discoveries pending, and how far behind the pace it was (seconds).
    """
    args = (1,) if "$1" in text else ()
    latencies, pending, late, began = [], 0, 0.0, time.monotonic()
    for number in numbers:
        early = began + (number - numbers.start) * seconds / len(numbers) - time.monotonic()
        late = max(late, -early)
        if early > 0:
            await pause(early)
        await done(pool.execute(text.format(number=number), *args))
        before = time.perf_counter()
        await done(pool.fetchval(HOT, 1))
        latencies.append(time.perf_counter() - before)
        if not number % STRIDE:
            pending = max(pending, pool.stats().metadata.pending)
    return latencies, pending, late


async def measure(open_pool: Callable[[], Any], texts: int, seconds: float, pause: Pause) -> dict[str, float]:
    """The three phases, each with a pool of its own: texts not asked about, texts asked about, the first ones again."""
    others: list[float] = []
    asked: list[float] = []
    found: dict[str, float] = {}
    half = texts // 2
    for text, numbers in (
        (NOT_ASKED, range(half)),
        (ASKED, range(half, half + texts)),
        (NOT_ASKED, range(half + texts, 2 * texts)),
    ):
        pool = await done(open_pool().open())
        try:
            route = await done(pool.explain_route(HOT, 1))
            assert route.direct
            latencies, pending, late = await paced(pool, text, numbers, seconds * len(numbers) / texts, pause)
            (asked if text is ASKED else others).extend(latencies)
            if text is ASKED:
                told = pool.stats()
                found |= {
                    "texts": float(texts),
                    "most behind the pace (s)": late,
                    "most discoveries pending": float(max(pending, told.metadata.pending)),
                    "of at most": float(pool.settings.query_metadata_cache_size),
                    "texts learned": float(told.metadata.learned),
                    "share of the text in use that went direct": told.texts[HOT].direct / texts,
                }
        finally:
            pool.terminate()
    for share in (0.5, 0.99):
        with_them, without = (sorted(values)[int(len(values) * share)] * 1000 for values in (asked, others))
        found[f"p{share * 100:g} beside texts that are asked about (ms)"] = with_them
        found[f"p{share * 100:g} beside others (ms)"] = without
        found[f"times p{share * 100:g}"] = with_them / without
    return found


def run(dsn: str, facade: str, texts: int, seconds: float, cache_size: int) -> dict[str, float]:
    """Measure with one of the two pools; the cluster has the table."""
    options: dict[str, Any] = {"query_metadata_cache_size": cache_size, "acquire_timeout": 30.0}
    if facade == "asynchronous":
        return asyncio.run(measure(lambda: Pool(dsn, **options), texts, seconds, asyncio.sleep))

    async def sleep(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop

    return drive(measure(lambda: sync.Pool(dsn, **options), texts, seconds, sleep))


def fill(cluster: PicodataCluster) -> None:
    """Make the table."""
    cluster.execute("CREATE TABLE many (id INT PRIMARY KEY, v INT)")
    cluster.execute("INSERT INTO many VALUES (1, 0)")


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cache-size", type=int, default=1000)
    parser.add_argument("--facade", choices=["asynchronous", "sync"], default="asynchronous")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args(arguments)
    with PicodataCluster() as cluster:
        fill(cluster)
        found = run(cluster.dsn, wanted.facade, wanted.texts, wanted.seconds, wanted.cache_size)
    for name, value in found.items():
        print(f"{name:55} {value:12.4g}")
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
