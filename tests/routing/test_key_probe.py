"""Learning a statement's key by asking: what is learned, with how many questions, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pytest

from picopyn.dialects.base import BucketScope
from picopyn.dialects.picodata.bucket_hash import DOUBLE_FORMS, PICODATA_KEY_HASH
from picopyn.routing.key_probe import MAX_QUESTIONS, KeyProbe, check
from picopyn.routing.key_values import literal_values, literals, numbers_near
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from tests.routing.dialogue import learn
from tests.routing.model_planner import (
    Cmp,
    Flag,
    In,
    IsNull,
    L,
    Model,
    Not,
    Opaque,
    P,
    Scope,
    both,
    either,
    eq,
)

BOOL, INT, TEXT, DOUBLE, DATETIME, DECIMAL, UUID = 16, 20, 25, 701, 1184, 1700, 2950


def select(oids: Sequence[int], where: Any, *, key: tuple[str, ...] = ("id",), **options: Any) -> Model:
    """A statement with conditions."""
    return Model(key, tuple(oids), (where,), **options)


def insert(oids: Sequence[int], *rows: tuple[Any, ...], key: tuple[str, ...] = ("id",), **options: Any) -> Model:
    """An INSERT of rows, of which only the key columns are given."""
    return Model(key, tuple(oids), rows=rows, **options)


def parameters(route: StatementRoute) -> set[tuple[int, ...]]:
    """The keys as one-based parameter numbers."""
    return {tuple(part.parameter + 1 for part in key) for key in route.keys}


# ── what is learned ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "key", "questions"),
    [
        (select([INT], eq("id", P(1))), (1,), 8),
        (select([TEXT], eq("id", P(1))), (1,), 8),
        (select([UUID], eq("id", P(1))), (1,), 8),
        (select([DECIMAL], eq("id", P(1))), (1,), 8),
        (select([DATETIME], eq("id", P(1))), (1,), 8),
        (select([INT, TEXT], both(eq("id", P(1)), eq("v", P(2)))), (1,), 13),
        (select([TEXT, INT], both(eq("v", P(1)), eq("id", P(2)))), (2,), 13),
        (select([TEXT, INT, INT], eq("id", P(3))), (3,), 16),
        (select([INT, TEXT], both(eq("a", P(1)), eq("b", P(2))), key=("b", "a")), (2, 1), 13),
        (select([BOOL, INT], both(eq("f", P(1)), eq("x", P(2))), key=("f", "x")), (1, 2), 14),
        (select([TEXT, INT, TEXT], both(eq("b", P(1)), eq("a", P(2))), key=("b", "a")), (1, 2), 16),
        (insert([INT], (P(1), P(1)), key=("a", "b")), (1, 1), 9),
        (insert([INT, TEXT, INT], (P(1),)), (1,), 18),
        (select([INT], either(IsNull(P(1)), eq("id", P(1)))), (1,), 8),
        (select([INT, TEXT], both(eq("id", P(1)), either(IsNull(P(2)), eq("v", P(2))))), (1,), 13),
    ],
)
def test_a_key_is_found(model: Model, key: tuple[int, ...], questions: int) -> None:
    """The ordered choice of parameters that explains every bucket is the key; few questions find it."""
    learned = learn(model)
    assert learned.route.kind is RouteKind.KEYED
    assert parameters(learned.route) == {key}
    assert learned.route.tier == "default"
    assert learned.route.evidence >= 40
    assert len(learned.questions) <= questions


def test_a_long_key_among_many_parameters_is_found() -> None:
    """Changing one parameter at a time finds the parameters that matter when there are too many choices."""
    columns = tuple("abcdefg")
    where = both(*(eq(column, P(12 - i)) for i, column in enumerate(columns)))
    learned = learn(select([INT, TEXT] * 6, where, key=columns))
    assert parameters(learned.route) == {(12, 11, 10, 9, 8, 7, 6)}
    assert len(learned.questions) <= MAX_QUESTIONS


@pytest.mark.parametrize(
    ("model", "keys", "constants"),
    [
        (select([INT] * 3, In("id", (P(1), P(2), P(3)))), {(1,), (2,), (3,)}, ()),
        (select([INT], In("id", (P(1), L(7, INT)))), {(1,)}, (1860,)),
        (select([INT, INT], either(eq("id", P(1)), eq("id", P(2)))), {(1,), (2,)}, ()),
        (
            select(
                [INT, INT, TEXT, TEXT],
                both(In("a", (P(1), P(2))), In("b", (P(3), P(4)))),
                key=("b", "a"),
            ),
            {(3, 1), (3, 2), (4, 1), (4, 2)},
            (),
        ),
        (insert([INT, TEXT, INT] * 2, (P(1),), (P(4),)), {(1,), (4,)}, ()),
        (
            insert([INT, TEXT, TEXT] * 10, *((P(3 * r + 2), P(3 * r + 1)) for r in range(10)), key=("b", "a")),
            {(3 * r + 2, 3 * r + 1) for r in range(10)},
            (),
        ),
        (Model(("id",), (INT, INT), (eq("id", P(1)), eq("id", P(2)))), {(1,), (2,)}, ()),
        (select([INT] * 40, In("id", tuple(P(i) for i in range(1, 41)))), {(i,) for i in range(1, 41)}, ()),
        (select([TEXT], In("id", (L(7, INT), L(8, INT)))), set(), (1860, 2564)),
    ],
    ids=["in", "in-constant", "or", "product", "rows", "composite-rows", "union", "in-40", "constants"],
)
def test_a_set_of_keys_is_found(model: Model, keys: set[tuple[int, ...]], constants: tuple[int, ...]) -> None:
    """IN lists, products and many rows are sets of keys, in which constants may take part."""
    learned = learn(model, "7 8")
    assert learned.route.kind is RouteKind.KEY_SET
    assert parameters(learned.route) == keys
    assert learned.route.buckets == constants


def test_a_constant_bucket_is_found() -> None:
    """A literal key is a constant bucket, whatever the parameters are."""
    learned = learn(select([TEXT], both(eq("id", L(7, INT)), eq("v", P(1)))), "7")
    assert learned.route.kind is RouteKind.CONSTANT
    assert learned.route.buckets == (1860,)


def test_without_a_sharded_table_any_node_will_do() -> None:
    """Global tables have no buckets: one question says so, and no tier is needed."""
    learned = learn(Model((), (INT,)), tier=None, tiers={"a": 3000, "b": 10})
    assert learned.route.kind is RouteKind.ANY_NODE
    assert len(learned.questions) == 1


@pytest.mark.parametrize("release", ["older", "26.1"])
@pytest.mark.parametrize("cast", [False, True])
def test_the_form_of_a_double_is_found(release: str, cast: bool) -> None:
    """Fractional, integral and huge values tell apart how a double is hashed."""
    learned = learn(select([DOUBLE], eq("k", P(1, cast)), key=("k",), release=release))
    (part,) = learned.route.keys[0]
    assert part.form == f"{'cast' if cast else 'bound'}-{release}"
    assert part.form in DOUBLE_FORMS


def test_two_doubles_may_have_different_forms() -> None:
    """Each part of a composite key has the form its place in the statement gives it."""
    where = both(eq("a", P(1, True)), eq("b", P(2)))
    learned = learn(select([DOUBLE, DOUBLE], where, key=("a", "b"), release="26.1"))
    assert learned.route.keys == ((KeyPart(0, 701, "cast-26.1"), KeyPart(1, 701, "bound-26.1")),)


# ── the table at the head of the rules ──────────────────────────────────────────────────────────────────────


def test_or_with_a_comparison_of_another_parameter_is_not_keyed() -> None:
    """`id = $1 OR $2 = 5`: with $2 = 5 all buckets take part."""
    learned = learn(select([INT, INT], either(eq("id", P(1)), eq(P(2), L(5, INT)))), "id = $1 OR $2 = 5")
    assert learned.route.kind is RouteKind.NOT_KEYED


@pytest.mark.parametrize("null_folds", [True, False])
def test_a_null_key_is_never_routed(null_folds: bool) -> None:
    """`$1::int IS NULL OR id = $1` is keyed, but a call with NULL is not routed by it."""
    model = select([INT], either(IsNull(P(1)), eq("id", P(1))), null_folds=null_folds)
    learned = learn(model)
    assert learned.route.kind is RouteKind.KEYED
    assert learned.predict(model, (None,)) is None
    assert learned.predict(model, (1,)) == {1934}


def test_a_boolean_that_adds_a_bucket_is_not_keyed() -> None:
    """`id = $1 OR (id = 5 AND $2)`: with $2 true there are two buckets."""
    where = either(eq("id", P(1)), both(eq("id", L(5, INT)), Flag(P(2))))
    for seed in range(20):
        assert learn(select([INT, BOOL], where), "5", seed=seed).route.kind is RouteKind.NOT_KEYED


def test_a_boolean_that_chooses_the_key_is_not_keyed() -> None:
    """`(id = $1 AND $3) OR (id = $2 AND NOT $3)`: the key changes with $3."""
    where = either(both(eq("id", P(1)), Flag(P(3))), both(eq("id", P(2)), Not(Flag(P(3)))))
    for seed in range(20):
        assert learn(select([INT, INT, BOOL], where), seed=seed).route.kind is RouteKind.NOT_KEYED


def test_contradicting_keys_are_not_keyed() -> None:
    """`id = $1 AND id = $2`: no bucket, but one for equal values."""
    learned = learn(select([INT, INT], both(eq("id", P(1)), eq("id", P(2)))))
    assert learned.route.kind is RouteKind.NOT_KEYED
    assert len(learned.questions) == 1


def test_a_cast_double_is_not_taken_for_a_bare_one() -> None:
    """`k = $1::double` fits the bare parameter for fractions only: 1.0 and 1e300 have other bytes."""
    older = select([DOUBLE], eq("k", P(1, True)), key=("k",))
    newer = select([DOUBLE], eq("k", P(1, True)), key=("k",), release="26.1")
    for model in (older, newer):
        learned = learn(model)
        for number in (1.0, 1e300, -1e300, 0.5, 2.0**63):
            predicted = learned.predict(model, (number,))
            assert predicted is not None
            assert predicted == model.buckets((number,))


# ── what is not keyed ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "questions"),
    [
        (select([INT], Opaque()), 1),
        (select([INT], both(eq("a", P(1)), eq("b", L("y", TEXT))), key=("b", "a")), 5),
        (select([INT, INT], either(eq("id", P(1)), eq(P(1), P(2)))), 30),
        (select([INT, INT], both(eq("id", P(1)), Cmp(">", P(2), L(0, INT)))), 30),
        (select([BOOL], eq("f", P(1)), key=("f",)), 8),
        (select([INT], In("id", (P(1), *(L(i, INT) for i in range(70))))), 1),
    ],
    ids=["scan", "constant-in-key", "equal-values", "condition", "boolean-key", "many-buckets"],
)
def test_what_no_choice_of_parameters_explains_is_not_keyed(model: Model, questions: int) -> None:
    """A constant that the text does not show, a folding condition, too many buckets, too little evidence: not keyed."""
    learned = learn(model, "0 5 'x'")
    assert learned.route.kind is RouteKind.NOT_KEYED
    assert learned.route.reason
    assert len(learned.questions) <= questions


def test_many_parameters_are_not_asked_about() -> None:
    """More than 64 parameters may harm a server, except in an INSERT whose key it named."""
    many = insert([INT] * 65, (P(65),))
    assert learn(many).questions == ()
    assert learn(many).route.kind is RouteKind.NOT_KEYED
    named = learn(many, dk_meta=[(65, INT)])
    assert parameters(named.route) == {(65,)}


def test_a_text_without_parameters_is_not_asked_about() -> None:
    """Without parameters there is nothing to learn a key from."""
    assert learn(select([], eq("id", L(1, INT)))).questions == ()


def test_a_parameter_of_an_unknown_type_is_not_asked_about() -> None:
    """No values can be made for it, so what it does to the buckets stays unknown."""
    learned = learn(select([INT, 1016], eq("id", P(1))))
    assert learned.route.kind is RouteKind.NOT_KEYED
    assert learned.questions == ()
    named = learn(insert([INT, 1016], (P(1),)), dk_meta=[(1, INT)])
    assert parameters(named.route) == {(1,)}
    assert all(question[1] is None for question in named.questions)


# ── tiers ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_notice_the_only_tier_is_meant() -> None:
    """A tier without buckets does not count."""
    model = select([INT], eq("id", P(1)))
    assert learn(model, tier=None, tiers={"only": 3000, "arbiter": 0}).route.tier == "only"
    assert learn(model, tier=None, tiers={"a": 3000, "b": 10}).route.kind is RouteKind.NOT_KEYED
    assert learn(model, tier=None, tiers={}).route.kind is RouteKind.NOT_KEYED
    assert learn(model, tier="new", tiers={"default": 3000}).route.kind is RouteKind.NOT_KEYED


def test_buckets_are_counted_in_the_tier_of_the_table() -> None:
    """The same key has another bucket in a tier with another count."""
    model = select([INT], eq("id", P(1)), bucket_count=1000)
    learned = learn(model, tier="storage", tiers={"router": 100, "storage": 1000})
    assert learned.predict(model, (1,)) == {934}


@pytest.mark.parametrize("all_count", [100, 1000])
def test_all_buckets_are_counted_by_the_asked_instance(all_count: int) -> None:
    """`[1-100]`, asked at an instance of a tier with 100 buckets, means all of the table's 1 000."""
    model = select([INT], Opaque(), bucket_count=1000, all_count=all_count)
    learned = learn(model, tier="storage", tiers={"router": 100, "storage": 1000})
    assert learned.route.kind is RouteKind.NOT_KEYED
    assert len(learned.questions) == 1


