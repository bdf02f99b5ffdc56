"""Where a call may go: owners first, nothing that would hang, waiting on our side instead."""

from __future__ import annotations

from random import Random

import pytest

from picopyn.routing.health import Health
from picopyn.routing.plan import PLAIN, REPLICA_READ, Plan, Planner, Role, Wait
from picopyn.topology import TopologySnapshot
from tests.snapshots import HALF, two_by_two
from tests.steps import python_steps

R1, R2 = 7, HALF + 7  # a bucket of each replicaset


def planner(
    snapshot: TopologySnapshot | None = None,
    *,
    down: tuple[str, ...] = (),
    suspect: tuple[str, ...] = (),
    alone: bool = True,
) -> Planner:
    """A planner of a cluster whose statements hang while a leader is missing."""
    health = Health()
    for uuid in down:
        health.unreachable(uuid, "refused", 0.0)
    for uuid in suspect:
        health.broke(uuid, "broke", 0.0)
    return Planner(snapshot or two_by_two(), health, lambda _: 0, Random(1), hangs=True, alone=lambda _: alone)


def names(plan: Plan) -> list[str]:
    return [candidate.node.uuid for candidate in plan.candidates]


def test_a_keyed_call_goes_to_the_leader_of_its_bucket_only() -> None:
    """There is no second candidate: any other node would forward it."""
    plan = planner().for_bucket("default", R1, Role.LEADER, read=False)
    assert (names(plan), plan.direct, plan.reason) == (["i11"], True, "keyed")
    assert names(planner().for_bucket("default", R2, Role.LEADER, read=True)) == ["i21"]


def test_the_first_keyed_call_after_a_change_takes_no_step_per_bucket() -> None:
    """It makes the plans of all buckets."""
    made = planner()
    assert python_steps(lambda: made.for_bucket("default", R1, Role.LEADER, read=False)) < 100


def test_a_keyed_call_of_a_healthy_owner_does_not_care_about_other_nodes() -> None:
    """The leader of another replicaset is dead: this call goes on as if nothing had happened."""
    plan = planner(down=("i21",)).for_bucket("default", R1, Role.LEADER, read=False)
    assert (names(plan), plan.wait) == (["i11"], None)


def test_where_servers_execute_nothing_alone_keyed_calls_wait_for_every_leader() -> None:
    """As before 26.1: also the owner that lives would hang, and so would a replica."""
    whole = planner(alone=False)
    assert names(whole.for_bucket("default", R1, Role.LEADER, read=False)) == ["i11"]
    assert names(whole.for_bucket("default", R1, Role.REPLICA, read=True)) == ["i12"]
    assert len(whole.by_bucket("default", "keyed")) == 3002
    switching = planner(two_by_two(leaders={"r2": None}), alone=False)
    assert switching.by_bucket("default", "keyed") == ()
    for made in (planner(down=("i21",), alone=False), planner(suspect=("i21",), alone=False), switching):
        for role, read in ((Role.LEADER, False), (Role.REPLICA, True), (Role.PREFER_LEADER, True)):
            plan = made.for_bucket("default", R1, role, read)
            assert (names(plan), plan.wait, plan.missing) == ([], Wait.TIER, ("r2",))
    own = planner(down=("i21",), alone=False).for_bucket("default", R2, Role.PREFER_LEADER, read=True)
    assert (names(own), own.wait) == ([], Wait.LEADER)


def test_a_keyed_call_without_a_leader_waits_for_one() -> None:
    """Dead, or just being switched: the call waits here and is sent nowhere."""
    dead = planner(down=("i21",)).for_bucket("default", R2, Role.LEADER, read=True)
    switching = planner(two_by_two(leaders={"r2": None})).for_bucket("default", R2, Role.LEADER, read=True)
    for plan in (dead, switching):
        assert (names(plan), plan.wait, plan.missing) == ([], Wait.LEADER, ("r2",))


def test_prefer_leader_reads_go_to_the_replica_of_a_dead_leader() -> None:
    """Over a connection that asks the server for replica reads."""
    plan = planner(down=("i21",)).for_bucket("default", R2, Role.PREFER_LEADER, read=True)
    assert (names(plan), plan.reason, plan.direct) == (["i22"], "replica_read", True)
    assert plan.candidates[0].flavour == REPLICA_READ


def test_prefer_leader_goes_to_the_leader_while_it_lives() -> None:
    """A replica may be stale; it is the second choice."""
    assert names(planner().for_bucket("default", R2, Role.PREFER_LEADER, read=True)) == ["i21"]


