"""Blocks in turn, and what happens to those that were disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.interleaving import PAUSE, Patience, Series, interleave, is_clean
from tests.benchmarks.made_up import block

NOBODY = 0.0
BUSY = 0.05


class Source:
    """Gives blocks with the foreign load it was told, then clean ones."""

    def __init__(self, *foreign: float) -> None:
        self._foreign: Iterator[float] = iter(foreign)
        self.given = 0

    def __call__(self) -> dict[str, Any]:
        self.given += 1
        return block(foreign=next(self._foreign, NOBODY))


def patience(seconds: float = 100.0) -> Patience:
    return Patience(seconds, pause=lambda _seconds: None)


def test_a_block_is_clean_up_to_the_allowed_share() -> None:
    """Others may use a share of one core during a block; where nobody can tell, every block counts."""
    assert is_clean(block(wall=0.1, foreign=0.006), 0.06)
    assert not is_clean(block(wall=0.1, foreign=0.0061), 0.06)
    assert is_clean(block(foreign=None), 0.06)


def test_disturbed_blocks_are_repeated() -> None:
    """A block beside foreign load is thrown away and run again."""
    source, series = Source(BUSY, BUSY), Series("x")
    series.run(source, 0.06, 3, patience())
    assert (source.given, series.repeated, series.disturbed) == (3, 2, False)


def test_repeating_ends() -> None:
    """After the allowed tries the round stays without a clean block."""
    source, series = Source(*[BUSY] * 9), Series("x")
    series.run(source, 0.06, 3, patience())
    assert (source.given, series.repeated) == (3, 2)
    assert series.disturbed
    assert [found["foreign"] for found in series.rounds() if found] == [BUSY]


def test_repeating_has_a_budget_for_the_whole_run() -> None:
    """When the run's patience is used up, blocks are run once, whatever happens beside them."""
    shared = patience(0.1 + PAUSE)
    source, series = Source(*[BUSY] * 9), Series("x")
    for _ in range(2):
        series.run(source, 0.06, 3, shared)
    assert source.given == 3
    assert shared.left == pytest.approx(0.0)


def test_rounds_without_a_clean_block_are_left_out() -> None:
    """As long as half of the rounds are clean, only those count, and the others keep their place."""
    series = Series("x")
    for foreign in (NOBODY, BUSY, NOBODY, NOBODY):
        series.run(Source(foreign), 0.06, 1, patience())
    assert not series.disturbed
    assert series.summary().throughput == (1000.0, None, 1000.0, 1000.0)
    assert series.summary().blocks == 3


def test_too_few_clean_rounds_are_said() -> None:
    """When most rounds are disturbed all of them count, and the result says so."""
    series = Series("x")
    for foreign in (NOBODY, BUSY, BUSY, BUSY):
        series.run(Source(foreign), 0.06, 1, patience())
    found = series.summary()
    assert found.disturbed
    assert found.blocks == 4


def test_every_round_has_all_clients_in_another_order() -> None:
    """Each client gets one block per round, and none always goes first."""
    seen: list[tuple[int, int]] = []

    def one(position: int, number: int) -> dict[str, Any]:
        seen.append((number, position))
        return block()

    interleave([Series("a"), Series("b"), Series("c")], one, 10, 0.06, 3, patience())
    orders = {tuple(position for number, position in seen if number == wanted) for wanted in range(10)}
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len(orders) > 1


def test_summary_adds_up() -> None:
    """Throughput and CPU are per round; percentiles are taken over the calls of all rounds together."""
    series = Series("x")
    slow = block(calls=100, latencies=[1000] * 97 + [90000] * 3)
    for given in (block(), slow, block(counted={"keyed": 7})):
        series.run(lambda given=given: given, 0.06, 1, patience())  # type: ignore[misc]
    found = series.summary("a note", {"asyncpg": "1"})
    assert found.cpu == (50.0, 50.0, 50.0)
    assert (found.p50, found.p99) == (200.0, 200.0)
    assert (found.server_cpu, found.faults, found.malloc) == (20.0, 1.0, "mapped")
    assert (found.counted, found.note, found.versions) == ({"keyed": 7}, "a note", {"asyncpg": "1"})


def test_a_platform_that_tells_little_still_gives_numbers() -> None:
    """Without counters of the kernel, time and the client's own CPU are what remains."""
    series = Series("x")
    series.run(lambda: block(foreign=None, server=None, faults=None), 0.06, 1, patience())
    found = series.summary()
    assert (found.server_cpu, found.server_busy, found.faults, found.malloc) == (None, None, None, "?")
    assert found.throughput == (1000.0,)
