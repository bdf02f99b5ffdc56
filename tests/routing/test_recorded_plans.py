"""The recorded plans of a real server: the model gives its buckets, and what is learned agrees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from picopyn.routing.route import RouteKind
from tests.routing.dialogue import learn
from tests.routing.model_planner import Cmp, In, L, Model, Opaque, P, both, eq

STATEMENTS = json.loads((Path(__file__).parents[1] / "recorded" / "picodata-plans.json").read_text())["statements"]

ID = ("id",)
BY_ID = eq("id", P(1))
BA, FX, K = ("b", "a"), ("f", "x"), ("k",)
A_AND_B = both(eq("a", P(1)), eq("b", P(2)))

#: Statement → (key columns, conditions as the planner understands them). Joins, subqueries and expressions
#: that fix no key are written as the conditions they amount to.
MEANING: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "SELECT * FROM o WHERE $1 = id": (ID, eq(P(1), "id")),
    "SELECT * FROM o WHERE id = $1 AND v = $2": (ID, both(BY_ID, eq("v", P(2)))),
    "SELECT * FROM o WHERE v = $1 AND id = $2": (ID, both(eq("v", P(1)), eq("id", P(2)))),
    "SELECT * FROM o WHERE id IN ($1, $2)": (ID, In("id", (P(1), P(2)))),
    "SELECT * FROM o WHERE id = $1::int": (ID, BY_ID),
    "SELECT * FROM o WHERE id = $1 + 1": (ID, Opaque()),
    "SELECT * FROM o WHERE id = $2 AND n = $1": (ID, both(eq("id", P(2)), eq("n", P(1)))),
    "SELECT * FROM o WHERE id = ?": (ID, BY_ID),
    "SELECT * FROM o WHERE v = ? AND id = ?": (ID, both(eq("v", P(1)), eq("id", P(2)))),
    "SELECT * FROM o WHERE id = $1": (ID, BY_ID),
    "SELECT * FROM o WHERE id = $1 AND id = $2": (ID, both(BY_ID, eq("id", P(2)))),
    "SELECT * FROM o WHERE id > $1": (ID, Cmp(">", "id", P(1))),
    "SELECT * FROM o WHERE (id, v) = ($1, $2)": (ID, both(BY_ID, eq("v", P(2)))),
    "SELECT * FROM o WHERE id = $1 ORDER BY v LIMIT 5": (ID, BY_ID),
    "SELECT * FROM o WHERE id = $1 OPTION (SQL_MOTION_ROW_MAX = 7)": (ID, BY_ID),
    "SELECT * FROM c WHERE b = $2 AND a = $1": (BA, A_AND_B),
    "SELECT * FROM c WHERE a = $1 AND b = 'x'": (BA, both(eq("a", P(1)), eq("b", L("x", 25)))),
    "SELECT * FROM c WHERE (a, b) = ($1, $2)": (BA, A_AND_B),
    "SELECT * FROM c WHERE a = $1": (BA, eq("a", P(1))),
    "SELECT * FROM c WHERE a = $1 AND b IN ($2, $3)": (BA, both(eq("a", P(1)), In("b", (P(2), P(3))))),
    "SELECT * FROM d WHERE k = $1": (K, eq("k", P(1))),
    "SELECT * FROM u WHERE k = $1": (K, eq("k", P(1))),
    "SELECT * FROM bo WHERE f = $1 AND x = $2": (FX, both(eq("f", P(1)), eq("x", P(2)))),
    "SELECT * FROM bo WHERE x = $2 AND f = $1": (FX, both(eq("f", P(1)), eq("x", P(2)))),
    "SELECT * FROM dd WHERE k = $1": (K, eq("k", P(1))),
    "UPDATE o SET v = $1 WHERE id = $2": (ID, eq("id", P(2))),
    "UPDATE o SET n = n + $1 WHERE id = $1": (ID, BY_ID),
    "DELETE FROM o WHERE id = $1": (ID, BY_ID),
    "DELETE FROM c WHERE b = $1 AND a = $2": (BA, both(eq("b", P(1)), eq("a", P(2)))),
    "SELECT * FROM o JOIN g ON o.id = g.id WHERE o.id = $1": (ID, BY_ID),
    "SELECT * FROM o JOIN o2 ON o.id = o2.oid WHERE o.id = $1 AND o2.oid = $1": (ID, both(BY_ID, BY_ID)),
    "SELECT * FROM (SELECT * FROM o) AS s WHERE s.id = $1": (ID, BY_ID),
    'SELECT * FROM "Q t" WHERE "Id" = $1': (ID, BY_ID),
    "SELECT $2 FROM o WHERE id = $1": (ID, BY_ID),
    "SELECT * FROM g WHERE id = $1": ((), BY_ID),
    "SELECT v FROM o WHERE v = '$2' AND id = $1": (ID, both(BY_ID, eq("v", L("$2", 25)))),
    "INSERT INTO o SELECT id, v, n FROM o WHERE id = $1": (ID, Opaque()),
    "SELECT * FROM o WHERE id = (SELECT $1::int)": (ID, Opaque()),
    "SELECT * FROM o WHERE id IN (SELECT id FROM g WHERE id = $1)": (ID, Opaque()),
}
UNION = "SELECT * FROM o WHERE id = $1 UNION ALL SELECT * FROM o WHERE id = $2"

#: The statement converts the parameter to another type before it is hashed: nothing that can be said with its
#: own type.
CONVERTED = {"SELECT * FROM d WHERE k = $1::decimal", "SELECT * FROM u WHERE k = $1::uuid"}

ROWS = [row for row in STATEMENTS if row.get("params") and "error" not in row and row["sql"] not in CONVERTED]
READERS = {16: lambda text: text == "t", 701: float, 1700: Decimal, 2950: UUID, 25: str}


def model_of(row: Mapping[str, Any]) -> Model:
    """The recorded statement as a model of the recorded server."""
    oids = tuple(row["parameter_oids"])
    if row["sql"] == UNION:
        return Model(ID, oids, (eq("id", P(1)), eq("id", P(2))))
    key, where = MEANING[row["sql"]]
    return Model(key, oids, (where,))


def arguments_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The recorded parameters as Python arguments."""
    return tuple(
        None if given["text"] is None else READERS.get(given["oid"], int)(given["text"]) for given in row["params"]
    )


