"""Laws of the topology, for arbitrary histories of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.topology import (
    BucketRange,
    Event,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventLeader,
    EventReplicaset,
    EventTier,
    Topology,
)
from picopyn.topology.events import sorted_ranges
from picopyn.topology.shard_map import OwnerTable

COUNTS = {"hot": 12, "cold": 5}
REPLICASETS = ("A", "B", "C")
INSTANCES = ("a1", "a2", "b1", "c1")

ops = st.sampled_from(["replace", "replace", "replace", "delete"])
stamps = st.one_of(st.none(), st.integers(0, 6))
versions = st.one_of(st.none(), st.integers(0, 3))


@st.composite
def bucket_events(draw: st.DrawFn) -> EventBuckets:
    """Ranges of one tier that do not overlap."""
    tier = draw(st.sampled_from(sorted(COUNTS)))
    cuts = sorted(draw(st.sets(st.integers(1, COUNTS[tier] + 1), min_size=2, max_size=6)))
    runs = list(zip(cuts, (c - 1 for c in cuts[1:]), strict=False))
    chosen = draw(st.lists(st.sampled_from(runs), unique=True, max_size=len(runs)))
    states = st.sampled_from(["active", "active", "sending"])
    ranges = tuple(BucketRange(a, b, draw(st.sampled_from(REPLICASETS)), draw(states)) for a, b in chosen)
    return EventBuckets(tier, ranges, draw(st.booleans()), draw(ops), draw(stamps))


events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        EventInstance,
        st.sampled_from(INSTANCES),
        replicaset_uuid=st.sampled_from(REPLICASETS),
        host=st.sampled_from(["", "h1", "h2"]),
        online=st.booleans(),
        incarnation=versions,
        op=ops,
        stamp=stamps,
    ),
    st.builds(
        EventReplicaset,
        st.sampled_from(REPLICASETS),
        leader_uuid=st.one_of(st.none(), st.sampled_from(INSTANCES)),
        config_version=versions,
        leader_known=st.booleans(),
        op=ops,
        stamp=stamps,
    ),
    st.builds(EventLeader, st.sampled_from(REPLICASETS), st.sampled_from(INSTANCES), op=ops, stamp=stamps),
    st.sampled_from(sorted(COUNTS)).flatmap(
        lambda tier: st.builds(EventTier, st.just(tier), st.just(COUNTS[tier]), op=ops, stamp=stamps)
    ),
    bucket_events(),
)
histories = st.lists(events, max_size=12).map(tuple)


@dataclass(frozen=True)
class Malformed:
    """An event that must be refused, and what is wrong with it."""

    event: Any


malformed = st.sampled_from(
    [
        EventBuckets("hot", (BucketRange(1, 5, "A"), BucketRange(5, 6, "B"))),
        EventBuckets("hot", (BucketRange(0, 5, "A"),)),
        EventBuckets("cold", (BucketRange(6, 5, "A"),)),
        EventBuckets("cold", (BucketRange(1, 5),)),
        EventTier("cold", -5),
        EventInstance("a1", port=-1),
        EventReplicaset("A", op="upsert"),  # type: ignore[arg-type]
        EventLeader(""),
        object(),
    ]
).map(Malformed)


def after(history: tuple[Event, ...]) -> Topology:
    """A topology with a past."""
    topology = Topology()
    topology.apply(EventBatch(history, epoch=1, reset=True))
    return topology


@given(histories, histories)
def test_applying_a_batch_twice_is_applying_it_once(past: tuple[Event, ...], batch: tuple[Event, ...]) -> None:
    """A repeated batch changes nothing."""
    topology = after(past)
    topology.apply(batch)
    once = topology.snapshot
    assert topology.apply(batch).empty
    assert topology.snapshot.facts == once.facts
    assert topology.snapshot.version == once.version


@given(histories, histories)
def test_a_batch_is_its_events_one_after_another(past: tuple[Event, ...], batch: tuple[Event, ...]) -> None:
    """Batching saves steps, it does not change the result."""
    together, single = after(past), after(past)
    together.apply(batch)
    for event in batch:
        single.apply((event,))
    assert together.snapshot.facts == single.snapshot.facts


@given(histories, st.integers(-5, 9))
def test_older_facts_change_nothing(past: tuple[Event, ...], age: int) -> None:
    """Facts that are all newer in the topology stay, whatever an older batch says about them."""
    whole = tuple(EventBuckets(tier, (BucketRange(1, count, "A"),), complete=True) for tier, count in COUNTS.items())
    topology = Topology()
    topology.apply(EventBatch(_stamped((*whole, *past), 10), epoch=1, reset=True))
    before = topology.snapshot
    assert topology.apply(EventBatch(_contradicted(past, age), epoch=1)).empty
    assert topology.snapshot.facts is before.facts


@given(histories, histories)
def test_a_late_batch_of_a_dead_epoch_changes_nothing(past: tuple[Event, ...], batch: tuple[Event, ...]) -> None:
    """What an old connection still had to say is not heard, reset or not."""
    topology = after(past)
    before = topology.snapshot
    for reset in (False, True):
        assert topology.apply(EventBatch(batch, epoch=0, reset=reset), now=9.0).empty
    assert topology.snapshot is before


@given(histories, histories)
def test_a_reset_is_a_fresh_topology(past: tuple[Event, ...], batch: tuple[Event, ...]) -> None:
    """Nothing of the past shines through a reset batch, not even its stamps."""
    topology, fresh = after(past), Topology()
    topology.apply(EventBatch(batch, epoch=2, reset=True))
    fresh.apply(EventBatch(batch, epoch=2, reset=True))
    assert topology.snapshot.facts == fresh.snapshot.facts
    more = (*past, *batch)
    topology.apply(more)
    fresh.apply(more)
    assert topology.snapshot.facts == fresh.snapshot.facts


@given(histories, histories, malformed, st.booleans())
def test_a_malformed_event_refuses_everything(
    past: tuple[Event, ...], batch: tuple[Event, ...], fault: Malformed, reset: bool
) -> None:
    """A refused batch leaves snapshot and stamps as they were."""
    topology, untouched = after(past), after(past)
    before = topology.snapshot
    try:
        topology.apply(EventBatch((*batch, fault.event), epoch=1, reset=reset))
    except ValueError:
        assert topology.snapshot is before
        topology.apply(batch)
        untouched.apply(batch)
        assert topology.snapshot.facts == untouched.snapshot.facts
    else:
        raise AssertionError(f"{fault} was accepted")


@given(histories, bucket_events())
def test_a_partial_move_leaves_every_other_bucket_alone(past: tuple[Event, ...], move: EventBuckets) -> None:
    """Only the buckets a partial event names can change, and they have the owner it names."""
    topology = after(past)
    before = topology.snapshot
    move = _partial(move)
    topology.apply((move,))
    named = {n: r for r in move.ranges for n in range(r.first, r.last + 1)}
    for tier, count in COUNTS.items():
        for bucket in range(count + 2):
            owner = topology.snapshot.owner(tier, bucket)
            if tier != move.tier or bucket not in named:
                assert owner == before.owner(tier, bucket)
            elif move.op == "replace" and move.stamp is None:
                assert owner == named[bucket].replicaset_uuid


@settings(max_examples=60)
@given(histories)
def test_every_bucket_has_at_most_one_owner(past: tuple[Event, ...]) -> None:
    """The ranges of a map never overlap, and say the same as the single look-ups."""
    snapshot = after(past).snapshot
    for tier in snapshot.tiers:
        shards = snapshot.shard_map(tier)
        if shards is None:
            continue
        said = [(n, r.replicaset_uuid, r.state) for r in shards.ranges() for n in range(r.first, r.last + 1)]
        assert said == sorted(set(said))
        assert {n: owner for n, owner, _ in said} == {
            n: owner for n in range(1, shards.count + 1) if (owner := snapshot.owner(tier, n)) is not None
        }
        assert all(shards.state(n) == state for n, _, state in said)


@settings(max_examples=60)
@given(histories)
def test_leaders_are_online_members(past: tuple[Event, ...]) -> None:
    """A leader that is offered is Online and belongs to its replicaset; roles never overlap."""
    snapshot = after(past).snapshot
    for uuid in snapshot.replicaset_uuids():
        leader = snapshot.leader(uuid)
        if leader is not None:
            assert leader.online
            assert leader in snapshot.members(uuid)
            assert snapshot.leader_known(uuid)
    leaders, replicas = set(snapshot.nodes("leader")), set(snapshot.nodes("replica"))
    assert not leaders & replicas
    assert leaders | replicas <= set(snapshot.nodes("any"))


def _partial(event: EventBuckets) -> EventBuckets:
    return EventBuckets(event.tier, event.ranges, False, event.op, event.stamp)


def _stamped(batch: tuple[Event, ...], stamp: int) -> tuple[Event, ...]:
    return tuple(_with(event, stamp=stamp) for event in batch)


def _contradicted(batch: tuple[Event, ...], stamp: int) -> tuple[Event, ...]:
    """The opposite of each fact, older, about the same buckets."""
    opposite = {"replace": "delete", "delete": "replace"}
    return tuple(_with(event, stamp=stamp, op=opposite[event.op], complete=False) for event in batch)


def _with(event: Event, **changes: Any) -> Event:
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    values.update({name: value for name, value in changes.items() if name in values})
    return type(event)(**values)


@given(st.lists(st.tuples(bucket_events().filter(lambda e: e.tier == "cold"), stamps), max_size=8))
@settings(max_examples=150)
def test_an_owner_table_is_what_each_bucket_says_for_itself(history: list[tuple[EventBuckets, int | None]]) -> None:
    """Whole maps, ranges and deletions, of any age: the same as one fact per bucket, the newest of which counts."""
    table = OwnerTable()
    table.grow(COUNTS["cold"])
    facts: dict[int, tuple[str | None, str]] = {}
    ages: dict[int, float] = {}
    for event, stamp in history:
        said: dict[int, tuple[str | None, str]] = {}
        if event.complete and event.op == "replace":
            said = dict.fromkeys(range(1, COUNTS["cold"] + 1), (None, "active"))
        for r in event.ranges:
            gone = event.op == "delete"
            fact = (None, "active") if gone else (r.replicaset_uuid, r.state)
            said |= dict.fromkeys(range(r.first, r.last + 1), fact)
        for bucket, fact in said.items():
            if stamp is None or ages.get(bucket, -1) <= stamp:
                facts[bucket] = fact
                ages[bucket] = ages.get(bucket, -1) if stamp is None else stamp
        if event.complete and event.op == "replace":
            table.replace(sorted_ranges(event), stamp)
        else:
            for r in event.ranges:
                (table.forget if event.op == "delete" else table.assign)(r, stamp)
    shards = table.published("cold", None)
    for bucket in range(1, COUNTS["cold"] + 1):
        owner, state = facts.get(bucket, (None, "active"))
        assert shards.owner(bucket) == owner
        assert shards.state(bucket) == (None if owner is None else state)
