"""The one connection of the metadata service.

This file decides when it is opened and when it is given up. It does not use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from picopyn.asynchronous.service_connection import (
    ServiceConnection,
    cause,
    drop,
    say_goodbye,
    stray_cancellations_are_errors,
)

_LOG = logging.getLogger("picopyn.asynchronous.metadata_service")

#: Seconds until the connection is tried again for a question nobody waits for; doubles.
FIRST_RETRY = 1.0
#: Longest such pause in seconds.
LONGEST_RETRY = 30.0

#: Opens the connection with the notice callback wired in (it is given the text of every notice,
#: synchronously, before the request that caused it completes); None when no node can be reached. It keeps
#: a deadline of its own.
MetadataConnect = Callable[[Callable[[str], None]], Awaitable[ServiceConnection | None]]


class MetadataLink:
    """Opens the connection on demand, and again after it was lost.

    Args:
        connect: Opens it.
        on_notice: Takes the notices.
        on_new: Called when a connection was opened, before it is used.
        now: Clock.
    """

    def __init__(
        self,
        connect: MetadataConnect,
        on_notice: Callable[[str], None],
        on_new: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._on_notice = on_notice
        self._on_new = on_new
        self._now = now
        self._connection: ServiceConnection | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._failures = 0
        self._retry_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be gone."""
        return self._connection is not None and not self._connection.is_closed()

    @property
    def worth_trying(self) -> bool:
        """Whether a question nobody waits for may open the connection now."""
        return self.connected or self._now() >= self._retry_at

    async def get(self) -> ServiceConnection | None:
        """The connection, opened if need be; None when no node can be reached, or after `close`."""
        async with self._opening:
            if self._closed:
                return None
            if not self.connected:
                self.give_up()
                self._connection = await self._open()
            return self._connection

    def give_up(self) -> None:
        """Drop the connection; the next `get` opens another."""
        connection, self._connection = self._connection, None
        drop(connection)

    async def close(self) -> None:
        """Say goodbye; no connection is opened any more."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await say_goodbye(connection)

    def terminate(self) -> None:
        """Drop the connection; none is opened any more."""
        self._closed = True
        self.give_up()

    async def _open(self) -> ServiceConnection | None:
        try:
            with stray_cancellations_are_errors():
                connection = await self._connect(self._on_notice)
        except Exception as error:
            self._failed(cause(error))
            return None
        if connection is None:
            self._failed("no node can be reached")
        elif self._closed:
            drop(connection)
            return None
        else:
            self._succeeded()
        return connection

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._retry_at = self._now() + min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(self._failures - 1, 10))
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        _LOG.log(level, "no connection for statement metadata, statements run unrouted until then: %s", why)

    def _succeeded(self) -> None:
        if self._failures:
            _LOG.info("statement metadata can be asked again")
        self._failures = 0
        self._retry_at = 0.0
        self._on_new()
