"""What an error of Picodata means: SQLSTATE and the beginning of its text → `Fault`.

Nearly every error is XX000, so the text decides; `server_text` explains why only beginnings are compared. A
row of the table says "nothing was done" only where the server refuses before it runs anything or rolls back
what it ran; whatever leaves a doubt is `LOST`, and what is not in the table is the statement's own affair.

*Source*: Picodata, `src/pgproto/error.rs`, `src/sql/dispatch.lua` (26.1.6); the texts of
`picodata-protocol.md` section 8 and `picodata-recorded.md` sections 1, 4, 5, 7, and
`picodata-conversations.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from picopyn.dialects.picodata.server_text import unwrap
from picopyn.errors import Fault

#: SQLSTATEs that say enough. 08, 53 and 57 come from a proxy or a PostgreSQL in Picodata's place.
BY_SQLSTATE: dict[str, Fault] = {
    "28P01": Fault.AUTH,
    "28000": Fault.AUTH,
    "42999": Fault.STALE_PLAN,
    "53300": Fault.OVERLOADED,
    "57P01": Fault.LOST,
    "57P02": Fault.LOST,
    "57P03": Fault.REFUSED,
    "58030": Fault.LOST,
    "08000": Fault.LOST,
    "08003": Fault.LOST,
    "08006": Fault.LOST,
}


@dataclass(frozen=True, slots=True)
class Phrase:
    """One row of the table: a layer of an error text that begins like this means that.

    Attributes:
        text: An example, as the server writes it.
        pattern: Regular expression for the beginning of a layer.
        fault: What it means.
        whole: The statement failed before any part of it ran, at whatever replicaset. Otherwise the promise
            of `fault` covers only the part that failed: a statement over several replicasets may have run at
            another one.
    """

    text: str
    pattern: str
    fault: Fault
    whole: bool = False


#: The first row that fits the outermost layer wins.
PHRASES: tuple[Phrase, ...] = (
    # Done, only not confirmed: to run it again would be wrong, and so would be to call it unknown.
    Phrase(
        "ddl operation committed, but failed to receive acknowledgements from all instances",
        r"[a-z][a-z _-]* committed, but failed to receive acknowledgements",
        Fault.STATEMENT,
    ),
    # The router does not know where to send it.
    Phrase(
        "Failed to get replicaset from bucket 34: no router found for tier 'router'",
        r"Failed to get replicaset from bucket \d+: ",
        Fault.STALE_MAP,
        whole=True,
    ),
    Phrase("no router found for tier 'router'", r"no router found for tier '", Fault.STALE_MAP, whole=True),
    Phrase(
        "Bucket 34 cannot be found. Is rebalancing in progress?",
        r"Bucket \d+ cannot be found",
        Fault.STALE_MAP,
    ),
    Phrase(
        "Object is outdated after module reload/reconfigure. Use new instance.",
        r"Object is outdated after module reload",
        Fault.STALE_MAP,
    ),
    # The storage does not take it while buckets move, or before it is configured.
    Phrase("Failed to add a storage reference: x", r"Failed to add a storage reference\b", Fault.STALE_MAP),
    Phrase(
        "vshard storage is not configured (timed out waiting for proc_sharding)",
        r"vshard storage is not configured",
        Fault.STALE_MAP,
    ),
    # It would have to send the statement on, which is forbidden. That is decided before anything runs.
    Phrase(
        'invalid option: cannot satisfy "forward = off": buckets are not present on the current node',
        r'invalid option: cannot satisfy "forward = \w+": buckets ',
        Fault.MISROUTED,
        whole=True,
    ),
    # The leader is another one. The transaction was rolled back, or the request was not taken.
    Phrase(
        "Readonly: Can't modify data on a read-only instance - box.cfg.read_only is true",
        r"(?:Readonly: )?Can't modify data on a read-only instance",
        Fault.NOT_LEADER,
    ),
    Phrase("instance is read-only", r"instance is read-only", Fault.NOT_LEADER),
    Phrase(
        "retry is required: DML was sent to the replica during master switchover",
        r"retry is required: DML was sent to the replica",
        Fault.NOT_LEADER,
    ),
    Phrase("not a leader, actual leader: 3", r"not a leader, actual leader", Fault.NOT_LEADER, whole=True),
    Phrase("leader is unknown yet", r"leader is unknown yet", Fault.NOT_LEADER, whole=True),
    Phrase(
        "operation request from different term 3, current term is 4",
        r"operation request from different term\b",
        Fault.NOT_LEADER,
        whole=True,
    ),
    # The prepared statement is older than the schema, or gone.
    Phrase(
        "space metadata for table: inv not found",
        r"space metadata for table: ",
        Fault.STALE_PLAN,
        whole=True,
    ),
    Phrase(
        "storage schema version different from router",
        r"storage schema version different from router",
        Fault.STALE_PLAN,
    ),
    Phrase("Couldn't find statement 's1'.", r"Couldn't find statement '", Fault.STALE_PLAN, whole=True),
    # The node does not take anything now.
    Phrase(
        "Statement storage is full. Current size limit: 1.",
        r"(?:Statement|Portal) storage is full\b",
        Fault.OVERLOADED,
        whole=True,
    ),
    Phrase("Not initialized yet", r"(?:Not |un)initialized yet", Fault.REFUSED, whole=True),
    # A connection between two instances broke, or one of them did not answer in time: nobody knows what was
    # done.
    Phrase("Peer closed", r"Peer closed", Fault.LOST),
    Phrase("io error: unexpected end of file", r"io error: ", Fault.LOST),
    Phrase("unexpected end of file", r"unexpected end of file", Fault.LOST),
    Phrase("dql timeout exceeded", r"(?:[a-z]+ )?[Tt]imeout exceeded", Fault.LOST),
    Phrase("Timeout: timeout", r"[Tt]imeout\b", Fault.LOST),
    Phrase("Master of replicaset u is unreachable: x", r"Master of replicaset \S+ is unreachable", Fault.LOST),
    Phrase(
        "There is no active replicas in replicaset u",
        r"There is no active replicas in replicaset",
        Fault.LOST,
    ),
)

_COMPILED = tuple((re.compile(phrase.pattern), phrase) for phrase in PHRASES)


@dataclass(frozen=True, slots=True)
class FaultReading:
    """All that an error says about what to do next.

    Attributes:
        fault: What it means.
        whole: Whether the promise of `fault` covers the whole statement. Where it is False, a write that
            concerns more than one replicaset may have happened in part: its outcome is unknown.
        forwarded_to: The replicaset it was forwarded to; None when it failed where it was sent.
    """

    fault: Fault
    whole: bool = True
    forwarded_to: str | None = None


def read_fault(sqlstate: str | None, message: str) -> FaultReading:
    """What an error means, and how far its promise goes.

    Args:
        sqlstate: The error's code; None if it has none.
        message: Its text; may contain anything after the server's own words.
    """
    if sqlstate not in (None, "XX000"):
        return FaultReading(BY_SQLSTATE.get(sqlstate or "", Fault.STATEMENT))
    text = unwrap(message)
    for layer in text.layers:
        for pattern, phrase in _COMPILED:
            if pattern.match(layer):
                return FaultReading(phrase.fault, phrase.whole or text.forwarded_to is None, text.forwarded_to)
    return FaultReading(Fault.STATEMENT, text.forwarded_to is None, text.forwarded_to)


def fault(sqlstate: str | None, message: str) -> Fault:
    """What an error means."""
    return read_fault(sqlstate, message).fault
