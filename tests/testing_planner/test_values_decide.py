"""The buckets follow the bound values, not only the text: constants are folded after binding, as on a real
server.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from picopyn.testing.picodata.planner import Buckets, Catalog, Value, prepare
from picopyn.testing.picodata.planner.hash import bucket_of
from tests.testing_planner.recorded import catalog_of

_SCHEMA = [
    "CREATE TABLE o (id INT NOT NULL PRIMARY KEY, v TEXT, n INT, f BOOLEAN)",
    "CREATE TABLE o2 (id INT NOT NULL PRIMARY KEY, oid INT) DISTRIBUTED BY (oid)",
    "CREATE TABLE dd (k DOUBLE NOT NULL PRIMARY KEY, v INT)",
    "CREATE TABLE c (a INT NOT NULL, b TEXT NOT NULL, v TEXT, PRIMARY KEY (a, b)) DISTRIBUTED BY (b, a)",
    "CREATE TABLE g (id INT NOT NULL PRIMARY KEY, v TEXT) DISTRIBUTED GLOBALLY",
]
CATALOG = catalog_of(_SCHEMA)


def _buckets(text: str, *values: Value, oids: tuple[int, ...] = (), catalog: Catalog = CATALOG) -> Buckets:
    return prepare(text, catalog, oids).buckets(values)


def _exactly(*keys: Value | tuple[Value, ...]) -> Buckets:
    return Buckets("exact", frozenset(bucket_of(k if isinstance(k, tuple) else (k,), 3000) for k in keys))


_ALL = Buckets("exact", None)


@pytest.mark.parametrize(
    ("where", "values", "expected"),
    [
        ("id = $1 OR $2 = 5", (8, 6), _exactly(8)),
        ("id = $1 OR $2 = 5", (8, 5), _ALL),
        ("$1::int IS NULL OR id = $1", (8,), _exactly(8)),
        ("$1::int IS NULL OR id = $1", (None,), _ALL),
        ("id = $1 OR (id = 5 AND $2)", (8, False), _exactly(8)),
        ("id = $1 OR (id = 5 AND $2)", (8, True), _exactly(8, 5)),
        ("(id = $1 AND $3) OR (id = $2 AND NOT $3)", (8, 9, True), _exactly(8)),
        ("(id = $1 AND $3) OR (id = $2 AND NOT $3)", (8, 9, False), _exactly(9)),
        ("id = $1 AND id = $2", (8, 9), _exactly()),
        ("id = $1 AND id = $2", (8, 8), _exactly(8)),
        ("$1", (False,), _exactly()),
        ("$1", (None,), _exactly()),
        ("$1", (True,), _ALL),
        ("NOT id <> $1", (8,), _exactly(8)),
        ("NOT (id <> $1 OR v = 'x')", (8,), _exactly(8)),
        ("id NOT IN ($1)", (8,), _ALL),
        ("n = id AND n = $1", (8,), _exactly(8)),
        ("id IN ($1, 7, $1)", (8,), _exactly(8, 7)),
        ("id = $1::text::int", ("8",), _ALL),
        ("id = $1 AND id BETWEEN 1 AND 5", (8,), _exactly(8)),
        ("id BETWEEN $1 AND $1", (8,), _ALL),
        ("f IS TRUE AND id = $1", (8,), _exactly(8)),
    ],
)
def test_constants_are_folded_after_binding(where: str, values: tuple[Value, ...], expected: Buckets) -> None:
    """OR, AND, NOT, IS and comparisons of constants decide which parts of a filter remain."""
    assert _buckets(f"SELECT * FROM o WHERE {where}", *values) == expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("k = $1", (2,), _exactly(2)),
        ("k = $1", (2.5,), _exactly(2.5)),
        ("k = $1::double", (2,), _exactly(2.0)),
        ("k = $1::double", (2.5,), _exactly(2.5)),
        ("k = $1::double", (2**63 - 1,), _exactly(2.0**63)),
        ("k = 2", (), _exactly(2)),
        ("k = 2.0", (), _exactly(Decimal("2.0"))),
        ("k = 2e0", (), _exactly(2.0)),
        ("k = '2'", (), _exactly(2.0)),
    ],
)
def test_a_double_key_is_hashed_as_bound_or_as_cast(text: str, values: tuple[Value, ...], expected: Buckets) -> None:
    """A bare parameter without fraction hashes as an integer, a cast one as a double, a literal as is."""
    assert _buckets(f"SELECT * FROM dd WHERE {text}", *values) == expected


def test_the_form_of_doubles_is_the_catalogs() -> None:
    """A newer server hashes a double without fraction as an integer."""
    newer = catalog_of(_SCHEMA, Catalog(double_form="26.1"))
    assert _buckets("SELECT * FROM dd WHERE k = 2e0", catalog=newer) == _exactly(2)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("SELECT * FROM o JOIN o2 ON o.id = o2.oid WHERE o.id = $1", (8,), _exactly(8)),
        ("SELECT * FROM o JOIN o2 ON o.id = o2.id WHERE o.id = $1", (8,), Buckets("unknown")),
        ("SELECT * FROM o JOIN g ON true WHERE g.id = $1", (8,), _ALL),
        ("WITH w AS (SELECT * FROM o WHERE id = $1) SELECT * FROM w", (8,), _exactly(8)),
        ("SELECT * FROM (SELECT id AS k, v FROM o) AS s WHERE s.k = $1", (8,), _exactly(8)),
        ("SELECT * FROM (SELECT v FROM o) AS s WHERE s.v = 'x'", (), _ALL),
        ("SELECT count(*) FROM o WHERE id IN ($1, 9)", (8,), Buckets("at_most", _exactly(8, 9).numbers)),
        ("SELECT count(*) FROM o WHERE id IN ($1, 9)", (9,), _exactly(9)),
        ("SELECT * FROM o WHERE id = $1 AND n IN (SELECT id FROM g)", (8,), _exactly(8)),
        ("SELECT * FROM o WHERE id = $1 AND id IN (SELECT id FROM o)", (8,), _exactly(8)),
        ("SELECT * FROM g WHERE id IN (SELECT id FROM g)", (), Buckets("any")),
        ("SELECT * FROM g JOIN g AS h ON g.id = h.id", (), Buckets("any")),
        ("DELETE FROM c WHERE b = $1 AND a = $2 AND v = $3", ("x", 1, "q"), _exactly(("x", 1))),
        ("DELETE FROM g WHERE id = $1", (8,), Buckets("any")),
        ("DELETE FROM o", (), _ALL),
        ("INSERT INTO c (b, a) VALUES ($1, $2), ($3, 4)", ("x", 1, "y"), _exactly(("x", 1), ("y", 4))),
        ("INSERT INTO o (id) VALUES ($1 + 1)", (8,), Buckets("unknown")),
        ("INSERT INTO o (id) VALUES ('7')", (), _exactly(7)),
        ("INSERT INTO o (id, v) SELECT id, v FROM g", (), Buckets("unknown")),
        ("INSERT INTO o2 (id, oid) SELECT n, id FROM o", (), _ALL),
        ("INSERT INTO o2 (id, oid) SELECT id, n FROM o", (), Buckets("unknown")),
    ],
)
def test_a_plan_in_parts_has_a_bound_or_none(text: str, values: tuple[Value, ...], expected: Buckets) -> None:
    """Rows collected from several replicasets leave an upper bound; rows dealt out by a computed key leave
    nothing.
    """
    assert _buckets(text, *values) == expected


def test_an_answer_of_every_bucket_counts_the_asked_instances_tier() -> None:
    """Recorded: a table of a tier with 1 000 buckets, asked at an instance whose tier has 100, names 1 to
    100.
    """
    catalog = Catalog(tiers={"router": 100, "storage": 1000, "arbiter": 0}, default_tier="router")
    text = 'CREATE TABLE ts1 (id INT NOT NULL PRIMARY KEY) DISTRIBUTED BY (id) IN TIER "storage"'
    catalog = catalog_of([text], catalog)
    at_router = prepare("EXPLAIN SELECT * FROM ts1", catalog, own_tier="router")
    at_storage = prepare("EXPLAIN SELECT * FROM ts1", catalog, own_tier="storage")
    assert at_router.explain_lines()[-1] == "buckets = [1-100]"
    assert at_storage.explain_lines()[-1] == "buckets = [1-1000]"
    keyed = prepare("EXPLAIN SELECT * FROM ts1 WHERE id = 1", catalog, own_tier="router")
    assert (keyed.tier, keyed.explain_lines()[-1]) == ("storage", "buckets = [934]")


def test_an_arithmetic_of_long_lists_stays_quick() -> None:
    """A list of a thousand keys is planned, although real servers die of far shorter ones."""
    numbers = ", ".join(f"${n}" for n in range(1, 1001))
    statement = prepare(f"SELECT * FROM o WHERE id IN ({numbers})", CATALOG)
    assert statement.buckets(list(range(1000))) == _exactly(*range(1000))
