"""Laws of placement: what holds for any nodes, any wishes, any failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.placement_settings import BalanceMode
from picopyn.routing.placement import READ_REPLICA, Placement
from picopyn.routing.plan import Role, Wait
from picopyn.routing.surplus import Holding, surplus
from picopyn.topology_keys import TopologyKey
from tests.routing.fleet import Fleet, placement

ZONES = ("c.r.a", "c.r.b", "C.R.c", "c.s.a")
KEYS = st.builds(TopologyKey, st.just("c"), st.sampled_from("rsR"), st.sampled_from("abcx*"), st.integers(1, 10))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, Placement, set[int]]:
    """Nodes, wishes, and which nodes are down."""
    zones = draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=12))
    numbers = st.integers(1, len(zones))
    fleet = Fleet(
        zones,
        replicas=draw(st.sets(numbers)),
        seeds=draw(st.lists(st.integers(1, len(zones) + 2), min_size=1, max_size=4, unique=True)),
        seed=draw(st.integers(0, 100)),
    )
    wanted = Placement(draw(st.sampled_from(BalanceMode)), tuple(draw(st.lists(KEYS, max_size=4))), draw(st.booleans()))
    return fleet, wanted, draw(st.sets(st.integers(1, len(zones) + 2)))


@given(fleets())
def test_use_is_spread_within_one_over_the_best_living_group(given_fleet: tuple[Fleet, Placement, set[int]]) -> None:
    """Nobody is used who is forbidden, down while another is not, or worse than one that lives."""
    fleet, wanted, down = given_fleet
    planner = fleet.planner(wanted)
    groups = wanted.groups(
        [node for node in planner.snapshot.nodes() if node.tier],
        [node for seed in fleet.seeds if (node := planner.snapshot.node(str(seed))) is not None],
    )
    fleet.stop(*down)
    living = [[int(node.uuid) for node in group if int(node.uuid) not in down] for group in groups]
    best = next((group for group in living if group), None)
    held = fleet.place(wanted, 30)
    if best is None:
        allowed = {int(node.uuid) for group in groups for node in group}
        refused = wanted.forbids or not groups
        assert held in ("PLACEMENT", "NODES") if refused else set(held) <= allowed
    else:
        assert set(held) <= set(best)
        counts = [fleet.counts[number] for number in best]
        assert max(counts) - min(counts) <= 1


@given(fleets())
def test_groups_never_repeat_a_node_and_keep_what_is_forbidden_out(
    given_fleet: tuple[Fleet, Placement, set[int]],
) -> None:
    """Only nodes of the wanted type, only places of the keys, where that is asked."""
    fleet, wanted, _ = given_fleet
    nodes = [node for node in fleet.planner(wanted).allowed() if node.tier]
    assert len({node.uuid for node in nodes}) == len(nodes)
    if wanted.mode is BalanceMode.ONLY_RR:
        assert all(node.tier == READ_REPLICA for node in nodes)
    if wanted.only_keys and wanted.keys and wanted.mode is BalanceMode.ANY:
        places = [[node.failure_domain[part] for part in ("cloud", "region", "zone")] for node in nodes]
        assert all(any(key.matches(*place) for key in wanted.keys) for place in places)


def test_case_makes_no_difference() -> None:
    """As JDBC and npgsql have it; the sharp s too."""
    assert Fleet(("AWS.West.A", "aws.west.b")).place(placement(keys="aws.WEST.a")) == {1: 12}
    assert TopologyKey("c", "r", "straße").matches("C", "R", "STRASSE")


def test_seeds_come_last_and_never_where_something_is_forbidden() -> None:
    """An address that no server listed, as of a load balancer; before a list was read it is all there is."""
    fleet = Fleet(("c.r.a", "c.r.b"), seeds=(3, 1))
    fleet.stop(1, 2)
    assert fleet.place(placement(keys="c.r.a")) == {3: 12}
    assert fleet.place(placement("prefer-rr")) == {3: 12}
    assert fleet.place(placement("only-primary")) == "PLACEMENT"
    assert fleet.place(placement(keys="c.r.a", only_keys=True)) == "PLACEMENT"
    assert not fleet.planner(placement("only-rr"), discovered=False).anywhere().candidates
    for wanted in (placement(), placement("prefer-rr")):
        plan = fleet.planner(wanted, discovered=False).anywhere()
        assert plan.candidates[0].node.uuid == "3"


def test_without_balancing_the_first_host_that_works_takes_all() -> None:
    """In the order written, and back to it as soon as it is there again."""
    fleet, off = Fleet(("c.r.a", "c.r.b", "c.r.c"), seeds=(3, 1, 2)), placement(False)
    assert fleet.place(off) == {3: 12}
    assert [candidate.node.uuid for candidate in fleet.plan(off).candidates] == ["3", "1", "2"]
    fleet.stop(3)
    assert fleet.place(off) == {1: 12}
    fleet.start(3)
    assert fleet.place(off) == {3: 12}


def test_a_better_group_is_used_once_it_is_connected() -> None:
    """Until then nobody waits for it, but connections to it are wanted."""
    fleet, wanted = Fleet(("c.r.a", "c.r.b")), placement(keys="c.r.a:1,c.r.b:2")
    fleet.unconnected = {1}
    planner = fleet.planner(wanted)
    assert fleet.place(wanted) == {2: 12}
    assert [node.uuid for node in planner.homes()] == ["1"]
    fleet.unconnected = set()
    assert fleet.place(wanted) == {1: 12}
    fleet.unconnected = {1, 2}
    assert [candidate.node.uuid for candidate in fleet.plan(wanted).candidates] == ["1", "2"]


def followed(fleet: Fleet, wanted: Placement, *holders: int, role: Role = Role.REPLICA) -> tuple[int, str]:
    """Where a read for a replica goes first, over which kind of connection; the holders of the row's copies."""
    planner = fleet.planner(wanted)
    plan = planner.near(frozenset(map(str, holders)), role) if holders else planner.for_host(role)
    assert plan.reason == "replica_read"
    nodes = [candidate.node.uuid for candidate in plan.candidates if candidate.flavour == "replica reads"]
    assert len(set(nodes)) == len(nodes)
    rest = [(candidate.node.uuid, candidate.flavour) for candidate in plan.candidates[len(nodes) :]]
    assert rest == [(uuid, "plain") for uuid in nodes if role is Role.PREFER_REPLICA]
    return int(plan.candidates[0].node.uuid), plan.candidates[0].flavour


