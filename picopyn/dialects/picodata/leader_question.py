"""Who leads a replicaset, asked by running a keyed SELECT where it may take one step only.

On a connection opened with `sql_vdbe_opcode_max=1` such a statement fails at its first step, wherever that is
taken: locally if the asked instance leads the key's replicaset, else where it was forwarded to, and the
wrapping of the error tells the two apart. Nothing is read or changed. This file reads the answer; it does not
know whom to ask, or when.

*Source*: `picodata-recorded.md` section 3 (26.1.6 and 26.2.1-rc2, a user with READ on one table). On 25.6
nothing is executed locally, so every answer there is "not the leader": do not ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from picopyn.dialects.picodata.server_text import unwrap

_LIMIT = "Reached a limit on max executed vdbe opcodes"


class LeaderAnswer(Enum):
    """What the asked instance is."""

    LEADER = "it leads the replicaset of the key"
    NOT_LEADER = "it handed the statement on"
    NO_ANSWER = "the statement ended in another way"


@dataclass(frozen=True, slots=True)
class LeaderReply:
    """The answer, and about which replicaset.

    Attributes:
        answer: What the asked instance is.
        replicaset_uuid: The replicaset the statement was handed on to; None unless it was.
    """

    answer: LeaderAnswer
    replicaset_uuid: str | None = None


def read_leader_reply(message: str | None) -> LeaderReply:
    """Read the error of a keyed SELECT on a connection with a limit of one step.

    Args:
        message: Text of the error; None when the statement succeeded, which answers nothing.
    """
    if message is None:
        return LeaderReply(LeaderAnswer.NO_ANSWER)
    text = unwrap(message)
    if not text.core.startswith(_LIMIT):
        return LeaderReply(LeaderAnswer.NO_ANSWER, text.forwarded_to)
    if text.forwarded_to is None:
        return LeaderReply(LeaderAnswer.LEADER)
    return LeaderReply(LeaderAnswer.NOT_LEADER, text.forwarded_to)


def classify(error: BaseException | None) -> LeaderAnswer:
    """`read_leader_reply` for the error itself; None when the statement succeeded."""
    return read_leader_reply(None if error is None else str(error)).answer
