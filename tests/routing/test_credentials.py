"""When a refused password may be sent again."""

from __future__ import annotations

import pytest

from picopyn.routing.credentials import PAUSE, Credentials
from picopyn.routing.health import LONGEST_PAUSE

A, B, C = ("a", 1), ("b", 1), ("c", 1)


@pytest.fixture
def refused() -> Credentials:
    """Credentials that one node has refused at second 100."""
    credentials = Credentials()
    assert credentials.refused(A, 100.0, "no")
    return credentials


def test_nothing_holds_back_what_was_never_refused() -> None:
    """Sending and accepting change nothing."""
    credentials = Credentials()
    credentials.sent(A, 0.0)
    assert not credentials.accepted(A)
    assert (credentials.wait(A, 0.0), credentials.refusal) == (None, "")


def test_a_refusal_holds_back_every_node(refused: Credentials) -> None:
    """The password is wrong everywhere, and every node counts; so does one that a probe would ask more often."""
    assert PAUSE > LONGEST_PAUSE
    assert [refused.wait(node, 110.0) for node in (A, B, C)] == [PAUSE - 10.0] * 3
    assert refused.wait(B, 100.0 + PAUSE) == 0.0


def test_one_attempt_per_pause_is_made_by_the_whole_pool(refused: Credentials) -> None:
    """Whoever is first; the others wait for the next pause to end, told once."""
    refused.sent(B, 130.0)
    assert refused.wait(C, 130.1) == pytest.approx(PAUSE - 0.1)
    assert not refused.refused(B, 131.0, "still no")
    assert refused.refusal == "still no"
    assert refused.wait(A, 131.0) == PAUSE


def test_the_first_that_is_accepted_ends_it(refused: Credentials) -> None:
    """The password was put right at the server."""
    refused.sent(A, 130.0)
    assert refused.accepted(A)
    assert [refused.wait(node, 130.1) for node in (A, B)] == [None, None]


def test_a_node_that_refuses_what_others_accept_is_held_back_alone(refused: Credentials) -> None:
    """However often: the others open connections as they like."""
    refused.sent(B, 130.0)
    assert not refused.accepted(B)
    assert (refused.wait(B, 130.1), refused.wait(A, 130.1)) == (None, pytest.approx(PAUSE - 0.1))
    refused.sent(A, 160.1)
    assert not refused.refused(A, 160.2, "no")
    assert (refused.wait(B, 160.3), refused.wait(A, 160.2)) == (None, PAUSE)
    assert refused.accepted(A)
    assert refused.refusal == ""


def test_the_word_of_the_user_ends_it_too(refused: Credentials) -> None:
    """He says that the password is a new one."""
    refused.forgive()
    assert refused.wait(A, 100.1) is None
    assert refused.refused(A, 100.2, "no")
