"""How a PostgreSQL is asked what became of a transaction whose COMMIT was not answered.

The number of a transaction means nothing to another server, and nothing to the same one after a crash: numbers that had
not reached the disk are given again. So the question goes to the same host, and is answered only if the server has run
since, without a restart (its start time) and without recovering from the crash of a process (which sets back its
statistics). A change of either makes the answer "unknown".

A transaction has a number only once it has written something, and what it tells by NOTIFY is written at COMMIT. So it
is given one here; a server in recovery has none to give, and changes nothing.

*Source*: PostgreSQL 18 documentation, section 9.27.8 "Transaction ID and Snapshot Information Functions"
(`pg_current_xact_id`, `pg_xact_status`), reference page of NOTIFY (delivered at commit), 26.4.1 "Hot Standby: User's
Overview" (no numbers, no NOTIFY there), 27.2 "The Cumulative Statistics System" (they are reset when the server
recovers from a crash).
The functions are there since PostgreSQL 13.
"""

from __future__ import annotations

from typing import Final

_LIFE: Final = (
    "extract(epoch FROM pg_postmaster_start_time())::text",
    "(SELECT extract(epoch FROM stats_reset)::text FROM pg_stat_bgwriter)",
)

#: Asked before COMMIT: the number of the transaction, None where nothing can be changed; and which life of the server.
MARK: Final = f"SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_xact_id()::text END, {_LIFE[0]}, {_LIFE[1]}"

#: What became of it, if this is the same life; None otherwise, or when it is too long ago.
FATE: Final = (
    f"SELECT CASE WHEN {_LIFE[0]} = $2::text AND {_LIFE[1]} IS NOT DISTINCT FROM $3::text "
    "THEN pg_xact_status($1::text::xid8) END"
)
