"""What one group of callers did: every call's beginning and end, failures, unknown outcomes. No loop, no output."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from picopyn.errors import OutcomeUnknown


class WrongAnswer(Exception):  # noqa: N818 - it is what happened
    """The server answered a call with something else than the books say."""


@dataclass(slots=True)
class Tally:
    """The calls of one group. Owner: the act that made it; written from one event loop.

    Attributes:
        ended: When each good call ended (`time.monotonic`), in order.
        began: When each good call began, in the order of `ended`.
        failures: One line for each failed call.
        unknown: Calls whose outcome nobody knows.
        running: When each call that runs now began.
    """

    ended: list[float] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unknown: int = 0
    running: list[float] = field(default_factory=list)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Around one call: counts it as good, as failed, or as unknown; the error goes on."""
        began = time.monotonic()
        self.running.append(began)
        try:
            yield
        except OutcomeUnknown:
            self.unknown += 1
            raise
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise
        finally:
            self.running.remove(began)
        self.began.append(began)
        self.ended.append(time.monotonic())

    @property
    def good(self) -> int:
        """Calls that were answered as they should be."""
        return len(self.ended)

    def count(self, since: float, until: float) -> int:
        """Good calls that ended in this span."""
        return bisect_left(self.ended, until) - bisect_left(self.ended, since)

    def rate(self, since: float, until: float) -> float:
        """Good calls per second in this span."""
        return self.count(since, until) / (until - since) if until > since else 0.0

    def first_end(self, since: float) -> float | None:
        """When the first good call ended that began at or after this moment."""
        return next((e for b, e in zip(self.began, self.ended, strict=True) if b >= since), None)

    def slowest(self, since: float = 0.0) -> float:
        """Seconds of the slowest good call that ended since then; 0 without any."""
        first = bisect_left(self.ended, since)
        spans = zip(self.began[first:], self.ended[first:], strict=True)
        return max((end - begin for begin, end in spans), default=0.0)

    def longest_silence(self, since: float, until: float) -> float:
        """Longest time within this span in which no call ended well."""
        inside = self.ended[bisect_left(self.ended, since) : bisect_left(self.ended, until)]
        return max(after - before for before, after in pairwise([since, *inside, until]))

    def stuck(self, longer_than: float) -> int:
        """Calls that have been running for longer than this many seconds."""
        limit = time.monotonic() - longer_than
        return sum(began < limit for began in self.running)
