"""A guard for tests: whatever they did, nothing is left behind on their event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def nothing_stays() -> AsyncIterator[None]:
    """Afterwards there is no task of ours, no transport, and nothing that asyncio complains about."""
    loop = asyncio.get_running_loop()
    complaints: list[str] = []
    loop.set_exception_handler(lambda _, context: complaints.append(f"{context['message']} {context.get('exception')}"))
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=10)
        left = {task for task in left if not task.done()}
    gc.collect()
    await asyncio.sleep(0)
    assert not [task.get_name() for task in left], "tasks left behind"
    assert not complaints
