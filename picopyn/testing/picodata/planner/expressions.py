"""Names and types of expressions: from what was written to what it means.

Texts written in quotes and NULL take the type their neighbour wants, parameters too; everything else has its
own type. *Source*: recorded answers on 26.1.6 (`could not resolve operator overload …`, `failed to parse …`),
`picodata-protocol.md` section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.errors import NotModelled, sbroad
from picopyn.testing.picodata.planner.functions import (
    AGGREGATES,
    NUMERIC,
    WINDOW_ONLY,
    common_type,
    no_overload,
    result_type,
    wanted_types,
)
from picopyn.testing.picodata.planner.literals import PARSERS, parse_decimal, parse_int

if TYPE_CHECKING:
    from picopyn.testing.picodata.planner.parameters import Parameters
    from picopyn.testing.picodata.planner.scope import Scope

_ARITHMETIC = frozenset({"+", "-", "*", "/", "%"})


class Expressions:
    """Binds the expressions of one scope.

    Args:
        scope: The relations visible here; None for a SELECT without FROM and for VALUES.
        parameters: The statement's parameters.
        queries: Binds a query that stands inside an expression.
        filtering: Whether this is a WHERE or ON clause.
    """

    def __init__(
        self,
        scope: Scope | None,
        parameters: Parameters,
        queries: Callable[[s.Query], b.Query],
        filtering: bool = False,
    ) -> None:
        self._scope = scope
        self._parameters = parameters
        self._queries = queries
        self._filtering = filtering

    def bind(self, expression: s.Expression, wanted: str | None = None) -> b.Expr:
        """The expression with its types; `wanted` is the type its place prefers."""
        method: Callable[..., b.Expr] | None = getattr(self, f"_{type(expression).__name__.lower()}", None)
        if method is None:
            raise NotModelled(type(expression).__name__)
        return method(expression, wanted)

    def condition(self, expression: s.Expression) -> b.Expr:
        """A boolean expression."""
        found = self.bind(expression, "bool")
        if found.type not in ("bool", "unknown"):
            raise NotModelled(f"a condition of type {found.type}")
        return found

    def _literal(self, literal: s.Literal, wanted: str | None) -> b.Expr:
        if literal.type == "null":
            return b.Const(None, wanted if wanted and wanted != "row" else "unknown")
        if literal.type == "bool":
            return b.Const(literal.text == "true", "bool")
        if literal.type == "text":
            return self._text(literal.text, wanted or "text")
        return _number(literal)

    def _text(self, text: str, wanted: str) -> b.Const:
        if wanted not in PARSERS:
            return b.Const(text, "text")
        value = PARSERS[wanted](text)
        if value is None:
            raise sbroad(f"failed to parse '{text}' as a value of type {wanted}, consider using explicit type casts")
        return b.Const(value, wanted)

    def _parameter(self, parameter: s.Parameter, wanted: str | None) -> b.Expr:
        self._parameters.meet(parameter.number)
        if wanted:
            self._parameters.want(parameter.number, wanted)
        return b.Param(parameter.number, self._parameters.type_of(parameter.number))

    def _name(self, name: s.Name, _: str | None) -> b.Expr:
        if self._scope is None:
            raise sbroad(
                f"invalid expression: Reference {name.name} met under Values that is unsupported. "
                "For string literals use single quotes."
            )
        return self._scope.resolve(name.name, name.qualifier)

    def _cast(self, cast: s.Cast, _: str | None) -> b.Expr:
        if isinstance(cast.operand, s.Parameter):
            self._parameters.meet(cast.operand.number)
            self._parameters.cast(cast.operand.number, cast.type)
        return b.Cast(self.bind(cast.operand), cast.type)

    def _not(self, negation: s.Not, _: str | None) -> b.Expr:
        operand = self.bind(negation.operand, "bool")
        if operand.type not in ("bool", "unknown"):
            raise sbroad(f"argument of NOT must be type boolean, not type {operand.type}")
        return b.Not(operand)

    def _binary(self, binary: s.Binary, wanted: str | None) -> b.Expr:
        if binary.operator in ("and", "or"):
            left, right = self.bind(binary.left, "bool"), self.bind(binary.right, "bool")
            kind = "bool"
            fits = {left.type, right.type} <= {"bool", "unknown"}
        elif binary.operator in _ARITHMETIC or binary.operator == "||":
            hint = wanted if wanted in NUMERIC and binary.operator in _ARITHMETIC else None
            left, right = self.pair(binary.left, binary.right, hint)
            kind, fits = _arithmetic(binary.operator, left.type, right.type)
        else:
            left, right = self.pair(binary.left, binary.right)
            kind, fits = "bool", comparable(left.type, right.type)
        if not fits:
            raise no_overload("operator", binary.operator, (left.type, right.type))
        return b.Binary(binary.operator, left, right, kind)

    def pair(self, left: s.Expression, right: s.Expression, wanted: str | None = None) -> tuple[b.Expr, b.Expr]:
        """Two neighbours, each adapting to the other."""
        if isinstance(left, s.Row) and isinstance(right, s.Row):
            return self._rows(left, right)
        if not self._adapts(left):
            first = self.bind(left, wanted)
            return first, self.bind(right, _hint(first, wanted))
        second = self.bind(right, wanted)
        first = self.bind(left, _hint(second, wanted))
        if second.type == "unknown" and self._adapts(right):
            second = self.bind(right, _hint(first, wanted))
        return first, second

    def _rows(self, left: s.Row, right: s.Row) -> tuple[b.Expr, b.Expr]:
        lengths = len(left.items), len(right.items)
        if lengths[0] != lengths[1]:
            raise sbroad(f"unequal number of entries in row expression: {lengths[0]} and {lengths[1]}")
        pairs = [self.pair(*items) for items in zip(left.items, right.items, strict=True)]
        for first, second in pairs:
            if not comparable(first.type, second.type):
                raise no_overload("operator", "=", (first.type, second.type))
        return b.Row(tuple(p[0] for p in pairs)), b.Row(tuple(p[1] for p in pairs))

    def _adapts(self, expression: s.Expression) -> bool:
        if isinstance(expression, s.Literal):
            return expression.type in ("text", "null")
        if not isinstance(expression, s.Parameter):
            return False
        return expression.number not in self._parameters.declared

    def _is(self, test: s.Is, _: str | None) -> b.Expr:
        if test.what == "null":
            return b.IsNull(self.bind(test.operand), test.negated)
        operand = self.bind(test.operand, "bool")
        if operand.type not in ("bool", "unknown"):
            raise no_overload("operator", "=", (operand.type, "bool"))
        return b.IsBool(operand, test.what == "true", test.negated)

    def _in(self, test: s.In, _: str | None) -> b.Expr:
        if isinstance(test.items, s.Query):
            query = self._queries(test.items)
            return b.InQuery(self.bind(test.operand, query.columns[0][1]), query, test.negated)
        if isinstance(test.operand, s.Row):
            raise sbroad("IN operator for rows is not supported")
        operand = self.bind(test.operand)
        items = tuple(self.bind(item, _hint(operand, None)) for item in test.items)
        for item in items:
            if not comparable(operand.type, item.type):
                raise no_overload("operator", "=", (operand.type, item.type))
        return b.InList(operand, items, test.negated)

    def _between(self, test: s.Between, _: str | None) -> b.Expr:
        operand = self.bind(test.operand)
        low, high = (self.bind(bound, _hint(operand, None)) for bound in (test.low, test.high))
        for limit in (low, high):
            if not comparable(operand.type, limit.type):
                raise no_overload("operator", ">=", (operand.type, limit.type))
        return b.Between(operand, low, high, test.negated)

    def _like(self, test: s.Like, _: str | None) -> b.Expr:
        operand, pattern = self.bind(test.operand, "text"), self.bind(test.pattern, "text")
        escape = self.bind(test.escape, "text") if test.escape else None
        if not {operand.type, pattern.type} <= {"text", "unknown"}:
            raise no_overload("operator", "LIKE", (operand.type, pattern.type))
        return b.Like(test.operator, operand, pattern, escape)

    def _case(self, case: s.Case, wanted: str | None) -> b.Expr:
        operand = self.bind(case.operand) if case.operand else None
        condition = operand.type if operand else "bool"
        branches = tuple((self.bind(when, condition), self.bind(then, wanted)) for when, then in case.branches)
        otherwise = self.bind(case.otherwise, wanted) if case.otherwise else None
        results = [then.type for _, then in branches] + ([otherwise.type] if otherwise else [])
        return b.Case(operand, branches, otherwise, common_type("CASE/THEN", results))

    def _row(self, row: s.Row, _: str | None) -> b.Expr:
        return b.Row(tuple(self.bind(item) for item in row.items))

    def _index(self, index: s.Index, _: str | None) -> b.Expr:
        operand = self.bind(index.operand)
        key = index.index
        if operand.type != "json" or not isinstance(key, s.Literal) or key.type not in ("int", "text"):
            raise NotModelled("an index that is not a constant, or not into JSON")
        return b.Index(operand, int(key.text) if key.type == "int" else key.text)

    def _subquery(self, subquery: s.Subquery, _: str | None) -> b.Expr:
        query = self._queries(subquery.query)
        if len(query.columns) != 1:
            raise sbroad("subquery must return only one column")
        return b.Scalar(query, query.columns[0][1])

    def _exists(self, exists: s.Exists, _: str | None) -> b.Expr:
        return b.Exists(self._queries(exists.query))

    def _currenttime(self, time: s.CurrentTime, _: str | None) -> b.Expr:
        if time.kind in ("current_time", "localtime"):
            raise NotModelled(time.kind.upper())
        return b.Now(time.kind)

    def _call(self, call: s.Call, wanted: str | None) -> b.Expr:
        types = wanted_types(call.name, len(call.arguments))
        if call.name == "coalesce":
            types = (wanted,) * len(call.arguments)
        if call.name == "_pico_bucket" and self._filtering:
            raise sbroad("volatile function is not allowed in filter clause not implemented")
        arguments = tuple(self.bind(a, t) for a, t in zip(call.arguments, types, strict=True))
        kind = result_type(call.name, [argument.type for argument in arguments], self._parameters.accent)
        window = self._window(call.over) if call.over else None
        if call.name in WINDOW_ONLY and window is None:
            raise NotModelled(f"{call.name} without OVER")
        aggregate = call.name in AGGREGATES and window is None
        return b.Call(call.name, arguments, kind, aggregate, call.star, call.distinct, window)

    def _window(self, window: s.Window) -> b.Window:
        partition = tuple(self.bind(item) for item in window.partition)
        return b.Window(partition, self.order(window.order))

    def order(self, items: Sequence[s.OrderItem]) -> tuple[b.OrderItem, ...]:
        """The elements of ORDER BY; NULL is the least value."""
        return tuple(
            b.OrderItem(
                self.bind(i.expression),
                i.descending,
                not i.descending if i.nulls_first is None else i.nulls_first,
            )
            for i in items
        )


def comparable(left: str, right: str) -> bool:
    """Whether Picodata compares values of these types."""
    return left == right or "unknown" in (left, right) or (left in NUMERIC and right in NUMERIC)


def _hint(neighbour: b.Expr, otherwise: str | None) -> str | None:
    return neighbour.type if neighbour.type not in ("unknown", "row", "json") else otherwise


def _arithmetic(operator: str, left: str, right: str) -> tuple[str, bool]:
    if operator == "||":
        return "text", {left, right} <= {"text", "unknown"}
    known = [kind for kind in (left, right) if kind != "unknown"]
    if not all(kind in NUMERIC for kind in known):
        return "unknown", False
    return (max(known, key=NUMERIC.index) if known else "unknown"), True


def _number(literal: s.Literal) -> b.Const:
    if literal.type == "double":
        return b.Const(float(literal.text), "double")
    if literal.type == "decimal":
        return b.Const(parse_decimal(literal.text), "decimal")
    value = parse_int(literal.text)
    if value is None:
        raise sbroad(f"invalid query: value doesn't fit into integer range: {literal.text}")
    return b.Const(value, "int")
