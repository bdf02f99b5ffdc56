"""What errors of YugabyteDB mean: the table of the facts, as pure decisions."""

from __future__ import annotations

import pytest

from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.errors import Fault

CONFLICTS = (
    ("40001", "could not serialize access due to concurrent update"),
    ("40001", "Restart read required at: { read: { physical: 1 } }"),
    ("40001", "Catalog Version Mismatch: A DDL occurred while processing this query"),
    ("40P01", "deadlock detected"),
    ("XX000", "Query error: Restart read required at: { read: { physical: 1 } }"),
    ("XX000", "schema version mismatch for table 000033c1: expected 1, got 0"),
    ("XX000", "The catalog snapshot used for this transaction has been invalidated: MISMATCHED_SCHEMA"),
    ("XX000", "Catalog Version Mismatch: A DDL occurred while processing this query"),
)
UNANSWERED = (
    ("XX000", "Timed out: Write RPC (request call id 7) to 10.0.0.1:9100 timed out after 60.000s"),
    ("XX000", "Duplicate request 17 from client 1f"),
)


@pytest.mark.parametrize(("sqlstate", "message"), CONFLICTS)
def test_conflicts_are_rolled_back_and_run_again(sqlstate: str, message: str) -> None:
    """Whichever state a release gives them; also when COMMIT is what they answer."""
    dialect = YugabyteDialect()
    assert dialect.fault(sqlstate, message) is Fault.CONFLICT
    assert not dialect.leaves_open(sqlstate, message, commit=True)


@pytest.mark.parametrize(("sqlstate", "message"), UNANSWERED)
def test_a_request_that_another_node_did_not_answer_leaves_everything_open(sqlstate: str, message: str) -> None:
    """It is nobody's to run again."""
    dialect = YugabyteDialect()
    assert dialect.fault(sqlstate, message) is Fault.STATEMENT
    assert dialect.leaves_open(sqlstate, message, commit=False)
    assert dialect.leaves_open(sqlstate, message, commit=True)


@pytest.mark.parametrize(
    ("sqlstate", "message", "fault", "commit_is_open"),
    [
        ("XX000", "Illegal state: unexpected", Fault.STATEMENT, True),
        ("23505", "duplicate key value violates unique constraint", Fault.STATEMENT, False),
        ("25006", "cannot execute INSERT in a read-only transaction", Fault.STATEMENT, False),
        ("25P02", "current transaction is aborted", Fault.STATEMENT, False),
        ("25P03", "terminating connection due to idle-in-transaction timeout", Fault.LOST, False),
        ("57P01", "terminating connection due to unexpected postmaster exit", Fault.LOST, False),
        ("08006", "server closed the connection unexpectedly", Fault.LOST, False),
        ("57P03", "the database system is starting up", Fault.REFUSED, False),
        ("53300", "too many clients already", Fault.OVERLOADED, False),
        ("28P01", "password authentication failed", Fault.AUTH, False),
        (None, "Timed out: not a server's error", Fault.STATEMENT, False),
    ],
)
def test_everything_else(sqlstate: str | None, message: str, fault: Fault, commit_is_open: bool) -> None:
    """An internal error leaves a COMMIT open, whatever it says; a statement that it refused is the caller's affair."""
    dialect = YugabyteDialect()
    assert dialect.fault(sqlstate, message) is fault
    assert dialect.leaves_open(sqlstate, message, commit=True) is commit_is_open
    assert not dialect.leaves_open(sqlstate, message, commit=False)
