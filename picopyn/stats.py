"""What a pool counts: frozen snapshots for people, cheap counters for the rooms that count.

This file decides what is counted and how it is read. It measures nothing, and a counter is never read back
as a gauge: sizes come from the node pools' own sets at the moment of asking, so they cannot drift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from picopyn.errors import Fault

#: What decided where a call went; each call is counted under exactly one.
CallReason = Literal[
    "keyed",  # to the leader that owns its key
    "key_set",  # several keys, all owned by one leader
    "constant",  # to the leader of a bucket that does not depend on the parameters
    "named",  # to the key, bucket, tier or node that the caller named
    "any",  # no sharded table takes part; every node answers by itself
    "spread",  # its keys have several owners; the server asks them
    "unlearned",  # the route of the text is not known yet
    "not_keyed",  # the text has no key that can be computed here
    "uncomputable",  # the text has a key, but these values do not (NULL, a type without encoder)
    "no_map",  # the owner of the bucket or its leader is not known
    "leader_unused",  # the leader of its tablet is in doubt, or not where calls may go; another node passes it on
    "waited_for_leader",  # waited on our side for a snapshot with a leader
    "replica_read",  # sent to a replica: the caller asked for one, or its leader is away and the caller allowed it
]

#: All reasons, in the order above.
CALL_REASONS: Final[tuple[str, ...]] = get_args(CallReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStats:
    """What a host of a primary with replicas said when it was asked last.

    Attributes:
        writable: Whether it takes writes.
        response_time: Median time of its last answers (seconds).
        lag_bytes: Bytes of the primary's log that a replica has not applied; None where that is not known.
        lag: By how much its data are older than the primary's, at most (seconds); None where that is not known.
        stale: Whether a limit keeps reads off a replica; None where there is no limit, or it is none.
    """

    writable: bool
    response_time: float | None = None
    lag_bytes: int | None = None
    lag: float | None = None
    stale: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """One node, now.

    Attributes:
        node: Uuid; `""` for a seed that is not known as a node yet.
        address: `host:port`.
        state: `"up"`, `"suspect"`, `"down"`, or `"draining"` after `drain`.
        size: Connections for callers, open or being opened: `idle + in_use + connecting`.
        idle: Open and free.
        in_use: Open and with a call or a holder.
        connecting: Being opened.
        waiting: Calls that wait for one.
        role: `"leader"` or `"replica"`; None for what is neither, or not known yet.
        host: What it says about itself; None where roles are not watched, or while it has said nothing.
    """

    node: str
    address: str
    state: str = "up"
    role: str | None = None
    host: HostStats | None = None
    idle: int = 0
    in_use: int = 0
    connecting: int = 0
    waiting: int = 0

    @property
    def size(self) -> int:
        """Connections for callers, open or being opened."""
        return self.idle + self.in_use + self.connecting


#: Why a server is polled that was asked to tell of changes.
FallbackReason = Literal[
    "silent",  # it took the start-up key, and told nothing
    "refused",  # it let nobody in who sends the start-up key
    "malformed",  # it told something that is not understood
    "contradicted",  # its tables contradict what it told, for longer than they may lag behind
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushStats:
    """The changes of the topology that a server tells by itself.

    Attributes:
        active: Whether the server tells of changes now, and is believed; else it is polled.
        address: `host:port` of the node that is listened to, or polled; None while there is no connection.
        events: Events received, those of snapshots included.
        last_event_age: Seconds since the last of them; None before the first.
        snapshots: Connections that began with a snapshot of what there is.
        checks: Times the connection was only asked whether it lives, where a polled one would have been read over.
        fallbacks: Reason → times that a server was polled from then on; see `FallbackReason`.
    """

    active: bool = False
    address: str | None = None
    events: int = 0
    last_event_age: float | None = None
    snapshots: int = 0
    checks: int = 0
    fallbacks: Mapping[FallbackReason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyStats:
    """The refreshing of the topology.

    Attributes:
        refreshes: Refreshes that succeeded, checks of a connection that is listened to included.
        failures: Refreshes that brought nothing.
        age: Seconds since what is known was read, told or confirmed last; None before the first time.
        version: Version of the snapshot in use.
        push: Changes that a server tells by itself; None where no server is asked to (it is not Picodata, or the
            source is one of your own).
    """

    refreshes: int = 0
    failures: int = 0
    age: float | None = None
    version: int = 0
    push: PushStats | None = None

    @property
    def mode(self) -> Literal["push", "polling"]:
        """Whether the server tells of changes, or is asked."""
        return "push" if self.push is not None and self.push.active else "polling"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataStats:
    """The learning of routes.

    Attributes:
        hits: Requests answered from the cache.
        misses: Requests for texts that were not known.
        skipped: Discoveries not begun because too many were pending.
        learned: Texts learned with a key, a constant bucket, or "any node".
        not_keyed: Texts learned to have none.
        refused: Texts the server refused.
        unreadable: Answers of the server that could not be read.
        lost: Questions that cost the connection, by breaking it or by silence.
        checks: Real argument sets that were compared with a learned route.
        differences: Those that differed.
        pending: Discoveries not finished now.
        cached: Texts in the cache now.
    """

    hits: int = 0
    misses: int = 0
    skipped: int = 0
    learned: int = 0
    not_keyed: int = 0
    refused: int = 0
    unreadable: int = 0
    lost: int = 0
    checks: int = 0
    differences: int = 0
    pending: int = 0
    cached: int = 0


#: Reasons of calls that were executed where they were sent, as far as planning knows.
_DIRECT: Final = ("keyed", "key_set", "constant", "any", "replica_read")
#: Reasons of calls that belong to owners, and were sent to a node that had to send them on.
_FORWARDED: Final = ("spread", "no_map")
#: Reasons of calls without a key.
_UNKEYED: Final = ("not_keyed", "uncomputable")
#: Reasons of calls of which that was not known.
_UNKNOWN: Final = ("unlearned",)


@dataclass(frozen=True, slots=True)
class TextStats:
    """The calls of one statement text.

    Attributes:
        calls: Reason → calls; one of `CALL_REASONS` each. Here a call that waited for a leader is counted by what it
            was in the end.
    """

    calls: Mapping[str, int]

    @property
    def direct(self) -> int:
        """Calls sent to the node that executes them by itself.

        What the server makes of it is its own affair: a map that is a little old sends a call to the former owner,
        which sends it on. `strict_routing` proves it call by call; elsewhere the checks in `metadata` do so by sample.
        """
        return self._sum(_DIRECT)

    @property
    def forwarded(self) -> int:
        """Calls with a key that one node could not execute alone: several owners, or an unknown one."""
        return self._sum(_FORWARDED)

    @property
    def unkeyed(self) -> int:
        """Calls without a key: the text has none, or not with these values."""
        return self._sum(_UNKEYED)

    @property
    def unknown(self) -> int:
        """Calls before the text was learned."""
        return self._sum(_UNKNOWN)

    def _sum(self, reasons: Iterable[str]) -> int:
        return sum(self.calls.get(reason, 0) for reason in reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool, now: gauges per node, and what was counted since it was made. Nothing in it changes later.

    Attributes:
        nodes: Uuid or address → the node, for every node and seed of the pool.
        calls: Reason → calls; every reason is there.
        texts: Statement text → its calls, on servers whose statements have owners. The texts called most are there, at
            most `query_metadata_cache_size`; all others stand together under `""`.
        retries: [`Fault`][picopyn.errors.Fault] name → times a call was sent again.
        retries_refused: Calls that were not sent again because the retry budget was spent.
        outcome_unknown: Calls that ended with `OutcomeUnknown`.
        connects: Connections opened, of every purpose.
        connect_failures: Connections that could not be opened.
        closes: Close reason → connections closed.
        acquire_timeouts: Calls that found no free connection in time.
        too_many_waiting: Calls refused because of `max_waiting`.
        topology: The refreshing of the topology; None when there is none to refresh.
        metadata: The learning of routes; None when the dialect has none.
    """

    nodes: Mapping[str, NodeStats] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[str, TextStats] = field(default_factory=dict)
    retries: Mapping[str, int] = field(default_factory=dict)
    retries_refused: int = 0
    outcome_unknown: int = 0
    connects: int = 0
    connect_failures: int = 0
    closes: Mapping[str, int] = field(default_factory=dict)
    acquire_timeouts: int = 0
    too_many_waiting: int = 0
    topology: TopologyStats | None = None
    metadata: MetadataStats | None = None

    @property
    def routing(self) -> TextStats:
        """The calls of all texts together: direct, forwarded, unkeyed, unknown."""
        total: defaultdict[str, int] = defaultdict(int)
        for text in self.texts.values():
            for reason, calls in text.calls.items():
                total[reason] += calls
        return TextStats(dict(total))

    @property
    def size(self) -> int:
        """Connections for callers at all nodes, open or being opened."""
        return sum(node.size for node in self.nodes.values())

    @property
    def idle(self) -> int:
        """Free connections at all nodes."""
        return sum(node.idle for node in self.nodes.values())

    @property
    def in_use(self) -> int:
        """Connections with a call or a holder at all nodes."""
        return sum(node.in_use for node in self.nodes.values())

    @property
    def waiting(self) -> int:
        """Calls that wait for a connection at any node."""
        return sum(node.waiting for node in self.nodes.values())