def test_reads_for_a_replica_are_placed_and_go_to_whoever_holds_a_copy() -> None:
    """In the best level that works, whoever leads; a copy in another level is asked by the servers themselves."""
    fleet, near = Fleet(("c.r.a", "c.r.a", "c.r.a", "c.r.b")), placement(keys="c.r.a:1,c.r.b:2")
    fleet.counts.update({1: 5, 2: 3, 3: 0, 4: 0})
    for role in (Role.REPLICA, Role.PREFER_REPLICA):
        assert followed(fleet, near, role=role)[0] == 3
        assert followed(fleet, near, 1, 2, 4, role=role)[0] == 2
    assert followed(fleet, near, 4)[0] == 3
    fleet.stop(2)
    assert followed(fleet, near, 1, 2, 4)[0] == 1
    fleet.stop(1, 3)
    assert followed(fleet, near, 1, 4)[0] == 4
    fleet.stop(4)
    assert followed(fleet, near, 1, 2, 4)[0] in (1, 2, 3), "everything down is tried all the same"
    strict = fleet.planner(placement(keys="c.r.b", only_keys=True)).near(frozenset("1"), Role.REPLICA)
    assert strict.wait is Wait.PLACEMENT


def test_the_same_plan_for_a_replica_is_made_once() -> None:
    """Whoever keeps plans by identity may; other roles stay as they were."""
    fleet = Fleet(("c.r.a",))
    planner = fleet.planner(placement())
    for role in (Role.REPLICA, Role.PREFER_REPLICA):
        assert planner.for_host(role) is planner.for_host(role) is planner.anywhere(role)
    assert planner.for_host(Role.LEADER).candidates[0].flavour == "plain"
    assert planner.anywhere() is planner.anywhere(Role.ANY) is planner.for_host(Role.LEADER)


