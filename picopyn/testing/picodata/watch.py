"""Waiting for a change of the cluster without polling.

Decides nothing. Must not know what changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Conditions that wait to come true. Owner: the cluster, which calls `changed` after every change."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds; it is asked now and after each change."""
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((condition, future))
        await future

    def changed(self) -> None:
        """Ask every condition again; those that hold wake in the order they came."""
        still: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        for condition, future in self._waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiting = still
