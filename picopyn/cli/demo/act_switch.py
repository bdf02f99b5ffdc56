"""Act 2, second part: leaders change places with their replicas, in an orderly way, under the load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from picopyn.cli.demo.callers import Caller, calling
from picopyn.cli.demo.promises import Promise, no_failure
from picopyn.cli.demo.stage import Stage
from picopyn.cli.demo.tally import Tally

#: Between two switches (seconds).
_PAUSE = 0.25


async def play(stage: Stage, callers: Sequence[Caller]) -> list[Promise]:
    """Play it; gives what it promised. In the end everybody has the role that he had before."""
    stage.screen.say(
        "\nThen each leader changes places with its replica, and back. For a moment (0.1 to 0.2 s on a real server) "
        "the old one refuses writes; the driver runs them again at the new one."
    )
    tally, before = Tally(), _refused(stage)
    async with calling([(caller, tally) for caller in callers], stage.pace.pause):
        for replicaset, leader in sorted(stage.leaders.items()):
            for name in (_replica(stage, replicaset, leader), leader):
                await asyncio.sleep(_PAUSE)
                await asyncio.to_thread(stage.cluster.promote, name)
        await asyncio.sleep(_PAUSE)
    kept = no_failure("no call fails while leaders change places", tally)
    again = _refused(stage) - before
    evidence = f"{kept.evidence}; {again} refused writes ran again"
    stage.screen.say(f"{2 * len(stage.leaders)} switches: {evidence}")
    return [Promise(kept.text, kept.kept, evidence)]


def _refused(stage: Stage) -> int:
    """Calls that were sent again because their leader had just changed."""
    return stage.pool.stats().retries.get("NOT_LEADER", 0)


def _replica(stage: Stage, replicaset: str, leader: str) -> str:
    return next(n for n, other in stage.instances.items() if other.replicaset == replicaset and n != leader)