def test_prefer_leader_never_sends_a_write_to_a_replica() -> None:
    """A write waits for the next leader."""
    plan = planner(down=("i21",)).for_bucket("default", R2, Role.PREFER_LEADER, read=False)
    assert plan.wait is Wait.LEADER


def test_a_statement_that_would_be_forwarded_waits_while_any_leader_is_missing() -> None:
    """Recorded: it would hang at the server and hold one of its 50 slots for minutes."""
    assert planner().spread("default").wait is None
    for state in ({"down": ("i21",)}, {"suspect": ("i21",)}):
        plan = planner(**state).spread("default")
        assert (plan.candidates, plan.wait, plan.missing) == ((), Wait.TIER, ("r2",))
    assert planner(two_by_two(leaders={"r1": None})).spread("default").missing == ("r1",)


def test_a_statement_not_learned_yet_asks_to_be_learned_while_a_leader_is_missing() -> None:
    """It may be keyed, and then it could run; EXPLAIN answers also now."""
    assert planner(down=("i21",)).unlearned().wait is Wait.LEARN
    assert planner().unlearned().wait is None


def test_a_dead_replica_holds_up_nobody() -> None:
    """Only leaders make forwarded statements hang."""
    assert planner(down=("i22",)).spread("default").wait is None
    assert names(planner(down=("i22",)).for_bucket("default", R2, Role.LEADER, read=False)) == ["i21"]


def test_what_every_node_can_answer_avoids_dead_nodes() -> None:
    """And tries all of them when all look dead."""
    assert "i11" not in names(planner(down=("i11",)).anywhere())
    everything = planner(down=("i11", "i12", "i21", "i22")).anywhere()
    assert sorted(names(everything)) == ["i11", "i12", "i21", "i22"]


def test_a_set_of_buckets_is_keyed_only_if_one_replicaset_owns_all() -> None:
    """Otherwise the receiving node asks the others."""
    same = planner().for_buckets("default", {R1, R1 + 1}, Role.LEADER, read=False)
    assert (names(same), same.reason) == (["i11"], "key_set")
    assert planner().for_buckets("default", {R1, R2}, Role.LEADER, read=False).reason == "spread"


def test_without_a_map_a_keyed_call_is_spread() -> None:
    """And counted as such."""
    plan = planner(two_by_two(mapped=False)).for_bucket("default", R1, Role.LEADER, read=False)
    assert (plan.reason, plan.direct) == ("no_map", False)


def test_a_user_who_may_not_read_leaders_is_sent_to_the_replicaset() -> None:
    """Any Online member, until the leader is found by asking."""
    plan = planner(two_by_two(leaders_known=False)).for_bucket("default", R2, Role.LEADER, read=False)
    assert (sorted(names(plan)), plan.direct) == (["i21", "i22"], False)


def test_an_unreachable_member_may_be_the_unknown_leader() -> None:
    """So calls to that replicaset wait; and so do guesses at another one, which its members may have to forward."""
    doubtful = planner(two_by_two(leaders_known=False), down=("i21",))
    assert doubtful.for_bucket("default", R2, Role.LEADER, read=False).wait is Wait.LEADER
    assert doubtful.for_bucket("default", R1, Role.LEADER, read=False).wait is Wait.TIER
    assert doubtful.spread("default").missing == ("r2",)
    assert names(doubtful.for_bucket("default", R2, Role.PREFER_LEADER, read=True)) == ["i22"]


def test_an_empty_cluster_offers_nothing() -> None:
    """The call waits for the first node."""
    empty = Planner(TopologySnapshot(), Health(), lambda _: 0, Random(1), hangs=True)
    assert empty.anywhere().wait is Wait.NODES
    assert empty.spread(None).wait is Wait.NODES


@pytest.mark.parametrize("state", [{}, {"down": ("i21",)}])
def test_where_forwarding_does_not_hang_nothing_waits_for_other_leaders(state: dict[str, tuple[str, ...]]) -> None:
    """The rule is a capability of the server, not of this file."""
    health = Health()
    for uuid in state.get("down", ()):
        health.unreachable(uuid, "refused", 0.0)
    plan = Planner(two_by_two(), health, lambda _: 0, Random(1), hangs=False).spread("default")
    assert plan.wait is None
    assert plan.candidates


# reads off the leader

OFF = [Role.REPLICA, Role.PREFER_REPLICA, Role.ANY]


def flavours(plan: Plan) -> dict[str, str]:
    return {candidate.node.uuid: candidate.flavour for candidate in plan.candidates}


