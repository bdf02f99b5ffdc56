"""The roles of a fixed list of PostgreSQL hosts, as a topology source: the union of what one watcher per host sees.

News are emitted as soon as one host tells them; nobody waits for the slowest. This file decides how often hosts are
looked at, when a refresh has seen enough, and what people are told. Who leads is decided in
[`host_roles`][picopyn.routing.host_roles].
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random

from picopyn.asynchronous.host_watcher import ConnectTo, HostWatcher
from picopyn.asynchronous.topology_source import TopologySource
from picopyn.errors import NoNodeAvailable
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_roles import Host, events, warning
from picopyn.routing.host_table import HostTable
from picopyn.topology import Event, EventBatch

_LOG = logging.getLogger(__name__)

#: Pause between two looks while no leader is known, or it does not answer (seconds).
EAGER_PAUSE = 0.1
#: Pauses are stretched or shrunk by up to this share, so that many clients do not look in step.
JITTER = 0.1
#: How long a refresh waits for the others once one host has answered (seconds).
PATIENCE = 0.25


class HostWatchers(TopologySource):
    """Watches the roles of hosts, from the first refresh until it is closed.

    Args:
        hosts: The hosts.
        connect_to: Opens a watcher's connection.
        table: Where everything that is known of the hosts is kept; the source owns it.
        delay: Pause between two looks at a host (seconds).
        timeout: Limit for one look (seconds).
        now: Clock; that of the event loop.
        rng: Source of the jitter.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        connect_to: ConnectTo,
        table: HostTable,
        *,
        delay: float,
        timeout: float,
        now: Callable[[], float],
        rng: Random,
    ) -> None:
        self.table = table
        self._hosts: Mapping[str, Host] = {host.uuid: host for host in hosts}
        self._connect_to = connect_to
        self._timeout = timeout
        self._delay = delay
        self._now = now
        self._rng = rng
        self._watchers: dict[str, HostWatcher] = {}
        self._reported = asyncio.Event()
        self._events: tuple[Event, ...] | None = None
        self._sequence = 0
        self._warned: str | None = None

    async def refresh(self) -> None:
        """Look at every host now; emits what is new.

        Returns when every host was seen, or those that answer were, or a new leader was found.

        Raises:
            NoNodeAvailable: No host answered; it lists the reason of each.
        """
        self._start()
        look = _Look(self.table, self._watchers)
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
        watchers = self._end()
        await asyncio.gather(*(watcher.close() for watcher in watchers))

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
        self.table.name(self._hosts.values())
        self._events = None
        self._watchers = {
            uuid: HostWatcher(host, self._connect_to, self, self._timeout) for uuid, host in self._hosts.items()
        }
        for watcher in self._watchers.values():
            watcher.start()

    def _end(self) -> list[HostWatcher]:
        watchers = list(self._watchers.values())
        self._watchers = {}
        return watchers

    def _publish(self) -> None:
        """Emit the hosts and their roles if they changed."""
        roles, facts = self.table.roles, self.table.facts
        now = tuple(events(self._hosts.values(), facts, roles))
        if now != self._events and self._watchers:
            self._sequence += 1
            first, self._events = self._events is None, now
            self.emit(EventBatch(now, 1, self._sequence, reset=first))
        told = warning(roles, self._hosts, facts)
        if told is not None and told != self._warned:
            self._warned = told
            _LOG.warning("%s", told)


class _Look:
    """One look at all hosts, under way.

    Args:
        table: What is known of them.
        watchers: Those that are to look; a look that is under way may have seen what was before, and does not count.
    """

    def __init__(self, table: HostTable, watchers: Mapping[str, HostWatcher]) -> None:
        self._table = table
        self._watchers = dict(watchers)
        self._wanted = {uuid: watcher.look() for uuid, watcher in watchers.items()}
        self._troubled = {uuid for uuid in watchers if table.trouble(uuid) is not None}
        self._led_by = table.roles.leader

    @property
    def answered(self) -> bool:
        """Whether any host has answered."""
        return any(self._table.trouble(uuid) is None for uuid in self._seen())

    def is_over(self) -> bool:
        """Whether nothing is worth waiting for: only hosts that were silent before are out, or a new leader is in."""
        if self._wanted.keys() <= self._seen():
            return True
        return self.answered and (self._wanted.keys() <= self._seen() | self._troubled or self._found_leader())

    def _seen(self) -> set[str]:
        return {uuid for uuid, number in self._wanted.items() if self._watchers[uuid].ended >= number}

    def _found_leader(self) -> bool:
        leader = self._table.roles.leader
        return self._led_by is not None and leader not in (None, self._led_by) and self._table.led
