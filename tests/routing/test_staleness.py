"""How far behind a replica is, whether that is too far, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import ConfigError
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.staleness import TRAIL_LENGTH, Freshness, Standing, Trail, judge
from picopyn.staleness import StalenessPolicy
from tests.routing.hosts import MB, primary, standby, table

NOW = 100.0
FRESH, STALE, UNCHECKED = Freshness.FRESH, Freshness.STALE, Freshness.UNCHECKED
BYTES = StalenessPolicy(max_lag_bytes=MB)
TIME = StalenessPolicy(max_lag=10.0)
#: The primary was at 100 MB one second ago; where it was before is not known.
TRAIL = Trail(((NOW - 1, 100 * MB),))


@pytest.mark.parametrize(
    ("policy", "facts", "expected"),
    [
        pytest.param(BYTES, standby(100 * MB), Standing(FRESH, 0, 0.0), id="bytes: equal"),
        pytest.param(BYTES, standby(99 * MB), Standing(FRESH, MB, 0.0), id="bytes: exactly the limit is fine"),
        pytest.param(BYTES, standby(99 * MB - 1), Standing(STALE, MB + 1, 0.0), id="bytes: one more is not"),
        pytest.param(BYTES, standby(101 * MB), Standing(FRESH, 0, 0.0), id="bytes: asked later than the primary"),
        pytest.param(BYTES, standby(None), Standing(STALE), id="bytes: it does not tell"),
        pytest.param(TIME, standby(99 * MB, 5.0), Standing(FRESH, MB, 5.0), id="time: below"),
        pytest.param(TIME, standby(99 * MB, 10.0), Standing(FRESH, MB, 10.0), id="time: exactly the limit is fine"),
        pytest.param(TIME, standby(99 * MB, 10.5), Standing(STALE, MB, 10.5), id="time: above"),
        pytest.param(TIME, standby(99 * MB, None), Standing(STALE, MB), id="time: it does not tell"),
        pytest.param(TIME, standby(100 * MB, 3600.0), Standing(FRESH, 0, 0.0), id="time: an equal position is no lag"),
        pytest.param(None, standby(0, 3600.0), Standing(FRESH, 100 * MB, 3600.0), id="no policy"),
    ],
)
def test_verdict(policy: StalenessPolicy | None, facts: HostFacts, expected: Standing) -> None:
    """The primary's position is one second old."""
    assert judge(policy, facts, TRAIL, NOW) == expected


@pytest.mark.parametrize("policy", [BYTES, TIME])
@pytest.mark.parametrize("trail", [Trail(), Trail(((NOW - 2.01, 100 * MB),))])
def test_without_a_current_position_of_the_primary_every_replica_is_fresh(
    policy: StalenessPolicy, trail: Trail
) -> None:
    """A missing primary fails open, and no lag is told."""
    assert judge(policy, standby(1, 3600.0), trail, NOW) == Standing(FRESH)


@pytest.mark.parametrize(("fresh_at", "freshness"), [(None, STALE), (NOW - 5.0, FRESH), (NOW - 5.01, STALE)], ids=str)
def test_grace(fresh_at: float | None, freshness: Freshness) -> None:
    """A replica that was fresh a moment ago keeps that for a while; its lag is told all the same."""
    policy = StalenessPolicy(max_lag_bytes=1, grace_period=5.0)
    assert judge(policy, standby(99 * MB), TRAIL, NOW, fresh_at).freshness is freshness
    assert judge(policy, standby(99 * MB), TRAIL, NOW, fresh_at).lag_bytes == MB


def test_both_limits_count() -> None:
    """Near in time and far in bytes is stale, and the other way round."""
    policy = StalenessPolicy(max_lag_bytes=MB, max_lag=10.0)
    assert judge(policy, standby(50 * MB, 1.0), TRAIL, NOW).freshness is STALE
    assert judge(policy, standby(100 * MB - 1, 20.0), TRAIL, NOW).freshness is STALE
    assert judge(policy, standby(100 * MB - 1, 1.0), TRAIL, NOW).freshness is FRESH


def test_a_log_without_commits_does_not_make_a_replica_look_old() -> None:
    """Its newest transaction is an hour old; but it has applied what the primary had written two seconds ago."""
    trail = Trail().with_point(NOW - 2, 50 * MB).with_point(NOW - 1, 60 * MB)
    standing = judge(TIME, standby(50 * MB, 3600.0), trail, NOW)
    assert standing == Standing(FRESH, 10 * MB, 2.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=200), st.integers(0, 700))
def test_laws_of_the_trail(steps: list[tuple[float, int]], position: int) -> None:
    """It stays short and rises; `reached` is a moment at which the primary was really not further."""
    trail, moment, written = Trail(), 0.0, 0
    history = []
    for pause, more in steps:
        moment, written = moment + pause, written + more
        trail = trail.with_point(moment, written)
        history.append((moment, written))
    assert len(trail.points) <= TRAIL_LENGTH
    assert list(trail.points) == sorted(trail.points)
    reached = trail.reached(position)
    assert reached is None or any(when == reached and where <= position for when, where in history)
    if history:
        assert trail.position(moment, 0.0) == written


