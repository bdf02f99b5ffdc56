"""Where a call of a primary with replicas goes, by its role; and who of several equals gets it."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import UsageError
from picopyn.routing.balance import UNCONNECTED
from picopyn.routing.balance_policies import POLICIES, BalancerPolicy, Equals, latency_weights
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_plan import HostPlanner, ReadRules, Sorted, groups
from picopyn.routing.host_table import HostTable
from picopyn.routing.plan import Plan, Role, Wait
from picopyn.staleness import StalenessPolicy
from picopyn.topology import Node
from tests.routing.hosts import MB, planner, primary, standby, table

#: a leads; b is fresh, c is stale.
MIXED = StalenessPolicy(max_lag_bytes=MB)


def mixed() -> HostTable:
    return table(MIXED, a=primary(), b=standby(), c=standby(1))


def names(plan: Plan) -> str:
    return "".join(candidate.node.uuid for candidate in plan.candidates)


ORDER: dict[Role, tuple[object, ...]] = {
    #                     normal, leader down, fresh down, replicas down, all down
    Role.LEADER: ("a", Wait.PRIMARY, "a", "a", Wait.PRIMARY),
    Role.PREFER_LEADER: ("abc", "bc", "ac", "a", Wait.PRIMARY),
    Role.REPLICA: ("bc", "bc", "c", Wait.REPLICA, Wait.REPLICA),
    Role.PREFER_REPLICA: ("bac", "bc", "ac", "a", Wait.REPLICA),
    Role.ANY: ("bac", "bc", "ac", "a", Wait.PRIMARY),
}
DOWN = ("", "a", "b", "bc", "abc")


@pytest.mark.parametrize("role", ORDER)
@pytest.mark.parametrize("case", range(len(DOWN)), ids=lambda case: f"down={DOWN[case] or 'nobody'}")
def test_the_order_of_hosts(role: Role, case: int) -> None:
    """Fresh replicas, then the primary where it may answer, then stale replicas, then waiting."""
    busy_leader = {"a": 1}  # makes the choice among equals certain
    plan = planner(mixed(), "abc", down=DOWN[case], loads=busy_leader).for_host(role)
    assert (plan.wait or names(plan)) == ORDER[role][case]
    assert plan.direct is (plan.wait is None)


@pytest.mark.parametrize(("role", "reason"), [(Role.LEADER, "any"), (Role.REPLICA, "replica_read"), (Role.ANY, "any")])
def test_calls_are_counted_by_who_answers(role: Role, reason: str) -> None:
    """A call that asked for a replica and got the primary is no replica read."""
    assert planner(mixed(), "abc").for_host(role).reason == reason
    assert planner(mixed(), "abc", down="bc").for_host(Role.PREFER_REPLICA).reason == "any"


def test_a_suspect_host_is_still_used() -> None:
    """Only one that is known not to answer is left out."""
    assert names(planner(mixed(), "abc", suspect="a").for_host(Role.LEADER)) == "a"


SAID = {"primary": primary(), "standby": standby(), "late": standby(1), "nothing": None}


@given(
    st.lists(st.sampled_from(sorted(SAID)), min_size=1, max_size=3),
    st.sampled_from([None, *POLICIES.values()]),
    st.sampled_from("abc"),
    st.sampled_from([primary(at=1.0), standby(at=1.0), standby(1, at=1.0)]),
)
def test_what_is_kept_of_calls_for_a_leader_is_what_each_of_them_gets(
    said: list[str], policy: BalancerPolicy | None, letter: str, later: HostFacts
) -> None:
    """Whoever chooses among equals, and whatever hosts say before there is a new snapshot."""
    known = table(MIXED, **{letter: SAID[what] for letter, what in zip("abc", said, strict=False)})
    hosts = planner(known, "abc"[: len(said)], ReadRules(policy=policy))
    kept = hosts.alone()
    known.answered(letter, later, 0.001)
    for plan in (hosts.for_host(Role.LEADER) for _ in range(3)):
        assert plan == kept if kept is not None else len(plan.candidates) != 1


def test_with_a_fallback_the_primary_answers_for_missing_fresh_replicas() -> None:
    """Before the stale ones, and after the fresh ones."""
    rules = ReadRules(fallback_master=True)
    assert names(planner(mixed(), "abc", rules).for_host(Role.REPLICA)) == "bac"
    assert names(planner(mixed(), "abc", rules, down="b").for_host(Role.REPLICA)) == "ac"
    assert names(planner(mixed(), "abc", rules, down="bc").for_host(Role.REPLICA)) == "a"


@pytest.mark.parametrize(("weight", "least", "most"), [(0.0, 0, 0), (0.5, 200, 300), (1.0, 450, 550)])
def test_the_weight_of_the_primary(weight: float, least: int, most: int) -> None:
    """With weight 1 it is one of the fresh replicas: here one of two, so it gets half."""
    hosts = planner(mixed(), "abc", ReadRules(master_weight=weight))
    first = Counter(names(hosts.for_host(Role.REPLICA))[0] for _ in range(1000))
    assert least <= first["a"] <= most
    assert first["a"] + first["b"] == 1000


def test_a_primary_that_is_drawn_answers_without_replicas_too() -> None:
    """The draw allows it (hasql); without one the call waits."""
    alone = table(None, a=primary(), b=None)
    assert names(planner(alone, "ab", ReadRules(master_weight=1.0)).for_host(Role.REPLICA)) == "a"
    assert planner(alone, "ab").for_host(Role.REPLICA).wait is Wait.REPLICA


def test_without_a_primary_only_calls_that_need_it_wait() -> None:
    """Replicas go on answering."""
    orphans = planner(table(None, a=standby(), b=standby()), "ab")
    assert orphans.for_host(Role.LEADER).wait is Wait.PRIMARY
    assert orphans.anywhere().wait is Wait.PRIMARY
    for role in set(Role) - {Role.LEADER}:
        assert sorted(names(orphans.for_host(role))) == ["a", "b"]


def test_a_host_that_has_not_answered_gets_no_call() -> None:
    """Whatever the role."""
    for role in Role:
        assert "b" not in names(planner(table(None, a=primary(), b=None), "ab").for_host(role))
        assert planner(table(None, a=None), "a").for_host(role).wait is not None


def test_equals_take_every_call_but_those_for_a_replica() -> None:
    """There is no replica among them, and never silently a primary instead."""
    equals = planner(table(None, a=primary(), b=primary()), "ab")
    for role in set(Role) - {Role.REPLICA}:
        assert sorted(names(equals.for_host(role))) == ["a", "b"]
    assert equals.for_host(Role.REPLICA).wait is Wait.REPLICA


def test_a_planner_sees_at_once_that_a_replica_fell_behind() -> None:
    """Without a new snapshot."""
    known = table(MIXED, a=primary(), b=standby(), c=standby())
    hosts = planner(known, "abc")
    assert sorted(names(hosts.for_host(Role.REPLICA))) == ["b", "c"]
    known.answered("b", standby(1, at=0.1), 0.001)
    assert names(hosts.for_host(Role.REPLICA)) == "cb"
    known.failed("c", "silent", 0.2)
    assert names(hosts.for_host(Role.REPLICA)) == "b"


NODES = st.lists(st.sampled_from("abcdef"), unique=True)


@given(NODES, NODES, st.sampled_from(Role), st.booleans(), st.booleans(), st.booleans())
def test_laws_of_the_order(
    fresh: list[str], stale: list[str], role: Role, led: bool, fallback: bool, with_leader: bool
) -> None:
    """Nobody twice, no empty group, no stale one before a fresh one, no replica where the leader was asked for."""
    stale = [name for name in stale if name not in fresh]
    leader = Node("L") if led else None
    hosts = Sorted(leader, tuple(map(Node, fresh)), tuple(map(Node, stale)))
    found = groups(role, hosts, fallback=fallback, with_leader=with_leader)
    order = [node.uuid for group in found for node in group]
    assert all(found)
    assert len(order) == len(set(order))
    places = {uuid: place for place, uuid in enumerate(order)}
    assert all(places[s] > places[f] for s in places.keys() & stale for f in places.keys() & fresh)
    if role is Role.LEADER:
        assert order == (["L"] if led else [])
    else:
        assert set(fresh) | set(stale) <= set(order)
        may_lead = role is not Role.REPLICA or fallback or with_leader
        assert ("L" in order) is (led and may_lead)


# --- equals ----------------------------------------------------------------------------------------------


def equals(loads: list[int], latencies: list[float | None] | None = None, turn: int = 0, seed: int = 1) -> Equals:
    nodes = [Node(str(number)) for number in range(len(loads))]
    times = latencies or [None] * len(loads)
    return Equals(nodes, lambda uuid: loads[int(uuid)], lambda uuid: times[int(uuid)], turn, Random(seed))


@given(st.sampled_from(sorted(POLICIES)), st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers())
def test_every_policy_chooses_one_of_the_equals(word: str, loads: list[int], seed: int) -> None:
    """Always."""
    assert 0 <= POLICIES[word](equals(loads, seed=seed, turn=abs(seed))) < len(loads)


def test_greedy_takes_the_least_loaded_and_draws_among_ties() -> None:
    """A dead host's free slots are none (it is loaded to the brim)."""
    chosen = Counter(POLICIES["greedy"](equals([1, 0, 1_000_000, 0], seed=seed)) for seed in range(400))
    assert set(chosen) == {1, 3}
    assert min(chosen.values()) > 120


