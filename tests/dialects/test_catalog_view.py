"""Notices over readings: whatever the order in which they come, nothing that is known is taken back.

A cluster with a history is simulated: what happened to each row, in the order of the raft log. Every value is used
once, so whatever the topology shows says from when it is. Notices come late, twice, out of order, in packets of any
size, and a server may tell everything again as it was some time ago; readings are behind the notices, as the tables of
a server are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from picopyn.dialects.picodata.catalog_notices import BucketNotice, RowNotice, read_catalog_notice
from picopyn.dialects.picodata.catalog_view import CatalogView
from picopyn.topology import (
    BucketRange,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventReplicaset,
    EventTier,
    Topology,
)
from tests.asynchronous import notices

BUCKETS = 8
REPLICASETS = ("A", "B")
INSTANCES = ("a1", "a2", "b1")

Facts = dict[tuple[str, Any], int]


@dataclass(frozen=True)
class Change:
    """One entry of the log: the facts it changed, or the row that it deleted.

    A fact is a map and a key, its value the position of the entry that set it.
    """

    position: int
    stamp: int
    facts: tuple[tuple[str, Any], ...]
    deleted: str | None = None


@dataclass
class History:
    """What happened, and what was true after each entry."""

    log: list[Change] = field(default_factory=list)
    truth: list[Facts] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: Random) -> History:
        """A short life with changes of the raft leader."""
        past = cls()
        facts: Facts = {("replicaset", name): 0 for name in REPLICASETS} | {("instance", name): 0 for name in INSTANCES}
        facts |= {("bucket", number): 0 for number in range(1, BUCKETS + 1)}
        past.truth.append(dict(facts))
        term = index = 1
        for position in range(1, rng.randrange(4, 14)):
            later = rng.random() < 0.2
            term, index = term + later, rng.randrange(5) if later else index + rng.randrange(1, 4)
            change = cls._change(rng, position, (term << 64) | index)
            if change.deleted is not None:
                facts.pop(("instance", change.deleted), None)
            facts |= dict.fromkeys(change.facts, position)
            past.log.append(change)
            past.truth.append(dict(facts))
        return past

    @staticmethod
    def _change(rng: Random, position: int, stamp: int) -> Change:
        kind = rng.choice(("replicaset", "instance", "instance", "bucket", "bucket", "gone"))
        if kind == "gone":
            return Change(position, stamp, (), rng.choice(INSTANCES))
        if kind == "bucket":
            first = rng.randrange(1, BUCKETS + 1)
            last = rng.randrange(first, BUCKETS + 1)
            return Change(position, stamp, tuple(("bucket", number) for number in range(first, last + 1)))
        return Change(position, stamp, ((kind, rng.choice(REPLICASETS if kind == "replicaset" else INSTANCES)),))

    def stamp(self, position: int) -> int:
        """Where in the raft log an entry stands."""
        return self.log[position - 1].stamp if position else 0


def told(change: Change) -> Iterator[RowNotice | BucketNotice]:
    """The notices of an entry."""
    if change.deleted is not None:
        yield RowNotice("instance", change.deleted, change.stamp, deleted=True)
    elif change.facts[0][0] == "bucket":
        yield run(change.facts[0][1], change.facts[-1][1], change.position, change.stamp)
    else:
        for kind, name in change.facts:
            yield row(kind, name, change.position, change.stamp)


def row(kind: str, name: str, position: int, stamp: int) -> RowNotice:
    """A row as an entry set it."""
    if kind == "replicaset":
        return RowNotice("replicaset", name, stamp, fields={"current_master_uuid": str(position)})
    return RowNotice("instance", name, stamp, fields={"current_state": "Online", "address": f"h:{position + 1}"})


def run(first: int, last: int, position: int, stamp: int) -> BucketNotice:
    """Buckets as an entry set them."""
    return BucketNotice(EventBuckets("t", (BucketRange(first, last, str(position)),), stamp=stamp))


def everything(past: History, position: int) -> Iterator[RowNotice | BucketNotice]:
    """A snapshot in the middle: all rows as they were after an entry, told with its stamp."""
    stamp = past.stamp(position)
    for (kind, key), set_by in past.truth[position].items():
        yield run(key, key, set_by, stamp) if kind == "bucket" else row(kind, key, set_by, stamp)


def reading(past: History, position: int) -> list[Any]:
    """All rows as they were after an entry, as they are read."""
    facts = past.truth[position]
    ranges = [BucketRange(key, key, str(at)) for (kind, key), at in facts.items() if kind == "bucket"]
    leaders = [
        EventReplicaset(key, key, "t", leader_uuid=str(at)) for (kind, key), at in facts.items() if kind == "replicaset"
    ]
    nodes = [
        EventInstance(key, key, "A", "t", "h", at + 1, online=True, current_state="Online", target_state="Online")
        for (kind, key), at in facts.items()
        if kind == "instance"
    ]
    return [*leaders, *nodes, EventTier("t", BUCKETS), EventBuckets("t", tuple(ranges), complete=True)]


def shown(topology: Topology) -> Facts:
    """The facts of a snapshot, each with the position of the entry that set its value."""
    snapshot = topology.snapshot
    facts: Facts = {("instance", node.uuid): node.port - 1 for node in snapshot.all_nodes()}
    for name in REPLICASETS:
        known = snapshot.replicaset(name)
        assert known is not None
        assert known.leader_uuid is not None
        facts["replicaset", name] = int(known.leader_uuid)
    for number in range(1, BUCKETS + 1):
        owner = snapshot.owner("t", number)
        assert owner is not None
        facts["bucket", number] = int(owner)
    return facts


class Connection:
    """One connection's life: a view and the topology it feeds, as the source does it."""

    def __init__(self, past: History) -> None:
        self.past = past
        self.view = CatalogView()
        self.topology = Topology()
        self.heard: set[int] = {0}
        self.best: Facts = {}
        self.sequence = 0

    def hear(self, change: Change) -> None:
        """What one entry changed."""
        for notice in told(change):
            self.view.hear(notice)
        self.heard.add(change.position)

    def hear_everything(self, position: int) -> None:
        """What was true some time ago. An instance that was gone by then is not in it: its end stays to be told."""
        for notice in everything(self.past, position):
            self.view.hear(notice)

    def flush(self) -> None:
        """Hand on what was told."""
        self._emit(self.view.changes())

    def read(self, share: float) -> None:
        """Read tables that show nothing that was not told before."""
        prefix = 0
        while prefix + 1 in self.heard:
            prefix += 1
        self._emit(self.view.read(reading(self.past, int(prefix * share)), 0.0), reset=self.sequence == 0)

    def _emit(self, events: tuple[Any, ...], *, reset: bool = False) -> None:
        self.sequence += 1
        self.topology.apply(EventBatch(events, 1, self.sequence, reset=reset))
        now = shown(self.topology)
        ends = {change.deleted: change.position for change in self.past.log if change.position in self.heard}
        for fact, position in now.items():
            assert position >= self.best.get(fact, 0), f"{fact} went back from {self.best[fact]} to {position}"
            assert fact[0] != "instance" or position >= ends.get(fact[1], 0), f"{fact} came back from {position}"
        self.best |= now


