"""The topology source that listens: Picodata's planned topology notices.

The server tells a service connection everything it knows before that connection is ready, and every
change afterwards. This file decides when the connection is opened, which notices belong together, and
when a batch replaces everything known. What a notice means is the dialect's affair. No server sends such
notices yet, so a driver polls.

*Source:* picodata `doc/adr/2025-09-12-pgproto-topology-notifications.md` (start-up key
`picodata_catalog_cdc` = 1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from picopyn.asynchronous.service_connection import ServiceConnection, drop, say_goodbye
from picopyn.asynchronous.topology_source import QUERY_TIMEOUT, TopologySource
from picopyn.dialects.picodata.catalog_notices import read_catalog_notice
from picopyn.errors import NoNodeAvailable
from picopyn.topology import Event, EventBatch

_LOG = logging.getLogger(__name__)

#: Opens the service connection; the callable it is given must be handed the text of every notice of that
#: connection, synchronously, those that arrive before the connection is ready included. None when no node
#: can be reached.
NoticeConnect = Callable[[Callable[[str], None]], Awaitable[ServiceConnection | None]]


class NotifyTopologySource(TopologySource):
    """Emits a batch whenever the server speaks.

    A new connection is a new epoch: its snapshot is emitted as one batch that replaces everything known.
    Notices that arrive in one go are emitted as one batch, so a change of several rows is applied in one
    step.

    Args:
        connect: Opens the service connection with the notices wired in.
        query_timeout: Seconds within which the server must answer the question whether it is still there.
    """

    def __init__(self, connect: NoticeConnect, *, query_timeout: float = QUERY_TIMEOUT) -> None:
        self._connect = connect
        self._query_timeout = query_timeout
        self._connection: ServiceConnection | None = None
        self._hearing: _Hearing | None = None
        self._epoch = 0
        self._closed = False

    def listen(self, emit: Callable[[EventBatch], None]) -> None:
        """Set who takes the batches; a source that was closed begins anew."""
        super().listen(emit)
        self._closed = False

    async def refresh(self) -> None:
        """Make sure the connection lives, and that everything the server had said by now is emitted.

        Raises:
            NoNodeAvailable: No node could be reached.
        """
        if not await self._lives():
            self._drop()
            await self._open()

    async def close(self) -> None:
        """Close the connection; nothing is emitted any more."""
        connection, self._connection = self._connection, None
        self._closed = True
        self._hear_nothing()
        if connection is not None:
            await say_goodbye(connection)

    def terminate(self) -> None:
        """The same without waiting."""
        self._closed = True
        self._drop()

    async def _lives(self) -> bool:
        if self._connection is None or self._connection.is_closed():
            return False
        try:
            async with asyncio.timeout(self._query_timeout):
                await self._connection.fetch("SELECT 1")
        except Exception:
            return False
        if self._hearing is not None:
            self._hearing.flush()
        return True

    async def _open(self) -> None:
        hearing = _Hearing(self._emit_batch, self._epoch + 1)
        self._hearing = hearing
        connection = await self._connect(hearing.hear)
        if connection is None or self._closed:
            drop(connection)
            self._hear_nothing()
            raise NoNodeAvailable("no node could be reached for topology notices")
        self._connection = connection
        self._epoch += 1
        hearing.flush(snapshot=True)

    def _drop(self) -> None:
        self._hear_nothing()
        drop(self._connection)
        self._connection = None

    def _hear_nothing(self) -> None:
        if self._hearing is not None:
            self._hearing.deaf = True
            self._hearing = None

    def _emit_batch(self, batch: EventBatch) -> None:
        self.emit(batch)


class _Hearing:
    """What one connection says, from before it is ready until it is dropped."""

    def __init__(self, emit: Callable[[EventBatch], None], epoch: int) -> None:
        self.deaf = False
        self._emit = emit
        self._epoch = epoch
        self._heard: list[Event] = []
        self._told_snapshot = False

    def hear(self, text: str) -> None:
        """The notice callback: takes topology notices, drops all others."""
        event = None if self.deaf else read_catalog_notice(text)
        if event is None:
            return
        self._heard.append(event)
        if len(self._heard) == 1 and self._told_snapshot:
            # Not at once: notices that came in one packet belong together.
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self, snapshot: bool = False) -> None:
        """Emit what was heard; the snapshot also when it is empty, because it replaces everything known."""
        if self.deaf or not (self._heard or snapshot):
            return
        heard, self._heard = self._heard, []
        self._told_snapshot = True
        batch = EventBatch(tuple(heard), self._epoch, reset=snapshot)
        try:
            self._emit(batch)
        except Exception:
            if snapshot:
                raise
            _LOG.warning("topology notices could not be applied; what is known stays", exc_info=True)
