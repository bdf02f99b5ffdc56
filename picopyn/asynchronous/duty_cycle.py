"""How much of a server's time background questions may take.

Pure: time comes in as an argument. It decides when the next question may be sent, not which.
"""

from __future__ import annotations

#: Waits shorter than this (seconds) are none: a timer cannot be set so finely.
_TICK = 1e-6


class DutyCycle:
    """Holds the time spent on questions to a share of all time.

    A question that took `t` seconds is followed by a pause of `t · (1 − share) / share`: nine times as
    long for a tenth. Time not used is saved up to `burst` seconds, so a handful of new texts is learned
    without pauses.

    Args:
        share: Share of the time that questions may take, above 0 and at most 1.
        burst: Seconds of question time that may be saved up; the cycle starts with them.
    """

    def __init__(self, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self._credit = burst
        self._as_of: float | None = None

    def spent(self, seconds: float, now: float) -> None:
        """A question that took so long has just ended."""
        self._refill(now - seconds)
        self._credit -= seconds * (1 - self._share)
        self._as_of = now

    def delay(self, now: float) -> float:
        """Seconds until the next question may begin; 0 when it may begin now."""
        self._refill(now)
        delay = -self._credit / self._share
        return delay if delay > _TICK else 0.0

    def _refill(self, now: float) -> None:
        if self._as_of is not None and now > self._as_of:
            self._credit = min(self._burst, self._credit + (now - self._as_of) * self._share)
        self._as_of = now
