"""How often each statement text was called, by reason: what `stats().texts` is made of.

It decides which texts are remembered: those that are called most. It knows no route and no plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final

#: Reason → calls of one text.
Tally = defaultdict[str, int]

#: Longer texts are counted together: they would fill the memory, and are not asked about either.
LONGEST_TEXT = 32_768

#: Stands for all texts that have no tally of their own.
OTHERS = ""

#: Number of a call that never comes.
NEVER: Final = 1 << 60


class Count:
    """Calls that go the same way, counted there and booked now and then.

    Args:
        reason: What they are booked under.
        tally: Reason → calls of their text, or of all together.
        counts: Reason → calls of the pool.

    Attributes:
        reason: The same.
        tally: The same, as far as they are booked.
        calls: How many there were; the hot path counts nothing else.
        check_at: The how manieth of them is looked at more closely.
    """

    __slots__ = ("_booked", "_counts", "calls", "check_at", "reason", "tally")

    def __init__(self, reason: str, tally: Tally, counts: MutableMapping[str, int]) -> None:
        self.reason = reason
        self.tally = tally
        self.calls = 0
        self.check_at = NEVER
        self._counts = counts
        self._booked = 0

    @property
    def unbooked(self) -> int:
        """How many of them are not in the tally yet."""
        return self.calls - self._booked

    def book(self) -> None:
        """Enter into the tally, and into the pool's counts, what was counted since the last time."""
        new = self.unbooked
        if new:
            self._booked += new
            self.tally[self.reason] += new
            self._counts[self.reason] += new


class Tallies:
    """A tally for each text, for at most so many texts. Owned by a pool's route table.

    When there are too many, the half that is called less is counted with the others from then on. A call that is on its
    way at that moment may be missing there; the pool's own counters (`stats().calls`) miss nothing.

    Args:
        lock: Guards the memory, where calls have threads.
        size: Number of texts, besides those that are held.

    Attributes:
        held: Texts whose tally somebody keeps and counts in, so it stays here too → who that is.
        textless: Reason → calls that are counted whatever their text is.
    """

    __slots__ = ("_by_text", "_lock", "_size", "held", "textless")

    def __init__(self, lock: AbstractContextManager[Any], size: int) -> None:
        self._lock = lock
        self._size = max(size, 2)
        self.held: Mapping[str, Count] = {}
        self.textless: dict[str, Count] = {}
        self._by_text: dict[str, Tally] = {OTHERS: defaultdict(int)}

    def of(self, query: str) -> Tally:
        """The tally of a text; made at its first use."""
        found = self._by_text.get(query)
        if found is not None:
            return found
        if len(query) > LONGEST_TEXT:
            return self._by_text[OTHERS]
        with self._lock:
            if len(self._by_text) > self._size + len(self.held):
                self._shrink()
            return self._by_text.setdefault(query, defaultdict(int))

    def all(self) -> Mapping[str, Mapping[str, int]]:
        """Text → reason → calls, as of now; texts without any call are left out."""
        with self._lock:
            self._book()
            return {text: dict(tally) for text, tally in self._by_text.items() if tally}

    def book(self) -> None:
        """Have everything booked that others count by themselves."""
        with self._lock:
            self._book()

    def _book(self) -> None:
        for count in (*self.held.values(), *self.textless.values()):
            count.book()

    def _shrink(self) -> None:
        """Others read the memory and count meanwhile: it is replaced as a whole, and tallies are copied to be read."""
        others = self._by_text[OTHERS]
        stay = {OTHERS: others} | {text: tally for text, tally in self._by_text.items() if text in self.held}
        free = [item for item in self._by_text.items() if item[0] not in stay]
        free.sort(key=lambda item: sum(item[1].values()), reverse=True)
        for _, tally in free[self._size // 2 :]:
            for reason, calls in tally.copy().items():
                others[reason] += calls
        self._by_text = stay | dict(free[: self._size // 2])