def test_round_robin_takes_turns() -> None:
    """Every role has its own turns."""
    assert [POLICIES["round_robin"](equals([9, 0, 9], turn=turn)) for turn in range(6)] == [0, 1, 2, 0, 1, 2]
    hosts = planner(
        table(None, a=primary(), b=standby(), c=standby()), "abc", ReadRules(policy=POLICIES["round_robin"])
    )
    firsts = [names(hosts.for_host(role))[0] for role in (Role.REPLICA, Role.LEADER) * 4]
    assert firsts == list("bacabaca")


def test_two_choices_never_takes_the_busiest_of_all() -> None:
    """And each of the others sometimes."""
    chosen = Counter(POLICIES["two_choices"](equals([5, 1, 2, 3], seed=seed)) for seed in range(600))
    assert chosen[0] == 0
    assert chosen[1] > chosen[2] > chosen[3] > 0


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("latencies", "weights"),
    [
        ([1.0, 2.0, 4.0], [1.0, 0.5, 0.25]),
        ([3.0, 3.0], [1.0, 1.0]),
        *(([1.0, wrong, 4.0], [1.0, 1.0, 1.0]) for wrong in (None, 0.0, -1.0, NAN, INF, -INF)),
        ([0.001, 1000.0], [1.0, 1e-6]),
        ([5e-324, 5e-324], [1.0, 1.0]),
        ([7.0], [1.0]),
    ],
)
def test_weights_of_latencies(latencies: list[float | None], weights: list[float]) -> None:
    """The faster, the more; all alike while one of them cannot be used."""
    assert latency_weights(latencies) == pytest.approx(weights)


