"""Discovery of a Picodata cluster: the questions (SQL) and what their rows say (events).

Four questions give the whole picture: instances with their addresses, replicasets with their masters, tiers,
and the buckets of each tier. A user without grants may read the first and the last; the rest is then derived
or left unknown. This file knows tables, columns and what must not be believed; it does not know when to ask,
or what is known already.

*Source*: Picodata, `src/storage.rs`, `src/instance.rs`, `src/replicaset.rs`, `src/tier.rs` (25.5.1 …
26.3-dev); `picodata-protocol.md` sections 1 and 2; answers recorded on 25.6.0, 26.1.6 and 26.2.1-rc2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from picopyn.dialects.picodata.addresses import AddressMap, AddressReader
from picopyn.dialects.picodata.server_text import unwrap
from picopyn.topology import BucketRange, EventBuckets, EventInstance, EventReplicaset, EventTier
from picopyn.topology.events import check

Rows: TypeAlias = Iterable[Sequence[Any]]

#: Who is there, and where. Every user may ask. Other connection types (`iproto`, `http`, `plugin:…`) are no
#: addresses for a client.
INSTANCES = (
    "SELECT i.name, i.uuid, i.replicaset_name, i.replicaset_uuid, i.tier, i.current_state, i.target_state, "
    "i.failure_domain, i.picodata_version, a.address FROM _pico_instance i JOIN _pico_peer_address a "
    "ON i.raft_id = a.raft_id WHERE a.connection_type = 'pgproto'"
)
#: Who leads. Needs a grant.
REPLICASETS = (
    "SELECT name, uuid, current_master_name, target_master_name, tier, state, current_config_version "
    "FROM _pico_replicaset"
)
#: How many buckets each tier has. Needs a grant.
TIERS = "SELECT name, bucket_count FROM _pico_tier"
#: Who owns the buckets of the tier named by the parameter. Every user may ask.
BUCKETS = "SELECT _pico_bucket($1)"
#: Who owns the buckets of tiers with experimental sharding (26.2 and later); empty for all others.
#: Needs a grant.
BUCKET_TABLE = "SELECT tier_name, bucket_id_start, bucket_id_end, state, current_replicaset_name FROM _pico_bucket"
#: Which instance answers this connection. Every user may ask.
ASKED_INSTANCE = "SELECT pico_instance_uuid()"

_DENIED = re.compile(
    r"(?:AccessDenied: )?\w+ access to (?:space|table) '(?P<table>[^']+)' is denied for "
    r"(?:user '(?P<user>.+)')?"
)
_NO_SUCH_TIER = re.compile(r"_pico_bucket: tier '.*' doesn't exist")
_LAST = attrgetter("last")
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One row of `INSTANCES`, decoded; expelled instances are rows, too.

    Attributes:
        name: Name of the instance; masters are named by it.
        uuid: Its identity.
        replicaset_name: Name of its replicaset.
        replicaset_uuid: Identity of its replicaset.
        tier: Its tier.
        current_state: `Online`, `Offline`, `Expelled`, or a word of a newer server.
        target_state: The state it shall have; it goes Offline here first.
        incarnation: Grows with every start; None when it cannot be read.
        failure_domain: Its zones.
        version: Version of the server.
        address: The advertised address, as it stands there.
    """

    name: str
    uuid: str
    replicaset_name: str
    replicaset_uuid: str
    tier: str
    current_state: str
    target_state: str
    incarnation: int | None
    failure_domain: Mapping[str, str]
    version: str
    address: str

    @property
    def online(self) -> bool:
        """Whether it takes calls: the state it has and the one it shall have are both Online."""
        return self.current_state == self.target_state == "Online"

    @property
    def expelled(self) -> bool:
        """Whether it left the cluster for good; the row stays until its name is used again."""
        return "Expelled" in (self.current_state, self.target_state)


