"""The rows of an INSERT and what else only bound values tell the storage: buckets and offsets.

It computes what needs no storage: constants, parameters and casts of them; rows with other expressions come
from the storage. A row's bucket follows the values as they were given, before they become the columns' types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.buckets import changes_key, key_positions
from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.literals import PARSERS, cast_value
from picopyn.testing.picodata.planner.statement import Rows, Value
from picopyn.testing.picodata.planner.storage_text import offset_assignments
from picopyn.testing.picodata.planner.values import stored_datetime

Hash = Callable[[Sequence[Value]], int]


def computable(expression: b.Expr) -> bool:
    """Whether the value needs no storage."""
    if isinstance(expression, b.Cast):
        return computable(expression.operand)
    return isinstance(expression, b.Const | b.Param)


def needs_storage(insert: b.Insert) -> bool:
    """Whether the rows of an INSERT must be computed by the storage."""
    body = insert.source.body
    return not isinstance(body, b.Values) or not all(computable(value) for row in body.rows for value in row)


def evaluate(expression: b.Expr, values: Sequence[Value]) -> Value:
    """The value of a computable expression."""
    if isinstance(expression, b.Const):
        return expression.value
    if isinstance(expression, b.Param):
        return values[expression.number - 1]
    assert isinstance(expression, b.Cast)
    value = evaluate(expression.operand, values)
    done, result = cast_value(value, expression.type)
    if not done and isinstance(value, str):
        result = PARSERS[expression.type](value)
        done = result is not None
    if not done and expression.type == "text" and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)
    if not done:
        raise NotModelled(f"a cast of this value to {expression.type}")
    return result


def rows_of(insert: b.Insert, values: Sequence[Value], source: Sequence[Sequence[Any]] | None, hash_key: Hash) -> Rows:
    """The rows with their buckets."""
    if source is None:
        body = insert.source.body
        assert isinstance(body, b.Values)
        source = [[evaluate(expression, values) for expression in row] for row in body.rows]
    return [_row(insert, row, hash_key) for row in source]


def _row(insert: b.Insert, given: Sequence[Any], hash_key: Hash) -> tuple[int | None, tuple[Value, ...]]:
    table = insert.table
    row: list[Any] = [None] * len(table.columns)
    for position, value in zip(insert.positions, given, strict=True):
        kind = table.columns[position].type
        row[position] = stored_datetime(value) if kind == "datetime" and isinstance(value, str) else value
    bucket = hash_key([row[position] for position in key_positions(table)]) if table.sharded else None
    return bucket, tuple(_stored(value, column.type) for value, column in zip(row, table.columns, strict=True))


def _stored(value: Any, kind: str) -> Value:
    """The value as the column keeps it."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    if kind == "decimal":
        return value if isinstance(value, Decimal) else Decimal(str(value))
    if kind == "double":
        return float(value)
    if kind == "int" and value != int(value):
        raise NotModelled("storing a number with a fraction in a column of integers")
    return int(value)


def insert_arguments(table: Table, bucket: int | None, row: Sequence[Value], offsets: bool) -> list[Any]:
    """The storage's arguments for one row, in the order of `storage_text.insert_columns`."""
    arguments: list[Any] = [*row, bucket] if table.sharded else list(row)
    if offsets:
        pairs = zip(row, table.columns, strict=True)
        arguments += [offset_of(value) for value, column in pairs if column.type == "datetime"]
    return arguments


def offset_of(value: Value) -> int | None:
    """Minutes east of UTC of a datetime."""
    if not isinstance(value, datetime):
        return None
    return (value.utcoffset() or timedelta()) // timedelta(minutes=1)


def check_key_change(update: b.Update) -> None:
    """An UPDATE of the sharding key is only run when the new key is given as a whole.

    Raises:
        NotModelled: A part of the new key depends on stored rows.
    """
    if not changes_key(update):
        return
    given = {name for name, value in update.assignments if computable(value)}
    if not set(update.target.table.distribution or ()) <= given:
        raise NotModelled("UPDATE of a part of the sharding key, or by an expression over stored values")


def update_arguments(update: b.Update, values: Sequence[Value], hash_key: Hash, offsets: bool) -> list[Any]:
    """The arguments of `storage_text.extra_columns`."""
    extra: list[Any] = []
    if offsets:
        for _, value in offset_assignments(update):
            extra.append(offset_of(evaluate(value, values)) if computable(value) else None)
    if changes_key(update):
        given = dict(update.assignments)
        key = [evaluate(given[name], values) for name in update.target.table.distribution or ()]
        extra.append(hash_key(key))
    return extra
