"""What a few noisy numbers allow to say: medians, ratios of pairs, and how sure they are.

Blocks of different clients are interleaved, so what drifts hits all alike: ratios and differences are taken within a
round first, and only then the median over the rounds. Intervals are those of order statistics (binomial), which assume
no distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, comb
from statistics import median

import msgspec

CONFIDENCE = 0.95


class Interval(msgspec.Struct, frozen=True):
    """A median and where it lies.

    Attributes:
        middle: Median of the values.
        low: Lower end.
        high: Upper end.
        confidence: Chance that the true median is between them; less than asked for when there are too few values.
    """

    middle: float
    low: float
    high: float
    confidence: float


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median, and the narrowest pair of values around it that holds the true one with the given chance.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered, count = sorted(values), len(values)
    outside = 0
    depth, reached = 1, 0.0
    for rank in range(1, (count + 1) // 2 + 1):
        outside += comb(count, rank - 1)
        covered = 1 - 2 * outside / 2**count
        if rank == 1 or covered >= confidence:
            depth, reached = rank, covered
    return Interval(median(ordered), ordered[depth - 1], ordered[count - depth], max(reached, 0.0))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of all values do not exceed.

    Raises:
        ValueError: There are no values.
    """
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


Pairs = Sequence[float | None]


def paired(ours: Pairs, theirs: Pairs, how: Callable[[float, float], float]) -> list[float]:
    """Combine the values of the rounds in which both have one."""
    return [how(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]


def ratio(ours: Pairs, theirs: Pairs) -> Interval | None:
    """Ratio within the rounds; None when there is no round that both have."""
    values = paired(ours, theirs, lambda a, b: a / b)
    return median_interval(values) if values else None


def difference(ours: Pairs, theirs: Pairs) -> Interval | None:
    """Difference within the rounds; None when there is no round that both have."""
    values = paired(ours, theirs, lambda a, b: a - b)
    return median_interval(values) if values else None


def judge(interval: Interval, limit: float, confidence: float = CONFIDENCE) -> str:
    """Whether something is at most `limit`.

    Returns:
        `"holds"` or `"fails"` when the whole interval says so and is as sure as asked for, else `"undecided"`.
    """
    if interval.confidence < confidence:
        return "undecided"
    if interval.high <= limit:
        return "holds"
    return "fails" if interval.low > limit else "undecided"
