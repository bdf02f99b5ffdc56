"""The calls of each text: what is remembered when there are many."""

from __future__ import annotations

from collections import defaultdict
from threading import Lock
from typing import Any

from picopyn.engine.tallies import LONGEST_TEXT, OTHERS, Tallies


def test_each_text_has_a_tally_of_its_own() -> None:
    """The same one at every call, and only texts that were called are told."""
    tallies = Tallies(Lock(), 10)
    tallies.of("a")["keyed"] += 1
    tallies.of("a")["keyed"] += 1
    tallies.of("b")["spread"] += 1
    tallies.of("never called")
    assert tallies.all() == {"a": {"keyed": 2}, "b": {"spread": 1}}


def test_of_too_many_texts_those_called_most_stay() -> None:
    """The others are counted together; nothing of them is lost, and the memory is bounded."""
    tallies = Tallies(Lock(), 100)
    for number in range(10_000):
        tallies.of("hot")["keyed"] += 1
        tallies.of(f"text {number}")["unlearned"] += 1
    told = tallies.all()
    assert len(told) <= 101
    assert told["hot"] == {"keyed": 10_000}
    assert sum(calls.get("unlearned", 0) for calls in told.values()) == 10_000
    assert told[OTHERS]["unlearned"] >= 9_900


def test_very_long_texts_are_counted_together() -> None:
    """A megabyte each would fill the memory."""
    tallies = Tallies(Lock(), 10)
    for number in range(5):
        tallies.of(f"{number}" * (LONGEST_TEXT + 1))["unlearned"] += 1
    assert tallies.all() == {OTHERS: {"unlearned": 5}}


class Counted:
    """Counts by itself; all its calls are booked at once."""

    def __init__(self, tallies: Tallies) -> None:
        self.tally = tallies.of("routed")
        self.calls = 0

    def book(self) -> None:
        """See the protocol."""
        self.tally["keyed"] += self.calls
        self.calls = 0


def test_a_text_whose_tally_is_held_keeps_it() -> None:
    """A compiled route goes on counting in its tally: what it counts is told, however seldom the text was called."""
    tallies = Tallies(Lock(), 10)
    ledger = Counted(tallies)
    tallies.held = {"routed": ledger}
    for number in range(1000):
        tallies.of(f"text {number}")["unlearned"] += 1
        tallies.of(f"text {number}")["unlearned"] += 1
    ledger.calls = 5
    told = tallies.all()
    assert told["routed"] == {"keyed": 5}
    assert len(told) <= 12


def test_calls_are_counted_while_texts_are_dropped() -> None:
    """Another thread may want the tally of the others at that very moment."""
    tallies = Tallies(Lock(), 10)

    class Nosy(defaultdict[str, int]):
        """Stands for another thread: it counts a call of its own while this tally is looked at."""

        def values(self) -> Any:
            tallies.of("x" * (LONGEST_TEXT + 1))["unlearned"] += 1
            return super().values()

    tallies._by_text["looked at"] = Nosy(int)
    for number in range(11):
        tallies.of(f"text {number}")["unlearned"] += 1
    told = tallies.all()
    assert sum(tally["unlearned"] for tally in told.values()) == 12