def recorded_buckets(row: Mapping[str, Any]) -> frozenset[int] | None:
    """The recorded answer; None for all buckets."""
    inside = row["buckets"].partition("[")[2].rstrip("]")
    return None if inside == "1-3000" else frozenset(int(number) for number in inside.split(",") if number)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['sql']} {row['parameter_oids']}")
def test_what_is_learned_gives_the_recorded_buckets(row: Mapping[str, Any]) -> None:
    """For every recorded statement with parameters: the server's buckets, or not keyed."""
    if row["sql"] in CONVERTED:
        pytest.skip("the hash of a converted parameter is the model's `test_a_converted_parameter_is_not_keyed`")
    model, args = model_of(row), arguments_of(row)
    if row["buckets"] == "= any":
        assert learn(model, row["sql"]).route.kind is RouteKind.ANY_NODE
        return
    assert model.buckets(args) == recorded_buckets(row), "the model plans as the server did"
    learned = learn(model, row["sql"], tier=row["tier"])
    predicted = learned.predict(model, args)
    if learned.route.kind is not RouteKind.NOT_KEYED and None not in args:
        assert predicted == recorded_buckets(row)
    else:
        assert predicted is None


def test_most_recorded_statements_are_learned() -> None:
    """Unlearned is what asks all buckets, or contradicts itself."""
    unlearned = {row["sql"] for row in ROWS if learn(model_of(row), row["sql"]).route.kind is RouteKind.NOT_KEYED}
    assert unlearned == {
        "SELECT * FROM o WHERE id = $1 + 1",
        "SELECT * FROM o WHERE id = $1 AND id = $2",
        "SELECT * FROM o WHERE id > $1",
        "SELECT * FROM c WHERE a = $1",
        "INSERT INTO o SELECT id, v, n FROM o WHERE id = $1",
        "SELECT * FROM o WHERE id = (SELECT $1::int)",
        "SELECT * FROM o WHERE id IN (SELECT id FROM g WHERE id = $1)",
    }


class Converted(Model):
    """`k = $1::decimal` with an int parameter, or `k = $1::uuid` with a text."""

    def _encoded(self, constant: Any, args: Any) -> bytes:
        if self.oids == (20,):
            return super()._encoded(L(Decimal(args[0] or 0), 1700), args)
        return super()._encoded(L(UUID(args[0]), 2950), args)


@pytest.mark.parametrize(
    ("oid", "args", "buckets"), [(20, (1,), {2135}), (25, ("9035910e-8342-4460-8c25-25e5f10d9876",), {63})]
)
def test_a_converted_parameter_is_not_keyed(oid: int, args: Any, buckets: set[int]) -> None:
    """A parameter that is hashed as another type than its own gives buckets that no choice explains."""
    model = Converted(K, (oid,), (eq("k", P(1)),), refuses=lambda asked: oid == 25 and len(asked[0] or "") != 36)
    assert model.buckets(args) == buckets
    assert learn(model).route.kind is RouteKind.NOT_KEYED
