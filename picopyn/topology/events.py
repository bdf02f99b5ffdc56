"""What a source says about a cluster: events, and the batches in which they arrive.

This file decides what an event may say and what makes one malformed. It does not know where events come from
(a poll or a push), nor what is known so far. The shape follows Picodata's design of topology notifications.

*Source*: Picodata, ADR 2025-09-12 "pgproto topology notifications" (`op`, `map`, raft term and index).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import attrgetter, le, lt
from typing import Literal, TypeAlias

import msgspec

Op: TypeAlias = Literal["replace", "delete"]

_FIRST, _LAST, _OWNER = map(attrgetter, ("first", "last", "replicaset_uuid"))

#: The largest bucket number taken for real; a larger one is a broken message, not a cluster.
LARGEST_BUCKET = 1 << 24


class BucketRange(msgspec.Struct, frozen=True, gc=False):
    """A run of buckets with one owner.

    Attributes:
        first: First bucket, inclusive; buckets are numbered from 1.
        last: Last bucket, inclusive.
        replicaset_uuid: The owner; may be empty when the event deletes the range.
        state: `"active"`, or the server's word for a range on its way to another replicaset.
    """

    first: int
    last: int
    replicaset_uuid: str = ""
    state: str = "active"


class EventInstance(msgspec.Struct, frozen=True, tag_field="map", tag="instance"):
    """One instance, as it is now. A delete needs only `uuid`.

    Attributes:
        uuid: Identity of the instance.
        name: Its name, for people.
        replicaset_uuid: The replicaset it belongs to.
        tier: The tier of that replicaset.
        host: Host a client can dial, without brackets; empty when there is no usable address.
        port: Port a client can dial; 0 when there is no usable address.
        online: Whether it takes calls: current **and** target state say so.
        current_state: The server's word, for people.
        target_state: The server's word, for people.
        incarnation: Grows with every start; None when the server does not tell.
        version: Server version.
        failure_domain: The zones it lies in, such as `{"DC": "1"}`.
        op: `"replace"` or `"delete"`.
        stamp: Position of this fact in its source's order; None takes the sequence of the batch.
    """

    uuid: str
    name: str = ""
    replicaset_uuid: str = ""
    tier: str = ""
    host: str = ""
    port: int = 0
    online: bool = False
    current_state: str = ""
    target_state: str = ""
    incarnation: int | None = None
    version: str = ""
    failure_domain: Mapping[str, str] = {}
    op: Op = "replace"
    stamp: int | None = None


class EventReplicaset(msgspec.Struct, frozen=True, tag_field="map", tag="replicaset"):
    """One replicaset, as the server's tables show it. A delete needs only `uuid`.

    Attributes:
        uuid: Identity of the replicaset.
        name: Its name, for people.
        tier: The tier it belongs to.
        leader_uuid: The instance that leads it. None with `leader_known`: there is none now, a switch is
            under way.
        config_version: Grows with every change of the replicaset; None when the server does not tell.
        leader_known: False when we may not read who leads.
        op: `"replace"` or `"delete"`.
        stamp: See [`EventInstance`][picopyn.topology.EventInstance].
    """

    uuid: str
    name: str = ""
    tier: str = ""
    leader_uuid: str | None = None
    config_version: int | None = None
    leader_known: bool = True
    op: Op = "replace"
    stamp: int | None = None


class EventLeader(msgspec.Struct, frozen=True, tag_field="map", tag="leader"):
    """A leader that was found by asking, for users who may not read the tables.

    It counts only where no `EventReplicaset` says who leads, and only while the instance is Online in that
    replicaset.

    Attributes:
        replicaset_uuid: The replicaset that was asked about.
        leader_uuid: The instance that was found to lead it; None (or op `"delete"`) forgets what was found.
        op: `"replace"` or `"delete"`.
        stamp: See [`EventInstance`][picopyn.topology.EventInstance].
    """

    replicaset_uuid: str
    leader_uuid: str | None = None
    op: Op = "replace"
    stamp: int | None = None


class EventTier(msgspec.Struct, frozen=True, tag_field="map", tag="tier"):
    """One tier. A delete needs only `name`, and forgets the owners of the tier's buckets.

    Attributes:
        name: Name of the tier.
        bucket_count: Number of its buckets, 0 for a tier without sharded rows; None when we may not read it,
            then it is the largest bucket that was ever named.
        op: `"replace"` or `"delete"`.
        stamp: See [`EventInstance`][picopyn.topology.EventInstance].
    """

    name: str
    bucket_count: int | None = None
    op: Op = "replace"
    stamp: int | None = None


class EventBuckets(msgspec.Struct, frozen=True, tag_field="map", tag="buckets"):
    """Owners of some buckets of one tier; every other bucket keeps its owner.

    Attributes:
        tier: The tier the buckets belong to; it becomes known by this event if it was not.
        ranges: Runs of buckets that do not overlap, in any order.
        complete: The ranges are all there is: buckets of the tier outside of them have no known owner any
            more. This is how a poll forgets what vanished.
        op: `"replace"`, or `"delete"`: nothing is known any more about the owners of these ranges.
        stamp: See [`EventInstance`][picopyn.topology.EventInstance].
    """

    tier: str
    ranges: tuple[BucketRange, ...] = ()
    complete: bool = False
    op: Op = "replace"
    stamp: int | None = None


Event: TypeAlias = EventInstance | EventReplicaset | EventLeader | EventTier | EventBuckets


class EventBatch(msgspec.Struct, frozen=True):
    """Events that are applied together or not at all.

    Attributes:
        events: In the order in which they are applied.
        epoch: Number of the source's connection; only facts of the same epoch are compared by age.
        sequence: Number of the batch within its epoch; the stamp of events that carry none.
        reset: The batch replaces everything known. A new epoch must begin with one.
        pushed: The server told it unasked: it is passed on at once, whatever refresh is under way.
    """

    events: tuple[Event, ...]
    epoch: int = 0
    sequence: int | None = None
    reset: bool = False
    pushed: bool = False


def check(event: Event) -> None:
    """Refuse a malformed event.

    Raises:
        ValueError: The event is of no known kind, names nothing, has an unknown `op`, or its numbers make no
            sense.
    """
    if not isinstance(event, Event):
        raise ValueError(f"not an event: {type(event).__name__}")
    if event.op not in ("replace", "delete"):
        raise ValueError(f"unknown op {event.op!r} in an event about {_subject(event)}")
    if not _key(event):
        raise ValueError(f"an event about {_subject(event)} does not say which")
    if isinstance(event, EventBuckets):
        _check_ranges(event)
    elif isinstance(event, EventTier) and not _is_count(event.bucket_count):
        raise ValueError(f"tier {event.name!r} cannot have {event.bucket_count!r} buckets")
    elif isinstance(event, EventInstance) and not 0 <= event.port <= 65535:
        raise ValueError(f"instance {event.uuid!r} cannot have port {event.port!r}")


def vanished(before: Iterable[Event], after: Iterable[Event]) -> Iterator[Event]:
    """The deletes that a poll owes: each instance, replicaset and tier named before and not now.

    Args:
        before: Events of the poll before, of the same epoch.
        after: Events of this poll.
    """
    present = {(type(event), _key(event)) for event in after}
    for event in before:
        kind, key = type(event), _key(event)
        if kind in (EventInstance, EventReplicaset, EventTier) and (kind, key) not in present:
            present.add((kind, key))
            yield kind(key, op="delete")


def sorted_ranges(event: EventBuckets) -> list[BucketRange]:
    """The ranges of a checked event, ascending."""
    return sorted(event.ranges, key=_FIRST)


def _key(event: Event) -> str:
    if isinstance(event, EventInstance | EventReplicaset):
        return event.uuid
    if isinstance(event, EventLeader):
        return event.replicaset_uuid
    return event.name if isinstance(event, EventTier) else event.tier


def _subject(event: Event) -> str:
    return str(event.__struct_config__.tag)


def _is_count(number: object) -> bool:
    return number is None or (type(number) is int and 0 <= number <= LARGEST_BUCKET)


def _check_ranges(event: EventBuckets) -> None:
    if _are_sound(event.ranges, owned=event.op == "replace"):
        return
    for r in event.ranges:
        if type(r.first) is not int or type(r.last) is not int or not 1 <= r.first <= r.last <= LARGEST_BUCKET:
            raise ValueError(f"tier {event.tier!r}: {r.first!r}-{r.last!r} is no range of buckets")
        if event.op == "replace" and not r.replicaset_uuid:
            raise ValueError(f"tier {event.tier!r}: buckets {r.first}-{r.last} without an owner")
    ordered = sorted_ranges(event)
    for lower, upper in pairwise(ordered):
        if upper.first <= lower.last:
            raise ValueError(f"tier {event.tier!r}: buckets {upper.first}-{lower.last} in two ranges")


def _are_sound(ranges: tuple[BucketRange, ...], *, owned: bool) -> bool:
    """Whether ranges stand in ascending order and nothing is wrong with them; quick, for there may be very many."""
    firsts, lasts = list(map(_FIRST, ranges)), list(map(_LAST, ranges))
    if not {*map(type, firsts), *map(type, lasts)} <= {int}:
        return False
    if not all(map(le, firsts, lasts)) or not all(map(lt, lasts, firsts[1:])):
        return False
    inside = not ranges or (firsts[0] >= 1 and lasts[-1] <= LARGEST_BUCKET)
    return inside and (not owned or all(map(_OWNER, ranges)))
