"""Whether a transaction is run again after an attempt failed, how long to wait before, and which texts end one: pure
decisions.

A transaction that was rolled back has done nothing, so all of it may be run again, whatever is in it. One whose COMMIT
was sent and not answered is never run again: that is nobody's to guess.

*Source*: PostgreSQL 18 documentation, section 13.5 "Serialization Failure Handling" (all of the transaction, not the
statement, is to be run again); reference pages of COMMIT, END, ROLLBACK, ABORT and PREPARE TRANSACTION.
"""

from __future__ import annotations

import re
from random import Random
from typing import Final

from picopyn.errors import Fault
from picopyn.routing.retry import MAX_LOSSES

#: How often a transaction is run again when the caller does not say.
RETRIES: Final = 5
#: Longest first pause (seconds); the longest doubles with every failure, up to `LONGEST_PAUSE`.
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0

#: To run it again changes nothing about these.
_FINAL: Final = (Fault.STATEMENT, Fault.AUTH)

_GAP: Final = r"(?:\s|--[^\n]*|/\*.*?\*/)*"
_END: Final = (
    r"(?:COMMIT\b(?!\s+PREPARED\b)|END\b|ABORT\b|PREPARE\s+TRANSACTION\b"
    r"|ROLLBACK\b(?!\s+PREPARED\b)(?!(?:\s+(?:WORK|TRANSACTION))?\s+TO\b))"
)
_BEGINS_WITH_END: Final = re.compile(_GAP + _END, re.IGNORECASE | re.DOTALL)
#: After a semicolon the word may also stand in a string, or end a block of PL/pgSQL.
_HAS_END: Final = re.compile(rf";{_GAP}{_END}(?={_GAP}(?:;|\Z|(?:WORK|TRANSACTION|AND)\b))", re.IGNORECASE | re.DOTALL)


def ends(text: str) -> bool:
    """Whether a text begins with a statement that ends a transaction."""
    return _BEGINS_WITH_END.match(text) is not None


def may_end(text: str) -> bool:
    """Whether a later statement of a text may end a transaction, as far as words tell."""
    return ";" in text and _HAS_END.search(text) is not None


def may_run_again(fault: Fault | None, *, failed: int, losses: int, retries: int, only_reads: bool) -> bool:
    """Decide whether a transaction that was rolled back is run again.

    Args:
        fault: What the error of its connection means; None: the error came from elsewhere.
        failed: Attempts that failed, this one included.
        losses: Those of them that ended because the connection broke. A transaction that fells its server must not
            fell a third one.
        retries: How many further attempts the caller allows in all.
        only_reads: It was begun as read only, or where nothing can be written: the refusal of a write is its answer.
    """
    if fault is None or fault in _FINAL or failed > retries:
        return False
    if fault is Fault.NOT_LEADER:
        return not only_reads
    return fault is not Fault.LOST or losses < MAX_LOSSES


def full_jitter(failed: int, rng: Random) -> float:
    """Seconds to wait after so many failures in a row, from 1: anything between nothing and a limit that doubles.

    Transactions that met once would meet again if they waited equally long; drawing from the whole range parts them
    fastest.

    *Source*: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("full jitter").
    """
    return rng.uniform(0.0, min(FIRST_PAUSE * 2.0 ** min(failed - 1, 20), LONGEST_PAUSE))
