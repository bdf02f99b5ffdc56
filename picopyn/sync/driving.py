"""Running the engine's coroutines in the calling thread: none of them suspends, since to wait there is to block."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import asyncpg

from picopyn.engine.executor import Executor
from picopyn.engine.request import Request
from picopyn.errors import PicopynError

T = TypeVar("T")

#: Errors after which nothing is held. Any other may be that of a signal's handler, and have fallen into anything.
OWN_ERRORS: Final = (PicopynError, asyncpg.PostgresError)


def call(request: Request, executor: Executor) -> Any:
    """Run one call. Interrupted anywhere, by whatever a signal's handler raises, it leaves nothing behind.

    The request comes first: making it refuses what a pool that is not open cannot do, and such a pool has no executor.
    """
    run = executor.run
    try:
        run(request).send(None)
    except StopIteration as end:
        return end.value
    except OWN_ERRORS:
        raise
    except BaseException:
        executor.forfeit(request)
        raise
    raise _suspended()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise _suspended()


def _suspended() -> RuntimeError:
    return RuntimeError("a call of the engine waited for an event loop; it must wait for what its runtime gives")
