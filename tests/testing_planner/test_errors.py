"""Error texts whose parts come from rows and instances."""

from __future__ import annotations

from picopyn.testing.picodata.planner import errors


def test_a_duplicate_key_shows_both_rows_in_storage_order() -> None:
    """Recorded: `bucket_id` second, texts in double quotes, NULL as null."""
    error = errors.duplicate_key("1030_pkey", "t1", [801, 1640, "p", None], [801, 1640, 'q"', None])
    assert error.message == (
        "sbroad: invalid transaction: transaction rolled-back: failed to insert space: TupleFound: "
        'Duplicate key exists in unique index "1030_pkey" in space "t1" with old tuple - [801, 1640, "p", '
        'null] and new tuple - [801, 1640, "q\\"", null]'
    )
    assert errors.duplicate_key("g", "g1", [1, "a"], [1, "a"], sharded=False).message.startswith(
        "box error: TupleFound: "
    )


def test_a_forwarded_error_is_wrapped_in_json() -> None:
    """Recorded: the wrapper names the replicaset and escapes the inner text."""
    inner = errors.duplicate_key("i", "dup", [5, 219], [5, 219])
    assert errors.forwarded(inner, "u-u-i-d").message == (
        'sbroad: box error: ProcLua: {"code":32,"base_type":"ClientError","type":"ClientError","message":'
        "\"Error on replicaset u-u-i-d: Failed to execute '.proc_sql_execute': sbroad: invalid transaction: "
        "transaction rolled-back: failed to insert space: TupleFound: Duplicate key exists in unique index "
        '\\"i\\" in space \\"dup\\" with old tuple - [5, 219] and new tuple - [5, 219]",'
        '"trace":[{"file":"vshard\\/error.lua","line":284}]}'
    )


def test_the_recorded_texts_are_kept() -> None:
    """Limits, rights, stale statements."""
    assert errors.too_many_rows(5000).message == "sbroad: Exceeded maximum number of rows (5000) in virtual table: 5001"
    assert errors.opcode_limit(1).message == "sbroad: Reached a limit on max executed vdbe opcodes. Limit: 1"
    assert "unexpected number of values: Exceeded maximum number of rows (1) in virtual table: 2" in (
        errors.too_many_rows_at(1, "u").message
    )
    denied = errors.access_denied("Read", "t1", "bare")
    assert denied.message == "box error: AccessDenied: Read access to space 't1' is denied for user 'bare'"
    stale = errors.statement_invalidated("s1")
    assert (stale.sqlstate, stale.message) == ("42999", "prepared statement s1 has been invalidated")
    count = errors.parameter_count(0, "", 1)
    assert count.message == (
        'protocol violation: bind message supplies 0 parameters, but prepared statement "" requires 1'
    )
    assert errors.null_in_field(1, "id", "integer").message.endswith(
        "box error: FieldType: Tuple field 1 (id) type does not match one required by operation: "
        "expected integer, got nil"
    )