@dataclass(frozen=True, slots=True)
class Reading:
    """Events, and what was found strange on the way.

    Attributes:
        events: What is known now; complete, expelled instances left out.
        remarks: One sentence per address that was not used, for the log.
    """

    events: tuple[EventInstance, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Denial:
    """What a user may not read.

    Attributes:
        table: Name of the table.
        user: Name of the user; empty when the server did not say.
    """

    table: str
    user: str = ""


def read_instances(rows: Rows) -> tuple[InstanceRow, ...]:
    """Decode the rows of `INSTANCES`, JSON columns decoded or not; rows without a uuid are left out."""
    return tuple(row for row in map(_instance_row, rows) if row.uuid)


def instance_events(
    instances: Sequence[InstanceRow],
    *,
    asked_uuid: str | None = None,
    seen_host: str | None = None,
    address_map: AddressMap | None = None,
) -> Reading:
    """Events of all instances that are not expelled, each with an address to dial or none.

    Args:
        instances: What `read_instances` gave.
        asked_uuid: The instance that answered, see `ASKED_INSTANCE`.
        seen_host: The host that instance was dialled at; stands in for its own `0.0.0.0` or `::`.
        address_map: Turns an advertised host and port into those to dial from here, for NAT and port
            forwarding.
    """
    present = _one_each(row for row in instances if not row.expelled)
    reader = AddressReader(seen_host, address_map)
    # Of two instances with one address the Online one has it: a port is used again after its owner left.
    order = sorted(present, key=lambda row: (not row.online, row.uuid != asked_uuid, row.name))
    found = {row.uuid: reader.take(row.name, row.address, row.uuid == asked_uuid) for row in order}
    events = tuple(_instance_event(row, *found[row.uuid]) for row in present)
    return Reading(events, tuple(reader.remarks))


def replicaset_events(rows: Rows, instances: Sequence[InstanceRow]) -> tuple[EventReplicaset, ...]:
    """Events of the rows of `REPLICASETS`; masters are named there, so the instances are needed as well.

    While current and target master differ, or there is none, or it was expelled, nobody leads, and that is
    known. A master that is none of the instances is not known.
    """
    by_name = {row.name: row for row in instances}
    return tuple(_replicaset_event(row, by_name) for row in rows if row[1] and row[5] != "expelled")


def replicasets_without_leaders(instances: Sequence[InstanceRow]) -> tuple[EventReplicaset, ...]:
    """What a user knows of the replicasets who may not read them: that they exist."""
    known = {row.replicaset_uuid: row for row in instances if not row.expelled and row.replicaset_uuid}
    return tuple(
        EventReplicaset(uuid, row.replicaset_name, row.tier, leader_known=False) for uuid, row in known.items()
    )


def tier_events(rows: Rows) -> tuple[EventTier, ...]:
    """Events of the rows of `TIERS`."""
    return tuple(EventTier(name, None if count is None else int(count)) for name, count in rows if name)


def tiers_without_counts(instances: Sequence[InstanceRow]) -> tuple[EventTier, ...]:
    """What a user knows of the tiers who may not read them: their names. The ranges will tell the rest."""
    return tuple(EventTier(name) for name in sorted({row.tier for row in instances if row.tier}))


def bucket_event(tier: str, answer: Any, bucket_count: int | None = None) -> EventBuckets:
    """The complete map of a tier, from the one value that `BUCKETS` gives.

    Args:
        tier: The tier that was asked for.
        answer: The value: JSON text, or a decoded list.
        bucket_count: Number of its buckets, if known; a map beyond it is refused here, not with the whole
            batch.

    Raises:
        ValueError: The answer names no range, or ranges that cannot be; the map that was known stays good.
    """
    try:
        ranges = _quick_ranges(answer) or tuple(_bucket_range(_decoded(item)) for item in _decoded(answer) or ())
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"tier {tier!r}: the bucket map cannot be read ({type(error).__name__})") from error
    return _complete_map(tier, ranges, bucket_count)


def bucket_table_events(
    rows: Rows, instances: Sequence[InstanceRow], bucket_counts: Mapping[str, int] | None = None
) -> dict[str, EventBuckets]:
    """Complete maps of the tiers that have rows in `BUCKET_TABLE`, by tier.

    The table names replicasets, so the instances are needed as well. A tier whose rows cannot be understood
    is left out: ask `BUCKETS` for it.
    """
    uuids = {row.replicaset_name: row.replicaset_uuid for row in instances}
    ranges: dict[str, list[BucketRange]] = {}
    for tier, first, last, state, name, *_ in rows:
        ranges.setdefault(tier, []).append(BucketRange(first, last, uuids.get(name, ""), state))
    maps: dict[str, EventBuckets] = {}
    for tier, runs in ranges.items():
        try:
            maps[tier] = _complete_map(tier, tuple(runs), (bucket_counts or {}).get(tier))
        except ValueError:
            continue
    return maps


def read_denial(message: str) -> Denial | None:
    """Which table an error says may not be read; None when it says something else."""
    for layer in unwrap(message).layers:
        said = _DENIED.match(layer)
        if said is not None:
            return Denial(said["table"], said["user"] or "")
    return None


def says_no_such_tier(message: str) -> bool:
    """Whether `BUCKETS` failed because the tier has no buckets (or its router is not configured yet)."""
    return any(_NO_SUCH_TIER.match(layer) for layer in unwrap(message).layers)


