"""PostgreSQL as a value: nothing is sharded, nothing is repeatable, errors mean what their SQLSTATE says."""

from __future__ import annotations

import pytest

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.errors import Fault, NotSupported
from picopyn.routing.retry import Action, Call, decide

DIALECT: Dialect = PostgresDialect()


def test_it_has_transactions_and_a_catalogue_and_no_owners() -> None:
    """So the engine keeps no connection for statements or topology."""
    assert {Capability.TRANSACTIONS, Capability.CATALOG} <= DIALECT.capabilities
    assert Capability.SHARDED not in DIALECT.capabilities
    assert (DIALECT.name, DIALECT.default_port) == ("postgres", 5432)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_its_connections_are_all_alike(purpose: Purpose) -> None:
    """No start-up key of ours: a pooler in between may know none."""
    assert DIALECT.startup_options(purpose) == {}


@pytest.mark.parametrize(
    ("sqlstate", "fault"),
    [
        ("28P01", Fault.AUTH),
        ("28000", Fault.AUTH),
        ("53300", Fault.OVERLOADED),
        ("57P03", Fault.REFUSED),
        ("25006", Fault.NOT_LEADER),
        ("26000", Fault.STALE_PLAN),
        ("57P01", Fault.LOST),
        ("08006", Fault.LOST),
        ("23505", Fault.STATEMENT),
        ("40001", Fault.CONFLICT),
        ("40P01", Fault.CONFLICT),
        ("57014", Fault.STATEMENT),
        ("3D000", Fault.STATEMENT),
        ("XX000", Fault.STATEMENT),
        (None, Fault.STATEMENT),
    ],
)
def test_an_sqlstate_means_one_thing(sqlstate: str | None, fault: Fault) -> None:
    """Texts are translated, so they decide nothing."""
    assert DIALECT.fault(sqlstate, "irgendwas") is fault


def test_a_read_is_never_inferred_from_a_text() -> None:
    """A SELECT may call a function that writes; after a lost connection nobody knows."""
    assert not DIALECT.is_read("SELECT 1")
    assert decide(DIALECT.fault("57P01", ""), Call(repeatable=False, sent=1)) is Action.OUTCOME_UNKNOWN


def test_a_write_that_a_standby_refuses_waits_for_a_newer_look_at_the_hosts() -> None:
    """It had no effect there; a call that asked for a replica gets the refusal as its answer."""
    fault = DIALECT.fault("25006", "")
    assert decide(fault, Call(repeatable=False, sent=1)) is Action.AWAIT_REFRESH
    assert decide(fault, Call(repeatable=True, sent=1, for_replica=True)) is Action.RAISE


def test_there_are_no_keys() -> None:
    """Nothing is hashed, nothing is asked."""
    assert DIALECT.key_hash.forms(23) == ()
    assert DIALECT.key_hash.encoder(23)(1) is None
    assert DIALECT.key_hash.bucket(b"", 3000) == 1
    assert DIALECT.parse_notice('{"type": "PreparedStatementMetadata"}') is None
    assert DIALECT.read_bucket_answer([["buckets = [1]"]]) is None
    with pytest.raises(NotSupported, match="plans of Picodata"):
        DIALECT.plan_question("SELECT 1")
    assert DIALECT.read_plan([("Result  (cost=0.00..0.01 rows=1 width=4)",)]).roots == ()
    assert not DIALECT.can_be_asked("SELECT 1")
    assert DIALECT.never_hangs("SELECT 1")
    assert not DIALECT.is_partial("23505", "")
    with pytest.raises(NotSupported):
        DIALECT.bucket_question("SELECT 1")
