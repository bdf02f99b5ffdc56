"""The one owner of what is known about a cluster: applies events, publishes snapshots.

This file decides what an event changes, and which event is too old to change anything. It does not know where
events come from, when to ask for them, or who reads the snapshots.

Three rules hold whatever arrives:

- A batch is applied as a whole or not at all: it works on a draft, and one assignment publishes the result.
- Facts of the same epoch are compared by stamp, per fact (per bucket for owners); an older one changes
  nothing. Neither does a replicaset whose `config_version`, or an instance whose `incarnation`, goes back.
- A new epoch begins with a reset batch. The node behind a new connection may lag, so nothing older than it
  counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from picopyn.topology.diff import TopologyDiff, difference
from picopyn.topology.events import (
    Event,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventLeader,
    EventReplicaset,
    EventTier,
    check,
    sorted_ranges,
)
from picopyn.topology.shard_map import OwnerTable
from picopyn.topology.snapshot import Facts, Node, Replicaset, TopologySnapshot


class Topology:
    """What is known about the cluster.

    One owner calls `apply`; anybody may read `snapshot` at any time.
    """

    def __init__(self) -> None:
        self._snapshot = TopologySnapshot()
        self._ledger = _Ledger()
        self._epoch: int | None = None

    @property
    def snapshot(self) -> TopologySnapshot:
        """The newest snapshot; immutable."""
        return self._snapshot

    def apply(self, events: EventBatch | Iterable[Event], reset: bool = False, *, now: float = 0.0) -> TopologyDiff:
        """Apply a batch, all or nothing, and publish a new snapshot.

        Args:
            events: A batch of a source, or plain events, which belong to the epoch that is current.
            reset: The batch replaces everything known, in one step; the same as `EventBatch.reset`.
            now: The moment of the batch, for `TopologySnapshot.age`.

        Returns:
            What changed. Empty for a batch of an epoch that is over: it changes nothing.

        Raises:
            ValueError: An event is malformed, or a new epoch does not begin with a reset; nothing was
                changed.
        """
        batch = events if isinstance(events, EventBatch) else EventBatch(tuple(events), self._epoch or 0)
        reset = reset or batch.reset
        if self._epoch is not None and batch.epoch < self._epoch:
            return TopologyDiff()
        if self._epoch is not None and batch.epoch > self._epoch and not reset:
            raise ValueError(f"epoch {batch.epoch} does not begin with a reset")
        draft = _Draft(Facts(), _Ledger()) if reset else _Draft(self._snapshot.facts, self._ledger)
        for event in batch.events:
            check(event)
            draft.take(event, event.stamp if event.stamp is not None else batch.sequence)
        self._epoch = batch.epoch
        return self._publish(draft, now)

    def apply_instance(self, event: EventInstance) -> TopologyDiff:
        """Apply one fact about an instance."""
        return self.apply((event,))

    def apply_replicaset(self, event: EventReplicaset) -> TopologyDiff:
        """Apply one fact about a replicaset."""
        return self.apply((event,))

    def apply_bucket(self, event: EventBuckets) -> TopologyDiff:
        """Apply owners of some buckets of one tier."""
        return self.apply((event,))

    def apply_tiers(self, bucket_counts: Mapping[str, int | None]) -> TopologyDiff:
        """Apply tiers by name with their number of buckets; tiers that are not named stay."""
        return self.apply(EventTier(name, count) for name, count in bucket_counts.items())

    def known_tiers(self) -> frozenset[str]:
        """Names of all known tiers."""
        return frozenset(self._snapshot.tiers)

    def clear(self) -> TopologyDiff:
        """Forget everything; the next batch may be of any epoch."""
        diff = self.apply((), reset=True)
        self._epoch = None
        return diff

    def _publish(self, draft: _Draft, now: float) -> TopologyDiff:
        before = self._snapshot
        facts, ledger = draft.published(before.facts)
        moment = now if before.refreshed_at is None else max(now, before.refreshed_at)
        if facts == before.facts:
            after = before.seen_again(moment)
        else:
            after = TopologySnapshot(facts, before.version + 1, moment)
        self._snapshot, self._ledger = after, ledger
        return difference(before, after)


class _Ledger:
    """What is remembered besides the facts: owner tables, and stamps, those of deleted facts included."""

    __slots__ = ("stamps", "tables")

    def __init__(self) -> None:
        self.stamps: dict[tuple[str, str], int] = {}
        self.tables: dict[str, OwnerTable] = {}


class _Draft:
    """The facts while one batch is being applied; thrown away if an event is malformed."""

    def __init__(self, facts: Facts, ledger: _Ledger) -> None:
        self._nodes = dict(facts.nodes)
        self._replicasets = dict(facts.replicasets)
        self._tiers = dict(facts.tiers)
        self._found = dict(facts.found_leaders)
        self._stamps = dict(ledger.stamps)
        self._tables = dict(ledger.tables)
        #: Tiers whose table is ours to change; the others are shared with the ledger.
        self._own: set[str] = set()

    def take(self, event: Event, stamp: int | None) -> None:
        """Apply one checked event."""
        if isinstance(event, EventBuckets):
            self._take_buckets(event, stamp)
        elif isinstance(event, EventInstance):
            self._take_instance(event, stamp)
        elif isinstance(event, EventReplicaset):
            self._take_replicaset(event, stamp)
        elif isinstance(event, EventTier):
            self._take_tier(event, stamp)
        else:
            self._take_leader(event, stamp)

    def published(self, previous: Facts) -> tuple[Facts, _Ledger]:
        """The facts and what to remember with them; unchanged maps are the previous objects."""
        maps = {
            tier: table.published(tier, previous.maps.get(tier))
            for tier, table in self._tables.items()
            if tier in self._tiers and table.count
        }
        ledger = _Ledger()
        ledger.stamps, ledger.tables = self._stamps, self._tables
        return Facts(self._nodes, self._replicasets, self._tiers, maps, self._found), ledger

    def _is_old(self, kind: str, key: str, stamp: int | None) -> bool:
        """Whether something newer is known about this fact; if not, its stamp is remembered."""
        if stamp is None:
            return False
        known = self._stamps.get((kind, key))
        if known is not None and stamp < known:
            return True
        self._stamps[kind, key] = stamp
        return False

    def _take_instance(self, event: EventInstance, stamp: int | None) -> None:
        if self._is_old("instance", event.uuid, stamp):
            return
        if event.op == "delete":
            self._nodes.pop(event.uuid, None)
            return
        known = self._nodes.get(event.uuid)
        incarnation = _newer(known.incarnation if known else None, event.incarnation)
        if incarnation != event.incarnation and event.incarnation is not None:
            return
        node = _node(event, incarnation)
        self._nodes[event.uuid] = known if known is not None and known == node else node

    def _take_replicaset(self, event: EventReplicaset, stamp: int | None) -> None:
        if self._is_old("replicaset", event.uuid, stamp):
            return
        if event.op == "delete":
            self._replicasets.pop(event.uuid, None)
            return
        known = self._replicasets.get(event.uuid)
        version = _newer(known.config_version if known else None, event.config_version)
        if version != event.config_version and event.config_version is not None:
            return
        leader = event.leader_uuid if event.leader_known else None
        self._replicasets[event.uuid] = Replicaset(
            event.uuid, event.name, event.tier, leader, event.leader_known, version
        )

    def _take_leader(self, event: EventLeader, stamp: int | None) -> None:
        if self._is_old("leader", event.replicaset_uuid, stamp):
            return
        if event.op == "delete" or event.leader_uuid is None:
            self._found.pop(event.replicaset_uuid, None)
        else:
            self._found[event.replicaset_uuid] = event.leader_uuid

    def _take_tier(self, event: EventTier, stamp: int | None) -> None:
        if self._is_old("tier", event.name, stamp):
            return
        if event.op == "delete":
            self._tiers.pop(event.name, None)
            self._begin_table(event.name, stamp)
            return
        before = self._tiers.get(event.name)
        self._tiers[event.name] = count = event.bucket_count
        if count is None:
            return
        if before not in (None, count) or self._table(event.name).count > count:
            # The same key has another bucket now: what was known means nothing.
            self._begin_table(event.name, stamp)
        self._table(event.name).grow(count)

    def _take_buckets(self, event: EventBuckets, stamp: int | None) -> None:
        if event.tier not in self._tiers and self._tier_is_gone(event.tier, stamp):
            return
        if event.op == "replace":
            self._tiers.setdefault(event.tier, None)
        count = self._tiers.get(event.tier)
        ranges = sorted_ranges(event)
        if count is not None and ranges and ranges[-1].last > count:
            raise ValueError(f"tier {event.tier!r} has {count} buckets, not {ranges[-1].last}")
        table = self._table(event.tier)
        if event.op == "delete":
            for r in ranges:
                table.forget(r, stamp)
        elif event.complete:
            table.replace(ranges, stamp)
        else:
            for r in ranges:
                table.assign(r, stamp)

    def _tier_is_gone(self, tier: str, stamp: int | None) -> bool:
        """Whether the tier was deleted by something newer than a fact about its buckets."""
        return stamp is not None and stamp < self._stamps.get(("tier", tier), stamp)

    def _begin_table(self, tier: str, stamp: int | None) -> None:
        self._tables[tier] = OwnerTable(stamp)
        self._own.add(tier)

    def _table(self, tier: str) -> OwnerTable:
        if tier not in self._own:
            known = self._tables.get(tier)
            self._tables[tier] = known.copy() if known is not None else OwnerTable()
            self._own.add(tier)
        return self._tables[tier]


def _newer(known: int | None, said: int | None) -> int | None:
    if known is None or said is None:
        return known if said is None else said
    return max(known, said)


def _node(event: EventInstance, incarnation: int | None) -> Node:
    return Node(
        uuid=event.uuid,
        name=event.name,
        host=event.host,
        port=event.port,
        tier=event.tier,
        replicaset_uuid=event.replicaset_uuid,
        online=event.online,
        version=event.version,
        failure_domain=MappingProxyType(dict(event.failure_domain)),
        current_state=event.current_state,
        target_state=event.target_state,
        incarnation=incarnation,
    )
