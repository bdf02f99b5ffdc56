"""Where facts about the cluster come from: the seam, and the source that polls.

A source owns one connection and hands over batches of events; it never writes a topology. This file
decides in which order a poll reads, which failure costs what, and when a batch replaces everything known.
The texts and the meaning of rows are the dialect's; when to poll is the tracker's.

Not public API, except that `Pool(topology_source=…)` takes a source of one's own.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable

from picopyn.asynchronous.catalog_reader import CatalogReader
from picopyn.asynchronous.leader_finder import FindsLeaders, LeaderMemory
from picopyn.asynchronous.service_connection import ServiceConnection, drop, say_goodbye
from picopyn.dialects.picodata.addresses import AddressMap
from picopyn.errors import NoNodeAvailable, UsageError
from picopyn.stats import PushStats
from picopyn.topology import Event, EventBatch, EventInstance, EventLeader, vanished
from picopyn.topology.host_text import same_place

#: Seconds the server has for one answer to a topology query.
QUERY_TIMEOUT = 5.0

#: Opens the connection of a polling source; None when no node can be reached. It keeps a deadline of its own.
Connect = Callable[[], Awaitable[ServiceConnection | None]]


class TopologySource(ABC):
    """A source of topology events.

    The tracker calls `listen` once, then `refresh` as often as it likes but never twice at once, and at
    last `close` or `terminate`, and `unlisten`. After that another tracker may begin anew, as when a pool that
    could not be opened is opened again: `refresh` then opens what it needs once more.
    """

    _emitter: Callable[[EventBatch], None] | None = None

    def listen(self, emit: Callable[[EventBatch], None]) -> None:
        """Set who takes the batches; one at a time.

        Raises:
            UsageError: Somebody listens already.
        """
        if self._emitter is not None:
            raise UsageError("this topology source already belongs to a tracker")
        self._emitter = emit

    def unlisten(self) -> None:
        """The tracker has ended: what is emitted from now on is dropped, until another one listens."""
        self._emitter = None

    def emit(self, batch: EventBatch) -> None:
        """Hand a batch to the listener; for sources."""
        if self._emitter is not None:
            self._emitter(batch)

    @abstractmethod
    async def refresh(self) -> None:
        """Make sure that what is known is current, and emit what is new; raises when that is not possible."""

    async def check(self) -> None:
        """What the timer asks for, without any sign of a change. A source that is told of changes may do with less."""
        await self.refresh()

    def push_stats(self) -> PushStats | None:
        """How it goes with changes that a server tells by itself; None for a source that asks for none."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Close what is open; nothing is emitted afterwards."""

    @abstractmethod
    def terminate(self) -> None:
        """The same at once."""


