"""Tells one listener that something is new, one call at a time.

This file decides when the listener is called and who waits for it. It does not know what is new.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

from picopyn.asynchronous.service_connection import was_cancelled

_LOG = logging.getLogger("picopyn.asynchronous.topology_tracker")

#: The task on whose behalf the current code runs, if it runs inside a listener.
_telling: contextvars.ContextVar[asyncio.Task[None] | None] = contextvars.ContextVar("telling", default=None)


class Announcer:
    """Calls a listener after each piece of news, in a task of its own.

    News that arrives while the listener is still busy is told by one more call after that one, so a slow
    or hanging listener delays nobody but those who wait for it: reading the topology goes on. A listener
    that raises is logged.

    Args:
        name: Name of the task.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._listener: Callable[[], Awaitable[None]] | None = None
        self._news = 0
        self._told = 0
        self._lap = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def listen(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Set the listener; news from now on is told to it."""
        self._listener = listener

    def news(self) -> None:
        """There is something new."""
        if self._listener is None or self._closed:
            return
        self._news += 1
        if self._task is None:
            # An empty context: what the listener starts must not inherit the caller's variables.
            self._task = asyncio.create_task(self._tell(self._listener), name=self._name, context=contextvars.Context())
            self._task.add_done_callback(self._ended)

    async def told(self) -> None:
        """Return when everything that is new by now has been told; at once when called from inside the listener."""
        goal = self._news
        while self._told < goal and self._task is not None and not self.inside():
            await self._lap.wait()

    def inside(self) -> bool:
        """Whether the caller runs inside the listener's current call (in its task, or in one that it started)."""
        return self._task is not None and _telling.get() is self._task

    def close(self) -> asyncio.Task[None] | None:
        """Tell nothing any more, and end a call under way unless this was called from inside it.

        Returns:
            The task to wait for, or None when there is none or it is the caller's own.
        """
        self._closed = True
        if self._task is None or self.inside():
            return None
        self._task.cancel()
        return self._task

    async def _tell(self, listener: Callable[[], Awaitable[None]]) -> None:
        _telling.set(asyncio.current_task())
        while self._told < self._news and not self._closed:
            goal = self._news
            try:
                await listener()
            except asyncio.CancelledError:
                if was_cancelled():
                    raise
                _LOG.warning("the topology listener was cancelled from inside; tracking goes on", exc_info=True)
            except Exception:
                _LOG.warning("the topology listener failed; tracking goes on", exc_info=True)
            self._told = goal
            self._end_lap()

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A callback, not a `finally`: a task cancelled before its first step runs no code of its own.
        self._task = None
        self._end_lap()
        if not self._closed and self._told < self._news:
            self.news()

    def _end_lap(self) -> None:
        self._lap.set()
        self._lap = asyncio.Event()
