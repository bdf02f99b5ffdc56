"""Which of several equally good hosts gets the next call: pure functions, to be chosen by name, or replaced.

A policy is a function from `Equals` to the position of the host to try first; the others follow in their order. It
must not keep anything: what it may need to know of the past is in `Equals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from random import Random
from typing import Final, TypeAlias

from picopyn.routing.balance import lightest
from picopyn.topology import Node


@dataclass(frozen=True, slots=True)
class Equals:
    """Hosts that are equally good for a call.

    Attributes:
        nodes: At least one.
        load: Calls a node serves now, in flight and waiting, by uuid; very high without any connection.
        latency: Median of a node's last answers to its watcher, by uuid (seconds); None: none yet.
        turn: How many choices among hosts for the same role were made before.
        rng: Source of randomness.
    """

    nodes: Sequence[Node]
    load: Callable[[str], int]
    latency: Callable[[str], float | None]
    turn: int
    rng: Random


#: Gives the position of the host to try first.
BalancerPolicy: TypeAlias = Callable[[Equals], int]


def greedy(equals: Equals) -> int:
    """The least loaded; ties at random."""
    return lightest([node.uuid for node in equals.nodes], equals.load, equals.rng)


def round_robin(equals: Equals) -> int:
    """One after the other."""
    return equals.turn % len(equals.nodes)


def random_weighted(equals: Equals) -> int:
    """At random, the more often the faster it answers; evenly while an answer time is missing or makes no sense."""
    weights = latency_weights([equals.latency(node.uuid) for node in equals.nodes])
    return equals.rng.choices(range(len(weights)), weights)[0]


def two_choices(equals: Equals) -> int:
    """The less loaded of two that are drawn at random."""
    count = len(equals.nodes)
    if count == 1:
        return 0
    first, second = equals.rng.sample(range(count), 2)
    return second if equals.load(equals.nodes[second].uuid) < equals.load(equals.nodes[first].uuid) else first


def latency_weights(latencies: Sequence[float | None]) -> list[float]:
    """The weight of each latency: 1 for the shortest, half of it for twice as long; all 1 if one cannot be used."""
    usable = [latency for latency in latencies if latency is not None and isfinite(latency) and latency > 0]
    if len(usable) < len(latencies):
        return [1.0] * len(latencies)
    shortest = min(usable, default=1.0)
    return [shortest / latency for latency in usable]


#: Policies by the word in the settings.
POLICIES: Final[Mapping[str, BalancerPolicy]] = {
    "greedy": greedy,
    "round_robin": round_robin,
    "random_weighted": random_weighted,
    "two_choices": two_choices,
}
