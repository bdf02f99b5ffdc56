"""What a host is asked about its role, and how its answer is read.

One cheap query tells everything on PostgreSQL 10 and later, for any user. Servers that only resemble it (YugabyteDB,
Aurora, poolers with a mind of their own) refuse a part of it; they are asked for less and less, and what they do not
tell is not known.

*Source*: PostgreSQL 18 documentation, sections 9.28.4 "Recovery Control Functions", 9.28.3 "Backup Control Functions"
(`pg_walfile_name`: the first eight digits are the timeline), 9.27.12 "Control Data Functions" (the timeline of the last
checkpoint; behind after a promotion, so a primary is not asked for it), 54 "`transaction_read_only`".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from picopyn.routing.host_facts import HostFacts

#: Questions, the one that tells most first; each has the columns of `read_host_answer`, or fewer.
HOST_QUESTIONS: Final[Sequence[str]] = (
    """SELECT r AS in_recovery, current_setting('transaction_read_only') AS read_only,
CASE WHEN r THEN (SELECT timeline_id FROM pg_control_checkpoint())
ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END AS timeline,
CASE WHEN NOT r THEN pg_current_wal_lsn()::text END AS written,
CASE WHEN r THEN pg_last_wal_receive_lsn()::text END AS received,
CASE WHEN r THEN pg_last_wal_replay_lsn()::text END AS replayed,
CASE WHEN r THEN extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END AS replay_age
FROM pg_is_in_recovery() AS r""",
    """SELECT r AS in_recovery, current_setting('transaction_read_only') AS read_only,
CASE WHEN NOT r THEN pg_current_wal_lsn()::text END AS written,
CASE WHEN r THEN pg_last_wal_replay_lsn()::text END AS replayed
FROM pg_is_in_recovery() AS r""",
    "SELECT pg_is_in_recovery() AS in_recovery, current_setting('transaction_read_only') AS read_only",
    "SHOW transaction_read_only",
    "SELECT 1 AS alive",
)

#: Classes of SQLSTATE by which a server says that it does not have, or not allow, a part of a question.
#:
#: *Source*: PostgreSQL documentation, Appendix A: 0A feature not supported, 22 data exception, 42 syntax or access
#: error, 55000 object not in prerequisite state (recovery functions); servers that only resemble it say XX000.
_UNSUPPORTED: Final = ("0A", "22", "42", "55000", "XX")


def asks_too_much(sqlstate: str | None) -> bool:
    """Whether an answer to a question means that a smaller one may be answered."""
    return (sqlstate or "").startswith(_UNSUPPORTED)


def read_host_answer(row: Mapping[str, Any], observed_at: float) -> HostFacts:
    """The answer to one of the questions.

    Args:
        row: Its row by column; a column that is not there is not known.
        observed_at: When it came, on the caller's clock (seconds).

    Raises:
        ValueError: A value makes no sense.
    """
    timeline = row.get("timeline")
    age = row.get("replay_age")
    return HostFacts(
        in_recovery=_truth(row.get("in_recovery")),
        read_only=_truth(row.get("read_only", row.get("transaction_read_only"))),
        timeline=None if timeline is None else int(timeline),
        written=_position(row.get("written")),
        received=_position(row.get("received")),
        replayed=_position(row.get("replayed")),
        replay_age=None if age is None else max(0.0, float(age)),
        observed_at=observed_at,
    )


def _truth(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    known = {"on": True, "true": True, "t": True, "off": False, "false": False, "f": False}.get(str(value).lower())
    if known is None:
        raise ValueError(f"neither on nor off: {value!r}")
    return known


def _position(text: Any) -> int | None:
    """A position in the log, like `16/B374D848`, as a number of bytes."""
    if text is None:
        return None
    high, slash, low = str(text).partition("/")
    if not slash:
        raise ValueError(f"no position in a log: {text!r}")
    return (int(high, 16) << 32) + int(low, 16)
