"""What is known of a Picodata catalogue over one connection: what was read on it, and what the server tells.

Rows that are read are complete but old at once; notices are new but say only what changed, and perhaps not all of it:
not the names, nor which state an instance shall have, nor the buckets of tiers that are sharded by vshard. So each
field has the newest value that was told, and where nothing was told the one that was read. This file decides which
value counts, and when notices are no longer believed. It knows no connection and no clock.

Three rules:

- A told value is replaced by one told later in the order of the raft log, never by an older one and never by one read.
- What was told to be gone stays gone until something later is told about it.
- A told value that contradicts what is read, again and again while neither changes, is one that the server has stopped
  telling about: then nothing told over this connection counts any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from picopyn.dialects.picodata.addresses import AddressMap, AddressReader
from picopyn.dialects.picodata.catalog_notices import BucketNotice, RowNotice
from picopyn.topology import BucketRange, Event, EventBuckets, EventInstance, EventReplicaset, EventTier
from picopyn.topology.shard_map import OwnerTable

#: For so long a told value may differ from the one read before it is not believed (seconds): a server tells what is
#: decided, and shows it in its tables when it is carried out.
PATIENCE = 2.0
#: The same for owners of buckets: what is read of them comes from a cache of the instance, renewed every 10 s when it
#: has nothing else to do (`picodata-protocol.md` section 2).
BUCKET_PATIENCE = 25.0

_Row = EventInstance | EventReplicaset
_Key = tuple[str, str]


@dataclass(slots=True)
class _Known:
    """One instance or replicaset.

    Attributes:
        row: What was read last, if the last reading had it.
        told: Values by field with the position at which they were told.
        gone: Position at which it was told to be gone; -1: never.
        seen: Whether any reading ever had it.
    """

    row: _Row | None = None
    told: dict[str, tuple[int, str]] = field(default_factory=dict)
    gone: int = -1
    seen: bool = False

    def hear(self, notice: RowNotice) -> bool:
        """Take what is later than what is known; gives whether that is anything."""
        if notice.deleted:
            return self._leave(notice.stamp)
        changed = False
        for name, value in notice.fields.items():
            if notice.stamp >= max(self.gone, self.told.get(name, (-1, ""))[0]):
                changed = changed or self.value(name) != value
                self.told[name] = notice.stamp, value
        return changed

    def _leave(self, stamp: int) -> bool:
        if stamp < self.gone:
            return False
        self.gone = stamp
        before = len(self.told)
        self.told = {name: told for name, told in self.told.items() if told[0] > stamp}
        return len(self.told) != before or not self.told

    def value(self, name: str) -> str | None:
        """What was told of a field."""
        return self.told[name][1] if name in self.told else None

    @property
    def present(self) -> bool:
        """Whether it is there, as far as known."""
        if self.gone >= 0 and not self.told:
            return False
        return self.value("current_state") != "Expelled" and bool(self.told or self.row)


class CatalogView:
    """What is known over one connection. Its owner hands it every notice and every reading, in the order they came.

    Args:
        address_map: Turns an advertised (host, port) into the one to dial.

    Attributes:
        speaks: Whether the server tells anything at all.
        doubt: Why nothing told counts any more; empty while it does.
        contradicted: Whether that is because of what was read.
        complete: Whether everything in the last reading is told as well, and nothing told contradicts it: then nothing
            is missed without reading.
    """

    def __init__(self, address_map: AddressMap | None = None) -> None:
        self.speaks = False
        self.doubt = ""
        self.contradicted = False
        self.complete = False
        self._address_map = address_map
        self._known: dict[_Key, _Known] = {}
        self._dirty: dict[_Key, None] = {}
        self._runs: list[EventBuckets] = []
        self._owners: dict[str, OwnerTable] = {}
        self._contradictions: dict[tuple[Any, ...], float] = {}

    # what is told

    def hear(self, notice: RowNotice | BucketNotice) -> None:
        """Take a notice."""
        if self.doubt:
            return
        self.speaks = True
        if isinstance(notice, BucketNotice):
            if notice.event is not None:
                self._runs.append(notice.event)
            return
        key = (notice.map, notice.uuid)
        if self._known.setdefault(key, _Known()).hear(notice):
            self._dirty[key] = None

    def disbelieve(self, why: str) -> None:
        """Let nothing count that was told; only readings do from now on."""
        self.doubt = why
        self.complete = False
        self._known, self._dirty, self._runs, self._owners = {}, {}, [], {}

    @property
    def waiting(self) -> int:
        """How many runs of buckets were told and not taken yet."""
        return len(self._runs)

    @property
    def urgent(self) -> bool:
        """Whether anything else was told and not taken yet."""
        return bool(self._dirty)

    @property
    def strangers(self) -> bool:
        """Whether something was told, and not taken yet, about a row that was never read: only a reading names it."""
        return any(self._known[key].row is None and self._known[key].present for key in self._dirty)

    def changes(self) -> tuple[Event, ...]:
        """What was told since this was asked last, as whole events; replicasets before instances."""
        events = [self._event(key) for key in sorted(self._dirty, reverse=True)]
        self._dirty.clear()
        return (*events, *self._take_runs())

    # what is read

    def read(self, events: Iterable[Event], now: float) -> tuple[Event, ...]:
        """Take a reading of everything, and give everything known: what was told counts more.

        Args:
            events: What was read.
            now: The moment of reading, for the patience with contradictions.
        """
        rows, others = _sorted_apart(events)
        if self.doubt:
            return (*rows.values(), *others)
        if not self.speaks:  # it may begin to
            self._known = {key: _Known(row, seen=True) for key, row in rows.items()}
            return (*rows.values(), *others)
        maps = {event.tier: event for event in others if isinstance(event, EventBuckets)}
        wrong = self._misfit(others)
        runs = [] if wrong else self._take_runs()
        if not wrong:
            wrong = self._lasting(self._differences(rows, maps), now)
            self.contradicted = bool(wrong)
        if wrong:
            self.disbelieve(wrong)
            return (*rows.values(), *others)
        self.complete = not self._contradictions and self._covers(rows, others)
        for key in rows.keys() - self._known.keys():
            self._known[key] = _Known()
        for key, known in list(self._known.items()):
            known.row = rows.get(key)
            known.seen = known.seen or known.row is not None
            if known.row is None and not known.told and known.gone < 0:
                del self._known[key]
        shown = [key for key in sorted(self._known, reverse=True) if self._known[key].present or key in self._dirty]
        self._dirty.clear()
        return (*map(self._event, shown), *others, *runs)

    def is_told(self, replicaset: str) -> bool:
        """Whether the server tells who leads this replicaset."""
        known = self._known.get(("replicaset", replicaset))
        return known is not None and "current_master_uuid" in known.told

    def _event(self, key: _Key) -> Event:
        known = self._known[key]
        kind = EventReplicaset if key[0] == "replicaset" else EventInstance
        if not known.present:
            return kind(key[1], op="delete")
        return self._replicaset(key[1], known) if kind is EventReplicaset else self._instance(key[1], known)

    def _replicaset(self, uuid: str, known: _Known) -> EventReplicaset:
        row = known.row
        base = row if isinstance(row, EventReplicaset) else EventReplicaset(uuid, leader_known=False)
        leader = known.value("current_master_uuid")
        if leader is not None:
            base = replace(base, leader_uuid=leader or None, leader_known=True)
        return replace(base, tier=known.value("tier") or base.tier)

    def _instance(self, uuid: str, known: _Known) -> EventInstance:
        base = known.row if isinstance(known.row, EventInstance) else EventInstance(uuid)
        replicaset = known.value("replicaset_uuid") or base.replicaset_uuid
        state = known.value("current_state") or base.current_state
        # Which state it shall have is not told; what was read of it goes with the state that was read.
        target = base.target_state if base.current_state == state else state
        host, port = self._place(base, known.value("address"))
        return replace(
            base,
            replicaset_uuid=replicaset,
            tier=base.tier or self._tier(replicaset),
            host=host,
            port=port,
            online=state == target == "Online",
            current_state=state,
            target_state=target,
        )

    def _place(self, base: EventInstance, address: str | None) -> tuple[str, int]:
        if address is None:
            return base.host, base.port
        host, port = AddressReader(None, self._address_map).take(base.name, address, asked=False)
        return (host, port) if port else (base.host, base.port)

    def _tier(self, replicaset: str) -> str:
        known = self._known.get(("replicaset", replicaset), _Known())
        row = known.row
        return known.value("tier") or (row.tier if row is not None else "")

    # buckets

    def _take_runs(self) -> list[EventBuckets]:
        runs, self._runs = self._runs, []
        for event in runs:
            table = self._owners.setdefault(event.tier, OwnerTable())
            for run in event.ranges:
                table.assign(run, event.stamp)
        return runs

    def _misfit(self, others: Iterable[Event]) -> str:
        counts = {event.name: event.bucket_count for event in others if isinstance(event, EventTier)}
        for event in self._runs:
            count = counts.get(event.tier)
            if count is not None and event.ranges[-1].last > count:
                return f"it tells of bucket {event.ranges[-1].last} of tier {event.tier!r}, which has {count}"
        return ""

    # what goes without reading

    def _covers(self, rows: Iterable[_Key], others: Iterable[Event]) -> bool:
        """Whether who leads, which state every instance has and who owns each bucket is told."""
        for kind, uuid in rows:
            known = self._known.get((kind, uuid))
            if known is None or ("current_master_uuid" if kind == "replicaset" else "current_state") not in known.told:
                return False
        return all(self._owns(event) for event in others if isinstance(event, EventTier))

    def _owns(self, tier: EventTier) -> bool:
        if tier.bucket_count is None or tier.name not in self._owners:
            return tier.bucket_count == 0
        owners = self._owners[tier.name].published(tier.name, None).owners
        return len(owners) > tier.bucket_count and None not in owners[1:]

    # contradictions

    def _differences(self, rows: Mapping[_Key, _Row], maps: Mapping[str, EventBuckets]) -> Iterator[tuple[Any, ...]]:
        for (kind, uuid), known in self._known.items():
            row = rows.get((kind, uuid))
            if known.present is (row is None) and known.seen:
                yield kind, uuid, "there or gone", known.gone
            elif isinstance(row, EventReplicaset):
                told = known.told.get("current_master_uuid")
                if told is not None and row.leader_uuid is not None and told[1] != row.leader_uuid:
                    yield kind, uuid, "leader", told, row.leader_uuid
            elif isinstance(row, EventInstance):
                told = known.told.get("current_state")
                if told is not None and told[1] != row.current_state:
                    yield kind, uuid, "state", told, row.current_state
        for tier, table in self._owners.items():
            if tier in maps:
                told_owners = table.published(tier, None).owners
                if any(_differ(told_owners, run) for run in maps[tier].ranges):
                    yield "tier", tier, "owners", maps[tier].ranges, told_owners

    def _lasting(self, differences: Iterable[tuple[Any, ...]], now: float) -> str:
        """What has contradicted itself for too long, in words; empty when nothing has."""
        before = self._contradictions
        self._contradictions = {each: before.get(each, now) for each in differences}
        for (kind, name, what, *_), since in self._contradictions.items():
            if now - since >= (BUCKET_PATIENCE if kind == "tier" else PATIENCE):
                return f"what it told of {kind} {name} ({what}) is not what its tables say"
        return ""


def _sorted_apart(events: Iterable[Event]) -> tuple[dict[_Key, _Row], list[Event]]:
    rows: dict[_Key, _Row] = {}
    others: list[Event] = []
    for event in events:
        if isinstance(event, EventInstance):
            rows["instance", event.uuid] = event
        elif isinstance(event, EventReplicaset):
            rows["replicaset", event.uuid] = event
        else:
            others.append(event)
    return dict(sorted(rows.items(), reverse=True)), others


def _differ(told: tuple[str | None, ...], run: BucketRange) -> bool:
    """Whether another owner was told for any of these buckets; what was not told differs from nothing."""
    return any(owner not in (None, run.replicaset_uuid) for owner in told[run.first : run.last + 1])
