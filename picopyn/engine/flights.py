"""Calls in flight, and the end of those that a leader change may have left hanging for ever.

Picodata leaves a statement hanging that waited for a leader when it died, although new statements beside it work
(`picodata-recorded.md` section 1). So after a leader moved, what was sent before and either touches that replicaset or
was not sent to its own owner gets a short grace, and is then ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from picopyn.engine.request import Request
from picopyn.engine.runtime import Link, Runtime
from picopyn.routing.plan import Plan

#: How long such calls get to answer by themselves (seconds).
STUCK_AFTER = 0.3


class Flights:
    """The calls of one pool that are with a server now. Owned by the executor.

    Args:
        runtime: The world.
        end: Drops a connection that is in use.
    """

    __slots__ = ("_end", "_requests", "_runtime", "ended")

    def __init__(self, runtime: Runtime, end: Callable[[Link], None]) -> None:
        self._runtime = runtime
        self._end = end
        self._requests: dict[Link, Request] = {}
        self.ended = 0

    def depart(self, link: Link, request: Request) -> None:
        """A call is about to be sent."""
        self._requests[link] = request

    def arrive(self, link: Link) -> None:
        """It has ended, one way or another."""
        self._requests.pop(link, None)

    def suspects(self, replicasets: frozenset[str]) -> list[tuple[Link, Request]]:
        """Calls in flight that a change of these replicasets' leaders may leave hanging."""
        return [
            (link, request)
            for link, request in self._requests.items()
            if request.plan is not None and _may_hang(request.plan, replicasets)
        ]

    async def end_if_stuck(self, suspects: list[tuple[Link, Request]]) -> None:
        """Give the suspects their grace, then drop the connections of those still in flight."""
        with suppress(TimeoutError):
            await self._runtime.waiter().wait(self._runtime.now() + STUCK_AFTER)
        for link, request in suspects:
            if self._requests.get(link) is request:
                self.ended += 1
                request.ended = True
                self._end(link)


def _may_hang(plan: Plan, replicasets: frozenset[str]) -> bool:
    return not plan.direct or any(c.node.replicaset_uuid in replicasets for c in plan.candidates)
