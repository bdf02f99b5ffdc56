"""What a process knows of the clusters that it connects to without a pool, and how much it has open there.

Connections are held weakly and asked whether they are closed, so no count can leak: not when a server ends them, and
not when nobody closes them. Those being opened count, too. A cluster to which nothing is open is forgotten, the longest
ago asked first, when there are too many.

*Source*: `yugabyte-smart-drivers.md` section 3.1, and the faults of section 3.3: counts that leak.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final
from weakref import WeakSet

from picopyn.dialects.yugabyte.servers import Server
from picopyn.routing.host_roles import Host


class Census:
    """What this process knows of one cluster, and has open there. Any thread may use it.

    Attributes:
        servers: The list as last read.
        read_at: When that was, on the monotonic clock.
        answered_at: The address it came from.
    """

    def __init__(self) -> None:
        self.servers: tuple[Server, ...] = ()
        self.read_at = -inf
        self.answered_at: str | None = None
        self._lock = threading.Lock()
        self._open: dict[str, WeakSet[Any]] = {}
        self._pending: Counter[str] = Counter()
        self._failed: dict[str, float] = {}
        self._told: set[str] = set()

    def load(self, uuid: str) -> int:
        """Connections to a node that are open or being opened."""
        with self._lock:
            return self._pending[uuid] + sum(not each.is_closed() for each in self._open.get(uuid, ()))

    @contextmanager
    def pending(self, uuid: str) -> Iterator[None]:
        """A connection is being opened."""
        with self._lock:
            self._pending[uuid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._pending[uuid] -= 1

    def opened(self, uuid: str, connection: Any) -> None:
        """A connection is open."""
        with self._lock:
            self._open.setdefault(uuid, WeakSet()).add(connection)
            self._failed.pop(uuid, None)

    def failed(self, uuid: str, until: float) -> None:
        """A node could not be connected to; it is left out until a moment."""
        with self._lock:
            self._failed[uuid] = until

    def left_out(self, now: float) -> list[str]:
        """Nodes that failed a short while ago."""
        with self._lock:
            self._failed = {uuid: until for uuid, until in self._failed.items() if until > now}
            return list(self._failed)

    def is_news(self, what: str) -> bool:
        """Whether nobody was told of this before; whoever asks tells it."""
        with self._lock:
            known = what in self._told
            self._told.add(what)
            return not known

    @property
    def is_idle(self) -> bool:
        """Nothing is open there, nor being opened."""
        with self._lock:
            pending = any(self._pending.values())
            return not (pending or any(not each.is_closed() for opened in self._open.values() for each in opened))


#: By the identity of the cluster where it tells one, and by the hosts of connection strings that led there.
_CENSUSES: dict[Any, Census] = {}
_CENSUSES_LOCK = threading.Lock()
#: Keys that are kept; beyond, clusters to which nothing is open are forgotten.
MOST_KEPT: Final = 256


def census_of(hosts: Sequence[Host], universe: str = "") -> Census:
    """What is known of a cluster: by its identity, else by the hosts of a connection string."""
    seeds = frozenset(host.uuid for host in hosts)
    with _CENSUSES_LOCK:
        found = _CENSUSES.get(universe) if universe else _CENSUSES.get(seeds)
        census = found or _CENSUSES.get(seeds) or Census()
        for key in filter(None, (seeds, universe)):
            _CENSUSES.pop(key, None)  # the newest is the last
            _CENSUSES[key] = census
        if len(_CENSUSES) > MOST_KEPT:
            _forget(census)
        return census


def _forget(but: Census) -> None:
    """Forget the clusters that nobody has a connection to, the longest ago asked first, until few enough are kept."""
    for key, census in list(_CENSUSES.items()):
        if len(_CENSUSES) <= MOST_KEPT:
            return
        if census is not but and census.is_idle:
            del _CENSUSES[key]
