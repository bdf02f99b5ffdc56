"""Random histories of a catalogue, and the orders in which a client may come to know of them.

A cluster with a history is simulated: what happened to each row, in the order of the raft log. Every value is used
once, so whatever the topology shows says from when it is. A schedule says in which order that is told and read:
notices come late, twice, out of order, in packets of any size; a server tells everything again as it was some time ago,
though not before the connection began; readings are behind the notices, as the tables of a server are; the connection
moves to a node that knows less, or that does not tell of buckets.

What must be shown is computed apart from the driver: of each fact, what was told from the latest position of the log
over this connection, else what was read last. A schedule that shows anything else is cut down to the steps that it
needs, and told in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from picopyn.dialects.picodata.catalog_notices import BucketNotice, RowNotice
from picopyn.dialects.picodata.catalog_view import CatalogView
from picopyn.topology import (
    BucketRange,
    Event,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventReplicaset,
    EventTier,
    Topology,
)

BUCKETS = 8
REPLICASETS = ("A", "B")
INSTANCES = ("a1", "a2", "b1")

#: A map and a key.
Fact = tuple[str, Any]
#: Each fact with the position of the entry that set it.
Facts = dict[Fact, int]
#: What happens, and up to which position of the log or about which: "connect", "tell", "snapshot", "read", "hand on".
Step = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log: the facts it changed, or the instance that it deleted."""

    position: int
    term: int
    index: int
    facts: tuple[Fact, ...]
    deleted: str | None = None

    @property
    def stamp(self) -> int:
        """Where in the raft log it stands."""
        return (self.term << 64) | self.index

    def __str__(self) -> str:
        what = f"{self.deleted} is gone" if self.deleted else ", ".join(f"{kind} {key}" for kind, key in self.facts)
        return f"{self.position} (term {self.term}, index {self.index}): {what}"


@dataclass(slots=True)
class History:
    """What happened, and what was true after each entry."""

    log: list[Change] = field(default_factory=list)
    truth: list[Facts] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: Random) -> History:
        """A short life with changes of the raft leader."""
        facts = dict(_BEGINNING)
        past = cls([], [facts])
        term = index = 1
        for position in range(1, rng.randrange(4, 14)):
            later = rng.random() < 0.2
            term, index = term + later, rng.randrange(5) if later else index + rng.randrange(1, 4)
            past.add(_change(rng, position, term, index))
        return past

    def add(self, change: Change) -> None:
        """The next thing that happened."""
        facts = self.truth[-1] | dict.fromkeys(change.facts, change.position)
        facts.pop(("instance", change.deleted), None)
        self.log.append(change)
        self.truth.append(facts)

    def stamp(self, position: int) -> int:
        """Where in the raft log an entry stands."""
        return self.log[position - 1].stamp if position else 0


_BEGINNING: Facts = dict.fromkeys(
    [
        *(("replicaset", name) for name in REPLICASETS),
        *(("instance", name) for name in INSTANCES),
        *(("bucket", number) for number in range(1, BUCKETS + 1)),
    ],
    0,
)


def _change(rng: Random, position: int, term: int, index: int) -> Change:
    kind = rng.choice(("replicaset", "instance", "instance", "bucket", "bucket", "gone"))
    if kind == "gone":
        return Change(position, term, index, (), rng.choice(INSTANCES))
    if kind == "bucket":
        first = rng.randrange(1, BUCKETS + 1)
        last = rng.randrange(first, BUCKETS + 1)
        return Change(position, term, index, tuple(("bucket", number) for number in range(first, last + 1)))
    name = rng.choice(REPLICASETS if kind == "replicaset" else INSTANCES)
    return Change(position, term, index, ((kind, name),))