def test_a_tier_with_one_bucket_is_a_constant() -> None:
    """Whatever its conditions say, a statement on such a tier runs where its one bucket is."""
    for where in (eq("id", P(1)), Opaque()):
        learned = learn(select([INT], where, bucket_count=1))
        assert learned.route.kind is RouteKind.CONSTANT
        assert learned.route.buckets == (1,)
        assert check(learned.route, (5,), Scope.EXACT, ((1, 3000),), PICODATA_KEY_HASH, {"default": 1})


@pytest.mark.parametrize("bucket_count", [2, 3, 10, 100, 65536])
def test_small_tiers_need_more_questions(bucket_count: int) -> None:
    """Fewer buckets say less each time, so more questions are asked for the same evidence."""
    model = select([INT, TEXT], both(eq("id", P(1)), eq("v", P(2))), bucket_count=bucket_count)
    learned = learn(model)
    assert learned.route.kind in (RouteKind.KEYED, RouteKind.NOT_KEYED)
    if bucket_count > 3:
        assert parameters(learned.route) == {(1,)}


# ── keys the server names ───────────────────────────────────────────────────────────────────────────────────


def test_a_named_key_is_confirmed_with_two_questions() -> None:
    """The notice names an INSERT's key; two questions make sure that it is hashed as thought."""
    learned = learn(insert([INT, TEXT, INT], (P(3), P(2)), key=("c", "b")), dk_meta=[(3, INT), (2, TEXT)])
    assert learned.route.keys == ((KeyPart(2, INT), KeyPart(1, TEXT)),)
    assert len(learned.questions) == 2