class ConnectedSource(TopologySource):
    """A source that polls over one connection of its own, opened on first use and reopened when it died.

    Each connection is an epoch of its own and begins with one batch that replaces everything known.

    Args:
        connect: Opens the connection, or returns None when no node can be reached.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: ServiceConnection | None = None
        self._before: tuple[Event, ...] | None = None
        self._epoch = 0
        self._sequence = 0
        self._closed = False
        self._moving = False

    def listen(self, emit: Callable[[EventBatch], None]) -> None:
        """Set who takes the batches; a source that was closed begins anew."""
        super().listen(emit)
        self._closed = False

    def leave(self, host: str, port: int) -> None:
        """A node is down: a connection to it is dropped, and a refresh that waits for its answer fails at once."""
        if same_place(getattr(self._connection, "endpoint", ("", 0)), (host, port)):
            self._give_up()

    def move(self, host: str, port: int) -> bool:
        """A node is to be left in peace: a connection to it is replaced at the next refresh; gives if there is one."""
        self._moving = self._moving or getattr(self._connection, "endpoint", None) == (host, port)
        return self._moving

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await say_goodbye(connection)

    def terminate(self) -> None:
        """Drop the connection."""
        self._closed = True
        self._give_up()

    async def _current_connection(self) -> ServiceConnection:
        if self._lives and self._connection is not None:
            return self._connection
        self._give_up()
        connection = await self._connect()
        if connection is None:
            raise NoNodeAvailable("no node could be reached to read the topology")
        if self._closed:
            drop(connection)
            raise NoNodeAvailable("the topology source is closed")
        self._use(connection)
        return connection

    @property
    def _lives(self) -> bool:
        """Whether there is a connection that can be used on, as far as known."""
        return self._connection is not None and not self._connection.is_closed() and not self._moving

    def _use(self, connection: ServiceConnection) -> None:
        self._connection, self._moving = connection, False
        self._begin_connection()
        self._begin_epoch()

    def _begin_connection(self) -> None:
        """A connection was opened; what was known of the server behind the one before means nothing now."""

    def _begin_epoch(self) -> None:
        """The next batch replaces everything known."""
        self._epoch += 1
        self._before = None

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        drop(connection)

    def _emit_poll(self, events: tuple[Event, ...]) -> None:
        """Emit a poll: what vanished is deleted; the first of a connection replaces everything."""
        if self._closed:
            return
        self._sequence += 1
        gone = () if self._before is None else tuple(vanished(self._before, events))
        self.emit(EventBatch((*events, *gone), self._epoch, self._sequence, reset=self._before is None))
        self._before = events


class PollingTopologySource(ConnectedSource):
    """Reads Picodata's system tables and emits one batch per refresh.

    Replicasets and instances must be readable, or nothing is applied and the connection is given up. Tiers are read
    once per connection, and again when an unknown one shows up. The buckets of a tier that cannot be read now keep
    their last map. What a user may not read degrades: bucket counts are derived from the maps, and leaders are found by
    asking, if there is a finder.

    Args:
        connect: Opens the connection, or returns None when no node can be reached.
        address_map: Turns an advertised (host, port) into the one to dial.
        leader_finder: Asks who leads a replicaset when the tables are closed to us.
        now: Clock.
        query_timeout: Seconds the server has for each answer; a node that stays silent costs the connection.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        address_map: AddressMap | None = None,
        leader_finder: FindsLeaders | None = None,
        now: Callable[[], float] = time.monotonic,
        query_timeout: float = QUERY_TIMEOUT,
    ) -> None:
        super().__init__(connect)
        self._catalog = CatalogReader(address_map, query_timeout)
        self._leaders = _LeadersByAsking(leader_finder, now)

    async def refresh(self) -> None:
        """Read everything once and emit it as one batch.

        Raises:
            NoNodeAvailable: No node could be reached; nothing is emitted.
            Exception: Replicasets or instances could not be read; nothing is emitted, the connection is
                closed.
        """
        connection = await self._current_connection()
        try:
            events = await self._catalog.read(connection)
        except BaseException:
            self._give_up()
            raise
        if self._catalog.connection_lost:
            self._give_up()
        leaders = await self._leaders.find(self._leaderless(events)) if self._catalog.leaders_hidden else []
        await asyncio.sleep(0)  # reading a large answer took its time, and so will applying it: others first
        self._emit_poll((*events, *leaders))

    def doubt_leader(self, replicaset_uuid: str | None = None) -> None:
        """Ask again at the next refresh who leads this replicaset (or each of them); for users who have to ask."""
        self._leaders.memory.forget(replicaset_uuid)

    def _leaderless(self, events: Iterable[Event]) -> Iterable[Event]:
        """The part of a reading whose leaders have to be asked for, where the tables do not name them."""
        return events

    def _begin_connection(self) -> None:
        self._catalog.begin_connection()


class _LeadersByAsking:
    """Leaders for a user who may not read the tables that name them."""

    def __init__(self, finder: FindsLeaders | None, now: Callable[[], float]) -> None:
        self.memory = LeaderMemory()
        self._finder = finder
        self._now = now

    async def find(self, events: Iterable[Event]) -> list[EventLeader]:
        """Ask about the replicasets that need it, all at once; returns every leader that is known by now."""
        instances = [event for event in events if isinstance(event, EventInstance)]
        due = self.memory.observe(instances, self._now())
        if self._finder is not None and due:
            found = await asyncio.gather(*(self._finder.find(uuid, nodes) for uuid, nodes in due.items()))
            for uuid, leader in zip(due, found, strict=True):
                self.memory.answered(uuid, leader, self._now())
        leaders = self.memory.leaders
        return [EventLeader(uuid, leaders.get(uuid)) for uuid in self.memory.replicasets]
