"""Small clusters as snapshots, for tests of the pure rooms."""

from __future__ import annotations

from picopyn.topology import (
    BucketRange,
    EventBuckets,
    EventInstance,
    EventReplicaset,
    EventTier,
    Topology,
    TopologySnapshot,
)

#: Buckets 1 … 1500 belong to r1 (i11 leads, i12 follows), 1501 … 3000 to r2 (i21, i22).
HALF = 1500


def two_by_two(
    *,
    leaders: dict[str, str | None] | None = None,
    offline: tuple[str, ...] = (),
    gone: tuple[str, ...] = (),
    leaders_known: bool = True,
    mapped: bool = True,
    second_tier: str = "default",
) -> TopologySnapshot:
    """Two replicasets of two instances, one tier of 3 000 buckets.

    Args:
        leaders: Replicaset → leader, where it is not the first instance.
        offline: Instances that are not Online.
        gone: Instances that the cluster does not know any more.
        leaders_known: Whether the user may read who leads.
        mapped: Whether the owners of the buckets are known.
        second_tier: The tier of r2; where it is one of its own, all of its buckets belong to r2.
    """
    heads = {"r1": "i11", "r2": "i21", **(leaders or {})}
    events: list[EventInstance | EventReplicaset | EventTier | EventBuckets] = [EventTier("default", 3000)]
    tiers = {"r1": "default", "r2": second_tier}
    for number, replicaset in enumerate(("r1", "r2"), 1):
        events.append(
            EventReplicaset(
                uuid=replicaset,
                name=f"default_{number}",
                tier=tiers[replicaset],
                leader_uuid=heads[replicaset] if leaders_known else None,
                leader_known=leaders_known,
            )
        )
        for member in (1, 2):
            uuid = f"i{number}{member}"
            if uuid in gone:
                continue
            events.append(
                EventInstance(
                    uuid=uuid,
                    name=f"default_{number}_{member}",
                    replicaset_uuid=replicaset,
                    tier=tiers[replicaset],
                    host="127.0.0.1",
                    port=4300 + 10 * number + member,
                    online=uuid not in offline,
                )
            )
    if second_tier != "default":
        events += [
            EventTier(second_tier, 3000),
            EventBuckets("default", (BucketRange(1, 3000, "r1"),)),
            EventBuckets(second_tier, (BucketRange(1, 3000, "r2"),)),
        ]
    elif mapped:
        ranges = (BucketRange(1, HALF, "r1"), BucketRange(HALF + 1, 3000, "r2"))
        events.append(EventBuckets("default", ranges))
    topology = Topology()
    topology.apply(events, reset=True, now=1.0)
    return topology.snapshot