def draw_steps(past: History, rng: Random) -> list[Step]:
    """Everything is told at least once, in any order, and there may be a change of connection on the way."""
    last = len(past.log)
    coming = [position for position in range(1, last + 1) for _ in range(1 + (rng.random() < 0.3))]
    disorder = rng.choice((0, 2, len(coming)))
    coming = [place for _, place in sorted((number + rng.random() * disorder, at) for number, at in enumerate(coming))]
    steps: list[Step] = [("connect", 0)]
    for position in coming:
        steps.append(("tell", position))
        dice = rng.random()
        if dice < 0.1:
            steps.append(("snapshot", rng.randrange(last + 1)))
        elif dice > 0.95:
            steps += _move(last, rng)
        if dice < 0.5:
            steps.append(("hand on", 0))
        elif dice < 0.65:
            steps.append(("read", rng.randrange(last + 1)))
    steps.append(("hand on", 0))
    return steps


def _move(last: int, rng: Random) -> Iterator[Step]:
    """Another node, which knows only so much, and tells the rest later."""
    known = rng.randrange(last + 1)
    yield "connect without buckets" if rng.random() < 0.3 else "connect", known
    for position in range(known + 1, last + 1):
        if rng.random() < 0.8:
            yield "tell", position


def told(change: Change) -> RowNotice | BucketNotice:
    """The notice of an entry."""
    if change.deleted is not None:
        return RowNotice("instance", change.deleted, change.stamp, deleted=True)
    kind, key = change.facts[0]
    if kind == "bucket":
        return run(key, change.facts[-1][1], change.position, change.stamp)
    return row(kind, key, change.position, change.stamp)


def row(kind: str, name: str, position: int, stamp: int) -> RowNotice:
    """A row as an entry set it."""
    if kind == "replicaset":
        return RowNotice("replicaset", name, stamp, fields={"current_master_uuid": str(position)})
    return RowNotice("instance", name, stamp, fields={"current_state": "Online", "address": f"h:{position + 1}"})


def run(first: int, last: int, position: int, stamp: int) -> BucketNotice:
    """Buckets as an entry set them."""
    return BucketNotice(EventBuckets("t", (BucketRange(first, last, str(position)),), stamp=stamp))


def reading(facts: Facts) -> list[Event]:
    """All rows with these facts, as they are read."""
    events: list[Event] = []
    ranges = []
    for (kind, key), at in facts.items():
        if kind == "bucket":
            ranges.append(BucketRange(key, key, str(at)))
        elif kind == "replicaset":
            events.append(EventReplicaset(key, key, "t", leader_uuid=str(at)))
        else:
            events.append(EventInstance(key, key, "A", "t", "h", at + 1, True, "Online", "Online"))
    return [*events, EventTier("t", BUCKETS), EventBuckets("t", tuple(ranges), complete=True)]


def shown(topology: Topology) -> Facts:
    """The facts of a snapshot, each with the position of the entry that set its value."""
    snapshot = topology.snapshot
    shards = snapshot.shard_map("t")
    assert shards is not None
    facts: Facts = {("instance", node.uuid): node.port - 1 for node in snapshot.all_nodes()}
    for name in REPLICASETS:
        known = snapshot.replicaset(name)
        facts["replicaset", name] = int(known.leader_uuid or -1) if known is not None else -1
    facts.update((("bucket", number), int(owner or -1)) for number, owner in enumerate(shards.owners) if number)
    return facts


