"""How often calls may be sent again, all of them together: a cluster in trouble must not get more to do for it.

One token bucket. Every call that is answered brings a tenth of a retry, every second brings a few, and the bucket
begins full. So what a single event costs (a node that dies with all its calls in flight) is always covered, and while
everything fails the servers get a tenth more than callers ask for.

What did not reach a server, and what waits for a newer look at the cluster, costs nothing. It sends nothing and has no
clock.
"""

from __future__ import annotations

#: Retries that each answered call brings.
PER_CALL = 0.1
#: Retries that each second brings, so that a pool with few calls recovers too.
PER_SECOND = 10.0
#: Nodes whose connections may all break at once without using it up.
NODES = 4
#: The bucket holds so many at least.
LEAST_RESERVE = 20


class RetryBudget:
    """What is left to be spent on retries. Owned by who decides about them.

    Args:
        max_size: Most connections to a node: so many calls at most are in flight there.
        now: The engine's clock.

    Attributes:
        reserve: How many retries it holds at most.
        left: How many it holds.
    """

    __slots__ = ("_calls", "_moment", "left", "reserve")

    def __init__(self, max_size: int, now: float) -> None:
        self.reserve = float(max(LEAST_RESERVE, NODES * max_size))
        self.left = self.reserve
        self._calls = 0
        self._moment = now

    def spend(self, calls: int, now: float) -> bool:
        """Take one retry.

        Args:
            calls: How many calls were answered so far.
            now: The engine's clock.

        Returns:
            Whether there was one.
        """
        earned = PER_CALL * (calls - self._calls) + PER_SECOND * (now - self._moment)
        self._calls, self._moment = calls, now
        self.left = min(self.reserve, self.left + earned)
        if self.left < 1:
            return False
        self.left -= 1
        return True