@pytest.mark.parametrize("cast", [False, True])
def test_a_named_double_still_needs_its_form(cast: bool) -> None:
    """`[[1,701]]` does not say whether the value is hashed as bound or as cast; questions do."""
    model = insert([DOUBLE, INT], (P(1, cast), P(2)), key=("k", "n"), release="26.1")
    learned = learn(model, dk_meta=[(1, DOUBLE), (2, INT)])
    assert learned.route.keys[0][0].form == ("cast-26.1" if cast else "bound-26.1")
    assert len(learned.questions) <= 6


def test_a_server_that_does_not_name_buckets_is_trusted_for_simple_keys() -> None:
    """25.6 says `unknown` for an INSERT: the named key counts where its types have one form, else not."""
    for oid, kind in ((INT, RouteKind.KEYED), (DOUBLE, RouteKind.NOT_KEYED)):
        probe = KeyProbe("", [oid], "default", [(1, oid)], {"default": 3000}, PICODATA_KEY_HASH, random.Random(1))
        probe.answer(BucketScope.UNKNOWN, ())
        assert probe.next_question() is None
        assert probe.result().kind is kind
        assert probe.result().evidence == 0


def test_a_named_key_that_does_not_fit_is_looked_for_afresh() -> None:
    """The buckets count, not the name: a wrong name leads to the ordinary search."""
    learned = learn(insert([INT, INT], (P(2),)), dk_meta=[(1, INT)])
    assert parameters(learned.route) == {(2,)}
    assert learned.route.evidence >= 40
    assert parameters(learn(insert([INT], (P(1),)), dk_meta=[(9, INT)]).route) == {(1,)}


