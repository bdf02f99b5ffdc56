"""The numbered scenarios of the smart drivers' own tests, as decisions: where 12 connections go.

The numbers are those of `tests/yugabyte-scenarios.md`, which says where those are that are about a network, a pool or a
list of servers.
"""

from __future__ import annotations

from collections import Counter

import pytest

from picopyn.routing.placement_plan import least_loaded
from picopyn.topology_keys import read_topology_keys
from tests.routing.fleet import Fleet, placement

REFUSED = "PLACEMENT"

#: Three nodes in three zones of one region.
THREE = ("aws.west.2a", "aws.west.2b", "aws.west.2c")
SIX = ("aws.west.a", "aws.west.b", "aws.west.c", "aws.east.a", "aws.east.b", "aws.east.c")
WEST = "aws.west.*"


def keys(text: str) -> str:
    """`2a,BAD:1,*:3` → keys of the one region."""
    return ",".join(f"aws.west.{key.strip()}" for key in text.split(","))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2a,2c", {1: 6, 3: 6}, id="01"),
        pytest.param("2a,2b:1,2c:2", {1: 6, 2: 6}, id="02"),
        pytest.param("2a:1,2b:2,2c:3", {1: 12}, id="03"),
        pytest.param("*,2b:1,2c:2", {1: 4, 2: 4, 3: 4}, id="04"),
        pytest.param("*:1,2b:2,2c:3", {1: 4, 2: 4, 3: 4}, id="05"),
        pytest.param("BAD:1,2b:2,2c:3", {2: 12}, id="06"),
        pytest.param("BAD:1,2b:2,2c:2", {2: 6, 3: 6}, id="07"),
        pytest.param("2a:1,BAD:2,2c:3", {1: 12}, id="08"),
        pytest.param("BAD:1,BAD:2,2c:3", {3: 12}, id="09"),
        pytest.param("BAD:1,BAD:2,*:3", {1: 4, 2: 4, 3: 4}, id="10"),
        pytest.param("2a:1,2b:2,BAD:3", {1: 12}, id="11"),
    ],
)
def test_scenario_levels(text: str, expected: dict[int, int]) -> None:
    """The lowest level with a node takes all, spread evenly; gaps and zones without nodes do no harm."""
    assert Fleet(THREE).place(placement(keys=keys(text))) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("2a:11", id="12"),
        pytest.param("2a:-2", id="13"),
        pytest.param("2a:", id="14"),
        pytest.param("2a:x", id="no number"),
        pytest.param("2a.b", id="four parts"),
        pytest.param("2a:" + "9" * 5000, id="a very long number"),
        pytest.param("2*", id="a star in a name"),
    ],
)
def test_scenario_malformed_keys(text: str) -> None:
    """Each is a problem that names the key."""
    found, problems = read_topology_keys(keys(text))
    assert not found
    assert len(problems) == 1
    assert keys(text) in problems[0]


def test_scenario_15_16_a_stopped_node() -> None:
    """The next level takes over; without one, the rest of the cluster does."""
    fleet = Fleet(THREE)
    fleet.stop(1)
    assert fleet.place(placement(keys=keys("2a:1,2b:2,2c:3"))) == {2: 12}
    assert fleet.place(placement(keys=keys("2a:1"))) == {2: 6, 3: 6}


def test_scenario_17_to_19_a_region_goes_down() -> None:
    """The rest of the cluster, or an error where only the keys count."""
    fleet = Fleet(SIX)
    assert fleet.place(placement(keys=WEST)) == {1: 4, 2: 4, 3: 4}
    fleet.stop(1, 2, 3)
    assert fleet.place(placement(keys=WEST)) == {4: 4, 5: 4, 6: 4}
    assert fleet.place(placement(keys=WEST, only_keys=True)) == REFUSED


def test_scenario_20_two_zones_share_the_second_level() -> None:
    """And get the same."""
    fleet = Fleet(SIX)
    fleet.stop(1, 2, 3)
    assert fleet.place(placement(keys=f"{WEST}:1,aws.east.a:2,aws.east.b:2,aws.east.c:3")) == {4: 6, 5: 6}


