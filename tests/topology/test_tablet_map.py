"""Leaders of tablets by hash code: gaps, overlaps, and leaders that are away."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from picopyn.topology.tablet_map import Tablet, TabletMap, believed

SPACE = 64
TABLETS = st.lists(
    st.builds(
        lambda start, size, leader: Tablet(start, min(start + size, SPACE), leader),
        st.integers(0, SPACE - 1),
        st.integers(1, SPACE),
        st.sampled_from(["", "a:1", "b:1", "c:1"]),
    ),
    max_size=12,
)


def test_a_code_belongs_to_the_tablet_that_holds_it() -> None:
    """The end of a range is exclusive; the last one may end at 65 536."""
    tablets = TabletMap.of({"public.t": [Tablet(0, 30000, "a:1"), Tablet(30000, 65536, "b:1")]})
    assert [tablets.owner("public.t", code) for code in (0, 29999, 30000, 65535, 65536)] == [
        "a:1",
        "a:1",
        "b:1",
        "b:1",
        None,
    ]
    assert tablets.leaders == {"a:1", "b:1"}
    assert tablets.owner("public.u", 0) is None
    assert TabletMap().owner("public.t", 0) is None


def test_gaps_and_tablets_without_a_leader_have_no_owner() -> None:
    """Nothing is guessed."""
    tablets = TabletMap.of({"t": [Tablet(10, 20, ""), Tablet(30, 40, "a:1")]})
    assert [tablets.owner("t", code) for code in (5, 15, 25, 35, 45)] == [None, None, None, "a:1", None]


def test_while_a_tablet_splits_the_new_ones_count() -> None:
    """The old one is still listed beside them; where only it is, it counts."""
    split = [Tablet(0, 100, "old:1"), Tablet(0, 50, "left:1"), Tablet(50, 75, "right:1")]
    tablets = TabletMap.of({"t": split})
    assert [tablets.owner("t", code) for code in (0, 49, 50, 74, 75, 99)] == [
        "left:1",
        "left:1",
        "right:1",
        "right:1",
        "old:1",
        "old:1",
    ]


def test_equals_that_contradict_each_other_are_not_believed() -> None:
    """The same range under two leaders, as in the middle of a change; the same leader twice is fine."""
    assert list(believed([Tablet(0, 10, "a:1"), Tablet(0, 10, "b:1"), Tablet(10, 20, "c:1")])) == [(10, 19, "c:1")]
    assert list(believed([Tablet(0, 10, "a:1"), Tablet(0, 10, "a:1")])) == [(0, 9, "a:1")]


def plainly(tablets: list[Tablet], code: int) -> str | None:
    """The owner of a code, looked for among all tablets."""
    over = [tablet for tablet in tablets if tablet.start <= code < tablet.end]
    width = min((tablet.end - tablet.start for tablet in over), default=0)
    named = {tablet.leader for tablet in over if tablet.end - tablet.start == width}
    return next(iter(named)) or None if len(named) == 1 else None


@given(TABLETS)
def test_every_code_has_the_owner_that_a_plain_search_finds(tablets: list[Tablet]) -> None:
    """However the ranges lie; and the ranges that are believed are in order."""
    shards = TabletMap.of({"t": tablets})
    assert [shards.owner("t", code) for code in range(SPACE)] == [plainly(tablets, code) for code in range(SPACE)]
    ranges = list(believed(tablets))
    assert all(first <= last for first, last, _ in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


def test_very_many_overlaps_cost_little() -> None:
    """Thousands of ranges inside each other are sorted out in one sweep."""
    nested = [Tablet(n, 65536 - n, f"n{n}:1") for n in range(20_000)]
    tablets = TabletMap.of({"t": nested})
    assert tablets.owner("t", 30_000) == "n19999:1"
    assert tablets.owner("t", 7) == "n7:1"
