"""What callers did and what they were told, in the order in which it happened. Pure: the clock counts events.

This file decides what is written down. What must be true of it stands in `laws`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

#: Later than everything that ended.
NEVER = 1 << 62


class Verb(Enum):
    """What a call does."""

    INSERT = "insert"  # a row that nobody else writes; not repeatable
    ADD = "add"  # one to a counter; not repeatable
    RAISE = "raise"  # a register to a higher value; repeatable
    READ_COUNTER = "read counter"
    READ_REGISTER = "read register"


#: Calls that are declared repeatable.
REPEATABLE = frozenset({Verb.RAISE, Verb.READ_COUNTER, Verb.READ_REGISTER})


class Outcome(Enum):
    """What the caller knows."""

    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown"  # it may have happened
    FAILED = "failed"  # it did not happen


@dataclass(slots=True)
class Call:
    """One call.

    Attributes:
        verb: What it does.
        key: Number of the row, counter or register.
        value: What a register is raised to.
        fresh: Whether a read was asked for where it shows everything that was acknowledged before.
        began: Event number of its beginning.
        ended: Of its end.
        outcome: What became of it.
        answer: What was read.
        error: The error in words, when there was one.
        losses: How often it was sent and its connection broke, as far as its error tells.
        held_back: Whether its error says why it was not sent again.
    """

    verb: Verb
    key: int
    value: int = 0
    fresh: bool = True
    began: int = 0
    ended: int = NEVER
    outcome: Outcome = Outcome.RUNNING
    answer: int | None = None
    error: str = ""
    losses: int = 0
    held_back: bool = False

    @property
    def may_have_happened(self) -> bool:
        """Whether nobody may be surprised by its effect."""
        return self.outcome is not Outcome.FAILED

    def __str__(self) -> str:
        what = f"{self.verb.value} {self.key}" + (f" to {self.value}" if self.verb is Verb.RAISE else "")
        told = f" = {self.answer}" if self.answer is not None else ""
        return f"{what}{told} [{self.outcome.value}, events {self.began} to {self.ended}] {self.error}".rstrip()


@dataclass(frozen=True, slots=True)
class Stored:
    """What the servers hold in the end.

    Attributes:
        rows: Number of a row to how often it is there.
        counters: Value by number.
        registers: Value by number.
    """

    rows: Mapping[int, int]
    counters: Mapping[int, int]
    registers: Mapping[int, int]


@dataclass(slots=True)
class History:
    """All calls. Owner: the load; written by one event loop.

    Attributes:
        calls: In the order in which they began.
        answered: How many ended well.
    """

    calls: list[Call] = field(default_factory=list)
    answered: int = 0
    _events: count[int] = field(default_factory=lambda: count(1))

    def begin(self, verb: Verb, key: int, value: int = 0, *, fresh: bool = True) -> Call:
        """Write down that a call begins, before anything is sent."""
        call = Call(verb, key, value, fresh, began=next(self._events))
        self.calls.append(call)
        return call

    def done(self, call: Call, answer: int | None = None) -> None:
        """It was answered."""
        call.answer = answer
        self.answered += 1
        self._end(call, Outcome.DONE)

    def unknown(self, call: Call, error: str, losses: int = 1, *, held_back: bool = False) -> None:
        """Nobody can tell whether it took effect."""
        call.losses, call.held_back = losses, held_back
        self._end(call, Outcome.UNKNOWN, error)

    def failed(self, call: Call, error: str) -> None:
        """It was told that it had no effect."""
        self._end(call, Outcome.FAILED, error)

    def counts(self) -> dict[str, int]:
        """How many calls of each kind and outcome, by their words."""
        found = Counter(f"{call.verb.value}, {call.outcome.value}" for call in self.calls)
        return dict(sorted(found.items()))

    def _end(self, call: Call, outcome: Outcome, error: str = "") -> None:
        call.ended, call.outcome, call.error = next(self._events), outcome, error
