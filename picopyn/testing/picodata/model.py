"""The cluster's facts: instances, replicasets, tiers, and who owns which bucket. Data without behaviour of
its own.

Decides nothing about time, sockets or SQL. Owner of every object here: `cluster.Cluster`; only the governor
and the control room change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from picopyn.testing.picodata.laws import Life


@dataclass(frozen=True, slots=True)
class Standing:
    """A state with its incarnation, as `_pico_instance` shows it: `["Online", 1]`."""

    variant: str
    incarnation: int


@dataclass(slots=True)
class Address:
    """Where an instance listens, and what it tells others if that is not the same."""

    host: str
    port: int = 0
    advertised: str | None = None

    def __str__(self) -> str:
        if self.advertised is not None:
            return self.advertised
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Instance:
    """One instance; see `_pico_instance` for the words.

    Attributes:
        life: What its process does.
        routes: Whether its router knows the tiers yet (False for a while after it joined).
        reason: Why its target state is what it is.
        changed: When its target state changed.
    """

    name: str
    uuid: str
    raft_id: int
    replicaset: str
    tier: str
    address: Address
    changed: datetime
    life: Life = Life.ALIVE
    current: Standing = Standing("Online", 1)
    target: Standing = Standing("Online", 1)
    reason: str = "boot"
    routes: bool = True

    @property
    def online(self) -> bool:
        """Whether both its states say Online."""
        return self.current.variant == "Online" == self.target.variant


@dataclass(slots=True)
class Replicaset:
    """One replicaset; see `_pico_replicaset` for the words.

    Attributes:
        read_only: Whether a planned switch is under way: writes are refused until it ends.
    """

    name: str
    uuid: str
    tier: str
    current_master: str
    target_master: str
    config_version: int = 4
    master_changes: int = 0
    state: str = "ready"
    read_only: bool = False


@dataclass(slots=True)
class Tier:
    """One tier; `bucket_count` 0 means it holds no sharded data."""

    name: str
    replication: int
    bucket_count: int
    vshard_version: int = 10


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive buckets of one replicaset, both ends inclusive."""

    first: int
    last: int
    replicaset: str


class BucketMap:
    """Owner of every bucket of a tier; bucket numbers start at 1."""

    def __init__(self, bucket_count: int, replicasets: list[str]) -> None:
        share, rest = divmod(bucket_count, max(1, len(replicasets)))
        sizes = [share + (index < rest) for index in range(len(replicasets))]
        self._owners: list[str] = [
            "",
            *(name for name, size in zip(replicasets, sizes, strict=True) for _ in range(size)),
        ]

    @property
    def bucket_count(self) -> int:
        """How many buckets there are."""
        return len(self._owners) - 1

    def owner(self, bucket: int) -> str:
        """Name of the replicaset that holds the bucket.

        Raises:
            KeyError: There is no such bucket.
        """
        if not 1 <= bucket <= self.bucket_count:
            raise KeyError(bucket)
        return self._owners[bucket]

    def owners(self, buckets: frozenset[int] | None) -> frozenset[str]:
        """Names of the replicasets that hold these buckets (None: any bucket)."""
        if buckets is None:
            return frozenset(self._owners[1:])
        return frozenset(self._owners[bucket] for bucket in buckets)

    def move(self, first: int, last: int, replicaset: str) -> None:
        """Give buckets `first` to `last`, inclusive, to a replicaset.

        Raises:
            KeyError: One of them does not exist.
        """
        self.owner(first)
        self.owner(last)
        self._owners[first : last + 1] = [replicaset] * (last + 1 - first)

    def ranges(self) -> tuple[Range, ...]:
        """The whole map as ranges in order."""
        return tuple(self._runs())

    def _runs(self) -> Iterator[Range]:
        first = 1
        for bucket in range(2, len(self._owners) + 1):
            if bucket == len(self._owners) or self._owners[bucket] != self._owners[first]:
                yield Range(first, bucket - 1, self._owners[first])
                first = bucket


@dataclass
class Tally:
    """Counts of one instance since its start or the last reset, by statement kind (`"select"`, `"insert"`,
    …).

    Attributes:
        direct: Executed here as the owner's leader.
        forwarded: Executed through other instances.
        replica: Read here as the owner's replica.
        here: Executed here without sharded data.
        refused: Answered with an error, at any step after Parse.
        hanging: Statements that wait right now: for an instance or for a slot.
    """

    direct: Counter[str] = field(default_factory=Counter)
    forwarded: Counter[str] = field(default_factory=Counter)
    replica: Counter[str] = field(default_factory=Counter)
    here: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    hanging: int = 0

    def reset(self) -> None:
        """Forget the counts; what hangs still hangs."""
        for counter in (self.direct, self.forwarded, self.replica, self.here, self.refused):
            counter.clear()

    def as_json(self) -> Mapping[str, object]:
        """For the control connection."""
        return {
            "direct": dict(self.direct),
            "forwarded": dict(self.forwarded),
            "replica": dict(self.replica),
            "here": dict(self.here),
            "refused": dict(self.refused),
            "hanging": self.hanging,
        }
