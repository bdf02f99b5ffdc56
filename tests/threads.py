"""The pool of threads behind the names of the asynchronous one, so that the same test bodies run over both.

Every call is made in a thread of its own and awaited. Nothing is added: arguments, results and errors pass through.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from picopyn import sync

#: Names of the two facades, for `pytest.mark.parametrize("facade", FACADES, indirect=True)`.
FACADES = ("asynchronous", "sync")

#: What neither facade waits for.
_AT_ONCE = {
    "stats",
    "terminate",
    "update_topology_interval",
    "is_closed",
    "is_in_transaction",
    "is_released",
    "release",
}


class _Threads:
    """Makes calls, each in a thread; as many at the same time as a test may want."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(256, "test caller")

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, lambda: contextvars.copy_context().run(function, *args, **kwargs)
        )


class _Awaited:
    """Something that blocks, with methods that are awaited."""

    def __init__(self, threads: _Threads, inner: Any) -> None:
        self._threads = threads
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute) or name in _AT_ONCE:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._threads.call(attribute, *args, **kwargs)

        return call


class _Block(_Awaited):
    """What is used with `async with`, or awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._take().__await__()

    async def _take(self) -> Any:
        return _Connection(self._threads, await self._threads.call(self._inner.take))

    async def __aenter__(self) -> Any:
        return _Connection(self._threads, await self._threads.call(self._inner.__enter__))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.call(self._inner.__exit__, kind, error, trace)


class _Transaction(_Awaited):
    """A transaction, awaited."""

    async def __aenter__(self) -> Any:
        return await self._threads.call(self._inner.__enter__)

    async def __aexit__(self, *how: Any) -> None:
        await self._threads.call(self._inner.__exit__, *how)


class _Connection(_Awaited):
    """A connection on loan, awaited."""

    def transaction(self, **options: Any) -> _Transaction:
        return _Transaction(self._threads, self._inner.transaction(**options))


class Pool(_Awaited):
    """`picopyn.sync.Pool`, awaited."""

    def __init__(self, dsn: str | None = None, **options: Any) -> None:
        super().__init__(_Threads(), sync.Pool(dsn, **options))

    async def open(self) -> Pool:
        await self._threads.call(self._inner.open)
        return self

    async def close(self, grace: float = 10.0) -> None:
        await self._threads.call(self._inner.close, grace)

    async def __aenter__(self) -> Pool:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def acquire(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire(**options))

    def transaction(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.transaction(**options))

    async def release(self, connection: Any) -> None:
        await self._threads.call(self._inner.release, connection._inner)
