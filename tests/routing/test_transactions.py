"""When a transaction is run again, and how long it pauses: laws that hold for every seed and every fault."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import Fault
from picopyn.routing.retry import Call, decide
from picopyn.routing.transactions import FIRST_PAUSE, LONGEST_PAUSE, ends, full_jitter, may_end, may_run_again

FINAL = {Fault.STATEMENT, Fault.AUTH}


@given(st.integers(1, 10_000), st.integers(0, 2**64))
def test_a_pause_is_between_nothing_and_a_limit_that_doubles(failed: int, seed: int) -> None:
    """And the limit itself has one."""
    pause = full_jitter(failed, Random(seed))
    assert 0.0 <= pause <= LONGEST_PAUSE
    assert pause <= FIRST_PAUSE * 2 ** min(failed - 1, 99)


@given(st.integers(1, 100), st.integers(0, 2**64))
def test_the_same_seed_gives_the_same_pause(failed: int, seed: int) -> None:
    """Nothing else decides."""
    assert full_jitter(failed, Random(seed)) == full_jitter(failed, Random(seed))


@pytest.mark.parametrize("failed", [1, 3, 7, 30])
def test_pauses_use_the_whole_range(failed: int) -> None:
    """Not only its upper half: that is what parts transactions that met."""
    rng, limit = Random(0), min(FIRST_PAUSE * 2 ** (failed - 1), LONGEST_PAUSE)
    quarters = {int(full_jitter(failed, rng) / limit * 4) for _ in range(200)}
    assert quarters == {0, 1, 2, 3}


@given(
    st.sampled_from([None, *Fault]),
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
)
def test_nothing_is_run_again_for_ever(
    fault: Fault | None, failed: int, losses: int, retries: int, only_reads: bool
) -> None:
    """Never beyond the caller's number, never for an error of somebody else, never a third lost connection."""
    again = may_run_again(fault, failed=failed, losses=losses, retries=retries, only_reads=only_reads)
    if again:
        assert failed <= retries
        assert fault is not None
        assert fault not in FINAL
        assert not (fault is Fault.LOST and losses >= 2)
        assert not (fault is Fault.NOT_LEADER and only_reads)
    elif failed <= retries and fault is not None and fault not in FINAL:
        assert (fault is Fault.LOST and losses >= 2) or (fault is Fault.NOT_LEADER and only_reads)


@given(st.booleans(), st.integers(0, 3))
def test_a_single_statement_that_lost_against_a_transaction_is_not_sent_twice(repeatable: bool, sent: int) -> None:
    """Only who knows the whole transaction can run it again."""
    assert decide(Fault.CONFLICT, Call(repeatable, sent)).name == "RAISE"


@pytest.mark.parametrize(
    ("text", "first", "later"),
    [
        ("COMMIT", True, False),
        ("commit and chain", True, False),
        ("  -- why\n/* so */ End;", True, False),
        ("ROLLBACK WORK", True, False),
        ("ABORT", True, False),
        ("PREPARE  TRANSACTION 'x'", True, False),
        ("ROLLBACK TO here", False, False),
        ("ROLLBACK TRANSACTION TO SAVEPOINT here", False, False),
        ("COMMIT PREPARED 'x'", False, False),
        ("ROLLBACK PREPARED 'x'", False, False),
        ("PREPARE p AS SELECT 1", False, False),
        ("SELECT 'COMMIT'", False, False),
        ("endless()", False, False),
        ("INSERT INTO t VALUES (1); COMMIT", False, True),
        ("INSERT INTO t VALUES (1);\n/* so */ END ;", False, True),
        ("SELECT 1; ROLLBACK AND CHAIN", False, True),
        ("SELECT 1; ROLLBACK TO here", False, False),
        ("SELECT CASE WHEN true THEN 1 END; SELECT 2", False, False),
        ("DO $$ BEGIN PERFORM 1; END $$", False, False),
    ],
)
def test_texts_that_end_a_transaction_are_told_by_their_words(text: str, first: bool, later: bool) -> None:
    """Its first statement for certain; a later one as far as words tell. Savepoints and prepared ones are others."""
    assert (ends(text), may_end(text)) == (first, later)
