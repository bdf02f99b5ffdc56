"""What Picodata computes while planning, once the values are bound: casts, comparisons of constants, AND, OR,
NOT.

Arithmetic, functions and CASE stay as they are. *Source*: `id = 1 + 1` names all buckets, `id = 1 OR false`
one (recorded on 26.1.6); the head of `key-probe.md`; Picodata's `constant_folding.rs` and
`cast_constants.rs`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.literals import cast_value
from picopyn.testing.picodata.planner.statement import Value

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_TRUE, _FALSE = b.Const(True, "bool"), b.Const(False, "bool")


def fold(expression: b.Expr, values: Sequence[Value]) -> b.Expr:
    """The expression with its parameters bound and all computed that Picodata computes while planning."""
    if isinstance(expression, b.Param):
        return b.Const(values[expression.number - 1], expression.type)
    if isinstance(expression, b.Cast):
        return _cast(replace(expression, operand=fold(expression.operand, values)))
    if isinstance(expression, b.Row):
        return b.Row(tuple(fold(item, values) for item in expression.items))
    if isinstance(expression, b.Binary):
        return _binary(expression, fold(expression.left, values), fold(expression.right, values))
    if isinstance(expression, b.Not):
        return negated(fold(expression.operand, values))
    return _tests(expression, values)


def _tests(expression: b.Expr, values: Sequence[Value]) -> b.Expr:
    if isinstance(expression, b.IsNull):
        operand = fold(expression.operand, values)
        if isinstance(operand, b.Const):
            return b.Const((operand.value is None) != expression.negated, "bool")
        return replace(expression, operand=operand)
    if isinstance(expression, b.IsBool):
        equation = _binary(_equation(), fold(expression.operand, values), b.Const(expression.value, "bool"))
        return negated(equation) if expression.negated else equation
    if isinstance(expression, b.InList):
        return _in(expression, values)
    if isinstance(expression, b.Between):
        operand = fold(expression.operand, values)
        low = _binary(_equation(">="), operand, fold(expression.low, values))
        both = _binary(_equation("and"), low, _binary(_equation("<="), operand, fold(expression.high, values)))
        return negated(both) if expression.negated else both
    return expression


def _equation(sign: str = "=") -> b.Binary:
    return b.Binary(sign, _TRUE, _TRUE, "bool")


def _in(test: b.InList, values: Sequence[Value]) -> b.Expr:
    operand = fold(test.operand, values)
    found: b.Expr = _FALSE
    for item in test.items:
        found = _binary(_equation("or"), found, _binary(_equation(), operand, fold(item, values)))
    return negated(found) if test.negated else found


def _cast(cast: b.Cast) -> b.Expr:
    if isinstance(cast.operand, b.Const):
        done, value = cast_value(cast.operand.value, cast.type)
        if done:
            return b.Const(value, cast.type)
    return cast


def _binary(shape: b.Binary, left: b.Expr, right: b.Expr) -> b.Expr:
    sign = shape.operator
    if sign in ("and", "or"):
        return _junction(sign, left, right)
    if sign in _COMPARE and isinstance(left, b.Const) and isinstance(right, b.Const):
        if left.value is None or right.value is None:
            return b.Const(None, "bool")
        return b.Const(_COMPARE[sign](left.value, right.value), "bool")
    if sign == "=" and isinstance(left, b.Row) and isinstance(right, b.Row):
        found: b.Expr = _TRUE
        for pair in zip(left.items, right.items, strict=True):
            found = _junction("and", found, _binary(_equation(), *pair))
        return found
    return replace(shape, left=left, right=right)


def _junction(sign: str, left: b.Expr, right: b.Expr) -> b.Expr:
    decides, vanishes = (False, True) if sign == "and" else (True, False)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, b.Const) and one.value is decides:
            return one
        if isinstance(one, b.Const) and one.value is vanishes:
            return other
    if isinstance(left, b.Const) and isinstance(right, b.Const):
        return b.Const(None, "bool")
    return b.Binary(sign, left, right, "bool")


def negated(expression: b.Expr) -> b.Expr:
    """NOT, moved down to the comparisons as Picodata does."""
    if isinstance(expression, b.Const):
        return b.Const(None if expression.value is None else not expression.value, "bool")
    if isinstance(expression, b.Not):
        return expression.operand
    if isinstance(expression, b.Binary) and expression.operator in ("and", "or"):
        sign = "or" if expression.operator == "and" else "and"
        return _junction(sign, negated(expression.left), negated(expression.right))
    if isinstance(expression, b.Binary) and expression.operator in _OPPOSITE:
        return replace(expression, operator=_OPPOSITE[expression.operator])
    if isinstance(expression, b.IsNull):
        return replace(expression, negated=not expression.negated)
    return b.Not(expression)
