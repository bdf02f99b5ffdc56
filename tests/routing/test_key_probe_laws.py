"""What may never happen, whatever a statement looks like: statements drawn at random, asked about as any."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.routing.route import RouteKind
from tests.routing.dialogue import Learned, learn
from tests.routing.model_planner import (
    And,
    Cmp,
    Flag,
    In,
    IsNull,
    L,
    Model,
    Not,
    Opaque,
    Or,
    P,
    both,
    either,
    eq,
)

BOOL, INT, TEXT, DOUBLE, DECIMAL, UUID_OID, MOMENT = 16, 20, 25, 701, 1700, 2950, 1184
KEY_TYPES = (BOOL, INT, TEXT, DOUBLE, DECIMAL, UUID_OID, MOMENT)
LITERALS: dict[int, tuple[Any, ...]] = {
    BOOL: (True, False),
    INT: (0, 1, -1, 5, 7, 100, -40),
    TEXT: ("", "x", "5", "all"),
    DOUBLE: (0.0, 1.0, 0.5, 1e300),
    DECIMAL: (Decimal(0), Decimal("1.50"), Decimal(7)),
    UUID_OID: (UUID(int=0), UUID("9035910e-8342-4460-8c25-25e5f10d9876")),
    MOMENT: (datetime(1970, 1, 1, tzinfo=UTC), datetime(2023, 7, 7, tzinfo=UTC)),
}


class Statements:
    """Draws statements with a seed: a law about many statements must not depend on luck."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.columns = {f"k{i}": self.rng.choice(KEY_TYPES) for i in range(self.rng.randint(1, 3))}
        self.oids: list[int] = []
        self.mentioned: list[Any] = []

    def parameter(self, oid: int) -> P:
        """A parameter of a type: one that is there, or a new one."""
        there = [i for i, known in enumerate(self.oids) if known == oid]
        if there and self.rng.random() < 0.4:
            return P(self.rng.choice(there) + 1, oid == DOUBLE and self.rng.random() < 0.3)
        self.oids.append(oid)
        return P(len(self.oids), oid == DOUBLE and self.rng.random() < 0.3)

    def constant(self, oid: int, literal: float = 0.2) -> P | L:
        """A parameter, or with this chance a literal."""
        if self.rng.random() >= literal:
            return self.parameter(oid)
        value = self.rng.choice(LITERALS[oid])
        self.mentioned.append(value)
        return L(value, oid)

    def key(self) -> Any:
        """Conditions that fix the whole key, mostly."""
        parts: list[Any] = []
        for column, oid in self.columns.items():
            if self.rng.random() < 0.25:
                parts.append(In(column, tuple(self.constant(oid) for _ in range(self.rng.randint(1, 3)))))
            elif self.rng.random() < 0.97:
                parts.append(eq(column, self.constant(oid, 0.1)))
        return And(tuple(parts)) if parts else Opaque()

    def constant_condition(self) -> Any:
        """A condition without columns, which folds as soon as the values are bound."""
        kind = self.rng.randrange(5)
        oid = self.rng.choice((INT, TEXT, DOUBLE, DECIMAL))
        if kind == 0:
            return Flag(self.parameter(BOOL))
        if kind == 1:
            return IsNull(self.parameter(self.rng.choice(KEY_TYPES)))
        if kind == 2:
            return Cmp("=", self.parameter(oid), self.parameter(oid))
        value = self.rng.choice(LITERALS[oid])
        self.mentioned.append(value)
        return Cmp(self.rng.choice(("=", "<>", "<", ">")), self.parameter(oid), L(value, oid))

    def condition(self, depth: int) -> Any:
        """Anything."""
        kind = self.rng.randrange(8) if depth else self.rng.randrange(4)
        if kind == 0:
            return self.constant_condition()
        if kind == 1:
            return eq("other", self.parameter(self.rng.choice(KEY_TYPES)))
        if kind in (2, 3):
            return self.key()
        if kind == 4:
            return Not(self.condition(depth - 1))
        parts = tuple(self.condition(depth - 1) for _ in range(2))
        return Or(parts) if kind == 5 else And(parts)

    def model(self, *where: Any, rows: Sequence[tuple[Any, ...]] = ()) -> Model:
        """The statement, at some server."""
        if not self.oids:
            self.oids.append(INT)
        return Model(
            tuple(self.columns),
            tuple(self.oids),
            where,
            tuple(rows),
            bucket_count=self.rng.choice((3000, 3000, 3000, 1000, 100)),
            all_count=3000,
            release=self.rng.choice(("older", "26.1")),
            null_folds=self.rng.random() < 0.5,
        )

    def arguments(self, oids: Sequence[int]) -> tuple[Any, ...]:
        """Later arguments: random ones, corners, NULL, equal ones, what the text mentions."""
        drawn: list[Any] = []
        for oid in oids:
            kind = self.rng.randrange(6)
            same = [value for value, known in zip(drawn, oids, strict=False) if known == oid]
            if kind == 0:
                drawn.append(None)
            elif kind == 1 and same:
                drawn.append(self.rng.choice(same))
            elif kind in (2, 3):
                drawn.append(self.rng.choice(LITERALS[oid]))
            else:
                drawn.append(self.random_value(oid))
        return tuple(drawn)

    def random_value(self, oid: int) -> Any:
        """One value of a type."""
        rng = self.rng
        makers = {
            BOOL: lambda: rng.random() < 0.5,
            INT: lambda: rng.randint(-(2**63), 2**63 - 1) >> rng.choice((0, 30, 50)),
            TEXT: lambda: "".join(rng.choices("abcЖ🙂 0123", k=rng.randint(0, 8))),
            DOUBLE: lambda: rng.choice((1.0, 1e18, 1e-9, -1.0)) * rng.choice((rng.random(), rng.randint(0, 99))),
            DECIMAL: lambda: Decimal(rng.randint(-(10**9), 10**9)).scaleb(-rng.randint(0, 6)),
            UUID_OID: lambda: UUID(int=rng.getrandbits(128)),
            MOMENT: lambda: datetime(1950, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.getrandbits(52)),
        }
        return makers[oid]()

    def text(self) -> str:
        """A text that mentions the literals."""
        return " ".join(
            f"'{value}'" if isinstance(value, str | UUID | datetime) else str(value) for value in self.mentioned
        )


