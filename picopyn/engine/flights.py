"""Calls in flight, and the end of those that will not be answered.

Picodata leaves a statement hanging that waited for a leader when it died, although new statements beside it work
(`picodata-recorded.md` section 1). So after a leader moved, what was sent before and either touches that replicaset or
was not sent to its own owner, in that replicaset's tier, gets a short grace, and is then ended. Calls at a node that
hangs are ended too; that is decided by [`watch`][picopyn.routing.watch].

A call is ended by dropping its connection. Its request keeps the reason for the error; the first one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from picopyn.engine.request import Request
from picopyn.engine.runtime import Link, Runtime

#: How long such calls get to answer by themselves (seconds).
STUCK_AFTER = 0.3
#: Why they are ended, in words that follow "since".
LEADER_CHANGED = "a leader changed while it ran, and it may wait for the old one"
NODE_LEFT = "its node is no longer online, and it got no answer"


class Flights:
    """The calls of one pool that are with a server now. Owned by a cluster; its executor tells who flies.

    Args:
        runtime: The world.
        drop: Drops a connection, wherever it belongs.

    Attributes:
        aloft: Calls in flight by their connection; the executor enters and strikes them out.
    """

    __slots__ = ("_drop", "_runtime", "aloft")

    def __init__(self, runtime: Runtime, drop: Callable[[Link], None]) -> None:
        self._runtime = runtime
        self._drop = drop
        self.aloft: dict[Link, Request] = {}

    def suspects(self, replicasets: frozenset[str], tiers: frozenset[str | None]) -> list[tuple[Link, Request]]:
        """Calls in flight that a change of these replicasets' leaders may leave hanging.

        Args:
            replicasets: Their uuids.
            tiers: Their tiers; None among them: there is one whose tier is not known.
        """
        return [flight for flight in tuple(self.aloft.items()) if _may_hang(flight[1], replicasets, tiers)]

    def on(self, links: Iterable[Link]) -> list[tuple[Link, Request]]:
        """Calls in flight on these connections."""
        return [(link, self.aloft[link]) for link in links if link in self.aloft]

    async def end_if_stuck(self, suspects: list[tuple[Link, Request]], reason: str = LEADER_CHANGED) -> None:
        """Give the suspects their grace, then drop the connections of those still in flight.

        A call of many rows that goes on being acknowledged is not stuck, so it gets another one.
        """
        while suspects:
            before = [request.progress for _, request in suspects]
            with suppress(TimeoutError):
                await self._runtime.waiter().wait(self._runtime.now() + STUCK_AFTER)
            moving = []
            for (link, request), progress in zip(suspects, before, strict=True):
                if self.aloft.get(link) is not request:
                    continue
                if request.progress > progress:
                    moving.append((link, request))
                else:
                    request.ended = True
                    self.end(link, reason)
            suspects = moving

    def end(self, link: Link, reason: str) -> None:
        """Drop a connection; the call on it, if there is one, ends with this reason."""
        request = self.aloft.get(link)
        if request is not None and request.end_reason is None:
            request.end_reason = reason
        self._drop(link)


def _may_hang(request: Request, replicasets: frozenset[str], tiers: frozenset[str | None]) -> bool:
    """Whether a call is forwarded in one of these tiers, or runs at a member of these replicasets.

    A forwarded call waits for the leaders of its own tier only. Its other candidates do not count.
    """
    plan = request.plan
    if plan is not None and not plan.direct and (plan.tier is None or None in tiers or plan.tier in tiers):
        return True
    return request.node is not None and request.node.replicaset_uuid in replicasets