def test_a_primary_that_went_back_begins_a_new_trail() -> None:
    """It was restored, or is another one: what was before says nothing."""
    assert Trail().with_point(1.0, 9).with_point(2.0, 5).points == ((2.0, 5),)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({}, "max_lag_bytes, max_lag, or both"),
        ({"max_lag_bytes": -1}, "max_lag_bytes must be"),
        ({"max_lag_bytes": 1.5}, "max_lag_bytes must be"),
        ({"max_lag": float("nan")}, "max_lag must be"),
        ({"max_lag": 1, "grace_period": -1}, "grace_period must be"),
        ({"max_lag": 1, "max_master_lsn_age": 0}, "max_master_lsn_age must be"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any], problem: str) -> None:
    """With every problem."""
    with pytest.raises(ConfigError, match=problem):
        StalenessPolicy(**wrong)


# --- the table -------------------------------------------------------------------------------------------


def test_a_replica_that_cannot_be_asked_is_left_out_where_it_matters() -> None:
    """A failing check fails closed under a policy; without one nothing is checked."""
    for policy, expected in ((BYTES, UNCHECKED), (None, FRESH)):
        known = table(policy, a=primary(), b=standby())
        known.failed("b", "silent", 1.0)
        assert known.freshness["b"] is expected
        known.answered("b", standby(at=1.5), 0.001)
        assert known.freshness["b"] is FRESH


def test_what_planners_sort_by_is_replaced_only_when_it_changed() -> None:
    """Lags move all the time, and cost nothing."""
    known = table(BYTES, a=primary(), b=standby())
    before = known.freshness
    known.answered("b", standby(100 * MB - 5, at=0.5), 0.001)
    assert known.freshness is before
    assert known.standings["b"].lag_bytes == 5
    known.answered("b", standby(50 * MB, at=1.0), 0.001)
    assert known.freshness == {"b": STALE}


def test_the_primary_goes_away_and_comes_back() -> None:
    """A stale replica is fresh while nobody can tell, and stale again afterwards (as hasql has it)."""
    known = table(BYTES, a=primary(), b=standby(50 * MB))
    assert known.freshness["b"] is STALE
    for second in (1.0, 2.5, 4.0):
        known.failed("a", "gone", second)
        known.answered("b", standby(50 * MB, at=second), 0.001)
    assert known.freshness["b"] is FRESH
    assert (known.roles.leader, known.led) == ("a", False)
    known.answered("a", primary(at=5.0), 0.001)
    assert (known.freshness["b"], known.led) == (STALE, True)


def test_grace_begins_when_a_replica_was_last_really_fresh() -> None:
    """Being spared does not prolong it, and a change of roles ends it."""
    known = table(StalenessPolicy(max_lag_bytes=MB, grace_period=2.0), a=primary(), b=standby())
    seen = []
    for second in (1.0, 2.0, 3.0):
        known.answered("a", primary(written=200 * MB, at=second), 0.001)
        known.answered("b", standby(at=second), 0.001)
        seen.append(known.freshness["b"])
    assert seen == [FRESH, FRESH, STALE]
    known.answered("b", standby(200 * MB, at=3.5), 0.001)
    known.answered("b", primary(2, at=3.6), 0.001)
    known.answered("a", primary(3, 300 * MB, at=3.7), 0.001)
    known.answered("b", standby(at=3.8), 0.001)
    assert known.freshness["b"] is STALE


def test_a_host_that_stays_silent_is_forgotten() -> None:
    """After half a minute what it said last is not believed any more."""
    known = table(None, a=primary(), b=standby())
    known.failed("a", "gone", 29.0)
    assert known.roles.leader == "a"
    known.failed("a", "gone", 31.0)
    assert (known.roles.leader, list(known.facts), known.trouble("a")) == (None, ["b"], "gone")


def test_hosts_that_are_not_named_any_more_are_forgotten() -> None:
    """Late answers of them bring nothing back."""
    known = table(None, a=primary(), b=standby())
    known.name([])
    known.answered("a", primary(), 0.1)
    known.failed("b", "gone", 1.0)
    assert (known.facts, known.roles.leader, known.latency("a"), known.trouble("b")) == ({}, None, None, None)


def test_the_latency_of_a_host_is_the_median_of_its_answers() -> None:
    """One slow answer does not make a host slow."""
    known = table(None, a=None)
    assert known.latency("a") is None
    for seconds in (0.001, 9.0, 0.003):
        known.answered("a", primary(), seconds)
    assert known.latency("a") == 0.003


def test_h_s6_h_s7_a_host_is_what_it_said_last_until_it_speaks() -> None:
    """A look that is blocked while the replica is promoted changes nothing, nor how it stands; then it leads."""
    known = table(BYTES, a=primary(written=100 * MB, at=NOW), b=standby(99 * MB - 1, at=NOW))
    assert known.standings["b"].freshness is STALE
    known.failed("a", "no answer", NOW + 1)
    assert (known.roles.leader, known.standings["b"].freshness) == ("a", STALE)
    known.answered("b", primary(timeline=2, written=101 * MB, at=NOW + 2), 0.001)
    assert known.roles.leader == "b"
    assert "b" not in known.standings
