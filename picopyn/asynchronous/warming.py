"""Warming connections up: a hook for `after_connect`, by which servers load their catalogue before a caller waits.

Decides what is asked about each text, and what a refusal means: a text that the server cannot plan costs one line of
the log, not the connection. Who asks, by awaiting or by blocking, hands in a `Planned`.

*Source*: `yugabyte-smart-drivers.md` section 6.5: a new backend loads part of its catalogue, and the rest with its
first statements, from the leader of the masters. PostgreSQL documentation, EXPLAIN: without ANALYZE nothing is run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakSet

import asyncpg

from picopyn.errors import UsageError

_LOG = logging.getLogger("picopyn.asynchronous.warming")

#: Has a server plan a text on a connection.
Planned = Callable[[Any, str], Awaitable[None]]
_QUESTION: Final = "EXPLAIN "


class WarmUp:
    """Texts that are planned once per connection. Any thread may use it.

    Args:
        texts: The statements, with their parameters.

    Raises:
        UsageError: There is none, or one is no text.
    """

    def __init__(self, texts: tuple[str, ...]) -> None:
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UsageError("warm_up() takes the texts of the statements that are going to be used, at least one")
        self._texts = dict.fromkeys(texts)
        self._warm: WeakSet[Any] = WeakSet()
        self._told: set[str] = set()

    async def run(self, connection: Any, plan: Planned) -> None:
        """Have every text planned, unless that was done on this connection before.

        Raises:
            Exception: The connection is lost.
        """
        if connection in self._warm:
            return
        for text in self._texts:
            try:
                await plan(connection, _QUESTION + text)
            except asyncpg.PostgresError as error:
                if connection.is_closed():
                    raise
                self._tell_once(text, error)
        self._warm.add(connection)

    def _tell_once(self, text: str, error: asyncpg.PostgresError) -> None:
        if text not in self._told:
            self._told.add(text)
            _LOG.warning("a text was not warmed up (%s): %s", getattr(error, "sqlstate", None), text)


def warm_up(*texts: str) -> Callable[[Any], Awaitable[None]]:
    """A hook for `after_connect` that warms each new connection up for some statements.

    The server plans them and executes nothing, so it loads what it needs to know of their tables, types and functions.
    A text that it refuses, because its table is not there yet, is left out; the log says so once. After a reset, when
    hooks run again, nothing is asked again. In a hook of one's own it is awaited:

    ```python
    warm = warm_up("SELECT region FROM orders WHERE id = $1")

    async def after_connect(connection):
        await warm(connection)
        await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    ```

    Args:
        *texts: The statements as they are going to be sent, with `$1`, `$2` …

    Raises:
        UsageError: There is none, or one is no text.
    """
    warming = WarmUp(texts)

    async def after_connect(connection: Any) -> None:
        await warming.run(connection, _plan)

    return after_connect


async def _plan(connection: Any, question: str) -> None:
    statement = await connection.prepare(question)
    await statement.fetch(*(None for _ in statement.get_parameters()))
