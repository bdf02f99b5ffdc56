"""Who owns which shard: a flat table for numbered buckets, sorted ranges for tablets, the same look-up.

This file decides how owners are stored, looked up and replaced range by range. It knows no leader, no address
and no server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from picopyn.topology.events import BucketRange

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Owners of the buckets of one tier at one moment.

    Attributes:
        space: Name of the sharding space: the tier.
        owners: Replicaset uuid per bucket; index 0 is unused, None where no owner is known.
        moving: Ranges whose state is not `"active"`, ascending. Their owner is still the one that serves
            reads.
    """

    space: str
    owners: tuple[str | None, ...]
    moving: tuple[BucketRange, ...] = ()

    def owner(self, number: int) -> str | None:
        """Replicaset uuid that owns this bucket; None when it is unknown or there is no such bucket."""
        return self.owners[number] if 0 < number < len(self.owners) else None

    @property
    def count(self) -> int:
        """Number of buckets of the space."""
        return len(self.owners) - 1

    @property
    def unowned(self) -> int:
        """Number of buckets whose owner is not known."""
        return self.owners.count(None) - 1

    def state(self, number: int) -> str | None:
        """State of this bucket, usually `"active"`; None when nothing is known about it."""
        if self.owner(number) is None:
            return None
        return next((r.state for r in self.moving if r.first <= number <= r.last), "active")

    def ranges(self) -> tuple[BucketRange, ...]:
        """The owned buckets as runs with one owner and state, ascending."""
        states = {number: r.state for r in self.moving for number in range(r.first, r.last + 1)}
        facts = ((n, owner, states.get(n, "active")) for n, owner in enumerate(self.owners) if owner is not None)
        return tuple(_runs(facts))


class RangeMap:
    """Owners of a hash space that is cut into ranges (tablets).

    Attributes:
        space: Name of the sharding space: the table.
    """

    __slots__ = ("_firsts", "_lasts", "_owners", "space")

    def __init__(self, space: str, ranges: Iterable[tuple[int, int, str]]) -> None:
        """Take inclusive (first, last, owner) ranges that do not overlap, in any order."""
        ordered = sorted(ranges)
        self.space = space
        self._firsts = [first for first, _, _ in ordered]
        self._lasts = [last for _, last, _ in ordered]
        self._owners = [owner for _, _, owner in ordered]

    def owner(self, number: int) -> str | None:
        """Owner of the range this number lies in; None when no range holds it."""
        at = bisect_right(self._firsts, number) - 1
        return self._owners[at] if at >= 0 and number <= self._lasts[at] else None