def test_everything_down_is_tried_all_the_same() -> None:
    """In the order of preference; a refusing mode waits, and its plan carries the mode."""
    fleet = Fleet(("c.r.a", "c.r.b"))
    fleet.stop(1, 2)
    assert [c.node.uuid for c in fleet.plan(placement(keys="c.r.b:1")).candidates] == ["2", "1"]
    plan = fleet.plan(placement("only-primary"))
    assert plan.wait is Wait.PLACEMENT
    assert plan.note == "load_balance=only-primary"
    assert placement(True, "c.r.a", True).words == (
        "load_balance=any, topology_keys=c.r.a:1, fallback_to_topology_keys_only"
    )


# idle surplus


@pytest.mark.parametrize(
    ("holdings", "batch", "expected"),
    [
        ({"a": (3, 3, 1, True), "b": (3, 3, 0, False)}, 2, ["b", "b"]),
        ({"a": (3, 3, 1, True), "b": (3, 1, 0, False)}, 2, ["b"]),
        ({"a": (0, 0, 1, True), "b": (3, 3, 0, False)}, 2, []),
        ({"a": (9, 9, 1, True), "b": (1, 0, 1, True)}, 3, ["a", "a", "a"]),
        ({"a": (2, 2, 1, True), "b": (1, 0, 1, True)}, 3, []),
        ({"a": (9, 0, 1, True), "b": (1, 1, 1, True)}, 3, []),
        ({"a": (3, 3, 3, True), "b": (1, 1, 3, True)}, 3, []),
        ({}, 3, []),
    ],
)
def test_which_idle_connections_are_too_many(
    holdings: dict[str, tuple[int, int, int, bool]], batch: int, expected: list[str]
) -> None:
    """Strays first, then the fullest while it has two more than the emptiest; nothing before use has arrived."""
    assert surplus({name: Holding(*holding) for name, holding in holdings.items()}, batch) == expected


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.booleans()),
    ),
    st.integers(1, 5),
)
def test_trimming_ends_and_never_takes_what_is_used(drawn: dict[str, tuple[int, int, int, bool]], batch: int) -> None:
    """Repeated, it comes to rest with every home within one of the others, as far as idle connections allow."""
    holdings = {name: Holding(max(size, idle), idle, least, home) for name, (size, idle, least, home) in drawn.items()}
    for _ in range(100):
        chosen = surplus(holdings, batch)
        assert len(chosen) <= batch
        for name in chosen:
            before = holdings[name]
            assert before.idle > 0
            assert before.size > before.least
            holdings[name] = Holding(before.size - 1, before.idle - 1, before.least, before.home)
    assert surplus(holdings, batch) == []


@given(fleets())
def test_leaders_are_welcome_where_use_may_go_and_always_where_it_goes(
    given_fleet: tuple[Fleet, Placement, set[int]],
) -> None:
    """A welcome leader is a node that calls may go to anyway; everybody in the best living group is welcome."""
    fleet, wanted, down = given_fleet
    planner = fleet.planner(wanted)
    welcome = planner.welcome()
    servers = [node for node in planner.snapshot.nodes() if node.tier]
    fleet.stop(*down)
    allowed = {node.uuid for node in planner.allowed()}
    if wanted.mode is not BalanceMode.OFF:
        assert {node.uuid for node in servers if welcome(node)} <= allowed
    in_use = [node for node in planner.homes() if int(node.uuid) not in down]
    assert all(map(welcome, in_use)) or not any(node.tier for node in in_use)
