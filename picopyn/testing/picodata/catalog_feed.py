"""The server half of the planned topology notices: who is told, and what.

Decides which changes of the cluster are news, in the form of the accepted design. Must not know sockets: it is given
something to call for each client. No real Picodata does this yet.

*Source*: picodata `doc/adr/2025-09-12-pgproto-topology-notifications.md`: the snapshot in the order replicasets,
instances, buckets before the first ReadyForQuery; then one notice per changed row with what changed in it, ordered by
the raft log; a move of buckets is told when it is done, as `copied`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime
from typing import Any

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.model import BucketMap
from picopyn.testing.picodata.planner.errors import ServerError
from picopyn.testing.picodata.startup import TurnedAway

#: What becomes of clients that ask to be told: `"told"`, `"ignored"` as any unknown wish, `"refused"` with an error, or
#: `"closed"` without a word, as after a wish that is not understood.
MANNERS = ("told", "ignored", "refused", "closed")

#: Rows of one map by key: each a mapping of the fields a client may be told.
_Rows = dict[str, dict[str, str]]


class CatalogFeed:
    """Owner: the server process, which calls `changed` after every change of the system tables.

    Attributes:
        manner: What becomes of clients that ask; one of `MANNERS`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.manner = "told" if cluster.shape.topology_notices else "ignored"
        self._cluster = cluster
        self._listeners: dict[Hashable, tuple[str, Callable[[list[str]], None]]] = {}
        self._muted: set[str] = set()
        self._index = 100
        self._term = 1
        self._raft_leader = ""
        self._replicasets: _Rows = {}
        self._instances: _Rows = {}
        self._owners: dict[str, list[str]] = {}

    def join(self, client: Hashable, instance: str, tell: Callable[[list[str]], None]) -> list[str]:
        """Tell a client of an instance what changes from now on; gives what it is told first.

        Raises:
            ServerError: It is refused.
            TurnedAway: It is refused without a word.
        """
        if self.manner == "ignored":
            return []
        if self.manner == "refused":
            raise ServerError("42704", 'unrecognized configuration parameter "picodata_catalog_cdc"')
        if self.manner == "closed":
            raise TurnedAway("picodata_catalog_cdc")
        self._listeners[client] = instance, tell
        return list(self._snapshot())

    def leave(self, client: Hashable) -> None:
        """A client is gone."""
        self._listeners.pop(client, None)

    def mute(self, instance: str, muted: bool) -> None:
        """Let an instance tell nothing any more, as if its feed had broken; or again."""
        (self._muted.add if muted else self._muted.discard)(instance)

    def changed(self) -> None:
        """Tell everybody what changed since the last time."""
        news = list(self._news())
        if not news:
            return
        for instance, tell in list(self._listeners.values()):
            if instance not in self._muted:
                tell(news)

    def _snapshot(self) -> Iterator[str]:
        for uuid, fields in self._replicasets.items():
            yield self._text("replace", "replicaset", self._index, replicaset_uuid=uuid, **fields)
        for uuid, fields in self._instances.items():
            yield self._text("replace", "instance", self._index, instance_uuid=uuid, **fields)
        for tier, truth in self._cluster.buckets.items():
            for run in truth.ranges():
                yield self._buckets(tier, run.first, run.last, run.replicaset, "active", self._index)

    def _news(self) -> Iterator[str]:
        self._elect()
        replicasets, instances = _replicasets(self._cluster), _instances(self._cluster)
        yield from self._rows("replicaset", self._replicasets, replicasets)
        yield from self._rows("instance", self._instances, instances)
        self._replicasets, self._instances = replicasets, instances
        for tier, truth in self._cluster.buckets.items():
            before = self._owners.get(tier, [])
            self._owners[tier] = after = _owners(truth)
            for first, last in _moved(before, after):
                yield self._buckets(tier, first, last, after[first], "copied", self._next())

    def _rows(self, kind: str, before: _Rows, after: _Rows) -> Iterator[str]:
        for uuid, fields in after.items():
            known = before.get(uuid, {})
            changed = {name: value for name, value in fields.items() if known.get(name) != value}
            if changed:
                yield self._text("replace", kind, self._next(), **{f"{kind}_uuid": uuid}, **changed)
        for uuid in before.keys() - after.keys():
            yield self._text("delete", kind, self._next(), **{f"{kind}_uuid": uuid})

    def _buckets(self, tier: str, first: int, last: int, replicaset: str, state: str, index: int) -> str:
        owner = self._cluster.replicasets[replicaset].uuid
        run = {"start": first, "end": last}
        return self._text(
            "replace", "bucket", index, tier=tier, state=state, bucket_id=run, current_replicaset_uuid=owner
        )

    def _text(self, op: str, kind: str, index: int, **fields: Any) -> str:
        raft = {"term": self._term, "index": index}
        head = {"op": op, "map": kind, "timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "raft": raft}
        return json.dumps({**head, **fields}, separators=(",", ":"))

    def _next(self) -> int:
        self._index += 1
        return self._index

    def _elect(self) -> None:
        """Another raft leader is another term; it is the first instance that is Online."""
        online = (item.name for item in self._cluster.instances.values() if item.online)
        leader = next(online, self._raft_leader)
        self._term += leader != self._raft_leader and self._raft_leader != ""
        self._raft_leader = leader


def _replicasets(cluster: Cluster) -> _Rows:
    """While a switch is under way the present master is told, as the table has it; without any, nothing is."""
    return {
        item.uuid: {"tier": item.tier, "current_master_uuid": cluster.instances[item.current_master].uuid}
        for item in cluster.of_tier(None)
        if item.current_master
    }


def _instances(cluster: Cluster) -> _Rows:
    return {
        item.uuid: {
            "replicaset_uuid": cluster.replicasets[item.replicaset].uuid,
            "current_state": item.current.variant,
            "address": str(item.address),
        }
        for item in cluster.instances.values()
    }


def _owners(truth: BucketMap) -> list[str]:
    return ["", *(truth.owner(bucket) for bucket in range(1, truth.bucket_count + 1))]


def _moved(before: list[str], after: list[str]) -> Iterator[tuple[int, int]]:
    """Runs of buckets that have another owner now, each with one owner."""
    if not before:
        return
    first = None
    for bucket in range(1, len(after) + 1):
        here = bucket < len(after) and before[bucket] != after[bucket]
        if first is not None and (not here or after[bucket] != after[first]):
            yield first, bucket - 1
            first = None
        if here and first is None:
            first = bucket
