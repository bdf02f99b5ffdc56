"""Connections are begun one after the other, a moment apart, however many are wanted at once.

A TLS hand-shake and the hash of a SCRAM password cost milliseconds of the event loop each. Fifty that are begun at once
arrive at the same stage together, and stop everybody else for as long as all of them take (scenario
`block-connect-in-loop`). Begun apart they stay apart. Only beginnings are spaced: nobody waits for a node that hangs.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush

#: Between two beginnings (seconds): about what the usual hash for SCRAM costs (4 096 rounds); TLS costs half of it.
GAP = 0.01


class Pace:
    """The order of beginnings of one pool. It belongs to no event loop.

    Args:
        gap: Least time between two (seconds).
    """

    __slots__ = ("_gap", "_next", "_returned")

    def __init__(self, gap: float = GAP) -> None:
        self._gap = gap
        self._next = 0.0
        self._returned: list[float] = []

    async def turn(self) -> None:
        """Wait for one's turn. Who leaves the queue gives his back, and the next one who comes gets it."""
        now = asyncio.get_running_loop().time()
        begin = self._first_free(now)
        if begin <= now:
            return
        try:
            await asyncio.sleep(begin - now)
        except asyncio.CancelledError:
            heappush(self._returned, begin)
            raise

    def _first_free(self, now: float) -> float:
        while self._returned:
            begin = heappop(self._returned)
            if begin > now:
                return begin
        begin = max(now, self._next)
        self._next = begin + self._gap
        return begin
