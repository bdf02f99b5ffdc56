"""What a PostgreSQL host is asked about its role, and how its answers are read."""

from __future__ import annotations

from typing import Any

import pytest

from picopyn.dialects.postgres.host_question import HOST_QUESTIONS, asks_too_much, read_host_answer
from picopyn.routing.host_facts import HostFacts


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        (
            {"in_recovery": False, "read_only": "off", "timeline": 3, "written": "16/B374D848"},
            HostFacts(in_recovery=False, read_only=False, timeline=3, written=0x16B374D848, observed_at=7.0),
        ),
        (
            {"in_recovery": True, "read_only": "on", "received": "0/20", "replayed": "1/0", "replay_age": 1.5},
            HostFacts(in_recovery=True, read_only=True, received=32, replayed=1 << 32, replay_age=1.5, observed_at=7.0),
        ),
        ({"replay_age": -0.5}, HostFacts(replay_age=0.0, observed_at=7.0)),
        ({"transaction_read_only": "on"}, HostFacts(read_only=True, observed_at=7.0)),
        ({"alive": 1}, HostFacts(observed_at=7.0)),
    ],
)
def test_an_answer_is_read_by_column(row: dict[str, Any], facts: HostFacts) -> None:
    """What is not there is not known."""
    assert read_host_answer(row, 7.0) == facts


@pytest.mark.parametrize(
    "row", [{"written": "junk"}, {"written": "g/1"}, {"read_only": "maybe"}, {"timeline": "x"}, {"replay_age": "x"}]
)
def test_an_answer_without_sense_is_refused(row: dict[str, Any]) -> None:
    """A value that is no position, no switch, no number."""
    with pytest.raises(ValueError, match=r"."):
        read_host_answer(row, 0.0)


@pytest.mark.parametrize(
    ("sqlstate", "too_much"),
    [
        *((sqlstate, True) for sqlstate in ("42883", "42501", "0A000", "55000", "XX000", "22P02")),
        *((sqlstate, False) for sqlstate in ("57P03", "53300", "08006", "28P01", None)),
    ],
)
def test_which_errors_mean_that_a_smaller_question_may_do(sqlstate: str | None, too_much: bool) -> None:
    """Missing functions and columns, missing rights; not a server that is not there."""
    assert asks_too_much(sqlstate) is too_much


def test_the_last_question_can_be_answered_by_anybody() -> None:
    """Then the host has no role, and takes every call."""
    assert HOST_QUESTIONS[-1] == "SELECT 1 AS alive"
    assert read_host_answer({"alive": 1}, 0.0).writable