def test_scenario_21_to_23_it_climbs_back() -> None:
    """Level by level, as nodes return."""
    fleet, wanted = Fleet(SIX), placement(keys=f"{WEST}:1,aws.east.a:2,aws.east.b:3,aws.east.c:4")
    fleet.stop(1, 2, 3, 4)
    assert fleet.place(wanted) == {5: 12}
    fleet.start(4)
    assert fleet.place(wanted) == {4: 12}
    fleet.start(1, 2)
    assert fleet.place(wanted) == {1: 6, 2: 6}


#: Nine nodes on four levels: 1-3, 4 and 5, 7 and 8, 6 and 9.
NINE = ("x.y.1", "x.y.1", "x.y.1", "x.y.2", "x.y.2", "x.y.4", "x.y.3", "x.y.3", "x.y.4")
LEVELS = "x.y.1:1,x.y.2:2,x.y.3:3,x.y.4:4"


def test_scenario_24_to_31_nine_nodes_on_four_levels() -> None:
    """Down all levels, and up again at once."""
    fleet, wanted = Fleet(NINE, seeds=(1, 4, 7)), placement(keys=LEVELS)
    assert fleet.place(wanted) == {1: 4, 2: 4, 3: 4}
    for stopped, expected in (
        ((1, 3), {2: 12}),
        ((2,), {4: 6, 5: 6}),
        ((4,), {5: 12}),
        ((5,), {7: 6, 8: 6}),
        ((7, 8), {6: 6, 9: 6}),
        ((9,), {6: 12}),
    ):
        fleet.stop(*stopped)
        assert fleet.place(wanted) == expected
    fleet.start(2)
    assert fleet.place(wanted) == {2: 12}


def test_scenario_32_without_closing() -> None:
    """New ones are placed by what is there; those of a stopped node are gone, and do not count when it returns."""
    fleet, wanted = Fleet(NINE), placement(keys=LEVELS)

    def more() -> object:
        return fleet.place(wanted, 18, anew=False)

    assert more() == {1: 6, 2: 6, 3: 6}
    fleet.stop(1, 2, 3, 4, 5, 7, 8)
    assert more() == {6: 9, 9: 9}
    fleet.stop(9)
    assert more() == {6: 27}
    fleet.start(2)
    assert more() == {2: 18, 6: 27}
    fleet.stop(2)
    assert more() == {6: 45}
    fleet.start(5)
    assert more() == {5: 18, 6: 45}
    fleet.stop(5)
    assert more() == {6: 63}


def test_scenario_33_a_returning_node_begins_at_nothing() -> None:
    """And catches up."""
    fleet = Fleet(THREE)
    assert fleet.place(placement(), 18) == {1: 6, 2: 6, 3: 6}
    fleet.stop(1)
    assert fleet.place(placement(), 18, anew=False) == {2: 15, 3: 15}
    fleet.start(1)
    assert fleet.place(placement(), 18, anew=False) == {1: 16, 2: 16, 3: 16}


def test_scenario_35_36_nodes_join() -> None:
    """A new node is filled up; one in a better level gets everything new."""
    fleet = Fleet(THREE)
    assert fleet.place(placement(), 24) == {1: 8, 2: 8, 3: 8}
    fleet.add("aws.west.2a")
    assert fleet.place(placement(), 24, anew=False) == {1: 12, 2: 12, 3: 12, 4: 12}
    fleet, wanted = Fleet(THREE), placement(keys=keys("z:1,2b:2,2c:2"))
    assert fleet.place(wanted, 24) == {2: 12, 3: 12}
    assert fleet.add("aws.west.z") == 4
    assert fleet.place(wanted, 24, anew=False) == {2: 12, 3: 12, 4: 24}


def test_scenario_37_38_ties_are_broken_at_random() -> None:
    """Every tied node has the same chance, wherever it stands; thirty connections are ten each."""
    fleet = Fleet(THREE)
    assert fleet.place(placement(), 30) == {1: 10, 2: 10, 3: 10}
    loads = {"a": 0, "b": 5, "c": 0, "d": 0}
    chosen = Counter(least_loaded("abcd", loads.__getitem__, fleet.rng) for _ in range(3000))
    assert set(chosen) == {0, 2, 3}
    assert all(800 < count < 1200 for count in chosen.values())


