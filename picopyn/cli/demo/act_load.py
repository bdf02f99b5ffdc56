"""Act 1: a mixed load, and where the cluster says its statements were executed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from rich.console import Group

from picopyn.cli.demo.callers import Caller, calling
from picopyn.cli.demo.pictures import counters_picture, grid, total
from picopyn.cli.demo.promises import DIRECT_SHARE, Promise, no_failure, percent, share
from picopyn.cli.demo.screen import Watch
from picopyn.cli.demo.stage import Stage
from picopyn.cli.demo.tables import TABLES
from picopyn.cli.demo.tally import Tally
from picopyn.testing import Counters

_STEP = 0.2


async def play(stage: Stage, callers: Sequence[Caller]) -> list[Promise]:
    """Play the act; gives what it promised."""
    stage.screen.act(
        "Act 1: every statement to its owner",
        "INSERT, SELECT, UPDATE and DELETE by key on two tables. Which parameters form the key, the driver learned "
        "from the server's answers. Bucket and node are those of row 42.",
    )
    await _learn(stage)
    tally = Tally()
    await asyncio.to_thread(stage.cluster.reset_counters)
    began = time.monotonic()
    with stage.screen.watch() as watch:
        async with calling([(caller, tally) for caller in callers], stage.pace.pause):
            while time.monotonic() - began < stage.pace.load:
                await asyncio.sleep(_STEP)
                await _show(stage, watch, tally, began)
        counters = await _show(stage, watch, tally, began)
    return _promises(tally, counters)


async def _learn(stage: Stage) -> None:
    """Ask about every text once, and show what was learned."""
    picture = grid("statement", "key", "bucket", "sent to")
    for table in TABLES:
        for text, arguments in table.texts.items():
            route = await stage.pool.explain_route(text, *arguments)
            key = ", ".join(f"${number}" for number in route.key_parameters[0]) if route.key_parameters else "none"
            buckets = ", ".join(map(str, route.buckets))
            picture.add_row(text, f"({key})", buckets, _first_word(route.candidates))
    stage.screen.show(picture)


def _first_word(candidates: Sequence[str]) -> str:
    return candidates[0].split(" ")[0] if candidates else "nowhere yet"


async def _show(stage: Stage, watch: Watch, tally: Tally, began: float) -> Mapping[str, Counters]:
    counters = await asyncio.to_thread(stage.cluster.counters)
    direct, forwarded = total(counters)
    now = time.monotonic()
    speed = f"{tally.rate(began, now):.0f} calls/s, {tally.good} calls, {len(tally.failures)} failed"
    picture = counters_picture(stage.instances, stage.leaders, counters)
    line = f"{now - began:4.1f} s: {speed}, direct {direct}, forwarded {forwarded}"
    watch.show(Group(picture, speed), line)
    return counters


def _promises(tally: Tally, counters: Mapping[str, Counters]) -> list[Promise]:
    direct, forwarded = total(counters)
    reached = share(direct, forwarded)
    return [
        Promise(
            "keyed statements go straight to their owner",
            reached >= DIRECT_SHARE and direct > 0,
            f"{percent(reached)} of {direct + forwarded} direct; {percent(DIRECT_SHARE)} promised",
        ),
        no_failure("no call fails under the load", tally),
    ]
