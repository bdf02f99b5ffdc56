"""Act 2: buckets move while the load goes on, and the driver follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from rich.console import Group, RenderableType
from rich.text import Text

from picopyn.cli.demo.callers import Caller, calling
from picopyn.cli.demo.pictures import grid, total
from picopyn.cli.demo.promises import DIRECT_SHARE, Promise, no_failure, percent, share
from picopyn.cli.demo.stage import TIER, Stage
from picopyn.cli.demo.tally import Tally
from picopyn.cli.demo.timeline import marks, spark

_STEP = 0.125
#: Columns of the picture that are not timeline.
_OTHER_COLUMNS = 24
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

    @property
    def lag(self) -> float | None:
        """Seconds from the last bucket's move to the driver's knowing it; None when it does not know yet."""
        if self.known is None or self.settled is None:
            return None
        return max(self.known - self.settled, 0.0)

    def rates(self) -> list[tuple[float, float]]:
        """Direct and forwarded statements per second, for each step."""
        return [
            ((direct - d) / (at - t), (forwarded - f) / (at - t))
            for (t, d, f), (at, direct, forwarded) in pairwise(self.counts)
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
        f"{move.buckets} of {move.source}'s buckets go to {move.target}, in steps. The driver looks at the cluster "
        f"every {stage.pace.topology_update_interval:g} s here (5 s by default); until it knows, the servers forward.",
    )
    await asyncio.to_thread(stage.cluster.reset_counters)
    tally = Tally()
    move.began = time.monotonic()
    with stage.screen.watch() as watch:
        load = calling([(caller, tally) for caller in callers], stage.pace.pause)
        async with load, asyncio.TaskGroup() as group:
            happening = group.create_task(_move(stage, move), name="demo move")
            while not happening.done():
                await asyncio.sleep(_STEP)
                await _count(stage, move)
                watch.show(_picture(stage, move, tally), _line(stage, move, tally))
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
    rates = move.rates()
    hidden = max(len(rates) - max(stage.screen.width - _OTHER_COLUMNS, 10), 0)
    shown = rates[hidden:]
    picture = grid("statements per second", "", "now", numbers=["now"])
    picture.add_row("", Text(_ruler(move, hidden), style="bold"), "")
    for name, style, values in (
        ("direct", "green", [direct for direct, _ in shown]),
        ("forwarded", "yellow", [forwarded for _, forwarded in shown]),
    ):
        line = Text(spark(values, max(values, default=0.0)), style=style)
        picture.add_row(name, line, f"{values[-1]:.0f}" if values else "")
    return Group(picture, _state(stage, move, tally))


def _ruler(move: Move, hidden: int) -> str:
    named = ((move.ordered, "moving"), (move.settled, "moved"), (move.known, "driver knows"))
    columns = [(move.column(at) - hidden, name) for at, name in named if at is not None]
    return marks(sorted((c for c in columns if c[0] >= 0), key=itemgetter(0)))


def _state(stage: Stage, move: Move, tally: Tally) -> str:
    text = (
        f"moved buckets the driver knows: {_known(stage, move)} of {move.buckets}; failed calls: {len(tally.failures)}"
    )
    return text if move.lag is None else f"{text}; it followed {move.lag:.2f} s after the last"


def _line(stage: Stage, move: Move, tally: Tally) -> str:
    direct, forwarded = (move.rates() or [(0.0, 0.0)])[-1]
    seconds = time.monotonic() - move.began
    return f"{seconds:4.1f} s: direct {direct:.0f}/s, forwarded {forwarded:.0f}/s; {_state(stage, move, tally)}"


def _promises(move: Move, tally: Tally) -> list[Promise]:
    direct, forwarded = move.since(move.known)
    followed = "not followed"
    if move.lag is not None:
        followed = f"{move.lag:.2f} s after the move, then {percent(share(direct, forwarded))} direct"
    return [
        no_failure(f"no call fails while {move.buckets} buckets move", tally),
        Promise(
            "the driver follows the moved buckets",
            share(direct, forwarded) >= DIRECT_SHARE and direct > 0,
            followed,
        ),
    ]
