"""The buckets of a whole statement: which parts run where, and when rows must move between replicasets first.

A part of a plan that needs no rows from elsewhere has exact buckets; a plan made of several parts has an
upper bound, the union of its parts; a plan that deals rows out by a computed key has none. *Source*:
Picodata's `explain/execution_info.rs`, `executor/bucket.rs`, `eliminate_motion.sql`, and the recorded plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.catalog import Catalog, Table
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.filters import ALL, ANY, Classes, Found, Key, chains_of, filter_buckets
from picopyn.testing.picodata.planner.folding import fold
from picopyn.testing.picodata.planner.hash import bucket_of
from picopyn.testing.picodata.planner.statement import Buckets, Value
from picopyn.testing.picodata.planner.walk import nodes


@dataclass(frozen=True, slots=True)
class Part:
    """What is known about a subtree.

    Attributes:
        found: Its buckets, if no rows move inside it.
        keys: Sharding keys among its columns.
        moved: Buckets of the parts below the places where rows move; empty if none do.
        dealt: Whether rows are dealt out by a computed key somewhere inside.
    """

    found: Found
    keys: tuple[Key, ...] = ()
    moved: tuple[Found, ...] = field(default=())
    dealt: bool = False

    @property
    def whole(self) -> bool:
        """Whether no rows move inside."""
        return not self.moved and not self.dealt

    def contributions(self) -> tuple[Found, ...]:
        """What the subtree adds to the union when rows move above or beside it."""
        return self.moved or (self.found,)

    def collected(self, always: bool = False) -> Part:
        """The subtree under a place where its rows are collected, unless that is unnecessary.

        Args:
            always: Rows of one bucket are collected as well (recorded on 25.6).
        """
        if not self.whole or self.found.anywhere or (self.found.single and not always):
            return replace(self, keys=())
        return Part(ALL, (), (self.found,))


def beside(parts: Sequence[Part], found: Found, keys: tuple[Key, ...] = ()) -> Part:
    """Subtrees joined by a node that moves no rows itself."""
    if all(part.whole for part in parts):
        return Part(found, keys)
    moved = tuple(buckets for part in parts for buckets in part.contributions())
    return Part(ALL, (), moved, any(part.dealt for part in parts))


class Estimate:
    """Finds the buckets of one plan with its values bound."""

    def __init__(self, catalog: Catalog, tier: str | None, values: Sequence[Value]) -> None:
        self._count = catalog.tiers.get(tier or "", 0)
        self._form = catalog.double_form
        self._accent = catalog.accent
        self._values = values

    def plan(self, plan: b.Plan) -> Buckets:
        """The answer about a whole plan."""
        if isinstance(plan, b.Insert):
            return self._insert(plan)
        if isinstance(plan, b.Update | b.Delete):
            return self._change(plan)
        return _answer(self.query(plan))

    def hash(self, values: Sequence[Value]) -> int:
        """Bucket of a key's values."""
        return bucket_of(values, self._count, self._form)

    def query(self, query: b.Query) -> Part:
        """A query; the keys of the result are (OUTPUT, position)."""
        part = self._body(query.body)
        return self._collected(part) if query.order_by or query.limit is not None else part

    def _collected(self, part: Part) -> Part:
        return part.collected(always=self._accent.before_26_1)

    def _body(self, body: b.Body) -> Part:
        if isinstance(body, b.Select):
            return self._select(body)
        if isinstance(body, b.Values):
            return Part(ANY)
        left, right = self._body(body.left), self._body(body.right)
        if body.operator == "except":
            return _except(left, right)
        both = left.found.either(right.found)
        if body.operator == "union all":
            return beside((left, right), both, tuple(key for key in left.keys if key in right.keys))
        united = beside((left, right), both)
        if united.whole and not both.anywhere and not (both.single and self._accent.since_26_2):
            return Part(ALL, (), (both,))
        return replace(united, keys=())

    def _select(self, select: b.Select) -> Part:
        source = self._source(select.source) if select.source else Part(ANY)
        part = self._filtered(source, select.where)
        part = self._with_queries(part, part.found, [item.expression for item in select.items])
        if select.windows and not part.found.anywhere:
            return self._windowed(part, select.windows)
        if select.aggregated or select.distinct:
            return self._collected(part)
        return replace(part, keys=_projected(part.keys, select.items))

    def _windowed(self, part: Part, windows: Iterable[b.Window]) -> Part:
        dealt = any(window.partition for window in windows)
        if self._accent.since_26_2 and not dealt and part.whole and part.found.single:  # recorded
            return replace(part, keys=())
        return Part(ALL, (), part.contributions(), dealt or part.dealt)

    def _filtered(self, source: Part, where: b.Expr | None) -> Part:
        if where is None:
            return source
        folded = self._folded(where)
        left = filter_buckets(folded, source.keys, _default(source), self.hash, by_number=self._accent.since_26_2)
        part = replace(source, found=source.found.both(left)) if source.whole else source
        return self._with_queries(part, source.found, [where])

    def _folded(self, where: b.Expr) -> b.Expr:
        """The filter after folding. 25.6 leaves `OR false` as it is, which then says nothing (recorded)."""
        if not self._accent.before_26_1 or not isinstance(where, b.Binary) or where.operator not in ("and", "or"):
            return fold(where, self._values)
        left, right = self._folded(where.left), self._folded(where.right)
        if where.operator == "or" and any(isinstance(part, b.Const) and part.value is False for part in (left, right)):
            return b.IsBool(where, True, negated=False)
        return fold(replace(where, left=left, right=right), self._values)

    def _with_queries(self, part: Part, below: Found, expressions: Iterable[b.Expr]) -> Part:
        """Add the queries inside expressions: those on global tables run along, others move rows."""
        for expression in expressions:
            for node in nodes(expression):
                if isinstance(node, b.InQuery | b.Scalar | b.Exists):
                    part = self._with_query(part, below, node)
        return part

    def _with_query(self, part: Part, below: Found, node: b.InQuery | b.Scalar | b.Exists) -> Part:
        inner = self.query(node.query)
        if inner.whole and inner.found.anywhere:
            return part
        if part.found.anywhere:
            raise NotModelled("a query on a sharded table inside a statement on global tables")
        if isinstance(node, b.InQuery) and isinstance(node.operand, b.Column):
            place = ((node.operand.relation, node.operand.position),)
            if place in part.keys:
                local = inner.whole and ((b.OUTPUT, 0),) in inner.keys
                return part if local else replace(part, dealt=True)
        outside = part.contributions() if not part.whole else (below,)
        return Part(ALL, (), (*outside, *inner.contributions()), part.dealt or inner.dealt)

    def _source(self, source: b.Source) -> Part:
        if isinstance(source, b.Base):
            return table_part(source)
        if isinstance(source, b.Join):
            return self._join(source)
        part = self.query(source.query)
        if source.cte:
            part = self._collected(part)
        keys = tuple(tuple((source.number, position) for _, position in key) for key in part.keys)
        return replace(part, keys=keys)

    def _join(self, join: b.Join) -> Part:
        left, right = self._source(join.left), self._source(join.right)
        condition = fold(join.condition, self._values)
        both = left.found.either(right.found)
        if not (left.whole and right.whole):
            return beside((left, right), both)
        if not join.outer:
            keys = (*left.keys, *right.keys)
            left_by_filter = filter_buckets(condition, keys, _default(Part(both)), self.hash)
            both = both.both(left_by_filter)
        if left.found.anywhere or right.found.anywhere:
            if join.outer and left.found.anywhere and not right.found.anywhere:
                return Part(ALL, (), (right.found,))
            return Part(both, (*left.keys, *right.keys))
        return _sharded_join(left, right, both, condition)

    def _insert(self, insert: b.Insert) -> Buckets:
        if not insert.table.sharded:
            return _answer(self.query(insert.source))
        if isinstance(insert.source.body, b.Values):
            return self._values_buckets(insert, insert.source.body)
        part = self.query(insert.source)
        key = tuple((b.OUTPUT, insert.positions.index(p)) for p in key_positions(insert.table) if p in insert.positions)
        if not (part.whole and key in part.keys):
            return Buckets("unknown")
        return Buckets("exact", part.found.numbers if self._accent.before_26_1 else None)  # recorded

    def _values_buckets(self, insert: b.Insert, body: b.Values) -> Buckets:
        numbers = set()
        for row in body.rows:
            key = key_of_row(insert, [fold(expression, self._values) for expression in row])
            if key is None:
                return Buckets("unknown")
            numbers.add(self.hash(key))
        return Buckets("exact", frozenset(numbers))

    def _change(self, plan: b.Update | b.Delete) -> Buckets:
        table = plan.target.table
        part = self._filtered(table_part(plan.target), plan.where)
        if isinstance(plan, b.Update):
            part = self._with_queries(part, part.found, [value for _, value in plan.assignments])
            if changes_key(plan):
                return Buckets("unknown")
        if not part.whole and table.sharded:
            raise NotModelled("UPDATE or DELETE with a query on a sharded table")
        return _answer(part)