# ── refusals and the dialogue itself ────────────────────────────────────────────────────────────────────────


def test_small_positive_numbers_come_first() -> None:
    """`OPTION (SQL_MOTION_ROW_MAX = $2)` refuses −5; a refused corner is no answer."""
    model = select([INT, INT], eq("id", P(1)), refuses=lambda args: args[1] is None or args[1] < 0)
    assert learn(model).route.kind is RouteKind.KEYED


def test_refused_questions_make_the_values_careful() -> None:
    """A server that takes small numbers, or a text that is a uuid, is given them after its first refusals."""
    small = select([INT, INT], eq("id", P(1)), refuses=lambda args: args[1] is None or args[1] > 30_000)
    assert parameters(learn(small).route) == {(1,)}
    uuids = select([INT, TEXT], eq("id", P(1)), refuses=lambda args: len(args[1] or "") != 36)
    assert parameters(learn(uuids).route) == {(1,)}
    moments = select([INT, TEXT], eq("id", P(1)), refuses=lambda args: "T" not in (args[1] or ""))
    assert parameters(learn(moments).route) == {(1,)}


def test_a_server_that_refuses_every_question_is_left_alone() -> None:
    """After four refusals the text is not keyed."""
    learned = learn(select([INT], eq("id", P(1)), refuses=lambda args: True))
    assert learned.route.kind is RouteKind.NOT_KEYED
    assert len(learned.questions) == 4


