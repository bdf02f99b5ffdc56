"""What must be true of every history, whatever happened to the servers meanwhile. Pure.

| law | broken by |
|---|---|
| lost | an acknowledged row, increment or value that is not there |
| doubled | a row that is there twice, a counter above all increments that may have happened |
| invented | something there, or read, that no call wrote, or only one that was told to have had no effect |
| stale | a fresh read that does not show what was acknowledged, or freshly read, before it began |
| failed | a call that failed, but with an unknown outcome; a repeatable one that was given up too early |

The order of two calls counts only where one ended before the other began. A call whose outcome is unknown may happen
at any later time, or never.

A repeatable call is given up when its connection broke twice. After the first time it is when nodes died under its
text, twice without an answer in between (when everything is in trouble for a while, that may be any text), and when the
retry budget is spent; then its error says so. The report counts what was given up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from picopyn.cli.chaos.history import REPEATABLE, Call, Outcome, Stored, Verb
from picopyn.routing.retry import MAX_LOSSES

#: Names of the laws.
LAWS = ("lost", "doubled", "invented", "stale", "failed")


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken law.

    Attributes:
        law: Its name, one of `LAWS`.
        what: What was seen.
    """

    law: str
    what: str

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


def breaches(calls: Sequence[Call], stored: Stored) -> list[Breach]:
    """Everything in a history that must not be.

    Args:
        calls: All calls; what still runs counts as unknown.
        stored: What the servers held after the last call.
    """
    by_verb: defaultdict[Verb, list[Call]] = defaultdict(list)
    for call in calls:
        by_verb[call.verb].append(call)
    return [
        *_rows(by_verb[Verb.INSERT], stored),
        *_counters(by_verb[Verb.ADD], stored),
        *_registers(by_verb[Verb.RAISE], stored),
        *_reads(by_verb[Verb.READ_COUNTER], by_verb[Verb.ADD], _Counting),
        *_reads(by_verb[Verb.READ_REGISTER], by_verb[Verb.RAISE], _Raising),
        *_failures(calls),
    ]


def _rows(inserts: Iterable[Call], stored: Stored) -> Iterator[Breach]:
    known = {call.key: call for call in inserts}
    for key, call in known.items():
        if call.outcome is Outcome.DONE and not stored.rows.get(key):
            yield Breach("lost", f"row: {call}")
    for key, times in stored.rows.items():
        if times > 1:
            yield Breach("doubled", f"row {key} is there {times} times")
        if times and (key not in known or not known[key].may_have_happened):
            yield Breach("invented", f"row {key}: {known.get(key, 'nobody wrote it')}")


def _counters(adds: Iterable[Call], stored: Stored) -> Iterator[Breach]:
    known = _by_key(adds)
    for key in known.keys() | stored.counters.keys():
        value, calls = stored.counters.get(key, 0), known.get(key, [])
        least = sum(call.outcome is Outcome.DONE for call in calls)
        most = sum(call.may_have_happened for call in calls)
        seen = f"counter {key} is {value}; {least} increments acknowledged, {most - least} unknown"
        if value < least:
            yield Breach("lost", seen)
        if value > most:
            yield Breach("doubled", seen)


def _registers(raises: Iterable[Call], stored: Stored) -> Iterator[Breach]:
    known = _by_key(raises)
    for key in known.keys() | stored.registers.keys():
        value, calls = stored.registers.get(key, 0), known.get(key, [])
        least = max((call.value for call in calls if call.outcome is Outcome.DONE), default=0)
        if value < least:
            yield Breach("lost", f"register {key} is {value}; {least} was acknowledged")
        if value and value not in {call.value for call in calls if call.may_have_happened}:
            yield Breach("invented", f"register {key} is {value}; nobody wrote that")


class _Rising:
    """A number that only rises, by event: its value after the last event before another one."""

    def __init__(self, steps: Iterable[tuple[int, int]], *, adding: bool) -> None:
        ordered = sorted(steps)
        self._events = [event for event, _ in ordered]
        values = (value for _, value in ordered)
        self._values = list(accumulate(values) if adding else accumulate(values, max))

    def before(self, event: int) -> int:
        """Its value just before an event; 0 at first."""
        place = bisect_left(self._events, event)
        return self._values[place - 1] if place else 0


class _Counting:
    """What a read of one counter may show."""

    def __init__(self, adds: Sequence[Call]) -> None:
        self.floor = _Rising(((c.ended, 1) for c in adds if c.outcome is Outcome.DONE), adding=True)
        self._ceiling = _Rising(((c.began, 1) for c in adds if c.may_have_happened), adding=True)

    def possible(self, value: int, read: Call) -> bool:
        """Whether so many increments can have happened when the read ended."""
        return 0 <= value <= self._ceiling.before(read.ended)


class _Raising:
    """What a read of one register may show."""

    def __init__(self, raises: Sequence[Call]) -> None:
        self.floor = _Rising(((c.ended, c.value) for c in raises if c.outcome is Outcome.DONE), adding=False)
        self._begun = {call.value: call.began for call in reversed(raises) if call.may_have_happened}

    def possible(self, value: int, read: Call) -> bool:
        """Whether somebody had begun to write this value when the read ended."""
        return value == 0 or self._begun.get(value, read.ended) < read.ended


def _reads(reads: Iterable[Call], writes: Iterable[Call], kind: type[_Counting] | type[_Raising]) -> Iterator[Breach]:
    written = _by_key(writes)
    for key, calls in _by_key(read for read in reads if read.outcome is Outcome.DONE).items():
        rules = kind(written.get(key, []))
        seen = _Rising(((c.ended, c.answer or 0) for c in calls if c.fresh), adding=False)
        for read in calls:
            value = -1 if read.answer is None else read.answer
            least = max(rules.floor.before(read.began), seen.before(read.began))
            if read.fresh and value < least:
                yield Breach("stale", f"{read}; {least} was acknowledged or read before it began")
            elif not rules.possible(value, read):
                yield Breach("invented", f"{read}; nobody had written that")


def _failures(calls: Iterable[Call]) -> Iterator[Breach]:
    for call in calls:
        repeatable = call.outcome is Outcome.UNKNOWN and call.verb in REPEATABLE
        enough = call.losses >= MAX_LOSSES or (call.losses and call.held_back)
        if call.outcome is Outcome.FAILED or (repeatable and not enough):
            yield Breach("failed", str(call))


def _by_key(calls: Iterable[Call]) -> dict[int, list[Call]]:
    found: defaultdict[int, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.key].append(call)
    return dict(found)
