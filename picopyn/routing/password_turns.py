"""Whose turn it is to send a password, where several connections are being opened at once.

A password that was changed at the servers is wrong at every one of them, and servers count refusals. So of all who were
asked for it one sends it, and the others wait for the answer: accepted, all of them send it; refused, none does. Where
there is no answer, the next one sends it, and an answer that is late holds others up only one after the other: to a
node that has not answered yet it is never sent a second time.

It sends nothing, has no clock and no lock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: Who waits for an answer that has not come for so long (seconds) goes on without it, the first of those who wait at
#: another node. It is less than it takes until a node that does not answer counts as down: whose password waits here is
#: no such node.
STALLED: Final = 0.4


class Turns(Generic[T]):
    """Who sends, and who waits. Owned by the gate of one pool."""

    __slots__ = ("_sent", "_waiting")

    def __init__(self) -> None:
        self._sent: dict[T, Hashable] = {}
        self._waiting: dict[T, Hashable] = {}

    def arrive(self, who: T, node: Hashable) -> bool:
        """Somebody was asked for the password.

        Args:
            who: Somebody.
            node: By whom.

        Returns:
            Whether it may be sent; otherwise he waits.
        """
        if self._sent and who not in self._sent:
            self._waiting[who] = node
            return False
        self._sent[who] = node
        return True

    def accepted(self, who: T) -> list[T]:
        """The password is right; returns who may send it now."""
        if who not in self._sent:  # he was not asked for it
            return self.left(who)
        del self._sent[who]
        going, self._waiting = self._waiting, {}
        self._sent.update(going)
        return list(going)

    def refused(self, who: T) -> list[T]:
        """The password is wrong; returns who must not send it any more."""
        self._sent.pop(who, None)
        away, self._waiting = self._waiting, {}
        return list(away)

    def left(self, who: T) -> list[T]:
        """Somebody went without an answer; returns who may send it now."""
        self._waiting.pop(who, None)
        self._sent.pop(who, None)
        if self._sent or not self._waiting:
            return []
        return [self._go_on(next(iter(self._waiting)))]

    def is_impatient(self, who: T) -> bool:
        """Somebody has waited for long; returns whether he may send it now."""
        unanswered = set(self._sent.values())
        first = next((other for other, node in self._waiting.items() if node not in unanswered), None)
        if first is None or first != who:
            return False
        self._go_on(who)
        return True

    def _go_on(self, who: T) -> T:
        self._sent[who] = self._waiting.pop(who)
        return who
