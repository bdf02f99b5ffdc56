"""Warming connections of threads up; what is asked is decided in [`warming`][picopyn.asynchronous.warming]."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from picopyn.asynchronous.warming import WarmUp
from picopyn.sync.connection import Connection
from picopyn.sync.driving import drive
from picopyn.sync.wire import Wire


def warm_up(*texts: str) -> Callable[[Connection], None]:
    """A hook for `after_connect` that warms each new connection up for some statements.

    As [`picopyn.asynchronous.warm_up`][picopyn.asynchronous.warm_up], and called without `await`.

    Args:
        *texts: The statements as they are going to be sent, with `$1`, `$2` …

    Raises:
        UsageError: There is none, or one is no text.
    """
    warming = WarmUp(texts)

    def after_connect(connection: Connection) -> None:
        drive(warming.run(connection._wire, partial(_plan, connection)))

    return after_connect


async def _plan(connection: Connection, wire: Wire, question: str) -> None:
    statement = connection.prepare(question)
    statement.fetch(*(None for _ in statement.get_parameters()))
