"""Whose turn it is to send a password: laws that hold for every order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.routing.password_turns import STALLED, UNPROVEN, Turns


def test_one_sends_and_the_others_wait_for_its_answer() -> None:
    """Accepted, all may; who comes while those are on their way waits for the next answer."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who, 0) for who in "abc"] == [True, False, False]
    assert turns.accepted("a", 0) == ["b", "c"]
    assert not turns.arrive("d", "d", 0)
    assert turns.accepted("c", 0) == ["d"]


def test_nobody_sends_what_was_refused() -> None:
    """All who wait are turned away; who comes later is the next one."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who, 0) for who in "abc"] == [True, False, False]
    assert turns.refused("a") == ["b", "c"]
    assert turns.arrive("d", "d", 0)


def test_without_an_answer_the_next_one_sends_it() -> None:
    """A connection that breaks, is given up, or is refused for another reason says nothing about the password."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who, 0) for who in "abcd"] == [True, False, False, False]
    assert turns.left("c", 0) == []
    assert turns.left("a", 0) == ["b"]
    assert turns.left("b", 0) == ["d"]
    assert turns.left("d", 0) == []


@pytest.mark.parametrize("proven", [False, True])
def test_an_answer_that_is_late_holds_the_others_up_one_after_the_other(proven: bool) -> None:
    """Longer as long as no node has accepted the password; each one who goes on without it begins a turn."""
    turns: Turns[str] = Turns()
    if proven:
        assert turns.arrive("x", "x", 0)
        assert turns.accepted("x", 0) == []
    lasts = STALLED if proven else UNPROVEN
    assert [turns.arrive(who, who, 10) for who in "abc"] == [True, False, False]
    assert turns.waits("b", 10) == pytest.approx(lasts)
    second = 10 + lasts
    assert [turns.waits(who, second) for who in "cb"] == [lasts, 0], "the first of them"
    assert turns.waits("c", second) == pytest.approx(2 * lasts), "exactly one more, and longer, for two owe an answer"
    assert turns.waits("c", second + 2 * lasts) == 0


def test_a_refusal_ends_the_good_name_of_a_password() -> None:
    """The next attempt is again one that is waited for."""
    turns: Turns[str] = Turns()
    for who in "ab":
        assert turns.arrive(who, who, 0)
        assert turns.accepted(who, 0) == []
    assert turns.arrive("c", "c", 0)
    assert turns.refused("c") == []
    assert [turns.arrive(who, who, 0) for who in "de"] == [True, False]
    assert turns.waits("e", 0) == UNPROVEN


def test_a_node_that_has_not_answered_is_not_sent_it_again() -> None:
    """It would count both; whoever waits at another node goes on, and at this one when the first has gone."""
    turns: Turns[str] = Turns()
    arrivals = (("a", 1), ("b", 1), ("c", 2), ("d", 2))
    assert [turns.arrive(who, node, 0) for who, node in arrivals] == [True] + [False] * 3
    times = iter(range(10, 100, 10))
    assert [bool(turns.waits(who, next(times))) for who in "bdcbd"] == [True, True, False, True, True]
    assert turns.left("c", 60) == []
    assert [bool(turns.waits(who, next(times))) for who in "bd"] == [True, False]
    assert turns.left("a", 80) == turns.left("x", 80) == []
    assert not turns.waits("b", 90)


def test_who_was_not_asked_for_a_password_says_nothing_about_it() -> None:
    """A node that lets everybody in."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who, 0) for who in "ab"] == [True, False]
    assert turns.accepted("x", 0) == []
    assert turns.waits("b", 0) == UNPROVEN
    assert turns.accepted("a", 0) == ["b"]


def test_who_sends_may_send_again() -> None:
    """The second attempt of a connection that was refused without TLS."""
    turns: Turns[str] = Turns()
    assert turns.arrive("a", "a", 0)
    assert turns.arrive("a", "a", 0)


@given(st.lists(st.tuples(st.sampled_from(["arrive", "refused", "left"]), st.integers(0, 5)), max_size=60))
def test_without_an_acceptance_only_one_is_on_its_way(steps: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order; and somebody is on the way while somebody waits."""
    turns: Turns[int] = Turns()
    sending: set[int] = set()
    waiting: set[int] = set()
    for what, who in steps:
        if what == "arrive" and who not in sending | waiting:
            (sending if turns.arrive(who, who, 0) else waiting).add(who)
        elif what == "refused" and who in sending:
            sending.discard(who)
            waiting -= set(turns.refused(who))
        elif what == "left":
            going = set(turns.left(who, 0))
            sending, waiting = (sending - {who}) | going, waiting - going - {who}
        assert len(sending) <= 1
        assert sending or not waiting
