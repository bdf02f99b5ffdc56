"""Rows on their way into a load: whether they may be sent, and to whom.

It sends nothing. A chunk is a part of the rows of one owner that were taken together; where each of its rows stood is
worked out only when somebody asks, for that is needed only after a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from picopyn.dialects.base import Dialect, KeyHash
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.place import Anyhow, Buckets, Destination, Place
from picopyn.engine.request import Request
from picopyn.errors import UsageError
from picopyn.routing.argument_types import is_refused
from picopyn.routing.plan import Plan, Planner, Role
from picopyn.routing.route import RouteKind
from picopyn.routing.row_groups import UNKNOWN, Groups, compile_slots
from picopyn.routing.sharding import RowsFunction, type_name
from picopyn.topology import ShardMap


class Batch:
    """Rows that were taken together.

    Args:
        positions: The position of each.
        slots: The slot of each; empty: their owners are not known.
        owners: The owner of each slot, with None behind the last.
    """

    __slots__ = ("owners", "positions", "slots")

    def __init__(self, positions: Sequence[int], slots: Sequence[int] = (), owners: Sequence[str | None] = ()) -> None:
        self.positions = positions
        self.slots = slots
        self.owners = owners

    def of(self, owner: str | None) -> list[int]:
        """The positions of the rows of one owner."""
        if not self.slots:
            return list(self.positions)
        pairs = zip(self.positions, self.slots, strict=True)
        return [position for position, slot in pairs if self.owners[slot] == owner]

    def slots_of(self, owner: str | None) -> set[int]:
        """The slots of the rows of one owner."""
        return {slot for slot in set(self.slots) if self.owners[slot] == owner}


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that go to one owner together.

    Attributes:
        owner: The replicaset; None: not known.
        batch: What they were taken with.
        first: Which of the owner's rows in the batch is the first one.
        rows: The rows.
        place: Where they go; None: as any call.
        request: The call that takes them there, once there is one.
    """

    owner: str | None
    batch: Batch
    first: int
    rows: list[Any]
    place: Destination | None
    request: Request | None = None

    def positions(self) -> list[int]:
        """The position of each row."""
        return self.batch.of(self.owner)[self.first : self.first + len(self.rows)]


@dataclass(slots=True)
class Owned:
    """Rows of one owner: to its leader, as long as the map is the one by which they were sorted.

    Attributes:
        tier: Their tier.
        shard_map: That map.
        batch: What they were taken with.
        owner: Their owner.
        bucket: One bucket of it.
    """

    tier: str
    shard_map: ShardMap
    batch: Batch
    owner: str | None
    bucket: int

    def plan(self, planner: Planner, dialect: Dialect, role: Role, *, read: bool) -> Plan:
        """Where to send them, as of now."""
        if planner.snapshot.shard_map(self.tier) is self.shard_map:
            return planner.for_bucket(self.tier, self.bucket, role, read, "key_set")
        buckets = frozenset(slot + 1 for slot in self.batch.slots_of(self.owner))
        return planner.for_buckets(self.tier, buckets, role, read)


