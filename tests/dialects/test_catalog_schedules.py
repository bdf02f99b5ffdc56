"""Notices over readings: whatever the order in which they come, nothing that is known is taken back.

`catalog_schedules.py` says what is simulated. One test plays many random schedules; the others are the laws behind it,
one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import takewhile
from multiprocessing import get_context
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.dialects.picodata.catalog_notices import BucketNotice, RowNotice
from picopyn.dialects.picodata.catalog_view import CatalogView
from tests.dialects.catalog_schedules import Change, Client, Fact, History, Step, shown, simulate

#: So many schedules are played by one process before it takes the next ones.
BATCH = 20_000

seeds = st.integers(0, 1 << 32)
law = settings(max_examples=100)


@pytest.mark.timeout(7200)
def test_no_schedule_takes_a_step_backward(full_size: bool, measured: Callable[[str, object], None]) -> None:
    """What was told last, in the order of the raft log, is what is shown, after each step; 1 000 000 in full size."""
    if not full_size:
        play(range(20_000))
        return
    batches = [range(first, first + BATCH) for first in range(0, 1_000_000, BATCH)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as workers:
        measured("schedules", sum(workers.map(play, batches)))


def play(numbers: range) -> int:
    """Play the schedules of these seeds; gives how many."""
    for seed in numbers:
        simulate(seed)
    return len(numbers)


class Forgetful(CatalogView):
    """A view that takes what comes last for the latest."""

    place = 1 << 90

    def hear(self, notice: RowNotice | BucketNotice) -> None:
        if isinstance(notice, RowNotice):
            self.place += 1
            notice = replace(notice, stamp=self.place)
        super().hear(notice)


def test_a_failing_schedule_is_told_in_few_words() -> None:
    """A mistake is found soon, and shown as the steps that it needs."""
    with pytest.raises(AssertionError) as raised:
        for seed in range(1_000):
            simulate(seed, Forgetful)
    lines = str(raised.value).splitlines()
    steps = list(takewhile(lambda line: line.startswith("  "), lines[lines.index("what was heard:") + 1 :]))
    assert steps[0].startswith("  connect")
    assert 3 <= len(steps) <= 4


# the laws


def history(*changes: tuple[tuple[Fact, ...], str | None]) -> History:
    """What happened, one entry of the log after the other; every third one is the first of a new term."""
    past = History.draw(Random(0))
    del past.log[:], past.truth[1:]
    for position, (facts, deleted) in enumerate(changes, 1):
        term, index = 1 + position // 3, (position % 3) * 5
        past.add(Change(position, term, index, facts, deleted))
    return past


def instance(name: str = "a1") -> tuple[tuple[Fact, ...], None]:
    """An instance changes."""
    return (("instance", name),), None


def leader(name: str = "A") -> tuple[tuple[Fact, ...], None]:
    """A replicaset has another leader."""
    return (("replicaset", name),), None


def gone(name: str = "a1") -> tuple[tuple[Fact, ...], str]:
    """An instance is deleted."""
    return (), name


def buckets(first: int, last: int) -> tuple[tuple[Fact, ...], None]:
    """Buckets move."""
    return tuple(("bucket", number) for number in range(first, last + 1)), None


runs = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: buckets(min(pair), max(pair)))


def in_packets(positions: Sequence[int], rng: Random) -> list[Step]:
    """These notices, and sometimes what was heard is handed on."""
    steps: list[Step] = []
    for position in positions:
        steps.append(("tell", position))
        if rng.random() < 0.5:
            steps.append(("hand on", 0))
    return [*steps, ("hand on", 0)]


@law
@given(st.permutations(range(1, 8)), st.lists(st.integers(1, 7), max_size=5), seeds)
def test_the_latest_position_counts_however_late_others_come(order: list[int], again: list[int], seed: int) -> None:
    """Term before index: of all that is told of a leader, in any order and twice, the latest is shown."""
    past = history(*[leader()] * 7)
    client = Client(past)
    client.play([("connect", 0), *in_packets([*order, *again], Random(seed))])
    assert shown(client.topology) == past.truth[-1]


@law
@given(st.lists(st.booleans(), min_size=1, max_size=7).flatmap(
    lambda there: st.tuples(st.just(there), st.permutations(range(1, len(there) + 1)))), seeds)  # fmt: skip
def test_a_row_is_there_if_the_latest_word_says_so(told: tuple[list[bool], list[int]], seed: int) -> None:
    """Replaced and deleted in turns, told in any order: it is there exactly if it was replaced last."""
    there, order = told
    past = history(*(instance() if each else gone() for each in there))
    client = Client(past)
    client.play([("connect", 0), *in_packets(order, Random(seed))])
    assert (client.topology.snapshot.node("a1") is not None) is there[-1]


@law
@given(seeds, st.booleans())
def test_a_snapshot_and_a_reading_are_the_first_step(seed: int, all_told: bool) -> None:
    """What is told before a connection is ready, and what is read on it, are one snapshot, as the node knows it."""
    rng = Random(seed)
    past = History.draw(rng)
    position = rng.randrange(len(past.truth))
    client = Client(past)
    client.play([("connect" if all_told else "connect without buckets", position)])
    assert client.topology.snapshot.version == 1
    assert shown(client.topology) == past.truth[position]


@law
@given(st.lists(runs, min_size=1, max_size=12), seeds, seeds)
def test_the_packets_of_a_storm_do_not_matter(moves: list[tuple[tuple[Fact, ...], None]], one: int, two: int) -> None:
    """Moves that overlap, gathered in packets of any size: the owners are the same at the end."""
    past = history(*moves)
    clients = Client(past), Client(past)
    for client, seed in zip(clients, (one, two), strict=True):
        client.play([("connect", 0), *in_packets(range(1, len(moves) + 1), Random(seed))])
    assert shown(clients[0].topology) == shown(clients[1].topology) == past.truth[-1]


@law
@given(seeds)
def test_a_node_that_knows_less_is_believed_and_followed(seed: int) -> None:
    """After a change of connection what the new node knows is shown, and nothing else; it catches up step by step."""
    rng = Random(seed)
    past = History.draw(rng)
    last = len(past.log)
    known = rng.randrange(last + 1)
    client = Client(past)
    client.play([("connect", 0), *in_packets(range(1, last + 1), rng), ("connect", known)])
    assert shown(client.topology) == past.truth[known]
    for position in range(known + 1, last + 1):
        client.play([("tell", position), ("hand on", 0)])
    assert shown(client.topology) == past.truth[last]


@law
@given(st.lists(st.integers(0, 6), min_size=2, max_size=6), st.booleans(), seeds)
def test_nodes_that_disagree_are_never_mixed(known: list[int], all_told: bool, seed: int) -> None:
    """From node to node, each as far as it is: what is shown is what one of them knows, not something in between."""
    rng = Random(seed)
    past = history(leader(), gone(), instance("a2"), buckets(1, 8), instance(), leader("B"))
    verb = "connect" if all_told else "connect without buckets"
    client = Client(past)
    for position in known:
        client.play([(verb, position)])
        assert shown(client.topology) == past.truth[position]
        client.play([("snapshot", rng.randrange(position + 1)), ("hand on", 0), ("read", rng.randrange(7))])
        assert shown(client.topology) == past.truth[position]
