"""The shapes of a statement after names and types were looked up: what buckets, EXPLAIN and storage text are
made from.

Types are the planner's names (`catalog.TYPE_OIDS`); `"unknown"` is the type of NULL.
"""

from __future__ import annotations

from dataclasses import dataclass

from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.statement import Value

#: The relation number of references to a query's own output columns (ORDER BY).
OUTPUT = 0


@dataclass(frozen=True, slots=True)
class Const:
    """A value known from the text, or a parameter after binding."""

    value: Value
    type: str


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter; `type` is the type under which the server takes it."""

    number: int
    type: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation.

    Attributes:
        relation: Number of the relation inside the statement; `OUTPUT` for the query's own output.
        position: Place among the relation's columns from 0; -1 for `bucket_id`.
        name: Column name.
        type: Planner type.
        label: Name under which the relation is visible, for EXPLAIN and storage text.
    """

    relation: int
    position: int
    name: str
    type: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast that is written in the text."""

    operand: Expr
    type: str


@dataclass(frozen=True, slots=True)
class Not:
    """NOT."""

    operand: Expr
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class Binary:
    """An infix operator."""

    operator: str
    left: Expr
    right: Expr
    type: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """IS [NOT] NULL."""

    operand: Expr
    negated: bool
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class IsBool:
    """IS [NOT] TRUE or FALSE; Picodata plans it as an equation."""

    operand: Expr
    value: bool
    negated: bool
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class InList:
    """[NOT] IN with a list."""

    operand: Expr
    items: tuple[Expr, ...]
    negated: bool
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class InQuery:
    """[NOT] IN with a query."""

    operand: Expr
    query: Query
    negated: bool
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class Between:
    """[NOT] BETWEEN."""

    operand: Expr
    low: Expr
    high: Expr
    negated: bool
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class Like:
    """LIKE or ILIKE."""

    operator: str
    operand: Expr
    pattern: Expr
    escape: Expr | None
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class Case:
    """CASE."""

    operand: Expr | None
    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr | None
    type: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of values."""

    items: tuple[Expr, ...]
    type: str = "row"


@dataclass(frozen=True, slots=True)
class Index:
    """An element of a JSON value; `key` is a 1-based number or a name."""

    operand: Expr
    key: int | str
    type: str = "json"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A query as a value."""

    query: Query
    type: str


@dataclass(frozen=True, slots=True)
class Exists:
    """EXISTS."""

    query: Query
    type: str = "bool"


@dataclass(frozen=True, slots=True)
class Now:
    """CURRENT_DATE and its like."""

    kind: str
    type: str = "datetime"


@dataclass(frozen=True, slots=True)
class OrderItem:
    """One element of ORDER BY."""

    expression: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Window:
    """OVER (…)."""

    partition: tuple[Expr, ...]
    order: tuple[OrderItem, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function, aggregate or window function."""

    name: str
    arguments: tuple[Expr, ...]
    type: str
    aggregate: bool = False
    star: bool = False
    distinct: bool = False
    over: Window | None = None


Expr = (
    Const
    | Param
    | Column
    | Cast
    | Not
    | Binary
    | IsNull
    | IsBool
    | InList
    | InQuery
    | Between
    | Like
    | Case
    | Row
    | Index
    | Scalar
    | Exists
    | Now
    | Call
)


@dataclass(frozen=True, slots=True)
class Base:
    """A table in FROM, or the target of UPDATE and DELETE."""

    number: int
    table: Table
    label: str
    aliased: bool = False


@dataclass(frozen=True, slots=True)
class Derived:
    """A query or CTE in FROM."""

    number: int
    query: Query
    label: str
    columns: tuple[tuple[str, str], ...]
    cte: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Two sources; `outer` for LEFT JOIN."""

    left: Source
    right: Source
    condition: Expr
    outer: bool


Source = Base | Derived | Join


@dataclass(frozen=True, slots=True)
class Item:
    """An output column of a SELECT."""

    expression: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT; `aggregated` when it has GROUP BY, HAVING or an aggregate."""

    items: tuple[Item, ...]
    source: Source | None
    where: Expr | None
    group_by: tuple[Expr, ...]
    having: Expr | None
    distinct: bool
    aggregated: bool
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """VALUES rows."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    """UNION, UNION ALL, EXCEPT."""

    operator: str
    left: Body
    right: Body


Body = Select | Values | SetOperation


@dataclass(frozen=True, slots=True)
class Query:
    """A query with its output columns (name, type)."""

    body: Body
    columns: tuple[tuple[str, str], ...]
    order_by: tuple[OrderItem, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT; `positions` says for each source column which table column it fills."""

    table: Table
    positions: tuple[int, ...]
    source: Query
    on_conflict: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE of one table."""

    target: Base
    assignments: tuple[tuple[str, Expr], ...]
    where: Expr | None


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE."""

    target: Base
    where: Expr | None


Plan = Query | Insert | Update | Delete
