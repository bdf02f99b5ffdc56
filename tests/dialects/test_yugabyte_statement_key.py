"""The hash key of a statement, read from its text: what is keyed, what is not, and what hostile texts do."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picopyn.dialects.yugabyte.hash_code import HASH_CODES, hash_code
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from picopyn.dialects.yugabyte.plain_text import LONGEST, plain_text
from picopyn.dialects.yugabyte.statement_key import Statement, bind, read_statement
from picopyn.dialects.yugabyte.tablets import KeyColumn, TableFacts
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.routing.sharding import compile_key
from tests.dialects import slow_hash_code

INT4, TEXT, UUID, BOOL, NUMERIC = 23, 25, 2950, 16, 1700


def table(*key: tuple[str, int], columns: tuple[str, ...] = ("id", "v", "w"), bytewise: bool = True) -> TableFacts:
    return TableFacts(1, 1, "public", "t", columns, tuple(KeyColumn(name, oid, bytewise) for name, oid in key))


ONE = table(("id", INT4))
TWO = table(("v", TEXT), ("id", INT4))


def route(text: str, facts: TableFacts = ONE) -> StatementRoute:
    said = read_statement(text)
    if isinstance(said, str):
        return StatementRoute(RouteKind.NOT_KEYED, reason=said)
    return bind(said, facts)


def key(text: str, facts: TableFacts = ONE) -> list[Any] | None:
    """Parameters (by number) and constants (as bytes) of the key; None where the text is not keyed."""
    found = route(text, facts)
    if found.kind is RouteKind.CONSTANT:
        return ["code", *found.buckets]
    if found.kind is not RouteKind.KEYED:
        return None
    return [part.literal if part.literal is not None else part.parameter + 1 for part in found.keys[0]]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t WHERE id = $1",
        "select v from public.t where id=$1;",
        "SELECT x.v FROM t AS x WHERE x.id = $1 FOR UPDATE",
        "SELECT t.v FROM t WHERE $1 = t.id ORDER BY v LIMIT $2 OFFSET 1",
        "SELECT count(*) FROM t WHERE (v > $2 OR w IS NULL) AND ((id = ($1))) GROUP BY v HAVING count(*) > 1",
        'SELECT "v" FROM "t" WHERE "id" = $1',
        "SELECT v FROM t WHERE ID = $1::int AND v LIKE '%id = 5%'",
        "SELECT v FROM t WHERE id = CAST($1 AS bigint)",
        "-- id = 7\nSELECT v /* id = 8 */ FROM t WHERE id = $1 -- and so on",
        "UPDATE t SET v = $2, w = w + 1 WHERE id = $1 RETURNING *",
        "DELETE FROM t WHERE id = $1 AND v = $2",
        "INSERT INTO t VALUES ($1, $2, now())",
        "INSERT INTO t VALUES($1,$2,$3)",
        "INSERT INTO t(v,id)VALUES($2,$1)ON CONFLICT(id)DO UPDATE SET v=$3,w=$4",
        "SELECT*FROM t WHERE id=$1 AND v=$2",
        "INSERT INTO t (v, id) VALUES ($2, $1)",
        "INSERT INTO t (id, v) VALUES ($1, default) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING v",
        "INSERT INTO t (id) VALUES ($1::bigint) ON CONFLICT DO NOTHING",
    ],
)
def test_a_full_key_by_equality_is_found(text: str) -> None:
    """Wherever it stands at the top of the conditions, or in the one row of an INSERT."""
    assert key(text) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t",
        "SELECT * FROM t WHERE v = $1",
        "SELECT * FROM t WHERE id > $1",
        "SELECT * FROM t WHERE id <> $1",
        "SELECT * FROM t WHERE id = $1 OR v = $2",
        "SELECT * FROM t WHERE NOT id = $1",
        "SELECT * FROM t WHERE NOT (v = $2 AND id = $1)",
        "SELECT * FROM t WHERE id = $1 IS NOT TRUE",
        "SELECT * FROM t WHERE id = $1 AND id = $2",
        "SELECT * FROM t WHERE id = $1 + 1",
        "SELECT * FROM t WHERE id + 1 = $1",
        "SELECT * FROM t WHERE id = -$1",
        "SELECT * FROM t WHERE id = ANY($1)",
        "SELECT * FROM t WHERE id IN ($1, $2)",
        "SELECT * FROM t WHERE id = abs($1)",
        "SELECT * FROM t WHERE id = v",
        "SELECT * FROM t WHERE id = $1::text",
        "SELECT * FROM t WHERE id = $1::numeric(3, 1)",
        "SELECT * FROM t WHERE id = $1 COLLATE x",
        "SELECT * FROM t WHERE id = $1[1]",
        "SELECT * FROM t WHERE (id, v) = ($1, $2)",
        "SELECT * FROM t WHERE CASE WHEN id = $1 THEN true END",
        "SELECT * FROM t WHERE other.id = $1",
        "SELECT * FROM t AS x WHERE t.id = $1",
        "SELECT * FROM t WHERE id = $0",
        "SELECT * FROM t WHERE id = :id",
        "SELECT * FROM t WHERE id = %s",
        "SELECT * FROM t WHERE id = ?",
        "SELECT * FROM t x (v, id) WHERE id = $1",
        "SELECT * FROM ONLY t WHERE id = $1",
        "SELECT * FROM t TABLESAMPLE system (1) WHERE id = $1",
        "SELECT * FROM t, u WHERE id = $1",
        "SELECT * FROM t JOIN u ON true WHERE id = $1",
        "SELECT * FROM t LEFT JOIN LATERAL f(1) ON true WHERE id = $1",
        "SELECT (SELECT 1) FROM t WHERE id = $1",
        "SELECT (TABLE u) FROM t WHERE id = $1",
        "SELECT * FROM (TABLE t) AS t WHERE id = $1",
        "SELECT * FROM f($1) WHERE id = $1",
        "SELECT * FROM t WHERE id = $1 UNION ALL TABLE t",
        "WITH x AS (DELETE FROM t) SELECT * FROM t WHERE id = $1",
        "SELECT * INTO x FROM t WHERE id = $1",
        "UPDATE t SET id = $2 WHERE id = $1",
        "UPDATE t SET (id, v) = ($2, $3) WHERE id = $1",
        "UPDATE t SET v = u.v FROM u WHERE t.id = $1",
        "UPDATE t SET v = 1",
        "DELETE FROM t USING u WHERE t.id = $1",
        "DELETE FROM t WHERE CURRENT OF c",
        "INSERT INTO t VALUES ($1, 1, 1), ($2, 2, 2)",
        "INSERT INTO t SELECT $1, 2, 3",
        "INSERT INTO t DEFAULT VALUES",
        "INSERT INTO t (v) VALUES ($1)",
        "INSERT INTO t (id, id) VALUES ($1, $2)",
        "INSERT INTO t VALUES (DEFAULT, $1)",
        "INSERT INTO t VALUES ((SELECT 1), $1)",
        "MERGE INTO t USING u ON id = $1 WHEN MATCHED THEN DELETE",
        "EXPLAIN SELECT * FROM t WHERE id = $1",
        "PREPARE p AS SELECT * FROM t WHERE id = $1",
        "COPY t TO STDOUT",
        "SELECT 1; SELECT * FROM t WHERE id = $1",
        "SELECT v FROM t WHERE id = $1; ; DELETE FROM t",
        "",
        ";",
        "nonsense",
    ],
)
def test_everything_else_is_not_keyed(text: str) -> None:
    """Also what could be understood, but is not worth a doubt."""
    found = route(text)
    assert found.kind is RouteKind.NOT_KEYED
    assert found.reason


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t WHERE v = $$a' AND id = $1 AND w = '$$",
        "SELECT * FROM t WHERE v = E'\\' AND id = $1 --'",
        r"SELECT * FROM t WHERE v = 'a\' AND id = $1 --'",
        "SELECT * FROM t WHERE v = U&'a' AND id = $1",
        "SELECT * FROM t WHERE v = b'1' AND id = $1",
        'SELECT * FROM t WHERE U&"id" = $1',
        "SELECT * FROM t /* a /* b */ WHERE id = $2 */ WHERE id = $1",
        "SELECT * FROM t WHERE id = $1a",
        "SELECT * FROM t WHERE id = $1 AND v = 'open",
        "SELECT * FROM tä WHERE id = $1",
        "SELECT * FROM t WHERE id = $1 \0",
        "SELECT * FROM t WHERE (id = $1",
        "SELECT * FROM t WHERE id = $1)",
        "SELECT * FROM t WHERE id = 1e5x",
        f"SELECT * FROM t WHERE id = $1 AND v = '{'x' * LONGEST}'",
        f"SELECT * FROM t WHERE {'(' * 30}id = $1{')' * 30}",
        f"SELECT {'NOT ' * 60}id FROM t WHERE id = $1",
        f"SELECT {'- ' * 30}1 FROM t WHERE id = $1",
        f"SELECT {'CASE WHEN ' * 30}1 FROM t WHERE id = $1",
        "SELECT * FROM t WHERE id = $1 AND " + " AND ".join("v = 1" for _ in range(600)),
    ],
)
def test_a_text_that_readers_may_read_differently_is_not_parsed(text: str) -> None:
    """Quotes of other forms, comments inside comments, open ends, and whatever is too long or too deep."""
    assert plain_text(text) is None


def test_long_and_deep_texts_cost_little() -> None:
    """A parser would take seconds for a megabyte, and call itself for each bracket; it does not see them."""
    for text in ("SELECT " + "(" * 1_000_000, "SELECT '" + "''" * 1_000_000, "x" * 10_000_000, "/*" * 4_000):
        assert route(text).kind is RouteKind.NOT_KEYED


def test_keys_of_several_columns_are_put_in_the_order_of_the_table() -> None:
    """Parameters and constants may be mixed."""
    assert key("SELECT 1 FROM t WHERE id = $1 AND v = $2", TWO) == [2, 1]
    assert key("SELECT 1 FROM t WHERE id = $1 AND v = 'a''b'", TWO) == [b"a'b", 1]
    assert key("INSERT INTO t VALUES (7, $1)", TWO) == [1, b"\0\0\0\7"]
    assert key("SELECT 1 FROM t WHERE id = $1", TWO) is None


@pytest.mark.parametrize(
    ("oid", "constant", "encoded"),
    [
        (INT4, "5", b"\0\0\0\5"),
        (INT4, "-5", b"\xff\xff\xff\xfb"),
        (INT4, "'5'", b"\0\0\0\5"),
        (INT4, "5::int", b"\0\0\0\5"),
        (INT4, "5.0", None),
        (INT4, "5e0", None),
        (INT4, "' 5'", None),
        (INT4, "true", None),
        (INT4, "99999999999", None),
        (INT4, "9" * 30, None),
        (TEXT, "'5'", b"5"),
        (TEXT, "''", b""),
        (TEXT, "5", None),
        (TEXT, "'a' 'b'", None),
        (TEXT, "'a'::varchar(1)", None),
        (TEXT, "null", None),
        (UUID, "'123e4567-e89b-12d3-a456-426614174000'", bytes.fromhex("123e4567e89b12d3a456426614174000")),
        (UUID, "'{123e4567-e89b-12d3-a456-42661417400}'", None),
        (BOOL, "true", b"\1"),
        (BOOL, "'t'", None),
        (1082, "'2024-06-01'", None),
        (1042, "'a'", None),
    ],
)
def test_a_constant_counts_where_its_text_leaves_no_doubt(oid: int, constant: str, encoded: bytes | None) -> None:
    """Others are left to the server."""
    found = key(f"SELECT 1 FROM t WHERE id = {constant}", table(("id", oid)))
    assert found == (None if encoded is None else ["code", hash_code(encoded)])


def test_types_and_collations_whose_code_is_not_computed_are_not_keyed() -> None:
    """As the facts of the table say."""
    assert key("SELECT 1 FROM t WHERE id = $1", table(("id", NUMERIC))) is None
    assert key("SELECT 1 FROM t WHERE id = $1", table(("id", TEXT), bytewise=False)) is None
    assert key("SELECT 1 FROM t WHERE id = $1", table()) is None


def test_a_function_is_not_a_column() -> None:
    """`user` without quotes is who is logged in."""
    facts = table(("user", TEXT), columns=("user",))
    assert key("SELECT 1 FROM t WHERE user = $1", facts) is None
    assert key('SELECT 1 FROM t WHERE "user" = $1', facts) == [1]


def test_names_are_what_the_catalogue_has() -> None:
    """Folded unless they are quoted; a name is written back so that it means the same."""
    said = read_statement('SELECT 1 FROM Shop."Or""ders" WHERE Id = $1')
    assert isinstance(said, Statement)
    assert (said.schema, said.table, list(said.columns)) == ("shop", 'Or"ders', ["id"])
    assert said.written == '"shop"."Or""ders"'
    assert isinstance(read_statement(f"SELECT 1 FROM {'x' * 64} WHERE id = $1"), str)


def test_a_mixed_key_gives_the_code_of_all_its_columns() -> None:
    """Constants take part in the hash; a missing argument or NULL gives none."""
    parts = [KeyPart(-1, TEXT, literal=b"a"), KeyPart(0, INT4)]
    code = compile_key(parts, YUGABYTE_KEY_HASH, HASH_CODES)
    assert code((7,)) == slow_hash_code.hash_code(b"a\0\0\0\7")
    assert code((None,)) is None
    assert code(()) is None
    assert compile_key([KeyPart(-1, INT4, literal=b"\0\0\0\5")], YUGABYTE_KEY_HASH, HASH_CODES)(()) == 2675


def test_an_empty_text_is_a_key() -> None:
    """Only NULL is none."""
    code = compile_key([KeyPart(0, TEXT)], YUGABYTE_KEY_HASH, HASH_CODES)
    assert code(("",)) == 19780
    assert code((None,)) is None


def test_without_the_parser_nothing_is_keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what to install."""
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    assert read_statement("SELECT 1 FROM t WHERE id = $1") == "the extra picopyn[yugabyte] is not installed"


