"""What `Topology` promises beyond the scenarios: sharing, atomicity, immutability, small conveniences."""

from __future__ import annotations

import math
from typing import Any

import pytest

from picopyn.topology import (
    BucketRange,
    Event,
    EventBatch,
    EventBuckets,
    EventInstance,
    EventReplicaset,
    EventTier,
    Topology,
    vanished,
)
from tests.steps import python_steps


def buckets(tier: str, *ranges: tuple[int, int, str], complete: bool = False) -> EventBuckets:
    """An event with these ranges."""
    return EventBuckets(tier, tuple(BucketRange(*r) for r in ranges), complete=complete)


def cluster() -> tuple[Event, ...]:
    """Two replicasets of one tier."""
    return (
        EventReplicaset("A", "A", "default", "a1"),
        EventReplicaset("B", "B", "default", "b1"),
        EventInstance("a1", "a1", "A", "default", "h1", 4327, True),
        EventInstance("a2", "a2", "A", "default", "h2", 4327, True),
        EventInstance("b1", "b1", "B", "default", "h3", 4327, True),
        EventTier("default", 3000),
        buckets("default", (1, 1500, "A"), (1501, 3000, "B"), complete=True),
    )


def test_unchanged_parts_are_shared_between_snapshots() -> None:
    """A refresh that changed nothing keeps version, tables and nodes; only the age starts anew."""
    topology = Topology()
    topology.apply(EventBatch(cluster(), 1, 1, reset=True), now=10.0)
    before = topology.snapshot
    diff = topology.apply(EventBatch(cluster(), 1, 2), now=15.0)
    after = topology.snapshot
    assert diff.empty
    assert after.version == before.version
    assert after.shard_map("default") is before.shard_map("default")
    assert after.node("a1") is before.node("a1")
    assert (before.age(16.0), after.age(16.0)) == (6.0, 1.0)


def striped(count: int, state: str = "active", moved: int = 0) -> EventBuckets:
    """A complete map in which every bucket is a range of its own, and one of them may have another owner."""
    owners = ("AB"[(number + (number == moved)) % 2] for number in range(1, count + 1))
    return EventBuckets(
        "default", tuple(BucketRange(n, n, owner, state) for n, owner in enumerate(owners, 1)), complete=True
    )


def test_a_large_map_is_applied_and_compared_as_a_whole() -> None:
    """It costs no step per range and none per bucket, whether something moved or not: the event loop stands still."""
    topology = Topology()
    topology.apply(EventBatch((*cluster()[:-1], striped(3000)), 1, 1, reset=True))
    same, moved, anew = ((*cluster()[:-1], striped(3000, moved=moved)) for moved in (0, 77, 78))
    assert python_steps(lambda: topology.apply(EventBatch(same, 1, 2))) < 300
    before = topology.snapshot
    assert python_steps(lambda: topology.apply(EventBatch(moved, 1, 3))) < 300
    assert topology.snapshot.owner("default", 77) != before.owner("default", 77)
    assert python_steps(lambda: topology.apply(EventBatch(anew, 2, 1, reset=True))) < 300


def test_a_map_that_is_all_in_motion_takes_no_longer() -> None:
    """Thirty thousand ranges in a state of their own: a look at all of them for each would take a minute."""
    topology = Topology()
    topology.apply((EventTier("default", 30_000), striped(30_000, "sending")))
    topology.apply(EventBatch((striped(30_000, "sending"),), 1, 1, reset=True))
    shards = topology.snapshot.shard_map("default")
    assert shards is not None
    assert len(shards.moving) == 30_000


def test_a_changed_tier_leaves_the_table_of_the_other_shared() -> None:
    """Moving buckets of one tier does not copy the map of another."""
    topology = Topology()
    topology.apply((*cluster(), EventTier("hot", 10), buckets("hot", (1, 10, "H"))))
    before = topology.snapshot
    topology.apply_bucket(buckets("hot", (1, 5, "A")))
    assert topology.snapshot.shard_map("default") is before.shard_map("default")
    assert before.owner("hot", 1) == "H"
    assert topology.snapshot.owner("hot", 1) == "A"


def test_a_held_snapshot_never_changes() -> None:
    """A reader may go on with an old snapshot while the topology moves on."""
    topology = Topology()
    topology.apply(cluster())
    held = topology.snapshot
    topology.apply((), reset=True)
    assert held.owner("default", 1) == "A"
    assert topology.snapshot.owner("default", 1) is None


