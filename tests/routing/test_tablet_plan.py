"""Leaders of tablets and wishes about places, put together: who gets a call, and under which reason."""

from __future__ import annotations

from random import Random

import pytest

from picopyn.routing.health import Health
from picopyn.routing.leader_table import BELIEVED, LONGEST_PAUSE, LeaderTable, next_look
from picopyn.routing.plan import Planner, Role, Wait
from picopyn.routing.tablet_plan import TabletPlanner, Welcome
from picopyn.topology import EventInstance, Topology, TopologySnapshot
from picopyn.topology.tablet_map import Tablet, TabletMap
from tests.routing.fleet import Fleet, placement

NODES = {"a": 1, "b": 2, "c": 3}


def snapshot(**ports: int) -> TopologySnapshot:
    topology = Topology()
    topology.apply(
        [EventInstance(uuid=name, name=name, host="h", port=port, online=True) for name, port in ports.items()]
    )
    return topology.snapshot


class Case:
    """A planner over three nodes; `a` leads the first half of table `t`, `b` the second, `x` is nobody's."""

    def __init__(self, *named: set[str], others: bool = True) -> None:
        self.health = Health()
        self.table = LeaderTable(100)
        self.busy = {"a": 5, "b": 5, "c": 0}
        self.lead("h:1", "h:2")
        self.snapshot = snapshot(**NODES)
        placed = Planner(self.snapshot, self.health, self.busy.__getitem__, Random(1), hangs=False)
        welcome = Welcome(*named, others=others, is_down=self.health.is_down)
        self.planner = TabletPlanner(placed, self.health, self.busy.__getitem__, Random(1), self.table, welcome)

    def lead(self, first: str, second: str, names: dict[str, str] | None = None) -> None:
        tablets = {"t": [Tablet(0, 50, first), Tablet(50, 90, second)]}
        self.table.publish(TabletMap.of(tablets), names or {})

    def plan(self, code: int, role: Role = Role.LEADER, space: str = "t") -> tuple[str, str]:
        """First node and reason."""
        plan = self.planner.for_bucket(space, code, role, read=False)
        return plan.candidates[0].node.uuid, plan.reason

    def down(self, *names: str) -> None:
        for name in names:
            self.health.unreachable(name, "gone", 0.0)


def test_a_keyed_call_goes_to_the_leader_then_to_others() -> None:
    """However busy the leader is; the others can execute it as well, should it fail."""
    case = Case()
    assert [case.plan(code) for code in (0, 49, 50, 89)] == [("a", "keyed")] * 2 + [("b", "keyed")] * 2
    plan = case.planner.for_bucket("t", 0, Role.ANY, read=True, reason="constant")
    assert plan.candidates[0].node.uuid == "a"
    assert {candidate.node.uuid for candidate in plan.candidates} == set(NODES)
    assert (plan.reason, plan.direct) == ("constant", True)


def test_without_a_known_leader_placement_decides() -> None:
    """Codes in a gap, tables that are not known, leaders that are no node of ours; the least loaded gets them."""
    case = Case()
    assert case.plan(95) == case.plan(0, space="u") == ("c", "no_map")
    case.lead("h:9", "")
    assert case.plan(0) == case.plan(60) == ("c", "no_map")


def test_calls_for_a_replica_do_not_go_to_leaders() -> None:
    """They asked for somebody else: for whoever holds a copy, if anybody knows."""
    assert Case().plan(0, Role.REPLICA) == Case().plan(0, Role.PREFER_REPLICA) == ("c", "any")
    fleet = Fleet(("c.r.a", "c.r.a", "c.r.a"))
    fleet.counts.update({1: 1, 2: 1, 3: 0})
    table, placed = LeaderTable(100), fleet.planner(placement())
    table.publish(TabletMap.of({"t": [Tablet(0, 50, "10.0.0.2:5433", "10.0.0.2:5433,other:1")]}), {"other:1": "1"})
    planner = TabletPlanner(placed, fleet.health, fleet.counts.__getitem__, Random(1), table, placed.welcome())

    def first(code: int, role: Role) -> tuple[set[str], str]:
        plans = [planner.for_bucket("t", code, role, read=False) for _ in range(30)]
        return {plan.candidates[0].node.uuid for plan in plans}, plans[0].reason

    assert first(0, Role.REPLICA) == ({"1", "2"}, "replica_read")
    assert first(70, Role.REPLICA) == ({"3"}, "replica_read")
    assert first(0, Role.LEADER) == ({"2"}, "keyed")


