"""Which statements nodes died under, one after the other: what fells its server must not fell node after node.

A node that dies takes every statement in flight with it, and nearly all of them are innocent. What tells them apart:

1. A statement that was answered since then did not do it.
2. A statement that was already under way when an earlier death became known did not follow that one: both are one
   event, however many nodes went down in it, and however many calls it had in flight there. So are losses at a node
   that has not been found alive since the first of them: a process that dies does not lose all connections at once.
3. A text is one suspect, and a text with its arguments is another: a text that always kills is found even if its
   arguments are never the same twice, and one that kills with certain arguments even if it succeeds with others.

So two fail-overs in a row count against nothing that worked in between. This file keeps the accounts; it sends nothing
and has no clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

#: A death is held against a statement for so long (seconds).
REMEMBERED_FOR = 60.0
#: Suspects that are remembered at most; the oldest is forgotten first.
MOST_SUSPECTS = 1000


#: A node, and how many times it was found alive after a doubt.
Life = tuple[str, int]


class Record(NamedTuple):
    """What is held against a suspect.

    Attributes:
        deaths: Nodes that died under it, one after the other, without an answer in between.
        where: Which node died last, and in which of its lives.
        number: Number of the newest of these deaths, among all that were seen.
        moment: When that became known (seconds on the engine's clock).
    """

    deaths: int
    where: Life
    number: int
    moment: float


class LossMemory:
    """Which statements are suspect. Owned by who decides about retries.

    Attributes:
        deaths: Number of the last death. Who sends a statement notes it, and names it if the connection is lost.
        suspects: What is held against texts, and against texts with their arguments; empty nearly always, for what is
            too old is dropped when anything is answered.
    """

    __slots__ = ("deaths", "suspects")

    def __init__(self) -> None:
        self.deaths = 0
        self.suspects: dict[Hashable, Record] = {}

    def lost(self, query: str, args: Sequence[Any], where: Life, sent_after: int, now: float) -> int:
        """A connection broke under a statement, without a word of the server.

        Args:
            query: Its text.
            args: Its arguments; only a hash of them is kept.
            where: The node, in which of its lives.
            sent_after: The number of the last death when it was sent.
            now: The engine's clock.

        Returns:
            How many nodes died under it one after the other, this one included.
        """
        held = [self._hold(suspect, where, sent_after, now) for suspect in _suspects(query, args)]
        self.deaths = max(self.deaths, *(record.number for record in held))
        return max(record.deaths for record in held)

    def answered(self, query: str, args: Sequence[Any], now: float) -> None:
        """The server answered a statement: nothing is held against it any more.

        Args:
            query: Its text.
            args: Its arguments.
            now: The engine's clock.
        """
        for suspect in _suspects(query, args):
            self.suspects.pop(suspect, None)
        while self.suspects:
            oldest = next(iter(self.suspects))
            if now - self.suspects[oldest].moment < REMEMBERED_FOR:
                break
            del self.suspects[oldest]

    def _hold(self, suspect: Hashable, where: Life, sent_after: int, now: float) -> Record:
        record = self.suspects.pop(suspect, None)
        if record is None or now - record.moment >= REMEMBERED_FOR:
            record = Record(1, where, self.deaths + 1, now)
        elif where != record.where and sent_after >= record.number:
            record = Record(record.deaths + 1, where, self.deaths + 1, now)
        self.suspects[suspect] = record
        if len(self.suspects) > MOST_SUSPECTS:
            del self.suspects[next(iter(self.suspects))]
        return record


def _suspects(query: str, args: Sequence[Any]) -> tuple[Hashable, ...]:
    """A text, and the text with these arguments where that can be told from others."""
    try:
        return query, (query, hash(tuple(args)))
    except TypeError:  # a list, a dict
        return (query,)
