"""Which statement texts may be asked about now, and which answers are worth checking.

Pure: clock and random numbers come in. Both memories are bounded.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

#: Seconds until a text is asked about again that we lacked a privilege for, or that the server was too
#: busy for; doubles.
FIRST_BACK_OFF = 5.0
#: Seconds until a text is asked about again that the server refused; doubles. A table may be created
#: meanwhile.
REFUSED_BACK_OFF = 60.0
#: Longest back-off in seconds.
LONGEST_BACK_OFF = 3600.0
#: Longest text that is asked about (characters): a plan shows its text, and every question has a plan in its answer.
LONGEST_TEXT = 32_768
#: Least time between two checks of a text's route after the first ones (seconds), however often it is called.
CHECK_APART = 1.0
#: Marks of texts that were seen, for each text that is remembered otherwise: a mark is a number, and has to outlast all
#: those that come between two calls of a text in use.
MARKS_PER_TEXT = 20
#: Questions about one text that may run into their deadline before it counts as dangerous.
MOST_TIMEOUTS = 3


def may_have_parameters(query: str) -> bool:
    """Whether a text may have parameters: a quick look, for every call that is not routed."""
    return "$" in query or "?" in query


class Lodgers:
    """Texts without parameters that are remembered: a few, so that those with parameters are not crowded out.

    Args:
        size: Number of texts.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._texts: OrderedDict[str, None] = OrderedDict()

    def admit(self, query: str) -> str | None:
        """Let a text in.

        Returns:
            The text that has to leave for it, or None.
        """
        self._texts[query] = None
        self._texts.move_to_end(query)
        return self._texts.popitem(last=False)[0] if len(self._texts) > self._size else None

    def clear(self) -> None:
        """Forget every text."""
        self._texts.clear()


class AskingRules:
    """Texts that must not be asked about, for a time or for ever.

    Args:
        size: Number of texts remembered of each sort, and a multiple of marks; the oldest leaves.
        lodgers: Number of texts without parameters that may be remembered elsewhere.

    Attributes:
        lodgers: Who of them is.
    """

    def __init__(self, size: int, lodgers: int = 1) -> None:
        self._size = size
        self.lodgers = Lodgers(lodgers)
        self._never: OrderedDict[str, None] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._later: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._timeouts: OrderedDict[str, int] = OrderedDict()

    def may_ask(self, query: str, now: float) -> bool:
        """Whether the text may be asked about now."""
        if query in self._never:
            return False
        later = self._later.get(query)
        return later is None or now >= later[0]

    def comes_again(self, query: str) -> bool:
        """Whether a text was seen before: one without parameters may be another one at every call."""
        mark = hash(query)
        if mark in self._seen:
            return True
        self._remember(self._seen, mark, None, times=MARKS_PER_TEXT)
        return False

    def never_again(self, query: str) -> None:
        """A question about this text lost its connection, perhaps it killed the server; or its words forbid to ask."""
        self._remember(self._never, query, None)

    def timed_out(self, query: str) -> None:
        """A question about this text was not answered in time: later, and after the third time never."""
        self._remember(self._timeouts, query, self._timeouts.get(query, 0) + 1)
        if self._timeouts[query] >= MOST_TIMEOUTS:
            self.never_again(query)

    def put_off(self, query: str, seconds: float, now: float) -> None:
        """Ask again after a while, twice as long each time."""
        _, times = self._later.get(query, (0.0, 0))
        pause = min(LONGEST_BACK_OFF, seconds * 2.0 ** min(times, 20))
        self._remember(self._later, query, (now + pause, times + 1))

    def learned(self, query: str) -> None:
        """All is well with this text."""
        self._later.pop(query, None)
        self._timeouts.pop(query, None)

    def forgive(self, query: str) -> None:
        """The text may be asked about again at once, unless a question about it lost its connection."""
        self._later.pop(query, None)

    def _remember(self, memory: OrderedDict[K, T], key: K, value: T, times: int = 1) -> None:
        memory[key] = value
        memory.move_to_end(key)
        while len(memory) > self._size * times:
            memory.popitem(last=False)


class CheckSchedule:
    """Which calls of a text are checked against its route: its first ones all, then samples, and those apart in time.

    Args:
        rng: Source of the sampling.
        size: Number of texts remembered.
        first: Number of a text's first argument sets that are all checked.
        every: Later, one in so many on average.
    """

    def __init__(self, rng: random.Random, size: int, first: int = 20, every: int = 1000) -> None:
        self._rng = rng
        self._size = size
        self._first = first
        self._every = every
        self._checks: dict[str, tuple[int, float]] = {}

    def offered(self, query: str, now: float) -> tuple[bool, int]:
        """A call of the text was offered.

        Returns:
            Whether it is to be checked, and the how manieth call from now on is to be offered next: 1 for the very next
            one.
        """
        checks, due = self._checks.get(query, (0, now))
        later = self._rng.randint(1, 2 * self._every - 1)
        if now < due:
            return False, later
        while query not in self._checks and len(self._checks) >= self._size:
            del self._checks[next(iter(self._checks))]
        checks += 1
        is_settled = checks >= self._first
        self._checks[query] = checks, now + CHECK_APART * is_settled
        return True, later if is_settled else 1

    def restart(self, query: str) -> None:
        """The text was learned anew: its first calls are checked again."""
        self._checks.pop(query, None)

    def clear(self) -> None:
        """Forget every text."""
        self._checks.clear()
