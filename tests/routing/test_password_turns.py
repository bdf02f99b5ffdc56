"""Whose turn it is to send a password: laws that hold for every order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from picopyn.routing.password_turns import Turns


def test_one_sends_and_the_others_wait_for_its_answer() -> None:
    """Accepted, all may; who comes while those are on their way waits for the next answer."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who) for who in "abc"] == [True, False, False]
    assert turns.accepted("a") == ["b", "c"]
    assert not turns.arrive("d", "d")
    assert turns.accepted("c") == ["d"]


def test_nobody_sends_what_was_refused() -> None:
    """All who wait are turned away; who comes later is the next one."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who) for who in "abc"] == [True, False, False]
    assert turns.refused("a") == ["b", "c"]
    assert turns.arrive("d", "d")


def test_without_an_answer_the_next_one_sends_it() -> None:
    """A connection that breaks, is given up, or is refused for another reason says nothing about the password."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who) for who in "abcd"] == [True, False, False, False]
    assert turns.left("c") == []
    assert turns.left("a") == ["b"]
    assert turns.left("b") == ["d"]
    assert turns.left("d") == []


def test_an_answer_that_is_late_holds_the_others_up_one_after_the_other() -> None:
    """The first of those who wait goes on without it."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who) for who in "abc"] == [True, False, False]
    assert [turns.is_impatient(who) for who in "cbbc"] == [False, True, False, True]


def test_a_node_that_has_not_answered_is_not_sent_it_again() -> None:
    """It would count both; whoever waits at another node goes on, and at this one when the first has gone."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, node) for who, node in (("a", 1), ("b", 1), ("c", 2), ("d", 2))] == [True] + [False] * 3
    assert [turns.is_impatient(who) for who in "bdcbd"] == [False, False, True, False, False]
    assert turns.left("c") == []
    assert [turns.is_impatient(who) for who in "bd"] == [False, True]
    assert turns.left("a") == turns.left("x") == []
    assert turns.is_impatient("b")


def test_who_was_not_asked_for_a_password_says_nothing_about_it() -> None:
    """A node that lets everybody in."""
    turns: Turns[str] = Turns()
    assert [turns.arrive(who, who) for who in "ab"] == [True, False]
    assert turns.accepted("x") == []
    assert turns.accepted("a") == ["b"]


def test_who_sends_may_send_again() -> None:
    """The second attempt of a connection that was refused without TLS."""
    turns: Turns[str] = Turns()
    assert turns.arrive("a", "a")
    assert turns.arrive("a", "a")


@given(st.lists(st.tuples(st.sampled_from(["arrive", "refused", "left"]), st.integers(0, 5)), max_size=60))
def test_without_an_acceptance_only_one_is_on_its_way(steps: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order; and somebody is on the way while somebody waits."""
    turns: Turns[int] = Turns()
    sending: set[int] = set()
    waiting: set[int] = set()
    for what, who in steps:
        if what == "arrive" and who not in sending | waiting:
            (sending if turns.arrive(who, who) else waiting).add(who)
        elif what == "refused" and who in sending:
            sending.discard(who)
            waiting -= set(turns.refused(who))
        elif what == "left":
            going = set(turns.left(who))
            sending, waiting = (sending - {who}) | going, waiting - going - {who}
        assert len(sending) <= 1
        assert sending or not waiting