class Counters:
    """The engine's counters: plain numbers, counted up where a thing happens.

    Owned by the pool's engine, which counts under its own lock where there are threads.

    Attributes:
        calls: Reason → calls; those of learned texts are counted at the text, and booked here when somebody asks.
        retries: Name of the fault → calls sent again.
        closes: Close reason → connections closed.
        outcome_unknown: See `PoolStats`; so with the rest.
    """

    __slots__ = (
        "acquire_timeouts",
        "calls",
        "closes",
        "connect_failures",
        "connects",
        "outcome_unknown",
        "retries",
        "retries_refused",
        "too_many_waiting",
    )

    def __init__(self) -> None:
        self.calls: defaultdict[str, int] = defaultdict(int, dict.fromkeys(CALL_REASONS, 0))
        self.retries: defaultdict[str, int] = defaultdict(int)
        self.closes: defaultdict[str, int] = defaultdict(int)
        self.retries_refused = 0
        self.outcome_unknown = 0
        self.connects = 0
        self.connect_failures = 0
        self.acquire_timeouts = 0
        self.too_many_waiting = 0

    def retried(self, fault: Fault) -> None:
        """Count one call that is sent again."""
        self.retries[fault.name] += 1

    def snapshot(
        self,
        nodes: Iterable[NodeStats] = (),
        topology: TopologyStats | None = None,
        metadata: MetadataStats | None = None,
        texts: Mapping[str, Mapping[str, int]] | None = None,
    ) -> PoolStats:
        """Everything counted so far, with the gauges that their owners give."""
        return PoolStats(
            nodes={node.node or node.address: node for node in nodes},
            calls=dict(self.calls),
            texts={text: TextStats(calls) for text, calls in (texts or {}).items()},
            retries=dict(self.retries),
            retries_refused=self.retries_refused,
            outcome_unknown=self.outcome_unknown,
            connects=self.connects,
            connect_failures=self.connect_failures,
            closes=dict(self.closes),
            acquire_timeouts=self.acquire_timeouts,
            too_many_waiting=self.too_many_waiting,
            topology=topology,
            metadata=metadata,
        )
