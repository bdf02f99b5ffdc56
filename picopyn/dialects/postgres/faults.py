"""What an error of PostgreSQL means: SQLSTATE → `Fault`.

A row says "nothing was done" only where the server refuses before it runs the statement, or where it has rolled back
what it ran. What is not in the table is the statement's own affair. Deadlocks and serialization failures are for those
who can run the whole transaction again: a single statement is not sent twice.

*Source*: PostgreSQL 18 documentation, appendix A "PostgreSQL Error Codes"; the codes of a server that stops, section
19.5 "Shutting Down the Server".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from picopyn.errors import Fault

#: A write in a transaction that is, or was declared, read-only.
ONLY_READS: Final = "25006"

BY_SQLSTATE: Final[Mapping[str, Fault]] = {
    # Class 08: the connection, as a pooler in between tells it.
    "08000": Fault.LOST,
    "08003": Fault.LOST,
    "08006": Fault.LOST,
    "08001": Fault.REFUSED,  # the pooler could not connect to the server
    "08004": Fault.REFUSED,  # the server rejected the connection
    # Asked to write where nothing may be written: a standby, or a primary that was just made read-only.
    ONLY_READS: Fault.NOT_LEADER,
    # Class 40: rolled back because of another transaction; "retry the complete transaction" (section 13.5).
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    # A prepared statement that this session does not have, or has already: a pooler gave us another session.
    "26000": Fault.STALE_PLAN,
    "42P05": Fault.STALE_PLAN,
    "28000": Fault.AUTH,
    "28P01": Fault.AUTH,
    "53300": Fault.OVERLOADED,  # too many connections
    # Class 57: the session ends. A statement that was on its way may have been committed just before.
    "25P03": Fault.LOST,  # idle for too long inside a transaction, which is rolled back
    "25P04": Fault.LOST,  # the transaction took too long
    "57P01": Fault.LOST,
    "57P02": Fault.LOST,
    "57P04": Fault.LOST,
    "57P05": Fault.LOST,
    "57P03": Fault.REFUSED,  # starting up, stopping, recovering
}


def fault(sqlstate: str | None) -> Fault:
    """What an error means."""
    return BY_SQLSTATE.get(sqlstate or "", Fault.STATEMENT)
