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
_OWN: Final = {"25006": Fault.STATEMENT}

_INTERNAL: Final = "XX000"
_CONFLICT: Final = re.compile(
    r"restart read required|catalog version mismatch|schema version mismatch|MISMATCHED_SCHEMA", re.IGNORECASE
)


def fault(sqlstate: str | None, message: str) -> Fault:
    """What an error means."""
    if sqlstate == _INTERNAL and _CONFLICT.search(message):
        return Fault.CONFLICT
    return _OWN.get(sqlstate or "") or faults.fault(sqlstate)
