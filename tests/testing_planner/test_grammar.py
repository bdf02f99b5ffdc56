"""What the grammar takes, what it refuses as Picodata does, and what is refused as not modelled."""

from __future__ import annotations

import pytest

from picopyn.testing.picodata.planner import Catalog, NotModelled, ServerError, prepare
from tests.testing_planner.recorded import catalog_of

CATALOG = catalog_of(
    [
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, n INT, k UUID)",
        'CREATE TABLE "Mixed Case" ("Id" INT PRIMARY KEY)',
        "CREATE TABLE g (id INT PRIMARY KEY) DISTRIBUTED GLOBALLY",
        "CREATE TABLE h (k INT PRIMARY KEY) DISTRIBUTED GLOBALLY",
    ]
)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 -- c",
        "/* c */ SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1 WHERE true",
        "SELECT * FROM t WHERE id = -$1",
        "SELECT * FROM t WHERE id = -n",
        "SELECT * FROM t, g",
        "SELECT * FROM t LIMIT $1",
        "SELECT * FROM t LIMIT 1 OFFSET 1",
        "SELECT * FROM pg_catalog.pg_type",
        "SELECT id FROM t ORDER",
        "SELECT FROM t",
        "SELECT 'unfinished",
        "INSERT INTO t VALUES (1) RETURNING id",
        "INSERT INTO t VALUES (1) ON CONFLICT (id) DO NOTHING",
        "INSERT INTO t DEFAULT VALUES",
        "SELECT * FROM t OPTION (FORWARD = off)",
        "SELECT * FROM t OPTION (SQL_MOTION_ROW_MAX = -5)",
        "EXPLAIN ANALYZE SELECT 1",
        "EXPLAIN (BUCKETS) SELECT 1",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "START TRANSACTION",
        "SHOW x",
        "RESET ALL",
        "DISCARD ALL",
        "LISTEN a",
        "COPY t FROM STDIN",
        "CREATE TABLE t5 (id INT PRIMARY KEY) IN TIER x",
        "CREATE TABLE t5 (id SERIAL PRIMARY KEY)",
        "CREATE TABLE t5 (id INT PRIMARY KEY DEFAULT 1)",
        "CREATE TABLE s.t5 (id INT PRIMARY KEY)",
    ],
)
def test_what_the_grammar_lacks_is_a_parsing_error(text: str) -> None:
    """Comments, several statements, signs before parameters, most of PostgreSQL's session statements."""
    with pytest.raises(ServerError) as caught:
        prepare(text, CATALOG)
    assert (caught.value.sqlstate, caught.value.message.startswith("sbroad: rule parsing error: ")) == (
        "XX000",
        True,
    )


def test_a_parsing_error_names_line_and_column() -> None:
    """The place is where the first word stands that no rule takes."""
    with pytest.raises(ServerError, match=r" --> 2:11$"):
        prepare("SELECT *\nFROM t AS WHERE id = 1", CATALOG)


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET v = 'x' FROM h WHERE t.n = 3",
        "SELECT sum(n) OVER w FROM t WINDOW w AS (ORDER BY id)",
        "SELECT substring('a' FROM 1)",
        "SELECT trim('a')",
        "SELECT * FROM t WHERE v SIMILAR TO 'a'",
        "EXPLAIN (RAW) SELECT 1",
        "CREATE ROLE r",
        "CREATE PROCEDURE p() AS $$ DELETE FROM t $$",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t ADD COLUMN x INT, ADD COLUMN y INT",
        "GRANT some_role TO u",
        "CREATE TABLE t5 (id INT)",
        "CREATE TABLE t5 (id INT PRIMARY KEY) DISTRIBUTED BY (nope)",
        "CREATE TABLE t5 (id INT PRIMARY KEY) DISTRIBUTED BY (id) IN TIER nope",
        "SELECT * FROM _pico_governor_queue",
        "DO $$ BEGIN IF true THEN DELETE FROM t; END IF; END $$",
        "SELECT 1::json",
        "BACKUP",
        "SELECT v, count(*) FROM t",
    ],
)
def test_what_picodata_has_and_the_model_has_not_is_said_so(text: str) -> None:
    """Such a statement is never answered by guess."""
    with pytest.raises(NotModelled) as caught:
        prepare(text, CATALOG)
    assert caught.value.sqlstate == "0A000"
    assert caught.value.message.startswith("not modelled by the embedded cluster: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('SELECT * FROM "T"', 'table with name "T" not found'),
        ("SELECT * FROM mixed", 'table with name "mixed" not found'),
        ("INSERT INTO nope VALUES (1)", "space nope not found"),
        ("INSERT INTO t (nope) VALUES (1)", 'column with name "nope" not found'),
        (
            "INSERT INTO t (id, v) VALUES (1, 2)",
            "INSERT column at position 2 is of type text, but expression is of type int",
        ),
        ("INSERT INTO t (id, v) VALUES (1)", "invalid query: INSERT expects 2 columns, got 1"),
        ("SELECT id FROM t JOIN g ON t.id = g.id", "duplicated value: column name id is ambiguous"),
        ("SELECT * FROM t WHERE v = 1", "could not resolve operator overload for =(text, int)"),
        ("SELECT * FROM t WHERE (id, v) = (1, 2)", "could not resolve operator overload for =(text, int)"),
        (
            "SELECT * FROM t WHERE k = 'x'",
            "failed to parse 'x' as a value of type uuid, consider using explicit type casts",
        ),
        (
            "SELECT * FROM t WHERE id = $1 AND v = $1",
            "inconsistent types int and text deduced for parameter $1, consider using transitive type casts "
            "through a common type, e.g. $1::int::text and $1::int",
        ),
        ("SELECT lower(id) FROM t", "could not resolve function overload for lower(int)"),
        ("SELECT nope(1)", "SQL function nope not found"),
        ("DELETE FROM t INDEXED BY i WHERE id = 1", "index i not found"),
        (
            "DELETE FROM t WHERE id = 1 OPTION (READ_PREFERENCE = any)",
            "invalid OptionSpec: read_preference option is supported only for DQL queries",
        ),
    ],
)
def test_names_and_types_are_refused_in_picodatas_words(text: str, message: str) -> None:
    """Unknown names, ambiguous names, types that do not fit."""
    with pytest.raises(ServerError) as caught:
        prepare(text, CATALOG)
    assert caught.value.message == f"sbroad: {message}"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT ID, V FROM T", [("id", 20), ("v", 25)]),
        ('SELECT "Id" FROM "Mixed Case"', [("Id", 20)]),
        (
            "SELECT x.*, 1, n AS k FROM public.t AS x",
            [("id", 20), ("v", 25), ("n", 20), ("k", 2950), ("col_1", 20), ("k", 20)],
        ),
        (
            "SELECT n + 1.5, n / 2, v || 'x', n > 1 FROM t",
            [("col_1", 1700), ("col_2", 20), ("col_3", 25), ("col_4", 16)],
        ),
        ("SELECT coalesce(n, 1.5), CASE WHEN true THEN v END FROM t", [("col_1", 1700), ("col_2", 25)]),
        ("SELECT total(n), min(v), group_concat(v) FROM t", [("col_1", 701), ("col_2", 25), ("col_3", 25)]),
        ("WITH w(a, b) AS (VALUES (1, 'x')) SELECT * FROM w", [("a", 20), ("b", 25)]),
        ("SELECT n FROM t UNION SELECT 1.5", [("n", 1700)]),
        ("VALUES (1, null, 'x'), (1.5, true, 'y')", [("COLUMN_1", 1700), ("COLUMN_2", 16), ("COLUMN_3", 25)]),
    ],
)
def test_result_columns_have_picodatas_names_and_types(text: str, columns: list[tuple[str, int]]) -> None:
    """Unnamed outputs are counted among themselves; numbers widen from int to decimal to double."""
    assert list(prepare(text, CATALOG).columns or ()) == columns