def simulate(seed: int) -> None:
    """One random schedule; at its end everything was told."""
    rng = Random(seed)
    past = History.draw(rng)
    connection = Connection(past)
    connection.hear_everything(0)
    connection.read(0.0)
    coming = [change for change in past.log for _ in range(1 + (rng.random() < 0.3))]
    disorder = rng.choice((0, 2, len(coming)))
    coming = [change for _, change in sorted(enumerate(coming), key=lambda pair: pair[0] + rng.uniform(0, disorder))]
    for change in coming:
        connection.hear(change)
        dice = rng.random()
        if dice < 0.1:
            connection.hear_everything(rng.randrange(max(connection.heard) + 1))
        if dice < 0.5:
            connection.flush()
        elif dice < 0.65:
            connection.read(rng.random())
    connection.flush()
    assert shown(connection.topology) == past.truth[-1]
    assert not connection.view.doubt


def test_no_schedule_takes_a_step_backward(full_size: bool) -> None:
    """1 000 000 histories in full size; the last word of each is the truth."""
    for seed in range(1_000_000 if full_size else 1_000):
        try:
            simulate(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


READ: list[tuple[str, Callable[[Any], Any], Any]] = [
    (notices.leads("r1", "i1", 5), lambda notice: notice.fields, {"current_master_uuid": "uuid-i1"}),
    (notices.leads("r1", "i1", 5, term=3), lambda notice: notice.stamp, (3 << 64) | 5),
    (notices.gone("instance", "i1", 5), lambda notice: (notice.deleted, notice.fields), (True, {})),
    (notices.notice("instance", 5, instance_uuid="i", current_state=["Online", 3]), lambda n: n.fields,
     {"current_state": "Online"}),
    (notices.notice("instance", 5, instance_uuid="i", address=None), lambda notice: notice.fields, {}),
    (notices.buckets(0, 10, "r1", 5), lambda notice: notice.event.ranges, (BucketRange(1, 10, "uuid-r1"),)),
    (notices.buckets(1, 10, "r1", 5, "sending"), lambda notice: notice.event.ranges[0].state, "sending"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "look", "expected"), READ)
def test_a_notice_says_what_changed_and_nothing_else(text: str, look: Callable[[Any], Any], expected: Any) -> None:
    """Fields that are not there have no value; a finished move is an active bucket; buckets begin with 1."""
    assert look(read_catalog_notice(text)) == expected


@pytest.mark.parametrize("text", ["", "3", "[]", "{", '{"map": "tier"}', '{"map": {}}', '{"type": "x"}'])
def test_other_messages_are_none(text: str) -> None:
    """Metadata of statements, plain words, maps of a later version."""
    assert read_catalog_notice(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"map": "instance"}',
        notices.notice("instance", 1, "upsert", instance_uuid="i"),
        notices.notice("instance", -1, instance_uuid="i"),
        notices.notice("instance", 1, instance_uuid=""),
        notices.notice("instance", 1, instance_uuid="i", address=4),
        notices.notice("bucket", 1, tier="t", bucket_id=3, current_replicaset_uuid="r"),
        notices.buckets(2, 1, "r", 1),
        notices.buckets(1, 1 << 30, "r", 1),
    ],
)
def test_what_is_not_understood_is_said_so(text: str) -> None:
    """A known map with something missing or of the wrong kind."""
    with pytest.raises(ValueError, match="is not understood"):
        read_catalog_notice(text)
