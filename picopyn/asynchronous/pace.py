"""Connections are begun one after the other, a moment apart, however many are wanted at once.

A TLS hand-shake and the hash of a SCRAM password cost milliseconds of the event loop each. Fifty that are begun together
arrive at the same stage together, and stop everybody else for as long as all of them take (scenario
`block-connect-in-loop`). Begun apart they stay apart. Only beginnings are spaced: nobody waits for a node that hangs.
"""

from __future__ import annotations

import asyncio

#: Between two beginnings (seconds): about what a hash of 4 096 rounds costs, the usual number for SCRAM; TLS costs half.
GAP = 0.01


class Pace:
    """The order of beginnings of one pool.

    Args:
        gap: Least time between two (seconds).
    """

    __slots__ = ("_gap", "_next")

    def __init__(self, gap: float = GAP) -> None:
        self._gap = gap
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for one's turn; a turn that was waited for and not used is lost, which costs the others nothing."""
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next)
        self._next = begin + self._gap
        if begin > now:
            await asyncio.sleep(begin - now)