def test_tables_of_two_tiers_do_not_mix() -> None:
    """A statement over two tiers is refused."""
    catalog = Catalog(tiers={"a": 10, "b": 20}, default_tier="a")
    catalog = catalog_of(
        [
            "CREATE TABLE x (id INT PRIMARY KEY)",
            "CREATE TABLE y (id INT PRIMARY KEY) DISTRIBUTED BY (id) IN TIER b",
        ],
        catalog,
    )
    with pytest.raises(ServerError, match="Query cannot use tables from different tiers"):
        prepare("SELECT * FROM x JOIN y ON x.id = y.id", catalog)


def test_a_statement_says_what_it_reads_and_writes() -> None:
    """Privileges are checked by these names."""
    select = prepare("SELECT * FROM t JOIN g ON t.id = g.id", CATALOG)
    assert (select.tables, select.reads, select.writes) == (("t", "g"), {"t", "g"}, set())
    insert = prepare("INSERT INTO t (id) SELECT id FROM g", CATALOG)
    assert (insert.reads, insert.writes) == ({"g"}, {"t"})
    values = prepare("INSERT INTO t (id) VALUES (1)", CATALOG)
    assert (values.reads, values.writes) == (set(), {"t"})
    update = prepare("EXPLAIN UPDATE t SET v = 'x'", CATALOG)
    assert (update.reads, update.writes, update.explained and update.explained.kind) == (
        {"t"},
        {"t"},
        "update",
    )
    assert prepare("SELECT name FROM _pico_instance", CATALOG).system
    assert not select.system


def test_options_may_be_parameters() -> None:
    """`OPTION (SQL_MOTION_ROW_MAX = $2)` takes its value at Bind."""
    statement = prepare("SELECT * FROM t WHERE v = $1 OPTION (SQL_MOTION_ROW_MAX = $2, READ_PREFERENCE = any)", CATALOG)
    assert statement.parameter_oids == (25, 20)
    assert statement.bound_options(["x", 7]) == {"sql_motion_row_max": 7, "read_preference": "any"}
    assert statement.storage_arguments(["x", 7]) == ["x"]


def test_a_block_holds_its_statements() -> None:
    """DO: statements share the parameters; its buckets are theirs together."""
    statement = prepare(
        "DO $$ BEGIN INSERT INTO t (id, v) VALUES ($1, $2); DELETE FROM t WHERE id = $1; END $$", CATALOG
    )
    assert (statement.kind, statement.tag, statement.tier, statement.columns) == ("do", "DO", "default", None)
    assert [step.kind for step in statement.body] == ["insert", "delete"]
    assert statement.parameter_oids == (20, 25)
    assert statement.buckets([1, "x"]).numbers == {1934}
