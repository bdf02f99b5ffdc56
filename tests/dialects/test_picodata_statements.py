"""What the words of a statement tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata import statements
from picopyn.dialects.picodata.statements import can_be_asked, is_read, never_hangs

PLANS = Path(__file__).parents[1] / "recorded" / "picodata-plans.json"


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT 1", True),
        ("  \n\t select 1", True),
        ("(SELECT 1) UNION (SELECT 2)", True),
        ("((select 1))", True),
        ("VALUES (1)", True),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("EXPLAIN INSERT INTO t VALUES (1)", True),
        ("explain (buckets) SELECT 1", True),
        ("INSERT INTO t SELECT * FROM u", False),
        ("UPDATE t SET a = 1", False),
        ("DELETE FROM t", False),
        ("DO $$ BEGIN END $$", False),
        ("selecting", False),
        ("'SELECT'", False),
        ('"SELECT"', False),
        ("-- SELECT\nDELETE FROM t", False),
        ("CALL p()", False),
        ("", False),
        ("(", False),
        (";", False),
    ],
)
def test_which_statements_read(sql: str, reads: bool) -> None:
    """The first word decides; anything unclear is not a read."""
    assert is_read(sql) is reads


@pytest.mark.parametrize(
    ("sql", "asked"),
    [
        ("SELECT * FROM t WHERE id = $1", True),
        ("select * from t where id = ?", True),
        ("(SELECT * FROM t WHERE id = $1)", True),
        ("WITH a AS (SELECT $1::int) SELECT * FROM a", True),
        ("INSERT INTO t VALUES ($1, $2)", True),
        ("UPDATE t SET a = $1 WHERE id = $2", True),
        ("DELETE FROM t WHERE id = $1", True),
        ("VALUES ($1)", True),
        ("SELECT * FROM t WHERE id = 1", True),
        ("SELECT '$1' FROM t", True),
        ('SELECT "$1" FROM t', True),
        ("SELECT 'it''s $1' FROM t", True),
        ("SELECT 'a' || $1", True),
        ("SELECT $1 -- all", False),
        ("SELECT $1 /* all */", False),
        ("SELECT '--' || $1", True),
        ("SELECT 'open $1", False),
        ("SELECT a$1 FROM t", True),
        ("DO $$ BEGIN INSERT INTO t VALUES ($1); END $$", False),
        ("CALL p($1)", False),
        ("EXPLAIN SELECT $1", False),
        ("CREATE TABLE t (a INT PRIMARY KEY)", False),
        ("ALTER TABLE t ADD COLUMN b INT", False),
        ("SET a = $1", False),
        ("BEGIN", False),
        ("", False),
    ],
)
def test_which_statements_the_server_is_asked_about(sql: str, asked: bool) -> None:
    """Queries and DML; nothing that could do harm, and nothing that cannot be answered."""
    assert can_be_asked(sql) is asked


def in_list(count: int) -> str:
    """`$1, $2, …`."""
    return ", ".join(f"${n}" for n in range(1, count + 1))


@pytest.mark.parametrize(
    ("sql", "asked"),
    [
        (f"SELECT * FROM t WHERE id IN ({in_list(64)})", True),
        (f"SELECT * FROM t WHERE id IN ({in_list(65)})", False),
        ("SELECT * FROM t WHERE id = $65", False),
        (f"INSERT INTO t VALUES ({in_list(80)})", True),
        (f"insert into t (a, b) values ({in_list(80)}) ON CONFLICT DO NOTHING", True),
        (f"INSERT INTO t VALUES ({in_list(80)}) OPTION (SQL_MOTION_ROW_MAX = 1)", True),
        (f"INSERT INTO t VALUES ({in_list(80)}), (1)", False),
        (f"INSERT INTO t VALUES (coalesce($1, ($2)), {in_list(80)})", True),
        (f"INSERT INTO t SELECT {in_list(80)}", False),
        (f'INSERT INTO "values" (a) SELECT {in_list(80)}', False),
        (f"UPDATE t SET a = 1 WHERE id IN ({in_list(80)})", False),
        ("SELECT " + ", ".join("?" * 65), False),
    ],
)
def test_long_lists_of_parameters_are_not_asked_about(sql: str, asked: bool) -> None:
    """More than 64 parameters are asked about only for one row: a long IN list made an instance crash."""
    assert can_be_asked(sql) is asked


def test_recorded_statements() -> None:
    """Of the recorded statements every query and every change of rows may be asked about."""
    for statement in json.loads(PLANS.read_text())["statements"]:
        sql = statement["sql"]
        if sql.split()[0].upper() in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "VALUES"):
            assert can_be_asked(sql), sql


@given(st.text(alphabet="SELECT$12'\"()-/*?, \n", max_size=60) | st.text(max_size=60))
def test_any_text_can_be_looked_at(sql: str) -> None:
    """No text raises, and what the user quoted changes nothing."""
    can_be_asked(sql)
    is_read(sql)
    never_hangs(sql)
    quoted = sql.replace("'", "''")
    assert can_be_asked(f"SELECT '{quoted}' FROM t")


@pytest.mark.parametrize(
    ("sql", "alone"),
    [("BEGIN", True), ("explain SELECT 1", True), ("SET a = 1", True), ("SELECT 1", False), ("CREATE TABLE t", False)],
)
def test_which_statements_any_instance_answers_by_itself(sql: str, alone: bool) -> None:
    """Transaction words, SET, EXPLAIN, DEALLOCATE; a query may need the leaders, DDL always does."""
    assert never_hangs(sql) is alone


def test_a_long_text_that_cannot_be_asked_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at by every call of the text, and a bulk INSERT has thousands of parameters."""
    tokens, read = statements._tokens, 0

    def counted(sql: str) -> Iterator[tuple[str, str]]:
        nonlocal read
        for token in tokens(sql):
            read += 1
            yield token

    monkeypatch.setattr(statements, "_tokens", counted)
    assert not can_be_asked("INSERT INTO t VALUES " + ", ".join(f"(${n}, ${n + 1})" for n in range(1, 20_000, 2)))
    assert read < 500
