"""Cancel a coroutine at each of its awaits in turn, and look at what is left.

A coroutine that runs in a task stops at an await by handing the task a future. `cancelled_at` counts these stops and
has the task cancelled at a chosen one, in one of two moments: *at once*, while the future is open; or *late*, in the
very tick in which the future is done and before the coroutine has seen it. The late one is where connections get lost:
what was waited for has been handed over, and nobody takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any


@dataclass
class Cancelled:
    """One attempt.

    Attributes:
        reached: The coroutine stopped often enough to be cancelled.
        task: The task it ran in; it has ended.
    """

    reached: bool
    task: asyncio.Task[Any]

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        if self.task.cancelled():
            return "cancelled"
        error = self.task.exception()
        return f"returned {self.task.result()!r}" if error is None else f"raised {error!r}"


async def cancelled_at(call: Coroutine[Any, Any, Any], stop: int, *, late: bool, limit: float = 10.0) -> Cancelled:
    """Run a coroutine in a task, and cancel it at its `stop`-th stop (from 1)."""
    attempt = Cancelled(False, None)  # type: ignore[arg-type]
    attempt.task = asyncio.create_task(_stepped(call, stop, late, attempt), name="cancelled call")
    done, _ = await asyncio.wait({attempt.task}, timeout=limit)
    assert done, f"the call hangs after a cancellation at its stop {stop} ({late=}): {attempt.task.get_stack()}"
    return attempt


async def _stepped(call: Coroutine[Any, Any, Any], stop: int, late: bool, attempt: Cancelled) -> Any:
    return await _steps(call, stop, late, attempt)


@types.coroutine
def _steps(call: Coroutine[Any, Any, Any], stop: int, late: bool, attempt: Cancelled) -> Generator[Any, Any, Any]:
    loop, answer, error, stops = asyncio.get_running_loop(), None, None, 0
    while True:
        try:
            future = call.send(answer) if error is None else call.throw(error)
        except StopIteration as ended:
            return ended.value
        stops += 1
        if stops == stop:
            attempt.reached = True
            if late and future is not None:
                future.add_done_callback(lambda _: attempt.task.cancel())
            else:
                loop.call_soon(attempt.task.cancel)
        answer = error = None
        try:
            answer = yield future
        except BaseException as thrown:  # handed on
            error = thrown


async def cancel_everywhere(
    make: Callable[[], Awaitable[Coroutine[Any, Any, Any]]],
    check: Callable[[str], Awaitable[None]],
    *,
    most: int = 300,
) -> int:
    """Cancel a call at each of its stops, at once and late, each time a new one.

    Args:
        make: Prepares a new call; not cancelled itself.
        check: Raises when something is not as it should be; gets a text that says where the call was cancelled.
        most: More stops than any call has.

    Returns:
        How many cancellations there were.
    """
    count = 0
    for late in (False, True):
        for stop in range(1, most):
            attempt = await cancelled_at(await make(), stop, late=late)
            where = f"cancelled {'late' if late else 'at once'} at stop {stop}"
            if not attempt.reached:
                assert not attempt.task.cancelled(), f"not {where}: a spurious CancelledError"
                assert attempt.task.exception() is None, f"not {where}: {attempt.outcome}"
                await check(f"not {where}")
                break
            assert attempt.task.cancelled(), f"{where}: it {attempt.outcome}"
            await check(where)
            count += 1
        else:
            raise AssertionError(f"more than {most} stops")
    return count


@contextlib.asynccontextmanager
async def nothing_left_behind() -> AsyncIterator[list[str]]:
    """At the end: no task that was not there before, and nothing that asyncio complains about."""
    loop = asyncio.get_running_loop()
    complaints: list[str] = []
    loop.set_exception_handler(
        lambda _, context: complaints.append(f"{context['message']} {context.get('exception')!r}")
    )
    before = asyncio.all_tasks()
    yield complaints
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=0.2)
    left = {task for task in left if not task.done()}
    del before
    gc.collect()
    await asyncio.sleep(0)
    assert not left, f"tasks left behind: {[task.get_name() for task in left]}"
    assert not complaints, complaints


async def eventually(
    holds: Callable[[], Awaitable[bool]], what: Callable[[], object], limit: float = 30.0, pause: float = 0.01
) -> None:
    """Wait until something holds that other processes have to bring about."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    while not await holds():
        assert loop.time() < until, what()
        await asyncio.sleep(pause)