#: Three nodes of the primary cluster in dc1 to dc3, three read replicas in dc2 to dc4.
DC = ("c.r.dc1", "c.r.dc2", "c.r.dc3", "c.r.dc2", "c.r.dc3", "c.r.dc4")
TWO = "c.r.dc2:1,c.r.dc3:2"
PRIMARIES, REPLICAS = (1, 2, 3), (4, 5, 6)
FOURS, LOWER = {1: 4, 2: 4, 3: 4}, {4: 4, 5: 4, 6: 4}


@pytest.mark.parametrize(
    ("mode", "stopped", "expected"),
    [
        pytest.param(False, (), {1: 12}, id="39"),
        pytest.param("any", (), dict.fromkeys(range(1, 7), 2), id="40"),
        pytest.param("only-rr", (), LOWER, id="41"),
        pytest.param("only-primary", (), FOURS, id="42"),
        pytest.param("prefer-rr", (), LOWER, id="43"),
        pytest.param("prefer-primary", (), FOURS, id="44"),
        pytest.param("prefer-rr", REPLICAS, FOURS, id="45"),
        pytest.param("only-rr", REPLICAS, REFUSED, id="45 only-rr"),
        pytest.param("prefer-primary", PRIMARIES, LOWER, id="47"),
        pytest.param("only-primary", PRIMARIES, REFUSED, id="47 only-primary"),
    ],
)
def test_scenario_node_types(mode: bool | str, stopped: tuple[int, ...], expected: object) -> None:
    """`only` forbids, `prefer` does not."""
    fleet = Fleet(DC, replicas=REPLICAS)
    fleet.stop(*stopped)
    assert fleet.place(placement(mode)) == expected
    fleet.start(*stopped)
    assert fleet.place(placement("any")) == dict.fromkeys(range(1, 7), 2), "46"


@pytest.mark.parametrize(
    ("mode", "only_keys", "stopped", "expected"),
    [
        pytest.param("any", False, (), {2: 6, 4: 6}, id="48"),
        pytest.param("only-rr", False, (), {4: 12}, id="49"),
        pytest.param("only-primary", False, (), {2: 12}, id="50"),
        pytest.param("prefer-rr", False, (), {4: 12}, id="51"),
        pytest.param("prefer-primary", False, (), {2: 12}, id="52"),
        pytest.param("prefer-rr", False, (4,), {5: 12}, id="53"),
        pytest.param("only-rr", False, (4,), {5: 12}, id="53 only-rr"),
        pytest.param("only-rr", False, (4, 5), {6: 12}, id="54"),
        pytest.param("only-rr", True, (4, 5), REFUSED, id="55"),
        pytest.param("prefer-rr", False, REPLICAS, FOURS, id="56"),
        pytest.param("prefer-rr", False, (4, 6), {5: 12}, id="57"),
        pytest.param("prefer-primary", False, (2,), {3: 12}, id="58"),
        pytest.param("only-primary", False, (2,), {3: 12}, id="58 only-primary"),
        pytest.param("only-primary", False, (2, 3), {1: 12}, id="58 outside the keys"),
        pytest.param("only-primary", True, (2, 3), REFUSED, id="58 only keys"),
        pytest.param("prefer-primary", False, PRIMARIES, LOWER, id="58 replicas"),
        pytest.param("any", False, (2, 4), {3: 6, 5: 6}, id="59"),
        pytest.param("any", False, (2, 3, 4, 5), {1: 6, 6: 6}, id="59 outside the keys"),
        pytest.param("any", True, (2, 3, 4, 5), REFUSED, id="59 only keys"),
        pytest.param("any", True, (2, 3, 5), {4: 12}, id="59 back"),
    ],
)
def test_scenario_node_types_and_keys(mode: str, only_keys: bool, stopped: tuple[int, ...], expected: object) -> None:
    """The type in the levels, then the type anywhere, then the other type anywhere."""
    fleet = Fleet(DC, replicas=REPLICAS)
    fleet.stop(*stopped)
    assert fleet.place(placement(mode, TWO, only_keys)) == expected


@pytest.mark.parametrize("text", ["*.west.a", "aws.*.a", "aws.west", "", "a.b.c,,d"])
def test_scenario_63_what_is_no_place(text: str) -> None:
    """A `*` stands for a zone only; an empty text is no key at all."""
    problems = read_topology_keys(text)[1]
    assert len(problems) == (0 if text == "" else 1)