def test_a_leader_in_doubt_is_left_out() -> None:
    """Until it answers again."""
    case = Case()
    case.health.broke("a", "broke", 0.0)
    assert case.plan(0) == ("c", "leader_unused")
    assert case.plan(50) == ("b", "keyed")
    case.health.answered("a")
    assert case.plan(0) == ("a", "keyed")


def test_news_of_leaders_count_at_once() -> None:
    """Also the names under which the cluster knows nodes that are dialled by another address."""
    case = Case()
    assert case.plan(0) == ("a", "keyed")
    case.lead("h:3", "10.0.0.7:5433", {"10.0.0.7:5433": "a"})
    assert (case.plan(0), case.plan(50)) == (("c", "keyed"), ("a", "keyed"))
    assert case.table.counts == {"t": 100}


@pytest.mark.parametrize(
    ("named", "others", "down", "reasons"),
    [
        ([], True, "", ("keyed", "keyed")),
        ([{"a", "c"}], True, "", ("keyed", "leader_unused")),
        ([{"a", "c"}], True, "c", ("keyed", "leader_unused")),
        ([{"c"}], True, "", ("leader_unused", "leader_unused")),
        ([{"c"}], True, "c", ("keyed", "keyed")),
        ([{"c"}], False, "c", ("leader_unused", "leader_unused")),
        ([set()], True, "", ("keyed", "keyed")),
        ([set()], False, "", ("leader_unused", "leader_unused")),
        ([{"c"}, {"b", "c"}], True, "", ("leader_unused", "leader_unused")),
        ([{"c"}, {"b", "c"}], True, "c", ("leader_unused", "keyed")),
    ],
)
def test_a_leader_is_used_where_wishes_allow_it(
    named: list[set[str]], others: bool, down: str, reasons: tuple[str, str]
) -> None:
    """It is named, nobody in particular is, or nobody who is named is left and others are allowed then."""
    case = Case(*named, others=others)
    case.down(*down)
    assert (case.plan(0)[1], case.plan(50)[1]) == reasons
    leading = [name for name, reason in zip("ab", reasons, strict=True) if reason == "keyed"]
    assert sorted(node.uuid for node in case.planner.leading()) == leading


def test_several_codes_go_to_their_one_leader() -> None:
    """Or as if they had no key."""
    planner = Case().planner
    one = planner.for_buckets("t", {1, 2, 49}, Role.LEADER, read=False)
    two = planner.for_buckets("t", {1, 50}, Role.LEADER, read=False)
    assert (one.candidates[0].node.uuid, one.reason) == ("a", "key_set")
    assert (two.candidates[0].node.uuid, two.reason) == ("c", "spread")


def test_everything_else_is_placed() -> None:
    """Counted under its own reason; and where there is no node, it waits for one."""
    planner = Case().planner
    assert planner.by_tablets
    assert [plan.reason for plan in (planner.unlearned(), planner.spread("t"), planner.for_host(Role.ANY))] == [
        "unlearned",
        "spread",
        "any",
    ]
    assert planner.beside(Role.LEADER, "not_keyed") is planner.beside(Role.LEADER, "not_keyed")
    assert planner.anywhere().candidates[0].node.uuid == "c"
    empty = Planner(TopologySnapshot(), Health(), NODES.__getitem__, Random(1), hangs=False)
    assert empty.beside(Role.LEADER, "unlearned").wait is Wait.NODES


def test_leaders_are_asked_for_more_slowly_each_time() -> None:
    """Believed for a minute while all is well; while something is open, the pause doubles up to a limit."""
    assert next_look(0) == BELIEVED
    pauses = [next_look(rounds) for rounds in range(1, 20)]
    assert pauses[0] < 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert next_look(5, asked=True) < 1