def table_part(base: b.Base) -> Part:
    """A table by itself."""
    if not base.table.sharded:
        return Part(ANY)
    return Part(ALL, (tuple((base.number, position) for position in key_positions(base.table)),))


def key_positions(table: Table) -> tuple[int, ...]:
    """Positions of the sharding key's columns, in the key's order."""
    names = [column.name for column in table.columns]
    return tuple(names.index(name) for name in table.distribution or ())


def key_of_row(insert: b.Insert, row: Sequence[b.Expr]) -> list[Value] | None:
    """The sharding key of one VALUES row after folding, or None if an expression is left; a missing column is
    NULL.
    """
    key: list[Value] = []
    for position in key_positions(insert.table):
        if position not in insert.positions:
            key.append(None)
            continue
        expression = row[insert.positions.index(position)]
        if not isinstance(expression, b.Const):
            return None
        key.append(expression.value)
    return key


def changes_key(update: b.Update) -> bool:
    """Whether an UPDATE sets a column of the sharding key."""
    return any(name in (update.target.table.distribution or ()) for name, _ in update.assignments)


def _default(part: Part) -> Found:
    return ANY if part.found.anywhere else ALL


def _answer(part: Part) -> Buckets:
    if part.dealt:
        return Buckets("unknown")
    found = reduce(Found.either, part.moved) if part.moved else part.found
    if found.anywhere:
        return Buckets("any")
    if found.numbers is None or not part.moved:
        return Buckets("exact", found.numbers)
    return Buckets("at_most", found.numbers)