def test_random_weighted_goes_by_the_last_answers() -> None:
    """Four times as fast, four times as often."""
    chosen = Counter(POLICIES["random_weighted"](equals([0, 0], [0.001, 0.004], seed=seed)) for seed in range(1000))
    assert 740 <= chosen[0] <= 860
    assert POLICIES["random_weighted"](equals([0, 0], [1e-9, 1e9])) == 0


def test_a_policy_of_ones_own() -> None:
    """It gets everything that is known, for every call with a choice; a position that does not exist is refused."""
    seen: list[tuple[str, ...]] = []

    def last(among: Equals) -> int:
        seen.append(tuple(node.uuid for node in among.nodes))
        assert among.latency("b") == 0.001
        return len(among.nodes) - 1

    def hosts(policy: BalancerPolicy) -> HostPlanner:
        return planner(table(None, a=primary(), b=standby(), c=standby()), "abc", ReadRules(policy=policy))

    assert names(hosts(last).for_host(Role.REPLICA)) == "cb"
    assert names(hosts(last).for_host(Role.LEADER)) == "a"
    assert seen == [("b", "c")]
    with pytest.raises(UsageError, match="chose 7 of 2 hosts"):
        hosts(lambda _: 7).for_host(Role.REPLICA)


def test_a_policy_chooses_among_hosts_that_are_connected() -> None:
    """One that has just come may hang; it is chosen once it has a connection, which it gets anyway."""
    load = {"b": UNCONNECTED}
    rules = ReadRules(policy=POLICIES["round_robin"], warmed=True)
    made = planner(table(None, a=primary(), b=standby(), c=standby()), "abc", rules, loads=load)

    def chosen() -> set[str]:
        return {names(made.for_host(Role.REPLICA))[0] for _ in range(6)}

    assert chosen() == {"c"}
    load["c"] = UNCONNECTED  # then it makes no difference
    assert chosen() == {"b", "c"}
    load["b"] = load["c"] = 0
    assert chosen() == {"b", "c"}
