"""Picodata's planned topology notices as a server of the accepted design would write them."""

from __future__ import annotations

import json
from typing import Any

from tests.asynchronous.catalog import Cluster


def notice(kind: str, index: int, op: str = "replace", term: int = 2, **fields: Any) -> str:
    """A notice of one map."""
    head = {"op": op, "map": kind, "timestamp": "2026-01-01T00:00:00+00:00", "raft": {"term": term, "index": index}}
    return json.dumps({**head, **fields})


def leads(replicaset: str, leader: str, index: int, **more: Any) -> str:
    """A replicaset has this leader; that and nothing else changed."""
    return notice(
        "replicaset", index, replicaset_uuid=f"uuid-{replicaset}", current_master_uuid=f"uuid-{leader}", **more
    )


def replicaset(name: str, leader: str | None, index: int, **more: Any) -> str:
    """All that is told of a replicaset at first; without a leader where there is none."""
    fields = {} if leader is None else {"current_master_uuid": f"uuid-{leader}"}
    return notice("replicaset", index, replicaset_uuid=f"uuid-{name}", tier="default", **fields, **more)


def state(name: str, word: str, index: int, **more: Any) -> str:
    """An instance changed its state; its address and its replicaset are not told again."""
    return notice("instance", index, instance_uuid=f"uuid-{name}", current_state=word, **more)


def instance(name: str, index: int, word: str = "Online", address: str = "10.0.0.9:4327", **more: Any) -> str:
    """All that is told of an instance at first."""
    owner = name.rsplit("_", 1)[0]
    return state(name, word, index, replicaset_uuid=f"uuid-{owner}", address=address, **more)


def gone(kind: str, name: str, index: int, **more: Any) -> str:
    """A row was deleted."""
    return notice(kind, index, "delete", **{f"{kind}_uuid": f"uuid-{name}"}, **more)


def buckets(first: int, last: int, owner: str, index: int, word: str = "copied", **more: Any) -> str:
    """Buckets have moved."""
    run, tier = {"start": first, "end": last}, more.pop("tier", "default")
    owner = f"uuid-{owner}"
    return notice("bucket", index, tier=tier, bucket_id=run, state=word, current_replicaset_uuid=owner, **more)


def whole(cluster: Cluster, index: int = 10) -> list[str]:
    """What a new connection is told of a cluster."""
    members = enumerate(cluster.states.items())
    return [
        *(replicaset(name, leader, index) for name, leader in cluster.leaders.items()),
        *(instance(name, index, word, f"10.0.0.{number + 1}:4327") for number, (name, word) in members),
        *(buckets(*run, index, "active", tier=tier) for tier, runs in cluster.ranges.items() for run in runs),
    ]
