"""Attempts to connect that nobody waits for any more: which are ended, and which come to their end by themselves.

It knows neither what a connection is for nor what an answer means.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from picopyn.asynchronous.password_gate import Entry

#: How long an attempt to connect may go on when nobody waits for it any more (seconds).
LAST_MOMENT: Final = 0.05


class Stragglers:
    """Those of one pool whose answer is still to come. Owned by who opens its connections."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def give_up(self, connecting: asyncio.Task[Any], entry: Entry) -> None:
        """End an attempt, unless the password is on its way: else nobody would learn that it is wrong, and the next
        attempt would send it again.

        asyncpg 0.32 that is cancelled just after the TCP connect leaves a future behind that complains of an
        "unexpected connection_lost() call"; so an attempt that goes on well may come to its end, and is dropped then.

        Args:
            connecting: The attempt; it keeps a time limit of its own.
            entry: Its way through the gate before the password.
        """
        stays = False  # not either, if its loop is never run again
        try:
            await asyncio.wait({connecting}, timeout=LAST_MOMENT)
            stays = entry.sent and not self._closed and not connecting.done()
        finally:
            connecting.add_done_callback(_drop)
            if stays:
                self._waiting.add(connecting)
                connecting.add_done_callback(self._waiting.discard)
            else:
                connecting.cancel()
        if not stays:
            await asyncio.wait({connecting})

    async def close(self) -> None:
        """End all of them."""
        waiting = set(self._waiting)
        self.terminate()
        if waiting:
            await asyncio.wait(waiting)

    def terminate(self) -> None:
        """The same without waiting; none stays from now on."""
        self._closed = True
        for attempt in self._waiting:
            attempt.cancel()


def _drop(connecting: asyncio.Task[Any]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()
