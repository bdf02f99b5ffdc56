"""The topology source that listens: Picodata's planned topology notices, over a poll of everything else.

A server that has topology notices tells a service connection everything it knows before that connection is ready, and
every change afterwards. This file decides when such a connection is opened, and when what was heard is handed on. What
a notice means, and how it goes together with what is read, is the dialect's affair. No server sends such notices yet;
over a connection that hears none this source polls, and now and then looks for one that tells.

*Source:* picodata `doc/adr/2025-09-12-pgproto-topology-notifications.md` (start-up key `picodata_catalog_cdc` = 1).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from picopyn.asynchronous.leader_finder import FindsLeaders
from picopyn.asynchronous.push_record import PushRecord
from picopyn.asynchronous.service_connection import ServiceConnection, cause, drop
from picopyn.asynchronous.topology_source import QUERY_TIMEOUT, PollingTopologySource
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.picodata.addresses import AddressMap
from picopyn.dialects.picodata.catalog_notices import read_catalog_notice
from picopyn.dialects.picodata.catalog_view import CatalogView
from picopyn.errors import NoNodeAvailable
from picopyn.stats import PushStats
from picopyn.topology import Event, EventBatch, EventInstance

_LOG = logging.getLogger(__name__)

#: Opens the service connection; the callable it is given must be handed the text of every notice of that connection,
#: synchronously, those that arrive before the connection is ready included. None when no node can be reached. A
#: connection whose `on_notice` is None was opened without asking for notices, because its server lets in nobody who
#: asks.
NoticeConnect = Callable[[Callable[[str], None]], Awaitable[ServiceConnection | None]]

#: While buckets move, what is told of them is handed on at most so often (seconds): each time costs a new map.
BUCKET_PAUSE = 0.05
#: So many runs of buckets are handed on without a pause.
MOST_RUNS = 2000
#: While everything is told, the tables are read only so often (seconds), to find out whether what is told is true.
READ_INTERVAL = 60.0
#: In between, a server has so long to show that it lives (seconds); then another one is asked.
CHECK_TIMEOUT = 2.0
#: A server that tells, and closes the connection before it was that old (seconds), is not replaced at once.
SHORT_LIFE = 0.5
#: Shows that a server lives.
_QUESTION = PicodataDialect().probe_question


class NotifyTopologySource(PollingTopologySource):
    """Emits a batch whenever the server speaks, and one per refresh.

    A refresh reads the tables as a polling source does: it brings what no notice tells, and checks what was told. A
    check, which the timer asks for, does so too where not everything is told; else it only makes sure that the server
    lives, and reads once a minute. Notices that arrive in one go are emitted as one batch, so a change of several rows
    is applied in one step; news of leaders and instances never waits, a storm of moving buckets is gathered. What was
    told is not taken back by what was read, unless the two contradict each other for longer than a server needs to
    carry out what it told: then only readings count for the rest of this connection, and one warning says so.

    A server that is polled is asked again to tell, over a connection that takes the place of the one in use if it does:
    after a minute, then ever less often, down to once an hour.

    Args:
        connect: Opens the service connection with the notices wired in.
        first: A connection that exists already and was not asked to tell anything; the first refresh reads over it, and
            the next one looks for a connection that tells.
        address_map: See [`PollingTopologySource`][picopyn.asynchronous.topology_tracker.PollingTopologySource], as for
            the rest.
        leader_finder: Asks for leaders that are neither told nor readable.
        now: Clock.
        query_timeout: Seconds the server has for each answer.

    Attributes:
        on_doubt: Called when a refresh should come soon: something was told that only a reading completes, or the
            connection that told is gone.
    """

    def __init__(
        self,
        connect: NoticeConnect,
        *,
        first: Callable[[], ServiceConnection | None] | None = None,
        address_map: AddressMap | None = None,
        leader_finder: FindsLeaders | None = None,
        now: Callable[[], float] = time.monotonic,
        query_timeout: float = QUERY_TIMEOUT,
    ) -> None:
        super().__init__(
            self._open, address_map=address_map, leader_finder=leader_finder, now=now, query_timeout=query_timeout
        )
        self.on_doubt: Callable[[], None] = _nothing
        self._listening = _Listening(connect, first, address_map, now)
        self._check_timeout = min(query_timeout, CHECK_TIMEOUT)

    @property
    def listening(self) -> bool:
        """Whether the server tells what changes, and is believed."""
        return self._listening.hears

    def push_stats(self) -> PushStats:
        """How it goes with changes that a server tells by itself."""
        endpoint = getattr(self._connection, "endpoint", None)
        address = None if endpoint is None else _address(*endpoint)
        return self._listening.record.stats(active=self.listening, address=address)

    async def refresh(self) -> None:
        """Read everything once, and emit it together with what the server told.

        Raises:
            NoNodeAvailable: No node could be reached; nothing is emitted.
            Exception: Replicasets or instances could not be read; nothing is emitted, the connection is closed.
        """
        if self._listening.provisional and self._lives:
            await self._look_for_a_teller()
        await super().refresh()

    async def check(self) -> None:
        """Make sure that the server lives, if everything that could be read is told; else read.

        Raises:
            NoNodeAvailable: No node could be reached; nothing is emitted.
            Exception: As for `refresh`.
        """
        listening = self._listening
        if listening.may_rest and self._lives and await self._answers() and listening.may_rest:
            self._sequence += 1
            self.emit(EventBatch((), self._epoch, self._sequence))
            return
        if listening.wants_to_come_back and self._lives:
            await self._look_for_a_teller()
        await self.refresh()

    async def close(self) -> None:
        """Close the connection; nothing is emitted any more."""
        self._listening.end()
        await super().close()

    async def _answers(self) -> bool:
        """Whether the server lives: a question that it does not answer in time costs the connection."""
        assert self._connection is not None
        try:
            async with asyncio.timeout(self._check_timeout):
                await self._connection.fetch(_QUESTION)
        except Exception as error:
            _LOG.debug("the server that tells of changes does not answer, another one is asked: %s", cause(error))
            self._give_up()
            return False
        except BaseException:
            self._give_up()
            raise
        self._listening.record.checks += 1
        return True

    async def _open(self) -> ServiceConnection | None:
        listening = self._listening
        connection = listening.take_first()
        if connection is not None:
            return connection
        hearing = _Hearing(listening, self._heard)
        connection = await listening.connect(hearing.hear)
        if connection is not None:
            listening.listen_to(hearing, connection)
        return connection

    async def _look_for_a_teller(self) -> None:
        """The connection in use tells nothing that counts: another one takes its place if its server does."""
        listening = self._listening
        hearing = _Hearing(listening, self._heard)
        connection = await listening.connect(hearing.hear)
        if self._closed:
            drop(connection)
            raise NoNodeAvailable("the topology source is closed")
        listening.provisional = False
        if connection is None:
            listening.record.postponed()
        elif hearing.view.speaks and not hearing.view.doubt:
            self._give_up()
            listening.listen_to(hearing, connection)
            self._use(connection)
        else:
            listening.fell_back(hearing.view, connection)
            hearing.end()
            drop(connection)

    def _use(self, connection: ServiceConnection) -> None:
        super()._use(connection)
        connection.add_termination_listener(self._ended)

    def _ended(self, connection: Any) -> None:
        """A connection is gone. If it told us, what changed since is not known: that is found out at once."""
        if connection is self._connection and self._listening.has_told_for(SHORT_LIFE):
            self.on_doubt()

    def _give_up(self) -> None:
        self._listening.end()
        super()._give_up()

    def _leaderless(self, events: Iterable[Event]) -> Iterable[Event]:
        view = self._listening.view
        if view is None:
            return events
        return [each for each in events if not (isinstance(each, EventInstance) and view.is_told(each.replicaset_uuid))]

    def _emit_poll(self, events: tuple[Event, ...]) -> None:
        view = self._listening.view
        if view is not None:
            believed = not view.doubt
            events = view.read(events, self._listening.now())
            if believed and view.doubt:
                self._doubt(view)
        self._listening.has_read()
        super()._emit_poll(events)

    def _doubt(self, view: CatalogView) -> None:
        """What a server tells does not count from now on."""
        self._listening.fell_back(view)
        self._begin_epoch()

    def _heard(self) -> None:
        """Hand on what was told, once there is something it can be added to."""
        view = self._listening.view
        if view is None or self._before is None or self._closed:
            return
        if view.doubt:
            self._begin_epoch()
            self.on_doubt()
            return
        if view.strangers:
            self.on_doubt()
        changes = view.changes()
        if not changes:
            return
        self._sequence += 1
        try:
            self.emit(EventBatch(changes, self._epoch, self._sequence, pushed=True))
        except ValueError as error:
            view.disbelieve(str(error))
            self._doubt(view)
            self.on_doubt()


class _Listening:
    """How a source comes to listen, and to whom it listens now.

    Attributes:
        provisional: The connection is one that was not asked to tell anything.
        current: What the connection in use says; None when it says nothing we could hear.
        record: What is counted.
    """

    def __init__(
        self,
        connect: NoticeConnect,
        first: Callable[[], ServiceConnection | None] | None,
        address_map: AddressMap | None,
        now: Callable[[], float],
    ) -> None:
        self.connect = connect
        self.address_map = address_map
        self.now = now
        self.provisional = False
        self.current: _Hearing | None = None
        self.record = PushRecord(now)
        self._first = first
        self._begun = now()
        self._last_reading = -math.inf

    @property
    def view(self) -> CatalogView | None:
        """What was told over the connection in use."""
        return None if self.current is None else self.current.view

    @property
    def hears(self) -> bool:
        """Whether the server tells anything that counts."""
        return self.view is not None and self.view.speaks and not self.view.doubt

    @property
    def wants_to_come_back(self) -> bool:
        """Whether a server is polled, and it is time to look for one that tells."""
        return not self.hears and self.record.comeback_due

    @property
    def may_rest(self) -> bool:
        """Whether nothing is missed if the tables are not read now."""
        view = self.view
        return view is not None and view.complete and self.now() - self._last_reading < READ_INTERVAL

    def has_told_for(self, seconds: float) -> bool:
        """Whether the server tells, and for how long at least."""
        return self.hears and self.now() - self._begun >= seconds

    def has_read(self) -> None:
        """The tables were read."""
        self._last_reading = self.now()

    def take_first(self) -> ServiceConnection | None:
        """The connection that exists already, once."""
        first, self._first = self._first, None
        connection = None if first is None else first()
        self.provisional = connection is not None
        return connection

    def listen_to(self, hearing: _Hearing, connection: ServiceConnection) -> None:
        """From now on this is the connection in use; what it told until it was ready decides."""
        self.current, self._begun = hearing, self.now()
        if self.hears:
            self.record.believed()
            _LOG.info("a server tells of changes of the topology by itself")
        else:
            self.fell_back(hearing.view, connection)

    def fell_back(self, view: CatalogView, connection: ServiceConnection | None = None) -> None:
        """What a server tells does not count; one that tells nothing is no surprise."""
        if view.doubt:
            _LOG.warning("the topology notices of a server are not used, it is polled instead: %s", view.doubt)
            self.record.fell_back("contradicted" if view.contradicted else "malformed")
        else:
            refused = getattr(connection, "on_notice", view) is None
            self.record.fell_back("refused" if refused else "silent")

    def end(self) -> None:
        """The connection is given up: nothing it says counts any more."""
        current, self.current = self.current, None
        self.provisional = False
        if current is not None:
            current.end()


class _Hearing:
    """What one connection says, from before it is ready until it is given up."""

    def __init__(self, listening: _Listening, heard: Callable[[], None]) -> None:
        self.view = CatalogView(listening.address_map)
        self._listening = listening
        self._heard = heard
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._last = 0.0
        self._ended = False

    def hear(self, text: str) -> None:
        """The notice callback: takes topology notices, drops all others."""
        if self._ended or self.view.doubt:
            return
        try:
            notice = read_catalog_notice(text)
        except ValueError as error:
            self.view.disbelieve(str(error))
            if self._listening.current is self:
                self._listening.fell_back(self.view)
        else:
            if notice is None:
                return
            self._listening.record.event()
            self.view.hear(notice)
        self._schedule()

    def end(self) -> None:
        """Hear nothing any more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        """Not at once: notices that came in one packet belong together."""
        view, loop = self.view, asyncio.get_running_loop()
        now = loop.time()
        at_once = view.urgent or bool(view.doubt) or view.waiting >= MOST_RUNS
        due = now if at_once else max(now, self._last + BUCKET_PAUSE)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_soon(self._flush) if due <= now else loop.call_at(due, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._last = asyncio.get_running_loop().time()
        if not self._ended:
            self._heard()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _nothing() -> None:
    """Nobody asked to be told."""
