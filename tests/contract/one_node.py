"""A topology source of one's own: one node, told once, that owns every bucket of one tier."""

from __future__ import annotations

from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.topology import EventBatch, EventBuckets, EventInstance, EventReplicaset, EventTier
from picopyn.topology.events import BucketRange


class OneNode(TopologySource):
    """Tells of one node; counts what it is asked."""

    def __init__(self, host: str, port: int, buckets: int = 100) -> None:
        super().__init__()
        self.place = (host, port)
        self.refreshes = 0
        self.closed = False
        self._buckets = buckets

    async def refresh(self) -> None:
        self.refreshes += 1
        self.emit(EventBatch(self.events(), epoch=1, sequence=self.refreshes, reset=self.refreshes == 1))

    def events(self) -> tuple[EventInstance | EventReplicaset | EventTier | EventBuckets, ...]:
        """Everything there is."""
        host, port = self.place
        instance = EventInstance(
            uuid="i1",
            name="only_1_1",
            replicaset_uuid="r1",
            tier="only",
            host=host,
            port=port,
            online=True,
            current_state="Online",
            target_state="Online",
            version="26.1.6",
        )
        ranges = (BucketRange(1, self._buckets, "r1"),)
        leader = EventReplicaset(uuid="r1", name="only_1", tier="only", leader_uuid="i1")
        return instance, leader, EventTier("only", self._buckets), EventBuckets("only", ranges, complete=True)

    async def close(self) -> None:
        self.closed = True

    def terminate(self) -> None:
        self.closed = True