@pytest.mark.parametrize(
    "malformed",
    [
        buckets("default", (1, 10, "A"), (5, 6, "B")),
        buckets("default", (0, 1, "A")),
        EventInstance("a1", op="forget"),  # type: ignore[arg-type]
        EventTier("", 3),
        EventTier("t", True),
        "not an event",
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_a_malformed_event_changes_nothing(malformed: Any, reset: bool) -> None:
    """All or nothing: neither the events before a malformed one nor its reset take effect."""
    topology = Topology()
    topology.apply(cluster())
    before = topology.snapshot
    with pytest.raises(ValueError, match=r"."):
        topology.apply((EventInstance("a1", op="delete"), malformed), reset=reset)
    assert topology.snapshot is before
    assert topology.apply(cluster()).empty


def test_buckets_keep_owners_while_a_batch_is_refused() -> None:
    """A batch of buckets that is refused half-way leaves even the buckets before the fault alone."""
    topology = Topology()
    topology.apply(cluster())
    with pytest.raises(ValueError, match="two ranges"):
        topology.apply((buckets("default", (1, 100, "B")), buckets("default", (1, 2, "A"), (2, 3, "A"))))
    assert topology.snapshot.owner("default", 1) == "A"
    topology.apply(())
    assert topology.snapshot.owner("default", 1) == "A"


def test_a_failed_reread_leaves_the_map_in_place() -> None:
    """A lost source empties nothing: the old map serves until the new epoch arrives as one batch."""
    topology = Topology()
    topology.apply(EventBatch(cluster(), 1, 1, reset=True))
    with pytest.raises(ValueError, match="two ranges"):
        topology.apply(EventBatch((buckets("default", (1, 2, "A"), (2, 3, "B")),), 2, 1, reset=True))
    assert topology.snapshot.owner("default", 2000) == "B"
    assert not topology.apply(EventBatch((EventReplicaset("A", "A", "default", "a2"),), 1, 2)).empty


def test_single_facts() -> None:
    """There is a step for one fact of each kind."""
    topology = Topology()
    topology.apply_instance(EventInstance("a1", "a1", "A", "default", "h1", 4327, True))
    topology.apply_replicaset(EventReplicaset("A", "A", "default", "a1"))
    topology.apply_tiers({"default": 10, "arbiter": 0})
    topology.apply_bucket(buckets("default", (1, 10, "A")))
    snapshot = topology.snapshot
    assert topology.known_tiers() == {"default", "arbiter"}
    assert snapshot.bucket_counts == {"default": 10, "arbiter": 0}
    assert snapshot.shard_map("arbiter") is None
    leader = snapshot.leader(snapshot.owner("default", 7) or "")
    assert leader is not None
    assert leader.address == "h1:4327"
    assert [r.uuid for r in snapshot.replicasets("default")] == ["A"]
    assert snapshot.replicasets("arbiter") == ()


def test_clear_forgets_everything_and_every_epoch() -> None:
    """After `clear` a topology is like new, whatever epochs it has seen."""
    topology = Topology()
    topology.apply(EventBatch(cluster(), 9, 1, reset=True))
    topology.clear()
    assert topology.known_tiers() == frozenset()
    topology.apply(EventBatch(cluster(), 1, 1))
    assert topology.known_tiers() == {"default"}


def test_age_is_infinite_before_the_first_batch() -> None:
    """Nothing is known yet, so nothing is fresh."""
    assert Topology().snapshot.age(5.0) == math.inf


def test_nodes_can_be_asked_by_role_and_tier() -> None:
    """Roles and tiers filter the Online nodes; an unknown role is an error, not an empty answer."""
    topology = Topology()
    topology.apply((*cluster(), EventInstance("r1", "r1", "R", "router", "h9", 1, True)))
    snapshot = topology.snapshot
    assert [n.uuid for n in snapshot.nodes(tier="router")] == ["r1"]
    assert [n.uuid for n in snapshot.nodes("leader", "default")] == ["a1", "b1"]
    assert snapshot.nodes("leader", "default") is snapshot.nodes("leader", "default")
    with pytest.raises(ValueError, match="unknown role"):
        snapshot.nodes("master")


def test_what_a_node_lies_in_cannot_be_changed_by_a_reader() -> None:
    """Failure domains are read only, and nodes can be members of sets."""
    topology = Topology()
    topology.apply_instance(EventInstance("a1", failure_domain={"DC": "1"}))
    node = topology.snapshot.node("a1")
    assert node is not None
    assert {node: 1}[node] == 1
    with pytest.raises(TypeError):
        node.failure_domain["DC"] = "2"  # type: ignore[index]


def test_what_vanished_from_a_poll_is_deleted() -> None:
    """`vanished` turns what a poll does not name any more into deletes, once each."""
    before = cluster()
    after = [e for e in before if not (isinstance(e, EventInstance) and e.uuid == "a2")][1:]
    assert list(vanished((*before, *before), after)) == [
        EventReplicaset("A", op="delete"),
        EventInstance("a2", op="delete"),
    ]
    topology = Topology()
    topology.apply(before)
    topology.apply((*after, *vanished(before, after)))
    assert [n.uuid for n in topology.snapshot.all_nodes()] == ["a1", "b1"]


def test_nothing_older_gets_in_where_nothing_was_known() -> None:
    """What a newer fact left unowned stays so, even in a tier that was not known or had no room for it."""
    for newer in (
        EventBuckets("hot", (), complete=True, stamp=1),
        EventBuckets("hot", (BucketRange(1, 9),), op="delete", stamp=1),
    ):
        topology = Topology()
        topology.apply_bucket(newer)
        topology.apply_bucket(EventBuckets("hot", (BucketRange(1, 5, "A"),), stamp=0))
        assert topology.snapshot.owner("hot", 1) is None
        topology.apply_bucket(EventBuckets("hot", (BucketRange(1, 5, "A"),), stamp=1))
        assert topology.snapshot.owner("hot", 1) == "A"