def test_a_question_stands_until_it_is_answered() -> None:
    """Asking for the question again changes nothing; before the end, and only then, nothing is learned."""
    probe = KeyProbe("", [INT], "default", (), {"default": 3000}, PICODATA_KEY_HASH, random.Random(1))
    question = probe.next_question()
    assert question is not None
    assert probe.next_question() is question
    assert probe.result().kind is RouteKind.NOT_KEYED
    probe.answer(BucketScope.EXACT, ())
    assert probe.next_question() is None
    probe.answer(BucketScope.EXACT, ((1, 1),))
    probe.refused("late")
    assert probe.asked == 1


@pytest.mark.parametrize(
    ("scope", "ranges"),
    [
        (BucketScope.UNKNOWN, ()),
        (BucketScope.EXACT, ()),
        (BucketScope.AT_MOST, ((1, 3000),)),
        (BucketScope.EXACT, ((5, 69),)),
    ],
)
def test_an_answer_without_few_buckets_ends_the_dialogue(scope: BucketScope, ranges: Any) -> None:
    """`unknown`, no bucket, all buckets, more than 64: not keyed at once."""
    probe = KeyProbe("", [INT], "default", (), {"default": 3000}, PICODATA_KEY_HASH, random.Random(1))
    probe.answer(scope, ranges)
    assert probe.next_question() is None
    assert probe.result().kind is RouteKind.NOT_KEYED


def test_reasons_contain_no_values() -> None:
    """What a server says may contain the caller's values, so nothing of it is kept."""
    probe = KeyProbe("", [INT], "default", (), {"default": 3000}, PICODATA_KEY_HASH, random.Random(1))
    while probe.next_question() is not None:
        probe.refused("secret 4711")
    assert "4711" not in repr(probe.result())