def test_a_read_for_a_replica_goes_to_a_replica_of_its_owner() -> None:
    """Over a connection that asks for replica reads: recorded, without the option the replica asks its leader."""
    plan = planner().for_bucket("default", R2, Role.REPLICA, read=True)
    assert (flavours(plan), plan.reason, plan.direct) == ({"i22": REPLICA_READ}, "replica_read", True)
    preferred = planner().for_bucket("default", R2, Role.PREFER_REPLICA, read=True)
    assert names(preferred) == ["i22", "i21"]
    assert flavours(preferred) == {"i22": REPLICA_READ, "i21": PLAIN}


def test_any_member_of_the_owner_may_answer_any() -> None:
    """The least loaded; nobody else, for others forward."""
    load = {"i21": 3, "i22": 1}
    made = Planner(two_by_two(), Health(), lambda uuid: load.get(uuid, 0), Random(1), hangs=True)
    plan = made.for_bucket("default", R2, Role.ANY, read=True)
    assert (names(plan), plan.reason, plan.direct) == (["i22", "i21"], "replica_read", True)
    load["i21"] = 0
    plan = made.for_bucket("default", R2, Role.ANY, read=True)
    assert (names(plan), plan.reason) == (["i21", "i22"], "keyed")
    first = {names(planner().for_bucket("default", R2, Role.ANY, read=True))[0]}
    assert first <= {"i21", "i22"}


@pytest.mark.parametrize("role", OFF)
def test_a_write_goes_to_the_leader_whatever_its_role(role: Role) -> None:
    """Only the leader can do it."""
    assert flavours(planner().for_bucket("default", R2, role, read=False)) == {"i21": PLAIN}


@pytest.mark.parametrize("role", OFF)
def test_a_replica_answers_although_leaders_are_away(role: Role) -> None:
    """Recorded: it reads its own rows locally, whoever is dead."""
    for down in (("i21",), ("i11",), ("i11", "i21")):
        plan = planner(down=down).for_bucket("default", R2, role, read=True)
        assert names(plan)[0] == "i22" or (role is Role.ANY and "i21" not in down)
        assert not set(names(plan)) & set(down)


def test_without_a_replica_only_who_insists_waits() -> None:
    """The others have the leader."""
    made = planner(down=("i22",))
    plan = made.for_bucket("default", R2, Role.REPLICA, read=True)
    assert (plan.candidates, plan.wait, plan.missing) == ((), Wait.REPLICA, ("r2",))
    for role in (Role.PREFER_REPLICA, Role.ANY):
        assert names(made.for_bucket("default", R2, role, read=True)) == ["i21"]
    alone = planner(down=("i21", "i22"))
    assert alone.for_bucket("default", R2, Role.ANY, read=True).wait is Wait.LEADER


def test_where_nobody_is_known_to_lead_nobody_is_known_to_be_a_replica() -> None:
    """Whoever only prefers one is answered by any member, over a connection with which each reads locally."""
    made = planner(two_by_two(leaders_known=False))
    assert made.for_bucket("default", R2, Role.REPLICA, read=True).wait is Wait.REPLICA
    for role in (Role.PREFER_REPLICA, Role.ANY):
        assert flavours(made.for_bucket("default", R2, role, read=True)) == {"i21": REPLICA_READ, "i22": REPLICA_READ}


@pytest.mark.parametrize("role", OFF)
def test_a_scan_still_waits_for_all_leaders(role: Role) -> None:
    """The receiving node forwards it, and recorded, that hangs."""
    assert planner(down=("i21",)).spread("default", role=role).wait is Wait.TIER
    plan = planner().spread("default", role=role)
    replicas = {uuid for uuid, flavour in flavours(plan).items() if flavour == REPLICA_READ}
    assert replicas == {"i12", "i22"}
    assert role is Role.ANY or names(plan)[0] in replicas
    assert (role is Role.REPLICA) is (len(plan.candidates) == 2)


def test_a_connection_for_a_role() -> None:
    """One to a replica asks for replica reads, too."""
    assert flavours(planner().anywhere(Role.REPLICA)) == {"i12": REPLICA_READ, "i22": REPLICA_READ}
    assert names(planner().anywhere(Role.PREFER_REPLICA))[0] in ("i12", "i22")
    assert flavours(planner().anywhere(Role.LEADER)) == {"i11": PLAIN, "i21": PLAIN}
    assert len(planner().anywhere(Role.ANY).candidates) == 4
    assert planner(down=("i12", "i22")).anywhere(Role.REPLICA).wait is Wait.REPLICA
