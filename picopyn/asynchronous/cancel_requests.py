"""CancelRequests: tell a server that nobody waits any more for what it is doing.

A statement goes on at the server after its connection is gone; PostgreSQL notices only when it answers. So when a
connection is dropped under a request, the request is cancelled beside it, without anybody waiting for that.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any, Final

import asyncpg

from picopyn.asynchronous.lendable import LendableConnection

_LOG = logging.getLogger(__name__)

#: How long one request may take (seconds), and how many are under way at most: a hung node must not collect sockets.
LIMIT: Final = 1.0
MOST: Final = 16


class CancelRequests:
    """The requests of one pool that are under way. Owned by its sessions."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    def send(self, connection: LendableConnection) -> None:
        """Have the request that runs on a connection cancelled; returns at once, and never raises.

        Nothing is sent where the server gave no key (Picodata does not), or too many requests are under way.
        """
        key = connection.cancel_key
        loop = connection._loop
        if key is None or len(self._under_way) >= MOST or loop.is_closed():
            return
        step = _send(loop, connection._addr, connection._params, key)
        task = loop.create_task(step, name="picopyn cancel request", context=contextvars.Context())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def settle(self, deadline: float) -> None:
        """Wait until all have ended, at most until the deadline (on the loop's clock); then end the rest."""
        if self._under_way:
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(self._under_way, timeout=max(0.0, left))
        self.terminate()

    def terminate(self) -> None:
        """End all at once."""
        for task in self._under_way:
            task.cancel()


async def _send(loop: asyncio.AbstractEventLoop, address: Any, parameters: Any, key: tuple[int, int]) -> None:
    try:
        async with asyncio.timeout(LIMIT):
            # asyncpg's own, with the same TLS as the connection; `tests/asynchronous/test_lendable.py` guards it.
            await asyncpg.connect_utils._cancel(
                loop=loop, addr=address, params=parameters, backend_pid=key[0], backend_secret=key[1]
            )
    except Exception as error:
        _LOG.debug("a request could not be cancelled: %s", type(error).__name__)
