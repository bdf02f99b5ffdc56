"""Connections that are dropped under a request: the server is told that nobody waits any more.

A statement goes on at the server after its connection is gone; PostgreSQL notices only when it answers. So asyncpg
sends a CancelRequest beside the connection, and the connection is kept for the moment that takes. It is kept because
a request that overtakes its statement does nothing: then it has to be sent again, and only an answer on the old
connection tells. Nobody waits for any of this, and a node that hangs gets a second of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Final

from asyncpg import connect_utils

from picopyn.asynchronous.lendable import LendableConnection

_LOG = logging.getLogger(__name__)

#: How long one connection is kept (seconds), and how many at most.
LIMIT: Final = 1.0
MOST: Final = 100

#: After how long without an answer the request is sent again (seconds); each pause is twice the one before.
FIRST_PAUSE: Final = 0.05

#: How often a connection is looked at meanwhile (seconds).
_GLANCE: Final = 0.005


class CancelRequests:
    """The connections of one pool that are on their way out. Owned by its sessions."""

    def __init__(self) -> None:
        self._leaving: dict[LendableConnection, asyncio.Task[None]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def see_off(self, connection: LendableConnection) -> bool:
        """Take care of a connection whose request is being cancelled.

        Returns:
            False when it is to be dropped at once: the server gave no key to cancel with (Picodata does not), or too
            many are under way.
        """
        loop = connection._loop
        if connection.cancel_key is None or len(self._leaving) >= MOST or loop.is_closed():
            return False
        step = self._see_off(connection)
        self._leaving[connection] = loop.create_task(step, name="picopyn cancel request", context=contextvars.Context())
        return True

    def tell(self, connection: LendableConnection) -> None:
        """A connection is being dropped on which a statement may be running: ask the server once to end that.

        The connection is not kept, so nobody can tell whether the request has overtaken a statement that was sent just
        now: one that the server has not read by then runs to its end.
        """
        loop, key = connection._loop, connection.cancel_key
        if key is not None and len(self._telling) < MOST and not loop.is_closed():
            step = _tell(connection, key)
            telling = loop.create_task(step, name="picopyn cancel request", context=contextvars.Context())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def settle(self, deadline: float) -> None:
        """Wait until all have gone, at most until the deadline (on the loop's clock); then drop the rest."""
        under_way = {*self._leaving.values(), *self._telling}
        if under_way:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(under_way, timeout=max(0.0, left))
        for telling in self._telling:
            telling.cancel()
        self.terminate()

    def terminate(self) -> None:
        """Drop all connections at once; what servers are being told takes its moment."""
        for connection, task in list(self._leaving.items()):
            task.cancel()
            connection.end()

    async def _see_off(self, connection: LendableConnection) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                pause = FIRST_PAUSE
                while not await _answered(connection, pause):
                    key = connection.cancel_key
                    if key is not None:
                        await _send(connection, key)
                    pause *= 2
        except (TimeoutError, OSError) as error:
            _LOG.debug("a request could not be cancelled: %s", type(error).__name__)
        except asyncio.CancelledError:
            self.tell(connection)  # the event loop may be about to end; a connection that was ended has no key
            raise
        finally:
            del self._leaving[connection]
            connection.end()


async def _answered(connection: LendableConnection, limit: float) -> bool:
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    while not connection.is_settled():
        if loop.time() >= until:
            return False
        await asyncio.sleep(_GLANCE)
    return True


async def _tell(connection: LendableConnection, key: tuple[int, int]) -> None:
    try:
        async with asyncio.timeout(LIMIT):
            await _send(connection, key)
    except (TimeoutError, OSError) as error:
        _LOG.debug("a server could not be told: %s", type(error).__name__)


async def _send(connection: LendableConnection, key: tuple[int, int]) -> None:
    # asyncpg's own, with the same TLS as the connection; `tests/asynchronous/test_sessions.py` guards it.
    await connect_utils._cancel(
        loop=connection._loop,
        addr=connection._addr,
        params=connection._params,
        backend_pid=key[0],
        backend_secret=key[1],
    )
