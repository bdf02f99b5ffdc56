"""Telling a server that nobody waits any more: a CancelRequest, sent beside the connection by a thread of its own.

A caller that gives up does not wait for it, and a node that hangs gets a second of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, Final

from asyncpg import connect_utils

from picopyn.sync.caller_loop import CallerLoop

_LOG = logging.getLogger(__name__)

#: How long it may take (seconds).
LIMIT: Final = 1.0


class CancelRequest:
    """One request under way.

    Args:
        address: Of the server, as asyncpg has it.
        parameters: Of the connection, as asyncpg has them.
        key: Process and secret of the session.
        loop: What the connection has as its event loop.

    Attributes:
        arrived: Whether the server has got it; False while it is under way.
    """

    def __init__(self, address: Any, parameters: Any, key: tuple[int, int], loop: Any) -> None:
        self.arrived = False
        self._arguments = {
            "addr": address,
            "params": parameters,
            "backend_pid": key[0],
            "backend_secret": key[1],
        }
        self._alike = loop
        self._thread = threading.Thread(target=self._send, name="picopyn cancel request", daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether it is over, one way or the other."""
        return not self._thread.is_alive()

    def _send(self) -> None:
        own = CallerLoop()
        try:
            own.run(self._tell(own if isinstance(self._alike, CallerLoop) else self._alike.on(own)))
            self.arrived = True
        except ConnectionResetError:
            self.arrived = True  # some servers end it like that
        except (OSError, TimeoutError) as error:
            _LOG.debug("a request could not be cancelled: %s", type(error).__name__)

    async def _tell(self, loop: Any) -> None:
        async with asyncio.timeout(LIMIT):
            await connect_utils._cancel(loop=loop, **self._arguments)
