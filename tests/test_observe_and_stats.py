"""What a pool tells and counts."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from picopyn import observe
from picopyn.errors import Fault
from picopyn.observe import Event, Publisher
from picopyn.routing.health import NodeState
from picopyn.stats import (
    CALL_REASONS,
    Counters,
    NodeStats,
)

RETRIED = observe.StatementRetried(node="n", address="h:1", fault=Fault.NOT_LEADER, attempt=1)
LEARNED = observe.RouteLearned(query="SELECT $1", kind="ANY_NODE", tier=None, reason="")


def test_an_observer_gets_the_events_in_order() -> None:
    """The very objects, one by one."""
    seen: list[Event] = []
    publisher = Publisher(seen.append)
    assert publisher.active
    publisher.notify(RETRIED)
    publisher.notify(LEARNED)
    assert seen == [RETRIED, LEARNED]


def test_without_an_observer_nobody_needs_to_build_events() -> None:
    """`active` says so; notifying is harmless."""
    publisher = Publisher(None)
    assert not publisher.active
    publisher.notify(RETRIED)


def test_what_an_observer_raises_never_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once per kind of event, and the observer goes on being called."""
    calls = []

    def observer(event: Event) -> None:
        calls.append(event)
        raise ValueError("no")

    publisher = Publisher(observer)
    with caplog.at_level(logging.WARNING, "picopyn.observe"):
        for event in (RETRIED, RETRIED, LEARNED):
            publisher.notify(event)
    assert len(calls) == 3
    assert [record.getMessage().split(" for ")[1].split(";")[0] for record in caplog.records] == [
        "StatementRetried",
        "RouteLearned",
    ]


def test_the_states_told_are_those_a_node_can_have() -> None:
    """No word is promised that is never sent; what the caller himself has decided is not found out by asking."""
    assert set(get_args(observe.NodeState)) == {state.value for state in NodeState} | {"draining"}


def test_an_observer_may_interrupt_the_program() -> None:
    """Only ordinary exceptions are kept back."""

    def observer(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Publisher(observer).notify(RETRIED)


def test_events_cannot_be_changed() -> None:
    """An observer cannot change what the next one sees."""
    with pytest.raises(FrozenInstanceError):
        RETRIED.attempt = 2  # type: ignore[misc]


def test_counters_become_a_snapshot_that_stays_as_it_was() -> None:
    """Later counting changes nothing in it."""
    counters = Counters()
    counters.calls["keyed"] += 2
    counters.retried(Fault.STALE_MAP)
    counters.closes["idle"] += 1
    counters.connects += 1
    first = counters.snapshot()
    counters.calls["keyed"] += 1
    counters.closes["idle"] += 1
    assert set(first.calls) == set(CALL_REASONS)
    assert (first.calls["keyed"], first.calls["any"]) == (2, 0)
    assert (first.retries, first.closes, first.connects) == ({"STALE_MAP": 1}, {"idle": 1}, 1)
    assert counters.snapshot().calls["keyed"] == 3


def test_sums_of_gauges_are_the_sums_over_nodes() -> None:
    """They are computed, so they cannot drift."""
    nodes = [
        NodeStats(node="a", address="h:1", idle=1, in_use=2, connecting=3, waiting=4),
        NodeStats(node="", address="h:2", state="down", idle=5),
    ]
    stats = Counters().snapshot(nodes)
    assert list(stats.nodes) == ["a", "h:2"]
    assert (stats.size, stats.idle, stats.in_use, stats.waiting) == (11, 6, 2, 4)


def test_a_pool_without_nodes_has_zeros() -> None:
    """Also before it is opened and after it is closed."""
    stats = Counters().snapshot()
    assert (stats.size, stats.idle, stats.in_use, stats.waiting) == (0, 0, 0, 0)
    assert stats.topology is None
    assert stats.metadata is None
