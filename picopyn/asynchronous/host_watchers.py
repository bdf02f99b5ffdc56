"""The roles of a fixed list of PostgreSQL hosts, as a topology source: the union of what one watcher per host sees.

News are emitted as soon as one host tells them; nobody waits for the slowest. This file decides how often hosts are
looked at, when a refresh has seen enough, and what people are told. Who leads is decided in
[`host_roles`][picopyn.routing.host_roles].
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from random import Random

from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.host_names import HostNames
from picopyn.asynchronous.host_watcher import ConnectTo, HostWatcher
from picopyn.asynchronous.topology_source import TopologySource
from picopyn.errors import NoNodeAvailable
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_roles import Host, events, warning
from picopyn.routing.host_table import HostTable
from picopyn.topology import Event, EventBatch, vanished

_LOG = logging.getLogger(__name__)

#: Pause between two looks while no leader is known, or it does not answer (seconds).
EAGER_PAUSE = 0.1
#: Pauses are stretched or shrunk by up to this share, so that many clients do not look in step.
JITTER = 0.1
#: How long a refresh waits for the others once one host has answered (seconds).
PATIENCE = 0.25

#: Told when a limit is set for replicas, and there is none.
LIMITS_NOBODY = (
    "staleness limits replicas, but none of the hosts is one: every call that a replica may answer goes to a host that "
    "takes writes, or waits; name the replicas, or leave staleness out"
)

#: Pause between two look-ups of the names, and the same while no leader is known (seconds).
LOOK_UP_EVERY = 30.0
LOOK_UP_EAGERLY = 1.0


class HostWatchers(TopologySource):
    """Watches the roles of hosts, from the first refresh until it is closed.

    Args:
        names: The hosts.
        connect_to: Opens a watcher's connection.
        table: Where everything that is known of the hosts is kept; the source owns it.
        delay: Pause between two looks at a host (seconds).
        timeout: Limit for one look (seconds).
        now: Clock; that of the event loop.
        rng: Source of the jitter.
    """

    def __init__(
        self,
        names: HostNames,
        connect_to: ConnectTo,
        table: HostTable,
        *,
        delay: float,
        timeout: float,
        now: Callable[[], float],
        rng: Random,
    ) -> None:
        self.table = table
        self._names = names
        self._hosts: Mapping[str, Host] = {}
        self._connect_to = connect_to
        self._timeout = timeout
        self._delay = delay
        self._now = now
        self._rng = rng
        self._watchers: dict[str, HostWatcher] = {}
        self._reported = asyncio.Event()
        self._news = _News()
        self._follower: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Look at every host now; emits what is new.

        Returns when every host was seen, or those that answer were, or a new leader was found.

        Raises:
            NoNodeAvailable: No host answered; it lists the reason of each.
        """
        self._start()
        look = _Look(self.table, lambda: self._watchers)
        patience: float | None = None
        while not look.is_over():
            if look.answered and patience is None:
                patience = self._now() + PATIENCE
            self._reported.clear()
            try:
                async with asyncio.timeout_at(patience):
                    await self._reported.wait()
            except TimeoutError:
                break
        self._publish()
        if not look.answered:
            reasons = {host.name: self.table.trouble(uuid) or "" for uuid, host in self._hosts.items()}
            raise NoNodeAvailable("no host tells its role", reasons)

    async def close(self) -> None:
        """End all watchers."""
        watchers, follower = self._end(), self._follower
        await asyncio.gather(*(watcher.close() for watcher in watchers))
        if follower is not None:
            await asyncio.wait({follower})

    def terminate(self) -> None:
        """The same at once."""
        for watcher in self._end():
            watcher.terminate()

    # what the watchers tell

    def answered(self, host: Host, facts: HostFacts, seconds: float) -> None:
        """A host told its role."""
        self.table.answered(host.uuid, facts, seconds)
        self._publish()
        self._reported.set()

    def failed(self, host: Host, reason: str) -> None:
        """A host did not."""
        self.table.failed(host.uuid, reason, self._now())
        self._publish()
        self._reported.set()

    def pause(self, host: Host) -> float:
        """Seconds until the next look at a host."""
        pause = self._delay if self.table.led else min(self._delay, EAGER_PAUSE)
        return pause * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _start(self) -> None:
        if self._watchers:
            return
        self._news = _News()
        self._watch()
        if self._names.change:
            follower = asyncio.create_task(
                self._follow_names(), name="picopyn.host.names", context=contextvars.Context()
            )
            self._follower = unlamented(follower)

    def _watch(self) -> list[HostWatcher]:
        """Watch exactly the hosts there are.

        Returns:
            The watchers of those that are gone, for the caller to close.
        """
        self._hosts = {host.uuid: host for host in self._names.hosts}
        self.table.name(self._hosts.values())
        before, self._watchers = self._watchers, {}
        for uuid, host in self._hosts.items():
            watcher = before.pop(uuid, None) or HostWatcher(host, self._connect_to, self, self._timeout)
            self._watchers[uuid] = watcher
            watcher.start()
        return list(before.values())

    async def _follow_names(self) -> None:
        while True:
            if await self._names.look_up():
                gone = self._watch()
                self._publish()
                self._reported.set()
                await asyncio.gather(*(watcher.close() for watcher in gone))
            await asyncio.sleep(LOOK_UP_EVERY if self.table.led else LOOK_UP_EAGERLY)

    def _end(self) -> list[HostWatcher]:
        watchers = list(self._watchers.values())
        self._watchers = {}
        if self._follower is not None:
            self._follower.cancel()
        return watchers

    def _publish(self) -> None:
        """Emit the hosts and their roles if they changed."""
        if not self._watchers:
            return
        batch = self._news.of(self._hosts, self.table)
        if batch is not None:
            self.emit(batch)