class OwnerTable:
    """The owners of one tier while events are being applied; its one owner is a draft of the topology.

    Besides the owner it holds the stamp of each bucket, so that an older fact about a range changes only the
    buckets of which nothing newer is known.
    """

    __slots__ = ("_floor", "_newest", "_owners", "_stamps", "_states")

    def __init__(self, stamp: int | None = None) -> None:
        """An empty table; facts older than `stamp` will not get in."""
        self._floor = self._newest = _NEVER if stamp is None else stamp
        self._owners: list[str | None] = [None]
        self._stamps: list[float] = [_NEVER]
        self._states: dict[int, str] = {}

    def copy(self) -> OwnerTable:
        """A table of the same content that can be changed on its own."""
        twin = OwnerTable()
        twin._floor, twin._newest = self._floor, self._newest
        twin._owners = self._owners.copy()
        twin._stamps = self._stamps.copy()
        twin._states = self._states.copy()
        return twin

    @property
    def count(self) -> int:
        """The largest bucket it has room for."""
        return len(self._owners) - 1

    def grow(self, count: int) -> None:
        """Make room for buckets up to `count`; never shrinks."""
        more = count - self.count
        if more > 0:
            self._owners.extend([None] * more)
            self._stamps.extend([self._floor] * more)

    def assign(self, r: BucketRange, stamp: int | None) -> None:
        """Give the buckets of a range to its replicaset."""
        self._make_room(r, stamp)
        self._set(r.first, r.last, r.replicaset_uuid, r.state, stamp)

    def replace(self, ranges: Sequence[BucketRange], stamp: int | None) -> None:
        """Take a complete map: give these ascending ranges to their replicasets, and forget all other owners.

        A whole table costs no more than its ranges, unless something newer is known about a bucket.
        """
        if stamp is not None and stamp < self._newest:
            for r in ranges:
                self.assign(r, stamp)
            self._forget_outside(ranges, stamp)
            return
        if ranges:
            self.grow(ranges[-1].last)
        self._owners = _laid_out(ranges, self.count)
        moving = [r for r in ranges if r.state != "active"]
        self._states = {number: r.state for r in moving for number in range(r.first, r.last + 1)}
        if stamp is not None:
            self._stamps = [stamp] * len(self._owners)
            self._floor = self._newest = stamp

    def forget(self, r: BucketRange, stamp: int | None) -> None:
        """Forget the owners of a range."""
        self._make_room(r, stamp)
        self._set(r.first, r.last, None, "active", stamp)

    def published(self, space: str, previous: ShardMap | None) -> ShardMap:
        """The table as an immutable map; the previous one itself if nothing changed."""
        owners = tuple(self._owners)
        moving = tuple(_runs((n, self._owners[n] or "", state) for n, state in sorted(self._states.items())))
        if previous is not None and previous.owners == owners and previous.moving == moving:
            return previous
        return ShardMap(space, owners, moving)

    def _forget_outside(self, ranges: Iterable[BucketRange], stamp: int) -> None:
        """Forget the owners of all buckets, known or to come, that lie in none of these ascending ranges."""
        free = 1
        for r in ranges:
            self._set(free, r.first - 1, None, "active", stamp)
            free = r.last + 1
        self._set(free, self.count, None, "active", stamp)
        self._floor = max(self._floor, stamp)

    def _make_room(self, r: BucketRange, stamp: int | None) -> None:
        """Grow for a range, unless it is older than all that is known about buckets to come."""
        if stamp is None or stamp >= self._floor:
            self.grow(r.last)

    def _set(self, first: int, last: int, owner: str | None, state: str, stamp: int | None) -> None:
        last = min(last, self.count)
        if first > last:
            return
        if stamp is None or max(self._stamps[first : last + 1]) <= stamp:
            self._set_run(first, last, owner, state, stamp)
            return
        for number in range(first, last + 1):
            if self._stamps[number] <= stamp:
                self._set_run(number, number, owner, state, stamp)

    def _set_run(self, first: int, last: int, owner: str | None, state: str, stamp: int | None) -> None:
        size = last - first + 1
        self._owners[first : last + 1] = [owner] * size
        if stamp is not None:
            self._stamps[first : last + 1] = [stamp] * size
            self._newest = max(self._newest, stamp)
        if size < len(self._states):
            for number in range(first, last + 1):
                self._states.pop(number, None)
        elif self._states:
            self._states = {n: s for n, s in self._states.items() if not first <= n <= last}
        if state != "active":
            self._states.update(dict.fromkeys(range(first, last + 1), state))


def _laid_out(ranges: Iterable[BucketRange], count: int) -> list[str | None]:
    """The owner of each bucket of ascending ranges; index 0 is unused."""
    owners: list[str | None] = [None]
    free = 1
    for r in ranges:
        first, last = r.first, r.last
        if first > free:
            owners += [None] * (first - free)
        if first == last:  # where there are very many ranges, most are like that
            owners.append(r.replicaset_uuid)
        else:
            owners += [r.replicaset_uuid] * (last - first + 1)
        free = last + 1
    owners += [None] * (count + 1 - free)
    return owners


def _runs(facts: Iterable[tuple[int, str, str]]) -> Iterator[BucketRange]:
    """Join neighbours with one owner and state; `facts` are (number, owner, state), ascending."""
    first = last = 0
    said: tuple[str, str] | None = None
    for number, owner, state in facts:
        if said == (owner, state) and number == last + 1:
            last = number
            continue
        if said is not None:
            yield BucketRange(first, last, *said)
        first = last = number
        said = (owner, state)
    if said is not None:
        yield BucketRange(first, last, *said)
