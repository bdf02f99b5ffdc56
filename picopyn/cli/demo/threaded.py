"""The pool of threads, where an event loop directs the acts: every call blocks a thread, as it would in a program.

This file decides nothing about a call; it only makes it elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from picopyn import sync
from picopyn.routing.explanation import RouteExplanation
from picopyn.stats import PoolStats
from picopyn.topology import TopologySnapshot

T = TypeVar("T")

#: More than there are callers: none waits for a thread.
_THREADS = 64


class ThreadedPool:
    """A `picopyn.sync.Pool` with the calls that the demo makes, to be awaited. Owner: `play`.

    Args:
        dsn: Connection string.
        **options: Settings of the pool.
    """

    def __init__(self, dsn: str, **options: Any) -> None:
        self._pool = sync.Pool(dsn, **options)
        self._threads = ThreadPoolExecutor(_THREADS, "demo caller")

    async def __aenter__(self) -> ThreadedPool:
        await self._elsewhere(self._pool.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._elsewhere(partial(self._pool.__exit__, kind, error, trace))
        self._threads.shutdown()

    @property
    def topology(self) -> TopologySnapshot:
        """See the pool."""
        return self._pool.topology

    def stats(self) -> PoolStats:
        """See the pool."""
        return self._pool.stats()

    async def wait_ready(self) -> None:
        """See the pool."""
        await self._elsewhere(self._pool.wait_ready)

    async def execute(
        self, query: str, *args: Any, idempotent: bool | None = None, timeout: float | None = None
    ) -> str:
        """See the pool."""
        call = partial(self._pool.execute, query, *args, idempotent=idempotent, timeout=timeout)
        return await self._elsewhere(call)

    async def fetchval(
        self,
        query: str,
        *args: Any,
        role: str | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """See the pool."""
        call = partial(self._pool.fetchval, query, *args, role=role, idempotent=idempotent, timeout=timeout)
        return await self._elsewhere(call)

    async def explain_route(self, query: str, *args: Any) -> RouteExplanation:
        """See the pool."""
        return await self._elsewhere(partial(self._pool.explain_route, query, *args))

    async def _elsewhere(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
