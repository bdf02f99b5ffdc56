"""What a pool tells an observer: frozen events, handed to `on_event` one by one.

This file decides which events exist and that an observer can never harm the pool. It does not decide when
an event happens: the rooms that own the facts publish them.

An observer is called where the event happens, at once and in order; it should only note the event and
return. For each connection the events come in one order: `ConnectionOpened`, then one `ConnectionClosed`;
or one `ConnectFailed` and nothing else. No event carries a parameter value or a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from picopyn.errors import Fault

_log = logging.getLogger("picopyn.observe")

#: Why a connection was closed.
CloseReason = Literal[
    "shutdown",  # the pool closes
    "node_gone",  # its node left the topology, moved, or is drained
    "excess",  # more than the sizes allow
    "idle",  # unused for too long
    "lifetime",  # open for too long
    "broken",  # the other side closed it, or an error shows that it is lost
    "timeout",  # a call ran into its deadline on it
    "state_unknown",  # a call ended in a way that leaves its state open
    "terminated",  # ended from outside a call: node down, stuck call, leader moved
]

#: What the driver thinks of a node.
NodeState = Literal["up", "suspect", "down", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvent(Event):
    """Something about one connection.

    Attributes:
        connection: Number of the connection within its pool.
        node: Uuid of its node; `""` while the address is only a seed.
        address: `host:port` that was dialled.
        purpose: What it is for: `"plain"`, `"replica reads"`, `"topology"`, `"statement metadata"`, …
    """

    connection: int
    node: str
    address: str
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened(ConnectionEvent):
    """A connection is ready for use.

    Attributes:
        seconds: How long opening took.
    """

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed(ConnectionEvent):
    """A connection that was ready is no more.

    Attributes:
        reason: Why; the first reason counts.
        seconds: How long it was open.
    """

    reason: CloseReason
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFailed(ConnectionEvent):
    """A connection could not be opened.

    Attributes:
        error: Class and text of the error, without secrets.
        seconds: How long it was tried.
    """

    error: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStateChanged(Event):
    """The driver thinks differently of a node.

    Attributes:
        node: Its uuid.
        address: Its `host:port`.
        old: What was thought; None for a node that is new.
        new: What is thought now.
        reason: What changed it.
    """

    node: str
    address: str
    old: NodeState | None
    new: NodeState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyChanged(Event):
    """A refresh brought a topology that differs from the last.

    Attributes:
        version: Version of the new snapshot.
        nodes_added: Uuids of new nodes.
        nodes_removed: Uuids of nodes that left.
        nodes_changed: Uuids of nodes with another address.
        leaders_changed: Replicaset uuid → (old, new) uuid of the leader; None where there is none or none
            is known.
        buckets_moved: Tier → number of buckets whose owner changed.
        tiers_added: Names of new tiers.
    """

    version: int
    nodes_added: tuple[str, ...] = ()
    nodes_removed: tuple[str, ...] = ()
    nodes_changed: tuple[str, ...] = ()
    leaders_changed: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    buckets_moved: Mapping[str, int] = field(default_factory=dict)
    tiers_added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLearned(Event):
    """It is known where a statement text runs; told again when that has changed.

    Attributes:
        query: The text, without values.
        kind: Name of the [`RouteKind`][picopyn.routing.route.RouteKind].
        tier: Its tier, or None.
        reason: How it was learned, or why it has no key.
    """

    query: str
    kind: str
    tier: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRetried(Event):
    """A call is sent again.

    Attributes:
        node: Uuid of the node that failed it.
        address: Its `host:port`.
        fault: What the failure meant.
        attempt: Number of the attempt that failed, from 1.
    """

    node: str
    address: str
    fault: Fault
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeLost(Event):
    """A call ended with `OutcomeUnknown`: its statement may or may not have taken effect.

    Attributes:
        node: Uuid of the node that had the statement.
        address: Its `host:port`.
        reason: `"timeout"`, `"connection lost"`, or `"refused in part"` by one of several replicasets.
    """

    node: str
    address: str
    reason: str


#: Whatever takes events.
Observer = Callable[[Event], None]


class Publisher:
    """Hands events to one observer; what the observer raises never comes out.

    Owned by a pool. A pool asks `active` before it builds an event, so that nobody pays for events nobody
    wants.
    """

    __slots__ = ("_complained", "_observer", "active")

    def __init__(self, observer: Observer | None) -> None:
        self._observer: Final = observer
        self._complained: set[str] = set()
        self.active: Final = observer is not None

    def notify(self, event: Event) -> None:
        """Hand over one event; what the observer raises is logged once per kind of event, as a warning."""
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception as error:
            kind = type(event).__name__
            if kind not in self._complained:
                self._complained.add(kind)
                _log.warning(
                    "on_event raised %s for %s; further ones are not logged",
                    type(error).__name__,
                    kind,
                    exc_info=error,
                )
