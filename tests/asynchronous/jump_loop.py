"""An event loop whose clock jumps: nothing sleeps, and time passes only when everybody waits for it."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec


class _JumpSelector(selectors.BaseSelector):
    """Asks the real selector without waiting and advances the loop's clock by what it would have waited."""

    def __init__(self, loop: JumpLoop, real: selectors.BaseSelector) -> None:
        self._loop = loop
        self._real = real

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = self._real.select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing is ready and nothing is scheduled")
        if not ready and timeout is not None and timeout > 0:
            self._loop.jump(timeout)
        return ready

    def register(self, *args: Any, **kwargs: Any) -> Any:
        return self._real.register(*args, **kwargs)

    def unregister(self, *args: Any) -> Any:
        return self._real.unregister(*args)

    def modify(self, *args: Any, **kwargs: Any) -> Any:
        return self._real.modify(*args, **kwargs)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class JumpLoop(asyncio.SelectorEventLoop):
    """A loop for shells without sockets: a deadlock is an error instead of a hanging test."""

    def __init__(self) -> None:
        self._jumped = 1000.0
        super().__init__(_JumpSelector(self, selectors.DefaultSelector()))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumped

    def jump(self, seconds: float) -> None:
        self._jumped += seconds


P = ParamSpec("P")


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a jumping loop; tasks it leaves behind fail it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)
            left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
            assert not left

        with asyncio.Runner(loop_factory=JumpLoop) as runner:
            runner.run(main())

    return run


async def settle(times: int = 20) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(times):
        await asyncio.sleep(0)
