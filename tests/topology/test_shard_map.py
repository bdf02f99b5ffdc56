"""Look-ups in shard maps."""

from __future__ import annotations

from picopyn.topology import BucketRange, RangeMap, ShardMap


def test_owner_is_an_index_into_a_flat_table() -> None:
    """Numbers outside the table have no owner; nothing wraps around."""
    shards = ShardMap("default", (None, "A", "A", "B", None))
    assert [shards.owner(n) for n in range(-1, 6)] == [None, None, "A", "A", "B", None, None]
    assert (shards.count, shards.unowned) == (4, 1)
    assert shards.ranges() == (BucketRange(1, 2, "A"), BucketRange(3, 3, "B"))


def test_ranges_show_states() -> None:
    """A run ends where the state changes."""
    shards = ShardMap("default", (None, "A", "A", "A"), (BucketRange(2, 2, "A", "sending"),))
    assert [(r.first, r.last, r.state) for r in shards.ranges()] == [
        (1, 1, "active"),
        (2, 2, "sending"),
        (3, 3, "active"),
    ]
    assert [shards.state(n) for n in (1, 2, 3, 4)] == ["active", "sending", "active", None]


def test_ranges_of_tablets_answer_the_same_question() -> None:
    """A hash space in ranges is looked up by bisection, holes have no owner."""
    tablets = RangeMap("t", [(200, 299, "n2"), (0, 99, "n1")])
    asked = (-1, 0, 99, 100, 199, 200, 299, 300)
    assert [tablets.owner(n) for n in asked] == [None, "n1", "n1", None, None, "n2", "n2", None]
    assert RangeMap("t", []).owner(0) is None
