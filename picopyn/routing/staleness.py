"""How far behind a replica is, and whether that is too far: pure decisions over facts of two hosts.

Bytes are the difference of two positions in the log. Time is never taken from two clocks that have to agree: a replica
that has applied what the primary had written at some moment is no older than that moment, on our clock; the replica's
own word (`replay_age`) counts where it says less. So a cluster in which nothing is committed does not look stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from picopyn.routing.host_facts import HostFacts
from picopyn.staleness import MASTER_LSN_AGE, StalenessPolicy

#: Positions of the primary that are remembered.
TRAIL_LENGTH = 64


class Freshness(Enum):
    """What a replica is good for."""

    FRESH = "near enough"
    STALE = "too far behind, or it does not tell"
    UNCHECKED = "it could not be asked"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a replica stands.

    Attributes:
        freshness: What it is good for.
        lag_bytes: Bytes of the primary's log that it has not applied; None where that is not known.
        lag: By how much its data is older than the primary's, at most (seconds); None where that is not known.
        spared: It is too far behind, and fresh by grace alone.
    """

    freshness: Freshness
    lag_bytes: int | None = None
    lag: float | None = None
    spared: bool = False


UNCHECKED = Standing(Freshness.UNCHECKED)


@dataclass(frozen=True, slots=True)
class Trail:
    """Where the primary was when.

    Attributes:
        points: (moment, position), oldest first; positions rise.
    """

    points: tuple[tuple[float, int], ...] = ()

    def with_point(self, moment: float, position: int) -> Trail:
        """The trail with one more point; a primary that went back begins a new one."""
        kept = self.points
        if kept and position < kept[-1][1]:
            kept = ()
        elif len(kept) > 1 and kept[-1][1] == kept[-2][1] == position:
            kept = kept[:-1]  # nothing was written meanwhile: the ends of the pause are enough
        return Trail((*kept, (moment, position))[-TRAIL_LENGTH:])

    def position(self, now: float, max_age: float) -> int | None:
        """The last known position, unless it is too old."""
        if not self.points or now - self.points[-1][0] > max_age:
            return None
        return self.points[-1][1]

    def reached(self, position: int) -> float | None:
        """The last moment at which the primary was not beyond a position; None: not known."""
        return _last_before(self.points, position)


def _last_before(points: Sequence[tuple[float, int]], position: int) -> float | None:
    return max((moment for moment, written in points if written <= position), default=None)


def lag_of(facts: HostFacts, trail: Trail, primary: int, now: float) -> tuple[int | None, float | None]:
    """How far a replica is behind a position of its primary: bytes, and seconds; None for what is not known."""
    if facts.replayed is None:
        return None, None
    behind = max(0, primary - facts.replayed)
    if not behind:
        return 0, 0.0
    reached = trail.reached(facts.replayed)
    ages = [age for age in (facts.replay_age, None if reached is None else now - reached) if age is not None]
    return behind, max(0.0, min(ages)) if ages else None


def judge(
    policy: StalenessPolicy | None, facts: HostFacts, trail: Trail, now: float, fresh_at: float | None = None
) -> Standing:
    """How a replica stands.

    Args:
        policy: The limits; None: every replica is fresh.
        facts: What the replica says.
        trail: Where its primary was.
        now: The observer's clock.
        fresh_at: When it was fresh last, not by grace; None: never, or not since its role changed.
    """
    primary = trail.position(now, policy.max_master_lsn_age if policy is not None else MASTER_LSN_AGE)
    if primary is None:
        return Standing(Freshness.FRESH)
    lag_bytes, lag = lag_of(facts, trail, primary, now)
    if policy is None or not _exceeds(policy, lag_bytes, lag):
        return Standing(Freshness.FRESH, lag_bytes, lag)
    grace = policy.grace_period
    spared = grace is not None and fresh_at is not None and now - fresh_at <= grace
    return Standing(Freshness.FRESH if spared else Freshness.STALE, lag_bytes, lag, spared)


def _exceeds(policy: StalenessPolicy, lag_bytes: int | None, lag: float | None) -> bool:
    """Whether a limit is exceeded; what is not known exceeds every limit."""
    too_many = policy.max_lag_bytes is not None and (lag_bytes is None or lag_bytes > policy.max_lag_bytes)
    return too_many or (policy.max_lag is not None and (lag is None or lag > policy.max_lag))
