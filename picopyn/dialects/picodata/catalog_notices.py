"""Reads Picodata's planned topology notices.

The notices say what changed in the catalogue, one row each; this file decides what that means for the
topology. It knows no connection and no clock. No server sends such notices yet: the format is the
accepted design.

*Source:* picodata `doc/adr/2025-09-12-pgproto-topology-notifications.md`: JSON with `op` (`replace` |
`delete`), `map` (`replicaset` | `instance` | `bucket`), `raft` `{term, index}` and fields per map; the
snapshot comes in the order replicasets, instances, buckets before the first ReadyForQuery, then
increments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from picopyn.dialects.picodata.addresses import split_address
from picopyn.topology import BucketRange, Event, EventBuckets, EventInstance, EventReplicaset

#: Bits kept for the index when a raft position (term, index) is folded into one number.
_INDEX_BITS = 64


def read_catalog_notice(text: str) -> Event | None:
    """The event in a message, or None when the message is something else or lacks a field it needs.

    A deleted bucket row is no event: the buckets of a tier are fixed for its life, so the row is about to
    be cut anew, and until the new row says otherwise the last owner is the best answer. A hole would
    leave buckets without owner.
    """
    try:
        notice = json.loads(text)
        read = _READERS.get(notice["map"])
        if read is None or notice["op"] not in ("replace", "delete"):
            return None
        return read(notice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _replicaset(notice: Mapping[str, Any]) -> Event:
    return EventReplicaset(
        uuid=str(notice["replicaset_uuid"]),
        name=str(notice.get("name") or ""),
        tier=str(notice.get("tier") or ""),
        leader_uuid=notice.get("current_master_uuid") or None,
        op=notice["op"],
        stamp=_stamp(notice),
    )


def _instance(notice: Mapping[str, Any]) -> Event:
    current, _ = _state(notice.get("current_state"))
    target, incarnation = _state(notice.get("target_state", notice.get("current_state")))
    host, port = split_address(str(notice.get("address") or "")) or ("", 0)
    return EventInstance(
        uuid=str(notice["instance_uuid"]),
        name=str(notice.get("name") or ""),
        replicaset_uuid=str(notice.get("replicaset_uuid") or ""),
        tier=str(notice.get("tier") or ""),
        host=host,
        port=port,
        online=current == "Online" and target == "Online",
        current_state=current,
        target_state=target,
        incarnation=incarnation,
        version=str(notice.get("picodata_version") or ""),
        failure_domain=dict(notice.get("failure_domain") or {}),
        op=notice["op"],
        stamp=_stamp(notice),
    )


def _bucket(notice: Mapping[str, Any]) -> Event | None:
    if notice["op"] == "delete":
        return None
    run = BucketRange(
        first=int(notice["bucket_id"]["start"]),
        last=int(notice["bucket_id"]["end"]),
        replicaset_uuid=str(notice["current_replicaset_uuid"]),
        state=str(notice.get("state") or "active"),
    )
    return EventBuckets(tier=str(notice["tier"]), ranges=(run,), stamp=_stamp(notice))


_READERS = {"replicaset": _replicaset, "instance": _instance, "bucket": _bucket}


def _stamp(notice: Mapping[str, Any]) -> int | None:
    raft = notice.get("raft")
    return (int(raft["term"]) << _INDEX_BITS) | int(raft["index"]) if raft else None


def _state(value: Any) -> tuple[str, int | None]:
    """A state as `["Online", 3]` or plain `"Online"`."""
    if isinstance(value, list):
        return str(value[0]), int(value[1]) if len(value) > 1 else None
    return str(value or ""), None
