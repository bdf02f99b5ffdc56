"""Calls that go on while something happens to the cluster, and what became of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Done:
    """One call that ended; times on the monotonic clock."""

    label: str
    began: float
    ended: float
    error: BaseException | None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Load:
    """Runs calls until it is left; every call is remembered. Use with `async with`."""

    def __init__(self) -> None:
        self.done: list[Done] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self._news = asyncio.Event()

    def start(self, label: str, call: Callable[[int], Awaitable[object]], tasks: int = 1, pause: float = 0.002) -> None:
        """Call again and again, in so many tasks; `call` gets a number that no other call of the label gets."""
        for first in range(tasks):
            self._tasks.append(asyncio.create_task(self._go_on(label, call, first, tasks, pause), name=label))

    async def _go_on(
        self, label: str, call: Callable[[int], Awaitable[object]], number: int, step: int, pause: float
    ) -> None:
        while not self._stopped:
            await self.once(label, call, number)
            number += step
            await asyncio.sleep(pause)

    async def once(self, label: str, call: Callable[[int], Awaitable[object]], number: int = 0) -> Done:
        """One call."""
        began, error = time.monotonic(), None
        try:
            await call(number)
        except Exception as raised:
            error = raised
        done = Done(label, began, time.monotonic(), error)
        self.done.append(done)
        self._news.set()
        return done

    async def wait(self, what: str, met: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until a condition on what is done holds; it is asked whenever a call ends."""
        try:
            async with asyncio.timeout(timeout):
                while not met():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not in {timeout:g} s: {what}") from None

    def of(self, label: str, *, began_after: float = 0.0, ended_after: float = 0.0) -> list[Done]:
        """Calls of one label, from a moment on."""
        found = [d for d in self.done if d.label == label and d.began >= began_after and d.ended >= ended_after]
        return sorted(found, key=lambda d: d.ended)

    def failures(self, *labels: str) -> list[Done]:
        """Calls that failed."""
        return [d for d in self.done if d.error is not None and (not labels or d.label in labels)]

    async def stop(self) -> None:
        """Let the calls under way finish, start no more."""
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for task in self._tasks:
                task.cancel()
        self._stopped = True
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)