class Client:
    """A view and the topology it feeds, as the source does it, beside what must be shown.

    Args:
        past: What happened to the cluster.
        make_view: Makes what is tried out.
    """

    def __init__(self, past: History, make_view: Callable[[], CatalogView] = CatalogView) -> None:
        self._past = past
        self._make_view = make_view
        self.topology = Topology()
        self._epoch = self._sequence = 0

    def play(self, steps: Sequence[Step]) -> None:
        """Take one step after the other.

        Raises:
            AssertionError: Something else is shown than must be.
        """
        for verb, position in steps:
            if verb == "tell":
                self._tell(self._past.log[position - 1])
            elif verb == "snapshot":
                self._tell_everything(max(position, self._begun))
            elif verb == "hand on":
                self._emit(self.view.changes())
            elif verb == "read":
                self._read(position)
            else:
                self._connect(position, buckets=verb == "connect")

    def _connect(self, position: int, *, buckets: bool) -> None:
        """What the last connection told counts no more; a snapshot and a reading are one step."""
        self.view = self._make_view()
        self._epoch += 1
        self._sequence = 0
        self._told: dict[Fact, tuple[int, int | None]] = {}
        self._heard = set(range(position + 1))
        self._best: Facts = {}
        self._table = 0
        self._begun = position
        self._buckets = buckets
        self._tell_everything(position)
        self._read(position)

    def _tell(self, change: Change) -> None:
        self._heard.add(change.position)
        if not self._buckets and change.facts and change.facts[0][0] == "bucket":
            return
        self.view.hear(told(change))
        for fact in change.facts:
            self._learn(fact, change.position, change.position)
        if change.deleted is not None:
            self._learn(("instance", change.deleted), change.position, None)

    def _tell_everything(self, position: int) -> None:
        """All rows as they were after an entry. An instance that was gone by then is not in it."""
        stamp = self._past.stamp(position)
        for (kind, key), set_by in self._past.truth[position].items():
            if kind != "bucket":
                self.view.hear(row(kind, key, set_by, stamp))
            elif self._buckets:
                self.view.hear(run(key, key, set_by, stamp))
            else:
                continue
            self._learn((kind, key), position, set_by)

    def _learn(self, fact: Fact, position: int, value: int | None) -> None:
        if position >= self._told.get(fact, (-1, None))[0]:
            self._told[fact] = position, value

    def _read(self, position: int) -> None:
        """Read tables, which show nothing that was not told before and never go back."""
        heard = 0
        while heard + 1 in self._heard:
            heard += 1
        self._table = max(self._table, min(position, heard))
        self._emit(self.view.read(reading(self._past.truth[self._table]), 0.0))

    def _emit(self, events: tuple[Event, ...]) -> None:
        self._sequence += 1
        self.topology.apply(EventBatch(events, self._epoch, self._sequence, reset=self._sequence == 1))
        now = shown(self.topology)
        for fact, position in now.items():
            before = self._best.get(fact, -1)
            assert position >= before, f"{fact} went back from {before} to {position}"
        self._best |= now
        due = self._due()
        assert now == due, f"{_apart(now, due)} is shown, and {_apart(due, now)} was to be"
        assert not self.view.doubt, self.view.doubt

    def _due(self) -> Facts:
        told = {fact: value for fact, (_, value) in self._told.items()}
        known = {**self._past.truth[self._table], **told}
        return {fact: value for fact, value in known.items() if value is not None}


def simulate(seed: int, make_view: Callable[[], CatalogView] = CatalogView) -> None:
    """Play one random schedule.

    Raises:
        AssertionError: It shows what it must not; the text is the shortest part of it that does.
    """
    rng = Random(seed)
    past = History.draw(rng)
    steps = draw_steps(past, rng)
    try:
        Client(past, make_view).play(steps)
    except AssertionError:
        steps = shrunk(past, steps, make_view)
        raise AssertionError(f"seed {seed}:\n{in_words(past, steps, make_view)}") from None


def failure(past: History, steps: Sequence[Step], make_view: Callable[[], CatalogView]) -> str:
    """What is wrong with a schedule; empty when nothing is."""
    try:
        Client(past, make_view).play(steps)
    except AssertionError as error:
        return str(error)
    return ""


def shrunk(past: History, steps: Sequence[Step], make_view: Callable[[], CatalogView] = CatalogView) -> list[Step]:
    """The steps of a failing schedule without those that it fails without; the first connection stays."""
    kept = list(steps)
    size = len(kept)
    while size:
        for first in range(len(kept) - size, 0, -1):
            fewer = kept[:first] + kept[first + size :]
            if failure(past, fewer, make_view):
                kept = fewer
                size = min(size, len(kept) - 1)
                break
        else:
            size //= 2
    return kept


def in_words(past: History, steps: Sequence[Step], make_view: Callable[[], CatalogView] = CatalogView) -> str:
    """A schedule, for people."""
    needed = max(position for _, position in steps)
    lines = ["what happened:", *(f"  {change}" for change in past.log[:needed]), "what was heard:"]
    lines += [f"  {verb} {position}" if verb != "hand on" else f"  {verb}" for verb, position in steps]
    return "\n".join([*lines, failure(past, steps, make_view)])


def _apart(one: Facts, other: Facts) -> Facts:
    return dict(one.items() - other.items())
