"""Walks over bound expressions and queries: what they contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from picopyn.testing.picodata.planner import bound as b

_NODES = (
    b.Const, b.Param, b.Column, b.Cast, b.Not, b.Binary, b.IsNull, b.IsBool, b.InList, b.InQuery, b.Between,
    b.Like, b.Case, b.Row, b.Index, b.Scalar, b.Exists, b.Now, b.Call,
)  # fmt: skip


def children(expression: b.Expr) -> Iterator[b.Expr]:
    """The expressions directly inside one; queries inside are not entered."""
    for entry in fields(expression):
        yield from _expressions_in(getattr(expression, entry.name))


def _expressions_in(value: object) -> Iterator[b.Expr]:
    if isinstance(value, _NODES):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _expressions_in(item)
    elif isinstance(value, b.OrderItem):
        yield value.expression
    elif isinstance(value, b.Window):
        yield from _expressions_in(value.partition)
        yield from _expressions_in(value.order)


def nodes(expression: b.Expr) -> Iterator[b.Expr]:
    """The expression and everything inside it, queries not entered."""
    yield expression
    for child in children(expression):
        yield from nodes(child)


def calls_in(expression: b.Expr) -> list[b.Call]:
    """Every function call in an expression."""
    return [node for node in nodes(expression) if isinstance(node, b.Call)]


def queries_in(expression: b.Expr) -> list[b.Query]:
    """The queries standing in an expression, not those inside them."""
    return [node.query for node in nodes(expression) if isinstance(node, b.InQuery | b.Scalar | b.Exists)]