class _News:
    """What was told so far, to the listener and to people."""

    def __init__(self) -> None:
        self._events: tuple[Event, ...] | None = None
        self._sequence = 0
        self._warned: set[str] = set()

    def of(self, hosts: Mapping[str, Host], table: HostTable) -> EventBatch | None:
        """The batch that is due; None when nothing is new. What is odd about the hosts is told in a log line, once."""
        rivals = warning(table.roles, hosts, table.facts)
        for told in (rivals, LIMITS_NOBODY if table.limits_nobody else None):
            if told is not None and told not in self._warned:
                self._warned.add(told)
                _LOG.warning("%s", told)
        now = tuple(events(hosts.values(), table.facts, table.roles))
        before, self._events = self._events, now
        if now == before:
            return None
        self._sequence += 1
        gone = () if before is None else tuple(vanished(before, now))
        return EventBatch((*now, *gone), 1, self._sequence, reset=before is None)


class _Look:
    """One look at all hosts, under way.

    Args:
        table: What is known of them.
        watchers: Those that are to look, as of now. A look that is under way may have seen what was before, and does
            not count; of a host that was found meanwhile, every look does.
    """

    def __init__(self, table: HostTable, watchers: Callable[[], Mapping[str, HostWatcher]]) -> None:
        self._table = table
        self._watchers = watchers
        self._wanted = {uuid: watcher.look() for uuid, watcher in watchers().items()}
        self._troubled = {uuid for uuid in self._wanted if table.trouble(uuid) is not None}
        self._led_by = table.roles.leader

    @property
    def answered(self) -> bool:
        """Whether any host has answered."""
        return any(self._table.trouble(uuid) is None for uuid in self._watchers() if self._has_looked(uuid))

    def is_over(self) -> bool:
        """Whether nothing is worth waiting for: only hosts that were silent before are out, or a new leader is in."""
        out = {uuid for uuid in self._watchers() if not self._has_looked(uuid)}
        return not out or (self.answered and (out <= self._troubled or self._found_leader()))

    def _has_looked(self, uuid: str) -> bool:
        return self._watchers()[uuid].ended >= self._wanted.get(uuid, 1)

    def _found_leader(self) -> bool:
        leader = self._table.roles.leader
        return self._led_by is not None and leader not in (None, self._led_by) and self._table.led
