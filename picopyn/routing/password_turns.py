"""Whose turn it is to send a password, where several connections are being opened at once.

A password that was changed at the servers is wrong at every one of them, and servers count refusals. So of all who were
asked for it one sends it, and the others wait for the answer: accepted, all of them send it; refused, none does. Where
there is no answer, the next one sends it.

A node that has asked for the password lives, but its answer may take long: it asks a directory, it lets refusals wait
on purpose (PostgreSQL's `auth_delay`), it is far away (SCRAM takes two round trips), or it hangs since. These cannot be
told apart, so an answer is waited for as long as waiting is harmless:

1. While no node has accepted the password, nothing works that could suffer: a turn lasts `UNPROVEN`.
2. Once one has, it is most likely right, and a node that is slow must not hold up the others each time it is connected
   to, nor make them count as down: a turn lasts `STALLED`. So a password that is changed under a running pool, at nodes
   that take longer to refuse it, reaches a second one. That is the price.
3. Then exactly one more sends it, at a node that has not got it yet, and that is a turn again, as many times as long as
   nodes owe an answer, up to three times. To a node that has not answered it is never sent a second time.

It sends nothing, has no clock and no lock.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: How long a turn lasts without an answer, once the password was accepted somewhere (seconds). It is less than it takes
#: until a node that does not answer counts as down: whose password waits here is no such node.
STALLED: Final = 0.4
#: How long it lasts before that (seconds). It is less than one look at the role of a host may take
#: (`refresh_timeout`): where the first node hangs, the next one is asked within the same look.
UNPROVEN: Final = 1.5
_LONGEST: Final = 3


class Turns(Generic[T]):
    """Who sends, and who waits. Owned by the gate of one pool; every `now` is of one clock (seconds)."""

    __slots__ = ("_over_at", "_proven", "_sent", "_waiting")

    def __init__(self) -> None:
        self._sent: dict[T, Hashable] = {}
        self._waiting: dict[T, Hashable] = {}
        self._proven = False
        self._over_at = -inf

    def arrive(self, who: T, node: Hashable, now: float) -> bool:
        """Somebody was asked for the password.

        Args:
            who: Somebody.
            node: By whom.
            now: When.

        Returns:
            Whether it may be sent; otherwise he waits.
        """
        if self._sent and who not in self._sent:
            self._waiting[who] = node
            return False
        self._send(who, node, now)
        return True

    def accepted(self, who: T, now: float) -> list[T]:
        """The password is right; returns who may send it now."""
        if who not in self._sent:  # he was not asked for it
            return self.left(who, now)
        self._proven = True
        del self._sent[who]
        going, self._waiting = self._waiting, {}
        for other, node in going.items():
            self._send(other, node, now)
        return list(going)

    def refused(self, who: T) -> list[T]:
        """The password is wrong; returns who must not send it any more."""
        self._proven = False
        self._sent.pop(who, None)
        away, self._waiting = self._waiting, {}
        return list(away)

    def left(self, who: T, now: float) -> list[T]:
        """Somebody went without an answer; returns who may send it now."""
        self._waiting.pop(who, None)
        self._sent.pop(who, None)
        if self._sent or not self._waiting:
            return []
        return [self._go_on(next(iter(self._waiting)), now)]

    def waits(self, who: T, now: float) -> float:
        """How much longer somebody waits who waits already, until he asks again (seconds); 0: he may send it now."""
        if now < self._over_at:
            return self._over_at - now
        unanswered = set(self._sent.values())
        first = next((other for other, node in self._waiting.items() if node not in unanswered), None)
        if first is None or first != who:
            return self._lasts
        self._go_on(who, now)
        return 0.0

    @property
    def _lasts(self) -> float:
        owing = len(set(self._sent.values()))
        return (STALLED if self._proven else UNPROVEN) * min(max(owing, 1), _LONGEST)

    def _go_on(self, who: T, now: float) -> T:
        self._send(who, self._waiting.pop(who), now)
        return who

    def _send(self, who: T, node: Hashable, now: float) -> None:
        self._sent[who] = node
        self._over_at = now + self._lasts
