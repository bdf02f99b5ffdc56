"""Running the engine's coroutines in the calling thread: none of them suspends, since to wait there is to block."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import asyncpg

from picopyn.engine import interruptions
from picopyn.engine.executor import Executor
from picopyn.engine.request import Request
from picopyn.errors import BulkError, PicopynError
from picopyn.sync.waiting import Interruption

T = TypeVar("T")

#: Errors after which nothing is held. Any other may be that of a signal's handler, and have fallen into anything.
OWN_ERRORS: Final = (PicopynError, asyncpg.PostgresError)


def call(request: Request, executor: Executor) -> Any:
    """Run one call; its answer. Interrupted anywhere, by whatever a signal's handler raises, it leaves nothing behind.

    The request comes first: making it refuses what a pool that is not open cannot do, and such a pool has no executor.
    """
    try:
        rest = executor.start(request)
        if rest is not None:
            for _ in rest.__await__():
                raise _suspended()
        return request.answer
    except OWN_ERRORS as error:
        hidden = _interruption_in(error)
        if hidden is None:
            raise
        executor.forfeit(request)
        interruptions.raise_as_it_was(hidden)
    except Interruption as carrier:
        executor.forfeit(request)
        interruption = carrier.unpack()
    except BaseException:
        executor.forfeit(request)
        raise
    raise interruption


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except PicopynError as error:
        hidden = _interruption_in(error)
        if hidden is None:
            raise
        interruptions.raise_as_it_was(hidden)
    except Interruption as carrier:
        interruption = carrier.unpack()
    else:
        coroutine.close()
        raise _suspended()
    raise interruption


def _interruption_in(error: Exception) -> BaseException | None:
    """What a signal's handler has raised where the engine took it for an error of its own world.

    Of a load that has stopped, its report is what the caller needs.
    """
    if isinstance(error, PicopynError) and not isinstance(error, BulkError):
        return interruptions.interruption_in(error)
    return None


def _suspended() -> RuntimeError:
    return RuntimeError("a call of the engine waited for an event loop; it must wait for what its runtime gives")
