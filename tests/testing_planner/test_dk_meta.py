"""The sharding key a notice names: only for one-row INSERT … VALUES whose key columns are parameters.

*Source*: `picodata-protocol.md` section 4, Picodata's own test examples.
"""

from __future__ import annotations

import pytest

from picopyn.testing.picodata.planner import prepare
from tests.testing_planner.recorded import catalog_of

_COLUMNS = (
    "a DECIMAL NOT NULL, b TEXT, c INT NOT NULL, d DOUBLE NOT NULL, e UUID NOT NULL, f DATETIME NOT NULL, "
    "g BOOLEAN NOT NULL"
)
_BY_FOUR = _COLUMNS.replace("d DOUBLE NOT NULL, e UUID NOT NULL", "d DOUBLE, e UUID")
CATALOG = catalog_of(
    [
        f"CREATE TABLE t4 ({_BY_FOUR}, PRIMARY KEY (f, a, g, c))",
        f"CREATE TABLE t3 ({_COLUMNS.replace(' NOT NULL', '')}, PRIMARY KEY (e, b, d))",
        "CREATE TABLE t2 (a INT PRIMARY KEY, b TEXT, c INT) DISTRIBUTED BY (c, b)",
        "CREATE TABLE g (a INT PRIMARY KEY) DISTRIBUTED GLOBALLY",
    ]
)


@pytest.mark.parametrize(
    ("text", "meta"),
    [
        (
            "insert into t4 (c, a, g, f) values ($1::integer, $2::decimal, $3::boolean, $4::datetime);",
            [(4, 1184), (2, 1700), (3, 16), (1, 20)],
        ),
        ("insert into t4 (a, g, f, b, c) values ($1::decimal, true, $2, $3::text, $4);", []),
        ("insert into t4 (a, g, f, c) values ($1, true, $2, $1::int);", []),
        (
            "insert into t4 (f, a, g, c) values ($1::datetime, $2, $3, $4::int);",
            [(1, 1184), (2, 1700), (3, 16), (4, 20)],
        ),
        (
            "insert into t4 values ($1, $2, $3, $4, $5, $6, $7);",
            [(6, 1184), (1, 1700), (7, 16), (3, 20)],
        ),
        ("insert into t3 (b, e, d) values ($2::text, $3::uuid, $1::double);", [(3, 2950), (2, 25), (1, 701)]),
        ("insert into t3 (b, e, d) values ($1, '9035910e-8342-4460-8c25-25e5f10d9876'::uuid, $2);", []),
        ("insert into t3 (b, e, d) values ($1, $2, $3), ($4, $5, $6);", []),
        (
            "insert into t3 values ($1::decimal, $2::text, $3::int, $4::double, $5::uuid, $6::datetime, $7::boolean);",
            [(5, 2950), (2, 25), (4, 701)],
        ),
        ("insert into t2(a, b) values ($1, $2);", []),
        ("insert into t2(a, b, c) values ($1, $2, $3)", [(3, 20), (2, 25)]),
        ("explain insert into t2(a, b, c) values ($1, $2, $3)", [(3, 20), (2, 25)]),
        ("insert into t2 values (1, '', 2), ($1, $2, $3)", []),
        ("insert into t2 select a, b, c from t2 where b = $1 and c = $2", []),
        ("select * from t2 where b = $1 and c = $2", []),
        ("insert into g values ($1)", []),
    ],
)
def test_the_notice_names_the_key(text: str, meta: list[tuple[int, int]]) -> None:
    """Key order is the distribution's; anything but a parameter in a key column empties it."""
    assert list(prepare(text, CATALOG).dk_meta) == meta


def test_a_declared_type_is_the_keys_type() -> None:
    """A parameter declared int8 for a DECIMAL column is reported, and hashed, as int8."""
    text = "insert into t4 (f, a, g, c) values ($1, $2, $3, $4)"
    statement = prepare(text, CATALOG, (1184, 20, 16, 23))
    assert statement.dk_meta == ((1, 1184), (2, 20), (3, 16), (4, 20))
    assert statement.parameter_oids == (1184, 20, 16, 23)
