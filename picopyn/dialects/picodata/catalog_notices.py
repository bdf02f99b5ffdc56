"""Reads Picodata's planned topology notices.

A notice says what changed in one row of the catalogue, and only that: a field that is not there has not changed. This
file decides what is such a notice, and what it says; [`catalog_view`][picopyn.dialects.picodata.catalog_view] puts the
rows together. It knows no connection and no clock. No server sends such notices yet: the format is the accepted design.

*Source:* picodata `doc/adr/2025-09-12-pgproto-topology-notifications.md`: JSON with `op` (`replace` | `delete`), `map`
(`replicaset` | `instance` | `bucket`), `raft` `{term, index}` and fields per map, those without news left out; the
snapshot comes before the first ReadyForQuery, then increments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from picopyn.topology import BucketRange, EventBuckets
from picopyn.topology.events import check

#: Bits kept for the index when a raft position (term, index) is folded into one number.
_INDEX_BITS = 64


@dataclass(frozen=True, slots=True)
class RowNotice:
    """News of one instance or replicaset.

    Attributes:
        map: Which of the two.
        uuid: Its identity.
        stamp: Position in the raft log; a larger one is later.
        deleted: The row is gone.
        fields: What changed, under the server's names; nothing when it is gone.
    """

    map: Literal["instance", "replicaset"]
    uuid: str
    stamp: int
    deleted: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BucketNotice:
    """News of a run of buckets.

    Attributes:
        event: Who owns them; None when only the row is gone. The buckets of a tier are fixed for its life, so such a
            row is about to be cut anew, and until the new one says otherwise the last owner is the best answer.
    """

    event: EventBuckets | None


def read_catalog_notice(text: str) -> RowNotice | BucketNotice | None:
    """What a message says about the catalogue; None when it is something else, such as a map that came later.

    Raises:
        ValueError: It speaks of a known map in a way that is not understood.
    """
    try:
        notice = json.loads(text)
        read = _READERS.get(notice["map"])
    except (ValueError, KeyError, TypeError):
        return None
    if read is None:
        return None
    try:
        if notice["op"] not in ("replace", "delete"):
            raise ValueError(notice["op"])
        return read(notice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a topology notice about a {notice['map']} is not understood: {error!r}") from None


def _replicaset(notice: Mapping[str, Any]) -> RowNotice:
    return _row("replicaset", notice, ("tier", "current_master_uuid"))


def _instance(notice: Mapping[str, Any]) -> RowNotice:
    return _row("instance", notice, ("replicaset_uuid", "current_state", "address"))


def _row(kind: Literal["instance", "replicaset"], notice: Mapping[str, Any], names: tuple[str, ...]) -> RowNotice:
    uuid, stamp = notice[f"{kind}_uuid"], _stamp(notice)
    if not isinstance(uuid, str) or not uuid:
        raise ValueError(uuid)
    if notice["op"] == "delete":
        return RowNotice(kind, uuid, stamp, deleted=True)
    fields = {name: _word(notice[name]) for name in names if notice.get(name) is not None}
    return RowNotice(kind, uuid, stamp, fields=fields)


def _bucket(notice: Mapping[str, Any]) -> BucketNotice:
    stamp = _stamp(notice)
    first, last = notice["bucket_id"]["start"], notice["bucket_id"]["end"]
    if notice["op"] == "delete":
        return BucketNotice(None)
    # Buckets are numbered from 1; the examples of the design begin with 0.
    state = _word(notice.get("state", "active"))
    settled = "active" if state == "copied" else state  # a move is told when it is done
    run = BucketRange(first or 1, last, _word(notice["current_replicaset_uuid"]), settled)
    event = EventBuckets(_word(notice["tier"]), (run,), stamp=stamp)
    check(event)
    return BucketNotice(event)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], RowNotice | BucketNotice]] = {
    "replicaset": _replicaset,
    "instance": _instance,
    "bucket": _bucket,
}


def _stamp(notice: Mapping[str, Any]) -> int:
    term, index = notice["raft"]["term"], notice["raft"]["index"]
    if type(term) is not int or type(index) is not int or term < 0 or not 0 <= index < 1 << _INDEX_BITS:
        raise ValueError("no raft position")
    return (term << _INDEX_BITS) | index


def _word(value: Any) -> str:
    """A word, or a state as the table has it: `["Online", 3]`."""
    word = value[0] if isinstance(value, list) else value
    if not isinstance(word, str):
        raise ValueError(f"{word!r} is no text")
    return word