def learn_and_use(statements: Statements, model: Model, seed: int, calls: int = 30) -> tuple[Learned, int]:
    """Learn a statement, use it with later arguments, and count the calls that would go astray.

    A call goes astray when it would be sent to one bucket while the server would need another one.
    """
    learned = learn(model, statements.text(), seed=seed)
    astray = 0
    for _ in range(calls):
        args = statements.arguments(model.oids)
        predicted, actual = learned.predict(model, args), model.buckets(args)
        if predicted is not None and predicted != actual:
            assert not learned.probe.check(learned.route, args, *model.answer(args)), "a check finds every difference"
            astray += actual is None or not actual <= predicted
    return learned, astray


@given(st.integers(0, 2**32), st.sampled_from((either, both)))
@settings(max_examples=100, deadline=None)
def test_one_condition_beside_the_key_never_misleads(seed: int, combine: Any) -> None:
    """A key and one more condition, of any kind, joined by AND or OR: no later call goes astray."""
    statements = Statements(seed)
    key, condition = statements.key(), statements.constant_condition()
    model = statements.model(combine(key, condition))
    _, astray = learn_and_use(statements, model, seed)
    assert astray == 0


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_inserts_are_never_misled(seed: int, rows: int) -> None:
    """Rows of parameters and constants have no conditions: what is learned is always right."""
    statements = Statements(seed)
    values = [tuple(statements.constant(oid) for oid in statements.columns.values()) for _ in range(rows)]
    _, astray = learn_and_use(statements, statements.model(rows=values), seed)
    assert astray == 0


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_difference_shows_in_a_check(seed: int) -> None:
    """Whatever the statement, a call that would go astray is one that a check with its arguments finds."""
    statements = Statements(seed)
    learn_and_use(statements, statements.model(statements.condition(3)), seed)


def test_nested_conditions_hardly_ever_mislead() -> None:
    """Of many nested statements nearly none sends a call astray; the rest is for the checks."""
    misled, learned = 0, 0
    for seed in range(400):
        statements = Statements(seed)
        model = statements.model(both(statements.key(), statements.condition(2)))
        found, astray = learn_and_use(statements, model, seed, calls=20)
        learned += found.route.kind is not RouteKind.NOT_KEYED
        misled += astray > 0
    assert learned >= 100
    assert misled <= learned // 50


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_plain_keys_are_always_found(seed: int) -> None:
    """A key made of different parameters, and any other columns: keyed, and right for later calls."""
    statements = Statements(seed)
    if set(statements.columns.values()) == {BOOL}:
        statements.columns["k9"] = INT
    parts = []
    for column, oid in statements.columns.items():
        statements.oids.append(oid)
        parts.append(eq(column, P(len(statements.oids))))
    others = [eq(f"v{i}", statements.parameter(statements.rng.choice(KEY_TYPES))) for i in range(3)]
    model = statements.model(both(*parts, *others))
    learned, astray = learn_and_use(statements, model, seed)
    assert learned.route.kind is RouteKind.KEYED, learned.route.reason
    assert astray == 0
