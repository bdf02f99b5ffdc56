"""What one host of a primary with replicas said about itself at one moment, immutable.

It knows no SQL: a dialect makes these values from whatever its servers answer. What a host does not tell is None, and
decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One host, as it answered last.

    "Primary" and "writable" are two facts: a primary whose sessions are read-only by default takes no writes.

    Attributes:
        in_recovery: It applies somebody else's log: a standby. None: it does not tell.
        read_only: Its sessions refuse writes. None: it does not tell.
        timeline: Number of its history; grows with every promotion.
        written: End of the log that a primary has written (bytes).
        received: End of the log that a standby has received.
        replayed: End of the log that a standby has applied.
        replay_age: Time since the newest transaction it applied was committed, by its own clock (seconds).
        observed_at: When it answered, on the observer's clock (seconds).
    """

    in_recovery: bool | None = None
    read_only: bool | None = None
    timeline: int | None = None
    written: int | None = None
    received: int | None = None
    replayed: int | None = None
    replay_age: float | None = None
    observed_at: float = 0.0

    @property
    def writable(self) -> bool:
        """Whether it takes writes, as far as it tells; one that tells nothing may."""
        return not (self.in_recovery or self.read_only)

    @property
    def word(self) -> str:
        """Its role in one word, for people."""
        if self.in_recovery:
            return "standby"
        if self.read_only:
            return "read-only"
        return "unknown" if self.in_recovery is None and self.read_only is None else "primary"