PIECES = st.sampled_from(
    [
        *("select", "insert into", "update", "delete from", "from", "where", "and", "or", "not", "values", "set", "as"),
        *("t", "id", "v", "u", "$1", "$2", "1", "'a'", '"id"', "=", "<", "+", "-", "(", ")", ",", ".", "*", ";"),
        *("case", "when", "then", "end", "in", "is", "null", "any", "between", "like", "exists", "union", "join", "on"),
        *("returning", "on conflict", "do nothing", "group by", "order by", "limit", "interval", "array", "[", "]"),
        *("/*", "*/", "--", "'", '"', "$$", "\\", "E'", "U&'", "\0", "\u2028", "é", "\n", "{", "@", "?", ":x", "::int"),
    ]
)


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map(" ".join), st.lists(PIECES).map("".join)))
@example("SELECT * FROM t WHERE id = $1 AND interval")
@settings(max_examples=200)
def test_nonsense_never_raises_and_is_never_logged(text: str) -> None:
    """Whatever the text; the parser's own complaints would hold parts of it."""
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        found = read_statement(text)
    finally:
        logging.getLogger().removeHandler(handler)
    assert said == []
    if isinstance(found, Statement):
        assert bind(found, ONE).kind in (RouteKind.KEYED, RouteKind.CONSTANT, RouteKind.NOT_KEYED)
        assert found.table
    else:
        assert found
