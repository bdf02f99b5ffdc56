"""Literals in keys: what is learned when a part of a key stands in the text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.routing.key_literals import MAX_READINGS, literal_readings
from picopyn.routing.key_probe import MAX_QUESTIONS
from picopyn.routing.route import RouteKind
from tests.routing.dialogue import learn
from tests.routing.model_planner import In, L, Model, Opaque, P, both, eq

BOOL, INT, TEXT, DOUBLE, DATETIME, DECIMAL, UUID_OID = 16, 20, 25, 701, 1184, 1700, 2950
A_UUID = UUID("9035910e-8342-4460-8c25-25e5f10d9876")
BA = ("b", "a")


def with_literal(literal: L, oids: Sequence[int] = (INT,), **options: Any) -> Model:
    """`a = $1 AND b = literal`, distributed by (b, a)."""
    return Model(BA, tuple(oids), (both(eq("a", P(1)), eq("b", literal)),), **options)


@pytest.mark.parametrize(
    ("literal", "written"),
    [
        (L("x", TEXT), "'x'"),
        (L("it's", TEXT), "'it''s'"),
        (L("", TEXT), "''"),
        (L("Москва 🙂", TEXT), "'Москва 🙂'"),
        (L(7, INT), "7"),
        (L(-40, INT), "-40"),
        (L(1, INT), "'1'"),
        (L(Decimal("1.50"), DECIMAL), "1.50"),
        (L(Decimal(7), DECIMAL), "7::decimal"),
        (L(2500.0, DOUBLE), "2.5e3"),
        (L(0.5, DOUBLE), "CAST(0.5 AS double)"),
        (L(True, BOOL), "TRUE"),
        (L(False, BOOL), "false"),
        (L(A_UUID, UUID_OID), f"'{A_UUID}'::uuid"),
        (L(datetime(2023, 7, 7, 12, 34, 56, tzinfo=UTC), DATETIME), "'2023-07-07T12:34:56Z'"),
    ],
)
def test_a_literal_in_a_key_is_found_whatever_its_type(literal: L, written: str) -> None:
    """One column from a parameter, the other from the text; the statement's bucket for other arguments too."""
    model = with_literal(literal)
    learned = learn(model, f"SELECT * FROM c WHERE a = $1 AND b = {written}")
    assert learned.route.kind is RouteKind.KEYED, learned.route
    for value in (1, -5, 2**40):
        assert learned.predict(model, (value,)) == model.buckets((value,))
    assert learned.predict(model, (None,)) is None
    assert learned.predict(model, ()) is None


def test_literals_join_sets_of_keys() -> None:
    """`a = $1 AND b IN ('x', 'y')`, and two rows of an INSERT with a literal each."""
    sets = Model(BA, (INT,), (both(eq("a", P(1)), In("b", (L("x", TEXT), L("y", TEXT)))),))
    rows = Model(BA, (INT, INT), rows=((L("x", TEXT), P(1)), (P(2), L("y", TEXT))))
    for model, args in ((sets, (5,)), (rows, (5, 6))):
        learned = learn(model, "… 'x' … 'y'")
        assert learned.route.kind is RouteKind.KEY_SET
        assert learned.predict(model, args) == model.buckets(args)


def test_literals_join_long_keys_among_many_parameters() -> None:
    """Three parameters and a literal, among forty parameters: at most 60 questions."""
    key = ("p", "q", "r", "s")
    conditions = both(eq("p", P(40)), eq("q", L("x", TEXT)), eq("r", P(3)), eq("s", P(17)))
    model = Model(key, (INT, TEXT) * 20, (conditions,))
    learned = learn(model, "SELECT … 'v' … 'x' … 17")
    assert learned.route.kind is RouteKind.KEYED
    args = tuple(i if oid == INT else f"t{i}" for i, oid in enumerate(model.oids))
    assert learned.predict(model, args) == model.buckets(args)
    assert len(learned.questions) <= MAX_QUESTIONS <= 60


@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("place", ["first", "last"])
def test_learning_takes_at_most_sixty_questions(width: int, place: str) -> None:
    """A key of one column among 1, 3 and 40 parameters, first or last."""
    number = 1 if place == "first" else width
    oids = [TEXT] * width
    oids[number - 1] = INT
    learned = learn(Model(("id",), tuple(oids), (eq("id", P(number)),)), "UPDATE … 'a'")
    assert learned.route.kind is RouteKind.KEYED
    assert len(learned.questions) <= 60


def test_what_the_text_does_not_say_is_not_keyed() -> None:
    """A constant that is computed by the statement is no literal of the text."""
    model = with_literal(L(6, INT))
    assert learn(model, "SELECT * FROM c WHERE a = $1 AND b = 2 * 3").route.kind is RouteKind.NOT_KEYED
    assert learn(Model(BA, (INT,), (Opaque(),)), "… 'x'").route.kind is RouteKind.NOT_KEYED


def test_readings_are_different_and_few() -> None:
    """A literal has a few readings, equal bytes count once, and of very many the last ones are kept."""
    assert literal_readings("SELECT 'a' FROM \"it's 5\" WHERE x1 = $1", PICODATA_KEY_HASH) == (b"a",)
    assert {b"2", b"\x02"} <= set(literal_readings("'2' 50 '2'", PICODATA_KEY_HASH))  # 50 hashes as the text '2' does
    assert len(set(literal_readings("1 1 '1' 1", PICODATA_KEY_HASH))) == len(
        literal_readings("1 1 '1' 1", PICODATA_KEY_HASH)
    )
    many = literal_readings(" ".join(f"'v{i}'" for i in range(200)), PICODATA_KEY_HASH)
    assert many == tuple(f"v{i}".encode() for i in range(200 - MAX_READINGS, 200))
