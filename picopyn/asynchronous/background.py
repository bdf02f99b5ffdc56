"""Tasks that may outlive everybody's interest in them.

asyncio complains about a task that is destroyed before it has ended. For the tasks of a pool that nobody closed that
would be many lines which name nothing the user has written; the pool itself says once what to do.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


def unlamented(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Have no complaint written when this task is destroyed with its event loop; it is given back."""
    mine: Any = task
    mine._log_destroy_pending = False  # as asyncio does for tasks of its own
    return task