def grant_hint(denials: Iterable[Denial]) -> str:
    """The one line an administrator would run so that nothing is denied any more."""
    grants = [f"GRANT READ ON TABLE {_quoted(d.table)} TO {_quoted(d.user or 'your_user')}" for d in denials]
    return "; ".join(dict.fromkeys(grants))


def _instance_row(row: Sequence[Any]) -> InstanceRow:
    name, uuid, replicaset_name, replicaset_uuid, tier, current, target, domain, version, address = row
    current_state, current_incarnation = _state(current)
    target_state, target_incarnation = _state(target)
    incarnations = [n for n in (current_incarnation, target_incarnation) if n is not None]
    return InstanceRow(
        name or "",
        str(uuid or ""),
        replicaset_name or "",
        str(replicaset_uuid or ""),
        tier or "",
        current_state,
        target_state,
        max(incarnations, default=None),
        _failure_domain(domain),
        version or "",
        address or "",
    )


def _state(value: Any) -> tuple[str, int | None]:
    """`["Online", 1]`, as JSON text or decoded, or the bare word → (word, incarnation)."""
    state = _decoded(value)
    if isinstance(state, str):
        return state, None
    word, incarnation = (*state, None, None)[:2] if isinstance(state, list | tuple) else (None, None)
    if not isinstance(word, str):
        return "", None
    return word, incarnation if isinstance(incarnation, int) else None


def _failure_domain(value: Any) -> dict[str, str]:
    domain = _decoded(value)
    return {str(k): str(v) for k, v in domain.items()} if isinstance(domain, Mapping) else {}


def _decoded(value: Any) -> Any:
    """JSON text decoded; anything else, and text that is no JSON, as it is."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _one_each(rows: Iterable[InstanceRow]) -> list[InstanceRow]:
    """One row per identity, the first with an address."""
    chosen: dict[str, InstanceRow] = {}
    for row in rows:
        if row.uuid not in chosen or (row.address and not chosen[row.uuid].address):
            chosen[row.uuid] = row
    return list(chosen.values())


def _instance_event(row: InstanceRow, host: str, port: int) -> EventInstance:
    return EventInstance(
        uuid=row.uuid,
        name=row.name,
        replicaset_uuid=row.replicaset_uuid,
        tier=row.tier,
        host=host,
        port=port,
        online=row.online,
        current_state=row.current_state,
        target_state=row.target_state,
        incarnation=row.incarnation,
        version=row.version,
        failure_domain=row.failure_domain,
    )


def _replicaset_event(row: Sequence[Any], by_name: Mapping[str, InstanceRow]) -> EventReplicaset:
    name, uuid, current, target, tier, _, version = row
    settled = current if current == target else None
    leader = by_name.get(settled) if settled else None
    return EventReplicaset(
        uuid=str(uuid),
        name=name or "",
        tier=tier or "",
        leader_uuid=leader.uuid if leader is not None and not leader.expelled else None,
        config_version=version if isinstance(version, int) else None,
        leader_known=not settled or leader is not None,
    )


class _RangeRow(msgspec.Struct, gc=False):
    """One range as the server writes it; what else it says is not looked at."""

    bucket_id_start: int
    bucket_id_end: int
    current_replicaset_uuid: str
    state: str


_RANGE_ROWS = msgspec.json.Decoder(list[_RangeRow])


def _quick_ranges(answer: Any) -> tuple[BucketRange, ...]:
    """The ranges of an answer in its usual form, in which there may be very many; none of any other form."""
    try:
        rows = _RANGE_ROWS.decode(answer)
    except (TypeError, ValueError):
        return ()
    own: dict[str, str] = {}  # one text per replicaset, not per range
    one = own.setdefault
    return tuple(
        [
            BucketRange(r.bucket_id_start, r.bucket_id_end, one(r.current_replicaset_uuid, r.current_replicaset_uuid),
                        r.state or "active")
            for r in rows
        ]
    )  # fmt: skip


def _bucket_range(item: Any) -> BucketRange:
    return BucketRange(
        item["bucket_id_start"],
        item["bucket_id_end"],
        item["current_replicaset_uuid"] or "",
        item.get("state") or "active",
    )


def _complete_map(tier: str, ranges: tuple[BucketRange, ...], bucket_count: int | None) -> EventBuckets:
    event = EventBuckets(tier, ranges, complete=True)
    check(event)
    if not ranges:
        raise ValueError(f"tier {tier!r}: the bucket map is empty")
    last = max(map(_LAST, ranges))
    if bucket_count is not None and last > bucket_count:
        raise ValueError(f"tier {tier!r} has {bucket_count} buckets, not {last}")
    return event


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'
