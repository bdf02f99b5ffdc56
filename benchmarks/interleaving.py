"""Blocks of several clients in turn, clean ones only, and what they add up to.

A block during which others used more than a share of a core is thrown away and repeated, a bounded number of times and
within a bounded time for the whole run. Where too few blocks are clean in the end, unclean ones are used and the
result says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from typing import Any

from benchmarks.estimates import percentile
from benchmarks.results import Measured

Block = dict[str, Any]

#: Pause before a block is repeated (seconds).
PAUSE = 0.15


class Patience:
    """How long repeating may still take in this run.

    Args:
        seconds: In all.
        pause: Awaits better times; `time.sleep` unless told otherwise.
    """

    def __init__(self, seconds: float, pause: Callable[[float], None] = time.sleep) -> None:
        self.left = seconds
        self._pause = pause

    def spend(self, block: Block) -> bool:
        """Pay for a block that has to be run again; False when there is no time left for it."""
        cost = block["wall"] + PAUSE
        if self.left < cost:
            return False
        self.left -= cost
        self._pause(PAUSE)
        return True


def is_clean(block: Block, foreign: float) -> bool:
    """Whether others left the machine alone; a block is clean where nobody can tell."""
    return block["foreign"] is None or block["foreign"] <= foreign * block["wall"]


class Series:
    """The blocks of one client, round by round.

    Args:
        name: The client.

    Attributes:
        repeated: Blocks thrown away.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.repeated = 0
        self._clean: list[Block | None] = []
        self._any: list[Block] = []

    def run(self, block: Callable[[], Block], foreign: float, tries: int, patience: Patience) -> None:
        """Run one round's block, again while it is not clean."""
        for attempt in range(1, tries + 1):
            result = block()
            clean = is_clean(result, foreign)
            if clean or attempt == tries or not patience.spend(result):
                break
            self.repeated += 1
        self._clean.append(result if clean else None)
        self._any.append(result)

    @property
    def disturbed(self) -> bool:
        """Whether too few rounds were clean: less than three, or than half of them."""
        clean = sum(block is not None for block in self._clean)
        return clean < max(min(3, len(self._clean)), len(self._clean) / 2)

    def rounds(self) -> Sequence[Block | None]:
        """The blocks that count."""
        return self._any if self.disturbed else self._clean

    def summary(self, note: str = "", versions: dict[str, str] | None = None) -> Measured:
        """What the blocks add up to."""
        rounds = self.rounds()
        counting = [block for block in rounds if block is not None and block["calls"]]
        latencies = sorted(latency for block in counting for latency in block["latencies"])
        return Measured(
            client=self.name,
            throughput=tuple(_each(rounds, lambda block: round(block["calls"] / block["wall"], 1))),
            cpu=tuple(_each(rounds, lambda block: round(block["client"] / block["calls"] * 1e6, 2))),
            server_cpu=_median(counting, lambda block: block["server"] / block["calls"] * 1e6, 2),
            p50=percentile(latencies, 0.50) / 10,
            p99=percentile(latencies, 0.99) / 10,
            busy=_median(counting, lambda block: block["client"] / block["wall"], 3) or 0.0,
            server_busy=_median(counting, lambda block: block["server"] / block["wall"], 3),
            faults=_median(counting, lambda block: block["faults"] / block["calls"], 3),
            repeated=self.repeated,
            disturbed=self.disturbed,
            note=note,
            versions=versions or {},
            counted=next((block["counted"] for block in reversed(self._any) if "counted" in block), {}),
        )


def interleave(
    series: Sequence[Series],
    block: Callable[[int, int], Block],
    rounds: int,
    foreign: float,
    tries: int,
    patience: Patience,
) -> None:
    """Run rounds of one block for each series, each round in another order.

    Args:
        series: Where the blocks go.
        block: Runs a block, given the position in `series` and the round.
        rounds: How many.
        foreign: See `is_clean`.
        tries: How often a block is run at most.
        patience: Bounds the repeating of the whole run.
    """
    order = list(range(len(series)))
    for number in range(rounds):
        Random(number).shuffle(order)
        for position in order:
            series[position].run(lambda p=position, n=number: block(p, n), foreign, tries, patience)  # type: ignore[misc]


def _each(rounds: Sequence[Block | None], value: Callable[[Block], float]) -> list[float | None]:
    return [None if block is None or not block["calls"] else value(block) for block in rounds]


def _median(blocks: Sequence[Block], value: Callable[[Block], float], digits: int) -> float | None:
    try:
        return round(median(value(block) for block in blocks), digits)
    except TypeError:  # the platform does not tell
        return None
