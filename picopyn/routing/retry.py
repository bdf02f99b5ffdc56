"""What to do after an attempt failed: one pure decision.

Nothing is sent again unless it provably had no effect, or was declared repeatable. The caller's deadline bounds
everything; waiting for a newer snapshot is neither an attempt nor part of the budget.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from picopyn.errors import Fault

#: Most times one call is sent.
MAX_ATTEMPTS = 3
#: A text that lost this many connections within `LOSS_MEMORY` seconds is not sent again by itself.
MAX_LOSSES = 2
LOSS_MEMORY = 60.0
#: A node that loses several connections within so many seconds went down once: that is one loss. A process that was
#: felled is not back sooner (`picodata-recorded.md` section 1: 1.5 s of refused connects after an immediate restart).
ONE_DEATH = 1.0
#: Texts whose losses are remembered.
REMEMBERED_TEXTS = 1000


class Action(Enum):
    """What the engine does next with a call whose attempt failed."""

    NEXT_NODE = "try the next candidate, or plan again"
    AWAIT_REFRESH = "wait for a newer look at the cluster, then plan again"
    PREPARE_AGAIN = "forget the prepared statement and send it again on the same node"
    BACK_OFF = "pause a little, then plan again"
    RAISE = "the error is the caller's answer"
    OUTCOME_UNKNOWN = "tell the caller that nobody knows whether it happened"


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call when one of its attempts failed.

    Attributes:
        repeatable: It may be sent twice.
        sent: Attempts that reached a server.
        losses: Connections this call lost, or deaths of nodes this text saw lately, whichever is more.
        prepared_again: Its prepared statement was already renewed for it.
        for_replica: It asked for a replica, and nothing else: a leader that could do it is none of its business.
    """

    repeatable: bool
    sent: int
    losses: int = 0
    prepared_again: bool = False
    for_replica: bool = False


def decide(fault: Fault, call: Call) -> Action:
    """Decide what happens after a failed attempt.

    Args:
        fault: What the error means.
        call: The call so far.

    Returns:
        What to do. Whether the deadline leaves time for it is the caller's check.
    """
    if fault in (Fault.STATEMENT, Fault.AUTH):
        return Action.RAISE
    if fault is Fault.LOST:
        return _after_loss(call)
    if fault is Fault.NOT_SENT:
        return Action.NEXT_NODE
    if call.sent >= MAX_ATTEMPTS or (fault is Fault.NOT_LEADER and call.for_replica):
        return Action.RAISE
    return _after_no_effect(fault, call)


def _after_loss(call: Call) -> Action:
    if not call.repeatable:
        return Action.OUTCOME_UNKNOWN
    if call.losses >= MAX_LOSSES or call.sent >= MAX_ATTEMPTS:
        return Action.RAISE
    return Action.NEXT_NODE


def _after_no_effect(fault: Fault, call: Call) -> Action:
    if fault is Fault.STALE_PLAN:
        return Action.RAISE if call.prepared_again else Action.PREPARE_AGAIN
    if fault in (Fault.NOT_LEADER, Fault.STALE_MAP, Fault.MISROUTED):
        return Action.AWAIT_REFRESH
    if fault is Fault.OVERLOADED:
        return Action.BACK_OFF
    return Action.NEXT_NODE


class LossMemory:
    """Which texts were in flight on nodes that went down lately. Owned by an executor.

    A text that fells its server must not fell one after the other. But a node that dies takes every call in flight with
    it, and a popular text has many of them there: that is one loss, not many.
    """

    __slots__ = ("_losses",)

    def __init__(self) -> None:
        self._losses: dict[str, deque[tuple[float, str]]] = {}

    def count(self, query: str, node: str, now: float) -> int:
        """Take note that a text lost a connection to a node.

        Returns:
            How many times nodes went down under this text lately, this time included.
        """
        if len(self._losses) > REMEMBERED_TEXTS:
            self._losses = {text: seen for text, seen in self._losses.items() if now - seen[-1][0] < LOSS_MEMORY}
        losses = self._losses.setdefault(query, deque(maxlen=8))
        if not any(where == node and now - when < ONE_DEATH for when, where in losses):
            losses.append((now, node))
        return sum(now - when < LOSS_MEMORY for when, _ in losses)
