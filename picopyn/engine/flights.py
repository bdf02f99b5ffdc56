"""Calls in flight, and the end of those that will not be answered.

Picodata leaves a statement hanging that waited for a leader when it died, although new statements beside it work
(`picodata-recorded.md` section 1). So after a leader moved, what was sent before and either touches that replicaset or
was not sent to its own owner, in that replicaset's tier, gets a short grace, and is then ended. Calls at a node that
hangs are ended too; that is decided by [`watch`][picopyn.routing.watch].

So are calls whose time is over; one alarm rings for the first of them. A timer for each call would be made and
cancelled for nothing nearly every time.

A call is ended by dropping its connection. Its request keeps the reason for the error; the first one counts. Nothing
is written down for a call that flies: a pool's accounts know who holds a connection, and a request where it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from picopyn.engine.node_pool import NodePool
from picopyn.engine.request import Request
from picopyn.engine.runtime import Link, Runtime

#: How long such calls get to answer by themselves (seconds).
STUCK_AFTER = 0.3
#: Why they are ended, in words that follow "since".
LEADER_CHANGED = "a leader changed while it ran, and it may wait for the old one"
NODE_LEFT = "its node is no longer online, and it got no answer"


#: A call in flight, and the connection it is on.
Flight = tuple[Link, Request]


class Flights:
    """The calls of one pool that are with a server now. Owned by a cluster.

    Args:
        runtime: The world.
        drop: Drops a connection, wherever it belongs.
        pools: All node pools, as of now.

    Attributes:
        alarm: Rings when the time of a call is over while a server has it.
    """

    __slots__ = ("_drop", "_pools", "_runtime", "alarm")

    def __init__(self, runtime: Runtime, drop: Callable[[Link], None], pools: Callable[[], Iterable[NodePool]]) -> None:
        self.alarm = runtime.alarm(self._end_overdue)
        self._runtime = runtime
        self._drop = drop
        self._pools = pools

    def aloft(self, pools: Iterable[NodePool] | None = None) -> list[Flight]:
        """Calls in flight now, on the connections of these pools or of all."""
        return [
            (link, owner)
            for pool in (self._pools() if pools is None else pools)
            for link, owner in tuple(pool.slots.held.items())
            if isinstance(owner, Request) and owner.link is link
        ]

    def suspects(self, replicasets: frozenset[str], tiers: frozenset[str | None]) -> list[Flight]:
        """Calls in flight that a change of these replicasets' leaders may leave hanging.

        Args:
            replicasets: Their uuids.
            tiers: Their tiers; None among them: there is one whose tier is not known.
        """
        return [flight for flight in self.aloft() if _may_hang(flight[1], replicasets, tiers)]

    async def end_if_stuck(self, suspects: list[Flight], reason: str = LEADER_CHANGED) -> None:
        """Give the suspects their grace, then drop the connections of those still in flight.

        A call of many rows that goes on being acknowledged is not stuck, so it gets another one.
        """
        while suspects:
            before = [request.progress for _, request in suspects]
            with suppress(TimeoutError):
                await self._runtime.waiter().wait(self._runtime.now() + STUCK_AFTER)
            moving = []
            still = dict(self.aloft())
            for flight, progress in zip(suspects, before, strict=True):
                link, request = flight
                if still.get(link) is not request:
                    continue
                if request.progress > progress:
                    moving.append(flight)
                else:
                    request.ended = True
                    self.end(link, request, reason)
            suspects = moving

    def end_all(self, pool: NodePool, reason: str) -> None:
        """Drop every connection of a pool that is in use; the calls on them end with this reason."""
        flying = dict(self.aloft([pool]))
        for link in tuple(pool.slots.held):
            self.end(link, flying.get(link), reason)

    def end(self, link: Link, request: Request | None, reason: str) -> None:
        """Drop a connection; the call on it, if there is one, ends with this reason."""
        if request is not None and request.end_reason is None:
            request.end_reason = reason
        self._drop(link)

    def _end_overdue(self, now: float) -> float:
        """End the calls whose time is over, and have the server told.

        Returns:
            The next moment at which that of a call is.
        """
        following = inf
        for pool in self._pools():
            for link, request in self.aloft([pool]):
                if request.deadline is None:
                    continue
                if request.deadline <= now:
                    request.overdue = True
                    pool.interrupt(link, request)
                else:
                    following = min(following, request.deadline)
        return following


def _may_hang(request: Request, replicasets: frozenset[str], tiers: frozenset[str | None]) -> bool:
    """Whether a call is forwarded in one of these tiers, or runs at a member of these replicasets.

    A forwarded call waits for the leaders of its own tier only, and so does any call to a server that forwards all. Its
    other candidates do not count.
    """
    plan = request.plan
    alone = plan is None or (plan.direct and not plan.needs_all)
    if plan is not None and not alone and (plan.tier is None or None in tiers or plan.tier in tiers):
        return True
    return request.node is not None and request.node.replicaset_uuid in replicasets
