"""One run: a load, a schedule, and in the end the question whether every law was kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from picopyn.cli.chaos.field import Field
from picopyn.cli.chaos.history import REPEATABLE, Outcome
from picopyn.cli.chaos.laws import Breach, breaches
from picopyn.cli.chaos.load import AwaitedPool, Load
from picopyn.cli.chaos.schedule import Step


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run.

    Attributes:
        seed: What it was made from.
        steps: The steps that were taken, in words.
        counts: Calls by kind and outcome.
        unknown: Calls whose outcome nobody knows.
        given_up: Those of them that are repeatable.
        broken: Every broken law.
    """

    seed: int
    steps: tuple[str, ...]
    counts: dict[str, int]
    unknown: int
    given_up: int
    broken: tuple[Breach, ...]

    def __str__(self) -> str:
        """Everything, for who has to find out why."""
        counts = ", ".join(f"{name}: {number}" for name, number in self.counts.items())
        return "\n".join([f"seed {self.seed}", *self.steps, counts, *map(str, self.broken)])


async def run(
    field: Field,
    pool: AwaitedPool,
    seed: int,
    steps: Sequence[Step],
    tell: Callable[[str], object] = lambda text: None,
) -> Report:
    """Let callers call while the steps are taken, and check what came of it.

    Args:
        field: The servers; all well, and in the end they are again.
        pool: A pool that is open and ready.
        seed: For what the callers do; the report names it.
        steps: What happens.
        tell: Called with each step in words, when it has been taken.
    """
    said: list[str] = []
    troubles: set[int] = set()
    loop = asyncio.get_running_loop()
    async with Load(pool, Random(seed)) as load:
        began = loop.time()
        await load.everybody()
        for step in steps:
            before, events = loop.time() - began, len(load.history.calls)
            whom = await asyncio.to_thread(field.take, step)
            said.append(f"{before:6.2f} s, call {events}: {step.act.value} {whom}")
            tell(said[-1])
            await asyncio.sleep(step.pause)
            troubles ^= {step.number} - {0}  # begins, or ends
            if not troubles:
                await load.everybody(1)  # what comes next shall find calls under way
        await load.everybody()  # all are well: everybody is served
    stored = await asyncio.to_thread(field.stored)
    calls = load.history.calls
    unknown = [call for call in calls if call.outcome is Outcome.UNKNOWN]
    given_up = sum(call.verb in REPEATABLE for call in unknown)
    broken = tuple(breaches(calls, stored))
    return Report(seed, tuple(said), load.history.counts(), len(unknown), given_up, broken)
