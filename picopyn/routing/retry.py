"""What to do after an attempt failed: one pure decision.

Nothing is sent again unless it provably had no effect, or was declared repeatable. The caller's deadline bounds
everything; waiting for a newer snapshot is neither an attempt nor part of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from picopyn.errors import Fault

#: Most times one call is sent.
MAX_ATTEMPTS = 3
#: What so many nodes died under, one after the other, is not sent again by itself.
MAX_LOSSES = 2


#: For so long a call that is refused because its leader is changing is sent again after every newer look (seconds). It
#: is refused for 0.1 to 0.2 s (`picodata-recorded.md` section 1, planned switch), and longer by a loaded server.
SWITCH_LASTS = 5.0


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
        losses: Connections this call lost without a word of the server, or nodes that died under its statement one
            after the other (see [`losses`][picopyn.routing.losses]), whichever is more.
        prepared_again: Its prepared statement was already renewed for it.
        for_replica: It asked for a replica, and nothing else: a leader that could do it is none of its business.
        switching_for: Seconds since it was first refused because its leader changes; None where such a refusal does not
            mean that the cluster is about to have another leader.
    """

    repeatable: bool
    sent: int
    losses: int = 0
    prepared_again: bool = False
    for_replica: bool = False
    switching_for: float | None = None


def decide(fault: Fault, call: Call) -> Action:
    """Decide what happens after a failed attempt.

    Args:
        fault: What the error means.
        call: The call so far.

    Returns:
        What to do. Whether the deadline leaves time for it is the caller's check.
    """
    if fault in (Fault.STATEMENT, Fault.AUTH, Fault.CONFLICT):
        return Action.RAISE
    if fault is Fault.LOST:
        return _after_loss(call)
    if fault is Fault.NOT_SENT:
        return Action.NEXT_NODE
    if fault is Fault.NOT_LEADER and call.for_replica:
        return Action.RAISE
    if fault is Fault.NOT_LEADER and call.switching_for is not None and call.switching_for < SWITCH_LASTS:
        return Action.AWAIT_REFRESH
    return Action.RAISE if call.sent >= MAX_ATTEMPTS else _after_no_effect(fault, call)


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