class Sorter:
    """Sorts batches by owner, by the route of the statement and the newest map.

    Args:
        executor: Knows the routes.
        cluster: Knows the map.
        key_hash: The dialect's hash.
        query: The statement.
        oids: Type OIDs of its parameters, for rows that are to be refused when their key cannot be sent; else empty.
    """

    __slots__ = ("_cluster", "_constant", "_groups", "_key", "_map", "_slots", "tier")

    def __init__(
        self, executor: Executor, cluster: Cluster, key_hash: KeyHash, query: str, oids: Sequence[int] = ()
    ) -> None:
        self._cluster = cluster
        self._slots: RowsFunction | None = None
        self._map: ShardMap | None = None
        self._groups = Groups(())
        self._constant: Destination | None = None
        self._key: tuple[tuple[int, int], ...] = ()
        compiled = executor.route(query)
        route = None if compiled is None else compiled.route
        self.tier = None if route is None else route.tier
        if route is None:
            return
        if route.kind is RouteKind.KEYED and self.tier is not None:
            self._slots = compile_slots(route.keys[0], key_hash, cluster.snapshot.bucket_count(self.tier) or 0)
            parameters = [part.parameter for part in route.keys[0] if 0 <= part.parameter < len(oids)]
            self._key = tuple((parameter, oids[parameter]) for parameter in parameters)
            self._renew()
        elif route.kind is RouteKind.CONSTANT and self.tier is not None:
            self._constant = Buckets(self.tier, frozenset(route.buckets))
        elif route.kind is RouteKind.ANY_NODE:
            self._constant = Place()

    @property
    def owners(self) -> int:
        """How many owners there are, as far as is known."""
        return max(len(self._groups) - 1, 1)

    def sort(self, positions: Sequence[int], rows: list[Any], chunk_size: int) -> list[Chunk]:
        """Chunks of the rows of a batch.

        Raises:
            WrongRow: A part of a row's key is nothing that can be sent as its type; it names the row's position.
        """
        if self._slots is None:
            batch = Batch(positions)
            groups: dict[str | None, list[Any]] = {None: rows}
        else:
            self._renew()
            slots = self._slots(rows)
            batch = Batch(positions, slots, self._groups.owners)
            groups = self._groups.sort(rows, slots)
            if None in groups:
                self._look_at(positions, rows, slots)
        return [
            Chunk(owner, batch, first, mine[first : first + chunk_size], place)
            for owner, mine in groups.items()
            for place in (self._place(owner, batch),)
            for first in range(0, len(mine), chunk_size)
        ]

    def _look_at(self, positions: Sequence[int], rows: list[Any], slots: Sequence[int]) -> None:
        """Look closer at the rows whose key could not be computed."""
        for position, row, slot in zip(positions, rows, slots, strict=True):
            if slot != UNKNOWN:
                continue
            for parameter, oid in self._key:
                if is_refused(oid, row[parameter]):
                    kind = type(row[parameter]).__name__
                    told = f"cannot be sent: ${parameter + 1} is of type {kind} or out of range; expected is"
                    raise _wrong(position, f"{told} {type_name(oid)}")

    def _place(self, owner: str | None, batch: Batch) -> Destination:
        if owner is None or self._map is None or self.tier is None:
            return self._constant or Anyhow(self.tier)
        bucket = next(slot for slot in batch.slots if batch.owners[slot] == owner) + 1
        return Owned(self.tier, self._map, batch, owner, bucket)

    def _renew(self) -> None:
        """Sort by the newest map."""
        now = None if self.tier is None else self._cluster.snapshot.shard_map(self.tier)
        if now is not self._map or len(self._groups) == 1:
            self._map = now
            known = tuple(now.owners[1:]) if now is not None else ()
            missing = (self._cluster.snapshot.bucket_count(self.tier or "") or 0) - len(known)
            self._groups = Groups((*known, *(None,) * missing))


@dataclass(frozen=True, slots=True)
class Machinery:
    """What calls of many rows or keys work with.

    Attributes:
        executor: Runs their statements.
        cluster: Time, and the map.
        key_hash: The dialect's hash.
    """

    executor: Executor
    cluster: Cluster
    key_hash: KeyHash

    def sorter(self, query: str, oids: Sequence[int] = ()) -> Sorter:
        """What sorts the rows of a statement, as of now; see `Sorter`."""
        return Sorter(self.executor, self.cluster, self.key_hash, query, oids)


class WrongRow(UsageError):  # noqa: N818 - names the row
    """A row that cannot be sent.

    Attributes:
        position: Its position.
    """

    position = -1


def check_rows(rows: Sequence[Any], positions: Sequence[int], width: int | None) -> int | None:
    """Refuse rows of the wrong width, before any of them is sent.

    Args:
        rows: The rows.
        positions: The position of each.
        width: How many values each has; None: as many as the first one.

    Returns:
        The width.

    Raises:
        WrongRow: A row has another width, or is no sequence; it names its position.
    """
    if not rows:
        return width
    if all(map(_is_row, set(map(type, rows)))):
        widths = list(map(len, rows))
        width = widths[0] if width is None else width
        if widths.count(width) == len(widths):
            return width
    for position, row in zip(positions, rows, strict=True):
        if not _is_row(type(row)):
            raise _wrong(position, f"is no sequence of values but of type {type(row).__name__}")
        width = len(row) if width is None else width
        if len(row) != width:
            raise _wrong(position, f"has {len(row)} values, {width} are expected")
    return width


def _is_row(kind: type) -> bool:
    """Whether values of a type can be a row: they have an order and a length, and are no text and no mapping."""
    if issubclass(kind, tuple | list):
        return True
    return (
        not issubclass(kind, str | bytes | Mapping | Set) and hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    )


def _wrong(position: int, what: str) -> WrongRow:
    error = WrongRow(f"row {position} {what}")
    error.position = position
    return error
