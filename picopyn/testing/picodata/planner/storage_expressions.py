"""PostgreSQL text for expressions. It knows no values: parameters stay, numbered as they are met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.catalog import BUCKET_ID, Table
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.functions import INSTANCE_FUNCTIONS
from picopyn.testing.picodata.planner.storage_names import STORAGE_TYPES, quoted, relation

_COMMA = "','"
_SIMPLE = frozenset({"lower", "upper", "substr", "abs", "coalesce", "count", "sum", "min", "max", "row_number"})


class ExpressionText:
    """Writes expressions; queries inside them are written by the subclass.

    Attributes:
        numbers: The statement's parameters in the order of the text's `$1`, `$2`, ….
        tables: The tables behind relation numbers; relations without one are queries.
        offsets: Whether the storage keeps the offsets of datetimes.
    """

    def __init__(self, offsets: bool = False) -> None:
        self.offsets = offsets
        self.numbers: list[int] = []
        self.tables: dict[int, Table] = {}

    def query(self, query: b.Query, outermost: bool = True) -> str:
        """A query."""
        raise NotImplementedError

    def expression(self, expression: b.Expr) -> str:
        """Any expression."""
        method: Callable[[b.Expr], str] = getattr(self, f"_{type(expression).__name__.lower()}")
        return method(expression)

    def listed(self, expressions: Iterable[b.Expr]) -> str:
        """Expressions with commas."""
        return ", ".join(self.expression(expression) for expression in expressions)

    def ordered(self, item: b.OrderItem, text: str) -> str:
        """An element of ORDER BY whose expression has this text."""
        return f"{text} {'DESC' if item.descending else 'ASC'} NULLS {'FIRST' if item.nulls_first else 'LAST'}"

    def _const(self, const: b.Const) -> str:
        if const.value is None:
            return f"NULL::{STORAGE_TYPES[const.type]}" if const.type in STORAGE_TYPES else "NULL"
        if isinstance(const.value, bool):
            return str(const.value).lower()
        value = const.value.isoformat() if isinstance(const.value, datetime) else str(const.value)
        return f"'{value.replace(chr(39), chr(39) * 2)}'::{STORAGE_TYPES[const.type]}"

    def _param(self, param: b.Param) -> str:
        if param.number not in self.numbers:
            self.numbers.append(param.number)
        return f"${self.numbers.index(param.number) + 1}::{STORAGE_TYPES.get(param.type, 'text')}"

    def _column(self, column: b.Column) -> str:
        if column.relation == b.OUTPUT:
            raise NotModelled("ORDER BY an expression over output columns")
        if column.relation not in self.tables:
            return f"r{column.relation}.c{column.position}"
        return f"r{column.relation}.{quoted(column.name if column.position >= 0 else BUCKET_ID)}"

    def _cast(self, cast: b.Cast) -> str:
        text, source = self.expression(cast.operand), cast.operand.type
        if source == "json" and cast.type == "text":
            return f"({text} #>> '{{}}')"
        if cast.type == "int" and source in ("decimal", "double"):
            text = f"{'floor' if source == 'decimal' else 'trunc'}({text})"
        return f"CAST({text} AS {STORAGE_TYPES[cast.type]})"

    def _not(self, negation: b.Not) -> str:
        return f"(NOT {self.expression(negation.operand)})"

    def _binary(self, binary: b.Binary) -> str:
        operator = binary.operator.upper()
        return f"({self.expression(binary.left)} {operator} {self.expression(binary.right)})"

    def _isnull(self, test: b.IsNull) -> str:
        return f"({self.expression(test.operand)} IS {'NOT ' * test.negated}NULL)"

    def _isbool(self, test: b.IsBool) -> str:
        return f"({self.expression(test.operand)} IS {'NOT ' * test.negated}{str(test.value).upper()})"

    def _inlist(self, test: b.InList) -> str:
        items = self.listed(test.items)
        return f"({self.expression(test.operand)} {'NOT ' * test.negated}IN ({items}))"

    def _inquery(self, test: b.InQuery) -> str:
        inner = self.query(test.query, outermost=False)
        return f"({self.expression(test.operand)} {'NOT ' * test.negated}IN ({inner}))"

    def _between(self, test: b.Between) -> str:
        operand, low, high = (self.expression(e) for e in (test.operand, test.low, test.high))
        return f"({operand} {'NOT ' * test.negated}BETWEEN {low} AND {high})"

    def _like(self, like: b.Like) -> str:
        text = f"{self.expression(like.operand)} {like.operator.upper()} {self.expression(like.pattern)}"
        return f"({text} ESCAPE {self.expression(like.escape)})" if like.escape else f"({text})"

    def _case(self, case: b.Case) -> str:
        parts = ["CASE"] if case.operand is None else ["CASE", self.expression(case.operand)]
        for condition, result in case.branches:
            parts.append(f"WHEN {self.expression(condition)} THEN {self.expression(result)}")
        if case.otherwise is not None:
            parts.append(f"ELSE {self.expression(case.otherwise)}")
        return " ".join([*parts, "END"])

    def _row(self, row: b.Row) -> str:
        return f"ROW({self.listed(row.items)})"

    def _index(self, index: b.Index) -> str:
        operand = self.expression(index.operand)
        if isinstance(index.key, str):
            return f"({operand} -> '{index.key.replace(chr(39), chr(39) * 2)}')"
        return f"({operand} -> {index.key - 1})" if index.key > 0 else "NULL::json"

    def _scalar(self, scalar: b.Scalar) -> str:
        return f"({self.query(scalar.query, outermost=False)})"

    def _exists(self, exists: b.Exists) -> str:
        return f"EXISTS ({self.query(exists.query, outermost=False)})"

    def _now(self, now: b.Now) -> str:
        return "date_trunc('day', now())" if now.kind == "current_date" else "now()"

    def _call(self, call: b.Call) -> str:
        text = self._called(call)
        return text if call.over is None else f"{text} OVER ({self._window(call.over)})"

    def _window(self, window: b.Window) -> str:
        parts = []
        if window.partition:
            parts.append(f"PARTITION BY {self.listed(window.partition)}")
        if window.order:
            items = (self.ordered(item, self.expression(item.expression)) for item in window.order)
            parts.append(f"ORDER BY {', '.join(items)}")
        return " ".join(parts)

    def _called(self, call: b.Call) -> str:
        arguments = "*" if call.star else "DISTINCT " * call.distinct + self.listed(call.arguments)
        if call.name in INSTANCE_FUNCTIONS:
            return f"{relation(call.name)}({arguments})"
        if call.name in _SIMPLE:
            return f"{call.name}({arguments})"
        if call.name == "avg":
            return f"trim_scale(avg({arguments}))" if call.type == "decimal" else f"avg({arguments})::double precision"
        if call.name == "total":
            return f"coalesce(sum({arguments}), 0)::double precision"
        if call.name in ("group_concat", "string_agg"):
            joined, *separator = [self.expression(argument) for argument in call.arguments]
            return f"string_agg({joined}::text, {(separator or [_COMMA])[0]})"
        raise NotModelled(f"running the function {call.name}")
