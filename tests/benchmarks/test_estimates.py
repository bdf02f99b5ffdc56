"""What a benchmark may conclude from a few noisy numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.estimates import Interval, difference, judge, median_interval, percentile, ratio

FACTORS = st.lists(st.floats(0.1, 10), min_size=1, max_size=30)


def test_interval_of_six_values_is_their_range() -> None:
    """Six values allow a statement with 96.9 % confidence, and only about their whole range."""
    found = median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    assert found == Interval(3.5, 1.0, 6.0, 1 - 2 / 64)


def test_interval_narrows_with_more_values() -> None:
    """With twenty values the five smallest and the five largest may be left out."""
    found = median_interval([float(value) for value in range(1, 21)])
    assert (found.low, found.middle, found.high) == (6.0, 10.5, 15.0)
    assert found.confidence == pytest.approx(0.9586, abs=1e-4)


def test_few_values_confess_their_doubt() -> None:
    """An interval of too few values says how little it is worth."""
    assert median_interval([1.0]).confidence == 0.0
    assert median_interval([1.0, 2.0, 3.0]).confidence == 0.75


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_interval_holds_the_median(values: list[float]) -> None:
    """The median lies inside, and both ends are measured values."""
    found = median_interval(values)
    assert found.low <= found.middle <= found.high
    assert found.low in values
    assert found.high in values


@given(FACTORS, st.floats(0.1, 10))
def test_what_drifts_hits_both_and_cancels(factors: list[float], true: float) -> None:
    """When each round is faster or slower for all clients alike, the ratio does not notice."""
    theirs = [100.0 * factor for factor in factors]
    found = ratio([true * value for value in theirs], theirs)
    assert found is not None
    assert found.low == pytest.approx(true)
    assert found.high == pytest.approx(true)


def test_only_rounds_that_both_have_are_paired() -> None:
    """A round in which one of two has no clean block says nothing about the pair."""
    found = difference([5.0, None, 7.0, 9.0], [1.0, 100.0, None, 4.0])
    assert found is not None
    assert (found.low, found.high) == (4.0, 5.0)
    assert ratio([None], [1.0]) is None


def test_percentiles_are_measured_values() -> None:
    """A percentile is the nearest rank, never a value between two measured ones."""
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert percentile([4.0], 0.01) == 4.0


@pytest.mark.parametrize("empty", [median_interval, lambda values: percentile(values, 0.5)])
def test_nothing_measured_is_an_error(empty: object) -> None:
    """No values give no number."""
    with pytest.raises(ValueError, match="no values"):
        empty([])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("low", "high", "confidence", "verdict"),
    [
        (1.0, 4.0, 0.96, "holds"),
        (4.1, 5.0, 0.96, "fails"),
        (3.9, 4.1, 0.96, "undecided"),
        (1.0, 2.0, 0.75, "undecided"),
        (8.0, 9.0, 0.75, "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, confidence: float, verdict: str) -> None:
    """A limit holds or fails when the whole interval says so with enough confidence; else it is undecided."""
    assert judge(Interval((low + high) / 2, low, high, confidence), 4.0) == verdict
