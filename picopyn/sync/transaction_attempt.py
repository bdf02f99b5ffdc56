"""One attempt of `run_transaction`, in the calling thread: begin, work, commit, within the limit.

The caller's code cannot be interrupted in its thread. At the limit its connection is dropped instead, from the control
thread: a call that waits on it ends at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from picopyn.engine.transaction import TransactionRun
from picopyn.sync.acquired import AcquiredConnection
from picopyn.sync.sessions import Alarm

T = TypeVar("T")


def attempt(
    run: TransactionRun,
    connection: AcquiredConnection,
    work: Callable[[AcquiredConnection], T],
    options: dict[str, Any],
    alarm: Alarm,
) -> T:
    """Make one attempt.

    Args:
        run: The call that it belongs to.
        connection: Its connection; it is given back.
        work: The caller's work.
        options: Of the transaction.
        alarm: Ends it at the limit.
    """
    run.loan = connection._loan
    remaining = run.remaining
    still = None if remaining is None else alarm(remaining, run.interrupt)
    try:
        with connection.transaction(**options):
            result = work(connection)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError("run_transaction() takes a plain function: work(connection) gave a coroutine")
            if run.resolution is not None:
                run.resolution.note(connection.fetchrow(run.resolution.question), result)
            return result
    finally:
        if still is not None:
            still()
        if not connection.is_released():
            connection.release()
