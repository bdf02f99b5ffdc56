"""What is counted of a source that listens, and when a server that is polled is asked again to tell.

It decides how long a pause is; it opens no connection and knows no notice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from picopyn.stats import FallbackReason, PushStats

#: Seconds until a server that is polled instead is asked again to tell; doubles up to the longest one.
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 3600.0


class PushRecord:
    """Owner: a source that listens.

    Args:
        now: Clock.

    Attributes:
        events: Notices understood.
        snapshots: Connections whose server told what there is.
        checks: Times a connection was only asked whether it lives.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.events = 0
        self.snapshots = 0
        self.checks = 0
        self._now = now
        self._fallbacks: Counter[FallbackReason] = Counter()
        self._last_event: float | None = None
        self._believed_since: float | None = None
        self._pause = FIRST_PAUSE
        self._due = math.inf

    @property
    def comeback_due(self) -> bool:
        """Whether it is time to ask again."""
        return self._now() >= self._due

    def event(self) -> None:
        """A notice was understood."""
        self.events += 1
        self._last_event = self._now()

    def believed(self) -> None:
        """A server tells, and is listened to."""
        self.snapshots += 1
        self._believed_since = self._now()
        self._due = math.inf

    def fell_back(self, why: FallbackReason) -> None:
        """The server is polled. One that was believed for longer than the pause is asked again as soon as ever."""
        now, since = self._now(), self._believed_since
        self._fallbacks[why] += 1
        if since is not None and now - since > self._pause:
            self._pause = FIRST_PAUSE
        self._believed_since = None
        self._due = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def postponed(self) -> None:
        """No node could be asked."""
        self._due = self._now() + FIRST_PAUSE

    def stats(self, *, active: bool, address: str | None) -> PushStats:
        """Everything counted so far."""
        last = self._last_event
        return PushStats(
            active=active,
            address=address,
            events=self.events,
            last_event_age=None if last is None else self._now() - last,
            snapshots=self.snapshots,
            checks=self.checks,
            fallbacks=dict(self._fallbacks),
        )
