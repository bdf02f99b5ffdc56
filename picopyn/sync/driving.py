"""Running the engine's coroutines in the calling thread: none of them suspends, since to wait there is to block."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a call of the engine waited for an event loop; it must wait for what its runtime gives")
