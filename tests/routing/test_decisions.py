"""Balance, health, retry, membership: small decisions, each alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import Fault
from picopyn.routing.balance import order
from picopyn.routing.health import JITTER, LONGEST_PAUSE, Health, NodeState
from picopyn.routing.membership import reconcile
from picopyn.routing.retry import MAX_ATTEMPTS, SWITCH_LASTS, Action, Call, decide
from picopyn.routing.watch import Watch
from tests.snapshots import two_by_two


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers())
def test_order_keeps_all_and_puts_no_busier_node_first(loads: list[int], seed: int) -> None:
    """Few equals: the least loaded is first. Many: the first is the better one of two that were drawn."""
    nodes = list(range(len(loads)))
    ordered = order(nodes, loads.__getitem__, Random(seed))
    assert sorted(ordered) == nodes
    if len(nodes) <= 8:
        assert [loads[n] for n in ordered] == sorted(loads)
    elif len(nodes) > 1:
        assert loads[ordered[0]] <= loads[ordered[1]]


def test_many_processes_do_not_all_begin_with_the_same_node() -> None:
    """3 000 first choices among three equals are spread evenly."""
    chosen = Counter(order("abc", lambda _: 0, Random(seed))[0] for seed in range(3000))
    assert all(900 <= count <= 1100 for count in chosen.values())


def test_a_broken_connection_makes_a_node_suspect_once() -> None:
    """So one probe starts, not one per connection."""
    health = Health()
    assert health.all_up
    assert health.broke("a", "reset", 1.0)
    assert not health.broke("a", "reset", 1.1)
    assert not health.is_up("a")
    assert not health.is_down("a")


def test_a_node_is_down_until_it_answers() -> None:
    """And its state keeps since when and why."""
    health = Health()
    health.broke("a", "reset", 1.0)
    assert health.unreachable("a", "refused", 2.0)
    assert not health.unreachable("a", "refused", 3.0)
    state = health.of("a")
    assert (state.state, state.reason, state.failures, state.since) == (NodeState.DOWN, "refused", 2, 2.0)
    assert health.answered("a")
    assert not health.answered("a")
    assert health.all_up


@given(st.integers(0, 40), st.integers())
def test_probes_are_eager_while_calls_wait_and_back_off_otherwise(failures: int, seed: int) -> None:
    """Flat 0.2 s; or doubling from 0.1 s up to 10 s, ±20 %."""
    health = Health()
    for _ in range(failures):
        health.unreachable("a", "refused", 0.0)
    assert health.pause("a", eager=True, rng=Random(seed)) == 0.2
    expected = min(0.1 * 2.0 ** min(failures, 10), 10.0)
    assert expected * 0.8 <= health.pause("a", eager=False, rng=Random(seed)) <= expected * 1.2


def test_when_a_node_is_back_the_others_that_are_down_are_asked_at_once() -> None:
    """And then at the shortest pauses: an outage of everything ends for all of them at about the same time."""
    watch = Watch(Health(), 0.0, Random(1))
    for moment in range(20):
        watch.refused("a", "refused", float(moment))
    watch.broke("b", "reset", 19.0)
    assert not watch.is_due("a", 20.0, eager=False)
    watch.revived(20.0)
    assert watch.is_due("a", 20.0, eager=False)
    assert watch.health.is_down("a")
    watch.refused("a", "refused", 20.0)
    assert watch.is_due("a", 20.3, eager=False)
    assert watch.health.of("b").reason == "reset"


@given(st.sampled_from(Fault), st.booleans(), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_what_may_have_happened_is_never_sent_again(
    fault: Fault, repeatable: bool, sent: int, losses: int, again: bool
) -> None:
    """The law of retrying: after a loss, only what is repeatable; nothing more than three times; never after AUTH."""
    action = decide(fault, Call(repeatable, sent, losses, prepared_again=again))
    if fault is Fault.LOST and not repeatable:
        assert action is Action.OUTCOME_UNKNOWN
    else:
        assert action is not Action.OUTCOME_UNKNOWN
    if fault in (Fault.STATEMENT, Fault.AUTH):
        assert action is Action.RAISE
    if sent >= MAX_ATTEMPTS and fault is not Fault.NOT_SENT:
        assert action in (Action.RAISE, Action.OUTCOME_UNKNOWN)


@pytest.mark.parametrize(
    ("fault", "call", "action"),
    [
        (Fault.NOT_SENT, Call(False, 0), Action.NEXT_NODE),
        (Fault.REFUSED, Call(False, 1), Action.NEXT_NODE),
        (Fault.NOT_LEADER, Call(False, 1), Action.AWAIT_REFRESH),
        (Fault.NOT_LEADER, Call(False, 3), Action.RAISE),
        (Fault.NOT_LEADER, Call(False, 9, switching_for=SWITCH_LASTS - 0.1), Action.AWAIT_REFRESH),
        (Fault.NOT_LEADER, Call(False, 9, switching_for=SWITCH_LASTS), Action.RAISE),
        (Fault.NOT_LEADER, Call(False, 1, for_replica=True, switching_for=0.0), Action.RAISE),
        (Fault.STALE_MAP, Call(False, 1), Action.AWAIT_REFRESH),
        (Fault.STALE_PLAN, Call(False, 1), Action.PREPARE_AGAIN),
        (Fault.STALE_PLAN, Call(False, 1, prepared_again=True), Action.RAISE),
        (Fault.OVERLOADED, Call(False, 1), Action.BACK_OFF),
        (Fault.LOST, Call(True, 1, losses=1), Action.NEXT_NODE),
        (Fault.LOST, Call(True, 2, losses=2), Action.RAISE),
    ],
)
def test_each_fault_has_its_action(fault: Fault, call: Call, action: Action) -> None:
    """A text that lost two connections is not carried to a third node."""
    assert decide(fault, call) is action


def test_retry_backoff_overflow() -> None:
    """However often a node refused: the pause has a limit, and twenty clients do not try in step."""
    health = Health()
    for _ in range(5000):
        health.unreachable("a", "refused", 0.0)
    pauses = {health.pause("a", eager=False, rng=Random(client)) for client in range(20)}
    assert max(pauses) <= LONGEST_PAUSE * (1 + JITTER)
    assert len({round(pause, 3) for pause in pauses}) > 12


def test_membership_is_the_difference_between_pools_and_snapshot() -> None:
    """Nodes join, leave, and move to another address; an unchanged cluster asks for nothing."""
    nodes = two_by_two().nodes()
    pooled = {node.uuid: (node.host, node.port) for node in nodes}
    assert reconcile(pooled, nodes).empty
    moved = replace(nodes[0], port=9999)
    change = reconcile({**pooled, "gone": ("h", 1)}, [moved, *nodes[1:3]])
    assert change.move == (moved,)
    assert change.leave == (nodes[3].uuid, "gone")
    assert reconcile({}, nodes).join == nodes
