"""Act 2: buckets move while the load goes on, and the driver follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from picopyn.cli.demo.callers import Caller, calling
from picopyn.cli.demo.pictures import grid, total
from picopyn.cli.demo.promises import DIRECT_SHARE, Promise, no_failure, percent, share
from picopyn.cli.demo.stage import TIER, Stage
from picopyn.cli.demo.tally import Tally
from picopyn.cli.demo.timeline import marks, spark

_STEP = 0.125
_LOOK = 0.02


@dataclass(slots=True)
class Move:
    """One move of buckets, and what was seen of it.

    Attributes:
        source: Replicaset that gives.
        target: Replicaset that gets.
        first: First bucket that moves.
        last: Last bucket that moves.
        began: When the act began.
        ordered: When the move began.
        settled: When every instance showed the new map.
        known: When the driver knew it.
        counts: Time, direct and forwarded statements until then; one for each step.
    """

    source: str
    target: str
    first: int
    last: int
    began: float = field(default_factory=time.monotonic)
    ordered: float | None = None
    settled: float | None = None
    known: float | None = None
    counts: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def buckets(self) -> int:
        """How many move."""
        return self.last - self.first + 1

    def shares(self) -> list[tuple[float, float]]:
        """Statements per second and the direct share of them, for each step."""
        steps = zip(self.counts, self.counts[1:], strict=False)
        return [
            ((d1 + f1 - d0 - f0) / (t1 - t0), share(d1 - d0, f1 - f0)) for (t0, d0, f0), (t1, d1, f1) in steps
        ]

    def since(self, moment: float | None) -> tuple[int, int]:
        """Direct and forwarded statements after the first count at or after this moment."""
        later = [count for count in self.counts if moment is not None and count[0] >= moment]
        if not later:
            return 0, 0
        return later[-1][1] - later[0][1], later[-1][2] - later[0][2]

    def column(self, moment: float) -> int:
        """In which step a moment lies."""
        return sum(taken < moment for taken, _, _ in self.counts[1:])


async def play(stage: Stage, callers: Sequence[Caller]) -> list[Promise]:
    """Play the act; gives what it promised."""
    move = await asyncio.to_thread(_plan, stage)
    stage.screen.act(
        "Act 2: buckets move under the load",
        f"{move.buckets} of {move.source}'s buckets go to {move.target}, in steps. The driver looks at the cluster every "
        f"{stage.pace.topology_update_interval:g} s\n(its default is 5 s); until it knows, the servers forward.",
    )
    await asyncio.to_thread(stage.cluster.reset_counters)
    tally = Tally()
    with stage.screen.watch() as watch:
        async with calling([(caller, tally) for caller in callers], stage.pace.pause):
            happening = asyncio.create_task(_move(stage, move), name="demo move")
            try:
                while not happening.done():
                    await asyncio.sleep(_STEP)
                    await _count(stage, move)
                    watch.show(_picture(stage, move, tally), _line(stage, move, tally))
                await happening
            finally:
                happening.cancel()
    return _promises(move, tally)


def _plan(stage: Stage) -> Move:
    """Half of the first replicaset's buckets, from the middle of its range on, go to the second."""
    source, target = sorted(stage.leaders)[:2]
    uuids = stage.cluster.replicasets
    shards = stage.pool.topology.shard_map(TIER)
    owned = [n for n in range(1, shards.count + 1) if shards.owner(n) == uuids[source]] if shards else [1]
    return Move(source, target, owned[len(owned) // 2], owned[-1])


async def _move(stage: Stage, move: Move) -> None:
    pace, cluster = stage.pace, stage.cluster
    await asyncio.sleep(pace.before)
    move.ordered = time.monotonic()
    cluster.move_buckets(TIER, move.first, move.last, move.target, duration=pace.move)
    await asyncio.to_thread(cluster.wait_views, pace.give_up)
    move.settled = time.monotonic()
    while _known(stage, move) < move.buckets:
        if time.monotonic() > move.settled + pace.give_up:
            return
        await asyncio.sleep(_LOOK)
    move.known = time.monotonic()
    await asyncio.sleep(pace.after)


def _known(stage: Stage, move: Move) -> int:
    """How many of the moved buckets the driver looks for at their new owner."""
    topology = stage.pool.topology
    target = {replicaset.name: replicaset.uuid for replicaset in topology.replicasets(TIER)}.get(move.target)
    return sum(topology.owner(TIER, bucket) == target for bucket in range(move.first, move.last + 1))


async def _count(stage: Stage, move: Move) -> None:
    counters = await asyncio.to_thread(stage.cluster.counters)
    move.counts.append((time.monotonic(), *total(counters)))


def _picture(stage: Stage, move: Move, tally: Tally) -> RenderableType:
    steps = move.shares()[-60:]
    names = ((move.ordered, "move"), (move.settled, "moved"), (move.known, "driver knows"))
    shift = max(len(move.shares()) - 60, 0)
    ruler = marks([(move.column(at) - shift, name) for at, name in names if at and move.column(at) >= shift])
    picture = grid("", "", "now", numbers=["now"])
    picture.add_row("", Text(ruler, style="bold"), "")
    speeds, direct = [speed for speed, _ in steps], [part for _, part in steps]
    top = max(speeds, default=0.0)
    picture.add_row("calls/s", Text(spark(speeds, top), style="cyan"), f"{speeds[-1]:.0f}" if speeds else "")
    picture.add_row(
        "direct", Text(spark(direct, 1.0), style="green"), percent(direct[-1]) if direct else ""
    )
    return Group(picture, _state(stage, move, tally))


def _state(stage: Stage, move: Move, tally: Tally) -> str:
    text = f"the driver knows {_known(stage, move)} of {move.buckets} moved buckets, {len(tally.failures)} of {tally.good} calls failed"
    if move.settled is not None and move.known is not None:
        text += f"; it followed {max(move.known - move.settled, 0.0):.2f} s after the last bucket had moved"
    return text


def _line(stage: Stage, move: Move, tally: Tally) -> str:
    speed, direct = (move.shares() or [(0.0, 1.0)])[-1]
    return f"{time.monotonic() - move.began:4.1f} s: {speed:.0f} calls/s, {percent(direct)} direct; {_state(stage, move, tally)}"


def _promises(move: Move, tally: Tally) -> list[Promise]:
    direct, forwarded = move.since(move.known)
    followed = "not followed"
    if move.known is not None and move.settled is not None:
        followed = f"{max(move.known - move.settled, 0.0):.2f} s after the move, then {percent(share(direct, forwarded))} direct"
    return [
        no_failure(f"no call failed while {move.buckets} buckets moved", tally),
        Promise(
            "the driver followed, and statements went straight to the new owner",
            share(direct, forwarded) >= DIRECT_SHARE and direct > 0,
            followed,
        ),
    ]
