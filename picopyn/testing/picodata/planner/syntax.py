"""The shapes a statement can have after parsing: names and types are not looked up yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant as written; `type` is `"int"`, `"decimal"`, `"double"`, `"text"`, `"bool"` or `"null"`."""

    text: str
    type: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$n` or the n-th `?`; `number` counts from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Name:
    """A column name, perhaps qualified."""

    name: str
    qualifier: str | None = None


@dataclass(frozen=True, slots=True)
class Star:
    """`*` or `t.*` in a projection."""

    qualifier: str | None = None


@dataclass(frozen=True, slots=True)
class OrderItem:
    """One element of ORDER BY; `nulls_first` None means as the direction implies."""

    expression: Expression
    descending: bool = False
    nulls_first: bool | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What stands after OVER."""

    partition: tuple[Expression, ...] = ()
    order: tuple[OrderItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A function call; `star` for `count(*)`."""

    name: str
    arguments: tuple[Expression, ...] = ()
    star: bool = False
    distinct: bool = False
    over: Window | None = None


@dataclass(frozen=True, slots=True)
class CurrentTime:
    """`CURRENT_DATE`, `CURRENT_TIMESTAMP` …; `kind` in lower case."""

    kind: str


@dataclass(frozen=True, slots=True)
class Cast:
    """`x::T` or `CAST(x AS T)`; `type` is a planner type name."""

    operand: Expression
    type: str


@dataclass(frozen=True, slots=True)
class Not:
    """NOT x."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """An infix operator: `and or = <> < <= > >= + - * / % ||`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Is:
    """`x IS [NOT] NULL|TRUE|FALSE|UNKNOWN`; `what` in lower case, UNKNOWN as `"null"`."""

    operand: Expression
    what: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    """`x [NOT] IN (…)`: a list or a query."""

    operand: Expression
    items: tuple[Expression, ...] | Query
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Between:
    """`x [NOT] BETWEEN low AND high`."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """`x LIKE pattern [ESCAPE c]`; `operator` is `"like"` or `"ilike"`."""

    operand: Expression
    pattern: Expression
    escape: Expression | None = None
    operator: str = "like"


@dataclass(frozen=True, slots=True)
class Case:
    """CASE with or without an operand."""

    operand: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None


@dataclass(frozen=True, slots=True)
class Row:
    """`(a, b, …)`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """`x[i]`."""

    operand: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Subquery:
    """`(SELECT …)` as a value."""

    query: Query


@dataclass(frozen=True, slots=True)
class Exists:
    """`EXISTS (SELECT …)`."""

    query: Query


Expression = (
    Literal
    | Parameter
    | Name
    | Star
    | Call
    | CurrentTime
    | Cast
    | Not
    | Binary
    | Is
    | In
    | Between
    | Like
    | Case
    | Row
    | Index
    | Subquery
    | Exists
)


@dataclass(frozen=True, slots=True)
class Item:
    """One element of a projection."""

    expression: Expression
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table or CTE in FROM."""

    name: str
    alias: str | None = None
    indexed_by: str | None = None


@dataclass(frozen=True, slots=True)
class QueryRef:
    """A query in FROM."""

    query: Query
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """`left [LEFT] JOIN right ON condition`."""

    left: Source
    right: Source
    condition: Expression
    outer: bool = False


Source = TableRef | QueryRef | Join


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT without ORDER BY, LIMIT and WITH."""

    items: tuple[Item, ...]
    source: Source | None = None
    where: Expression | None = None
    group_by: tuple[Expression, ...] = ()
    having: Expression | None = None
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """VALUES rows."""

    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    """`left UNION|UNION ALL|EXCEPT right`; `operator` is `"union"`, `"union all"` or `"except"`."""

    operator: str
    left: Body
    right: Body


Body = Select | Values | SetOperation


@dataclass(frozen=True, slots=True)
class Cte:
    """One common table expression."""

    name: str
    columns: tuple[str, ...]
    query: Query


@dataclass(frozen=True, slots=True)
class Query:
    """A whole query."""

    body: Body
    ctes: tuple[Cte, ...] = ()
    order_by: tuple[OrderItem, ...] = ()
    limit: int | None = None


Options = Mapping[str, "int | str | Parameter"]


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """A query as a statement."""

    query: Query
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT; `on_conflict` is `"fail"`, `"nothing"` or `"replace"`."""

    table: str
    columns: tuple[str, ...] | None
    source: Query
    on_conflict: str = "fail"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE; `source` for the FROM clause."""

    table: str
    assignments: tuple[tuple[str, Expression], ...]
    where: Expression | None = None
    source: Source | None = None
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE."""

    table: str
    where: Expression | None = None
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN; `facets` is what of the plan is wanted: `"logical"`, `"buckets"`."""

    statement: Dml
    facets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Block:
    """DO $$ BEGIN … END $$."""

    statements: tuple[Dml, ...]


Dml = SelectStatement | Insert | Update | Delete