def test_values_that_harm_a_server_are_never_asked_with() -> None:
    """A uuid whose byte 8 is ≥ 0xe0 poisons storage; every random uuid is of the usual variant."""
    for seed in range(50):
        for question in learn(select([UUID, UUID], eq("id", P(1))), seed=seed).questions:
            assert all(value is None or value.bytes[8] < 0xE0 for value in question)


def test_literals_of_a_text() -> None:
    """Strings and free-standing numbers, not what is quoted, commented or part of a name."""
    sql = """SELECT o2, "7", 'it''s 8' FROM t1 WHERE a = $1 AND b IN (1.50, 2e3, -4) -- 5
        /* 6 */ AND c = 'x' AND d9 = 10 OPTION (A = 1.50)"""
    assert [str(found) for found in literals(sql)] == ["it's 8", "1.50", "2E+3", "4", "x", "10"]


@pytest.mark.parametrize("written", ["1e9999999", "-1e9999999", "0.1e1000001", f"1e-{'9' * 20}", f"1e{'9' * 20}"])
@pytest.mark.parametrize("quote", ["", "'"])
def test_literals_that_no_number_can_be_are_no_trouble(written: str, quote: str) -> None:
    """Beyond what a decimal or a double holds: the key beside them is learned all the same."""
    oids = (INT, DECIMAL, DOUBLE)
    learned = learn(select(oids, eq("id", P(1))), f"SELECT v FROM t WHERE id = $1 AND v = {quote}{written}{quote}")
    assert learned.route.kind is RouteKind.KEYED
    for oid in oids:
        for value in literal_values(oid, literals(quote + written + quote)):
            list(numbers_near(oid, value))


# ── checking with real arguments ────────────────────────────────────────────────────────────────────────────

KEYED = StatementRoute(RouteKind.KEYED, "default", ((KeyPart(0, INT),),), evidence=45)
NAMED = StatementRoute(RouteKind.KEYED, "default", ((KeyPart(0, INT),),))
ANY_NODE = StatementRoute(RouteKind.ANY_NODE)


@pytest.mark.parametrize(
    ("route", "args", "scope", "ranges", "agrees"),
    [
        (KEYED, (1,), "EXACT", ((1934, 1934),), True),
        (KEYED, (1,), "AT_MOST", ((1934, 1934),), True),
        (KEYED, (1,), "EXACT", ((1410, 1410),), False),
        (KEYED, (1,), "EXACT", ((1410, 1410), (1934, 1934)), False),
        (KEYED, (1,), "EXACT", ((1, 3000),), False),
        (KEYED, (1,), "EXACT", (), False),
        (KEYED, (1,), "ANY", (), False),
        (KEYED, (1,), "UNKNOWN", (), False),
        (NAMED, (1,), "UNKNOWN", (), True),
        (KEYED, (None,), "EXACT", ((1, 3000),), True),
        (ANY_NODE, (1,), "ANY", (), True),
        (ANY_NODE, (1,), "EXACT", ((1934, 1934),), False),
        (StatementRoute(RouteKind.NOT_KEYED), (1,), "EXACT", ((1934, 1934),), True),
        (StatementRoute(RouteKind.CONSTANT, "default", buckets=(7,)), (1,), "EXACT", ((7, 7),), True),
        (StatementRoute(RouteKind.CONSTANT, "default", buckets=(7,)), (1,), "EXACT", ((8, 8),), False),
    ],
)
def test_a_route_is_checked_with_real_arguments(
    route: StatementRoute, args: Any, scope: str, ranges: Any, agrees: bool
) -> None:
    """A difference between route and server shows; a route that says nothing does not differ."""
    answered = BucketScope[scope]
    assert check(route, args, answered, ranges, PICODATA_KEY_HASH, {"default": 3000}) is agrees
    probe = KeyProbe("", [INT], "default", (), {"default": 3000}, PICODATA_KEY_HASH, random.Random(1))
    assert probe.check(route, args, answered, ranges) is agrees


def test_moments_are_aware() -> None:
    """Every moment that is asked with says its zone, so that no local time takes part."""
    for question in learn(select([DATETIME, DATETIME], eq("id", P(1))), "'2023-07-07' '2023-07-07T12:00:00'").questions:
        assert all(value is None or value.tzinfo is UTC for value in question)
