"""Tests without sockets run on a loop whose clock jumps: nothing sleeps, a deadlock is an error."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from picopyn.testing import run_jumping

P = ParamSpec("P")


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a jumping loop; tasks it leaves behind fail it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)
            left = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
            assert not left

        run_jumping(main())

    return run


async def settle(times: int = 20) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(times):
        await asyncio.sleep(0)