def _projected(keys: tuple[Key, ...], items: Sequence[b.Item]) -> tuple[Key, ...]:
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for position, item in enumerate(items):
        column = item.expression
        if isinstance(column, b.Column):
            places.setdefault((column.relation, column.position), (b.OUTPUT, position))
    return tuple(tuple(places[p] for p in key) for key in keys if all(p in places for p in key))


def _except(left: Part, right: Part) -> Part:
    if (right.whole and right.found.anywhere) or set(left.keys) & set(right.keys):
        return left
    if left.found.anywhere:
        raise NotModelled("EXCEPT of a sharded table from global ones")
    return replace(left, keys=(), dealt=True)


def _sharded_join(left: Part, right: Part, both: Found, condition: b.Expr) -> Part:
    classes = [Classes(chain) for chain in chains_of(condition)]
    for one in left.keys:
        for other in right.keys:
            if len(one) == len(other) and classes and all(_equal(c, one, other) for c in classes):
                return Part(both, (*left.keys, *right.keys))
    if any(all(_has_partner(c, place, left, condition) for place in key) for key in left.keys for c in classes):
        return Part(ALL, (), left.contributions(), dealt=True)
    return Part(ALL, (), (*left.contributions(), *right.contributions()))


def _equal(classes: Classes, one: Key, other: Key) -> bool:
    return all(classes.same(a, c) for a, c in zip(one, other, strict=True))


def _has_partner(classes: Classes, place: tuple[int, int], left: Part, condition: b.Expr) -> bool:
    """Whether the condition equates this key column with a column of the other side."""
    own = {relation for key in left.keys for relation, _ in key}
    columns = (node for node in nodes(condition) if isinstance(node, b.Column) and node.relation not in own)
    return any(classes.same(place, (column.relation, column.position)) for column in columns)
