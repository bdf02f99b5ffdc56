"""What an error of YugabyteDB means, where that differs from PostgreSQL.

Conflicts (40001, 40P01) are PostgreSQL's. Older releases, and transactions beside a change of the schema, tell some of
them as internal errors that only their text names.

*Source*: `yugabyte-smart-drivers.md` section 6.1 (read restarts and schema changes told as XX000, up to 2024).
"""

from __future__ import annotations

import re
from typing import Final

from picopyn.dialects.postgres import faults
from picopyn.errors import Fault

#: What PostgreSQL says of a standby, YugabyteDB says of a transaction that was declared read-only: every node takes
#: writes, so another node would say the same.
_OWN: Final = {faults.ONLY_READS: Fault.STATEMENT}

_INTERNAL: Final = "XX000"
_CONFLICT: Final = re.compile(
    r"restart read required|catalog version mismatch|schema version mismatch|MISMATCHED_SCHEMA", re.IGNORECASE
)
#: A request to the node that has the row, of which the answering node does not know whether it was executed.
_UNANSWERED: Final = re.compile(r"timed out|duplicate request", re.IGNORECASE)


def leaves_open(sqlstate: str | None, message: str, *, commit: bool) -> bool:
    """Whether an error leaves open if the statement took effect.

    An internal error in answer to COMMIT always does, but for the conflicts among them; in answer to a statement where
    its text says that another node did not answer.

    *Source*: `yugabyte-smart-drivers.md` sections 6.1 ("RPC … timed out after", "Duplicate request") and 6.2 (nothing
    is repeated after an internal error, nor after a COMMIT that failed).
    """
    if sqlstate != _INTERNAL or _CONFLICT.search(message):
        return False
    return commit or _UNANSWERED.search(message) is not None


def fault(sqlstate: str | None, message: str) -> Fault:
    """What an error means."""
    if sqlstate == _INTERNAL and _CONFLICT.search(message):
        return Fault.CONFLICT
    return _OWN.get(sqlstate or "") or faults.fault(sqlstate)
