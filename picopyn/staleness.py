"""How far behind a replica may be to answer reads: the user's word, as a value.

Whether a replica keeps to it is decided in [`routing.staleness`][picopyn.routing.staleness].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from picopyn.errors import ConfigError

#: A position of the primary that was read longer ago than this says nothing about a replica (seconds).
MASTER_LSN_AGE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessPolicy:
    """How far behind its primary a replica may be. With both limits, both count.

    A replica that is further behind is not forbidden, but comes last: after the fresh ones, and after the primary where
    that may answer. While no position of the primary is known, every replica counts as fresh; one that cannot be asked
    for its own position is left out.

    Attributes:
        max_lag_bytes: Most bytes of the primary's log that are not applied yet; exactly so many are fine.
        max_lag: Longest time by which its data may be older than the primary's (seconds).
        grace_period: How long a replica that was fresh still counts as fresh after that (seconds); None: not at all.
        max_master_lsn_age: How old the last known position of the primary may be to be compared with (seconds).

    Raises:
        ConfigError: No limit at all, or one that cannot be; it names every problem.
    """

    max_lag_bytes: int | None = None
    max_lag: float | None = None
    grace_period: float | None = None
    max_master_lsn_age: float = MASTER_LSN_AGE

    def __post_init__(self) -> None:
        problems = []
        if self.max_lag_bytes is None and self.max_lag is None:
            problems.append("a StalenessPolicy needs max_lag_bytes, max_lag, or both")
        if self.max_lag_bytes is not None and not (_is_number(self.max_lag_bytes, int) and self.max_lag_bytes >= 0):
            problems.append(f"max_lag_bytes must be a whole number of at least 0, not {self.max_lag_bytes!r}")
        for name in ("max_lag", "grace_period"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value, int | float) and value >= 0):
                problems.append(f"{name} must be a number of seconds of at least 0, or None, not {value!r}")
        age = self.max_master_lsn_age
        if not (_is_number(age, int | float) and age > 0):
            problems.append(f"max_master_lsn_age must be a number of seconds above 0, not {age!r}")
        if problems:
            raise ConfigError(problems)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and isfinite(value)
