"""The lines of EXPLAIN as 26.1 prints them: a tree indented by four blanks, the options, and the buckets.

Column names, the number of lines of the common forms and the last line are as recorded; the tree of rarer
forms is only alike. *Source*: recorded EXPLAINs on 26.1.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.accent import Accent
from picopyn.testing.picodata.planner.folding import fold
from picopyn.testing.picodata.planner.statement import Buckets, Value

_TYPES = {"text": "string", "json": "any"}
_FULL = "motion [policy: full, program: ReshardIfNeeded]"


def explain_lines(
    plan: b.Plan, values: Sequence[Value], buckets: Buckets, own_count: int, options: Mapping[str, int | str]
) -> list[str]:
    """All lines.

    Args:
        plan: What is explained.
        values: Its parameters.
        buckets: Its buckets.
        own_count: Number of buckets of the asked instance's own tier: an answer "every bucket" counts
            those (recorded).
        options: Options of the statement and of the connection.
    """
    opcodes, rows = options.get("sql_vdbe_opcode_max", 45000), options.get("sql_motion_row_max", 5000)
    return [
        *Tree(values).plan(plan),
        "execution options:",
        f"    sql_vdbe_opcode_max = {opcodes}",
        f"    sql_motion_row_max = {rows}",
        buckets_line(buckets, own_count),
    ]


def shown_buckets(plan: b.Plan, buckets: Buckets, accent: Accent) -> Buckets:
    """What EXPLAIN says of the buckets that take part.

    *Source*: recorded plans: 25.6 knows those of an INSERT … VALUES only while running; 26.2 calls all buckets an upper
    bound, also where 26.1 says that it does not know.
    """
    values = isinstance(plan, b.Insert) and isinstance(plan.source.body, b.Values) and plan.table.sharded
    if accent.before_26_1 and values:
        return Buckets("unknown")
    if accent.since_26_2 and (buckets.scope == "unknown" or buckets.numbers is None):
        return Buckets("at_most", None)
    return buckets


def buckets_line(buckets: Buckets, own_count: int) -> str:
    """The last line."""
    if buckets.scope in ("any", "unknown"):
        return f"buckets = {buckets.scope}"
    sign = "<=" if buckets.scope == "at_most" else "="
    if buckets.numbers is None:
        return f"buckets {sign} [1-{own_count}]"
    return f"buckets {sign} [{','.join(_runs(sorted(buckets.numbers)))}]"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    start = previous = None
    for number in numbers:
        if previous is not None and number == previous + 1:
            previous = number
            continue
        if start is not None:
            yield _run(start, previous)
        start = previous = number
    if start is not None:
        yield _run(start, previous)


def _run(first: int, last: int | None) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _indented(lines: Iterable[str]) -> list[str]:
    return ["    " + line for line in lines]


class Tree:
    """Prints one plan with its values bound; what other versions print differently are methods of their own."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        self._subqueries: list[list[str]] = []

    def plan(self, plan: b.Plan) -> list[str]:
        """The lines of the tree."""
        if isinstance(plan, b.Insert):
            lines = self._insert(plan)
        elif isinstance(plan, b.Update):
            lines = self._update(plan)
        elif isinstance(plan, b.Delete):
            lines = self._delete(plan)
        else:
            lines = self._query(plan)
        for number, subquery in enumerate(self._subqueries):
            lines += [f"subquery ${number}:", *subquery]
        return lines

    def _query(self, query: b.Query) -> list[str]:
        lines = self._body(query.body)
        if query.order_by:
            quoted = self._name
            names = ", ".join(f"{quoted(name)}::{_type(kind)} -> {quoted(name)}" for name, kind in query.columns)
            order = ", ".join(self._text(item.expression) + " desc" * item.descending for item in query.order_by)
            lines = [
                f"projection ({names})",
                *_indented([f"order by ({order})", "    scan", *_indented(_indented(lines))]),
            ]
        if query.limit is not None:
            lines = [f"limit {query.limit}", *_indented(lines)]
        return lines

    def _body(self, body: b.Body) -> list[str]:
        if isinstance(body, b.Select):
            return self._select(body)
        if isinstance(body, b.Values):
            return ["values", *_indented(self._values_row(row) for row in body.rows)]
        return [body.operator, *_indented([*self._body(body.left), *self._body(body.right)])]

    def _values_row(self, row: Sequence[b.Expr]) -> str:
        return f"value row (data={self._row(row)})"

    def _row(self, row: Sequence[b.Expr]) -> str:
        return f"ROW({', '.join(self._text(item) for item in row)})"

    def _select(self, select: b.Select) -> list[str]:
        items = ", ".join(f"{self._text(item.expression)} -> {self._name(item.name)}" for item in select.items)
        below = self._source(select.source) if select.source else []
        if select.where is not None:
            below = [f"selection {self._filter(select.where)}", *_indented(below)]
        if select.group_by:
            below = [f"group by ({', '.join(self._text(e) for e in select.group_by)})", *_indented(below)]
        if select.having is not None:
            below = [f"having {self._text(select.having)}", *_indented(below)]
        return [f"projection ({items})", *_indented(below)]

    def _source(self, source: b.Source) -> list[str]:
        if isinstance(source, b.Base):
            return [f"scan {self._name(source.table.name)}" + f" -> {self._name(source.label)}" * source.aliased]
        if isinstance(source, b.Join):
            kind = "left join" if source.outer else "join"
            sides = [*self._source(source.left), *self._source(source.right)]
            return [f"{kind} on {self._filter(source.condition)}", *_indented(sides)]
        if source.cte:
            self._subqueries.append(self._query(source.query))
            return [f"scan cte {source.label}(${len(self._subqueries) - 1})"]
        name = f"scan {self._name(source.label)}" if source.label else "scan"
        return [name, *_indented(self._query(source.query))]

    def _insert(self, insert: b.Insert) -> list[str]:
        head = self._insert_head(insert)
        names = [name for name, _ in insert.source.columns]
        below = self._query(insert.source)
        if not insert.table.sharded:
            return [head, *_indented([_FULL, *_indented(below)])]
        key = [names[p] if p is not None else "NULL" for p in _sources_of_key(insert)]
        segment = ", ".join(f'ref("{name}")' for name in key)
        motion = f"motion [policy: segment([{segment}]), program: ReshardIfNeeded]"
        return [head, *_indented([motion, *_indented(below)])]

    def _update(self, update: b.Update) -> list[str]:
        table = update.target.table
        items = [self._text(value) for _, value in update.assignments]
        items += [self._reference(update.target, name) for name in table.primary_key]
        projection = ", ".join(f"{item} -> {self._name(f'col_{at}')}" for at, item in enumerate(items))
        below = self._changed(update.target, update.where)
        policy = "motion [policy: local, program: ReshardIfNeeded]" if table.sharded else _FULL
        return [
            *self._update_head(update),
            *_indented([policy, *_indented([f"projection ({projection})", *_indented(below)])]),
        ]

    def _delete(self, delete: b.Delete) -> list[str]:
        table = delete.target.table
        head = self._delete_head(table.name)
        if delete.where is None:
            return [head]
        keys = (
            f"{self._reference(delete.target, name)} -> {self._name(f'pk_col_{at}')}"
            for at, name in enumerate(table.primary_key)
        )
        primary = ", ".join(f"PrimaryKey({at})" for at in range(len(table.primary_key)))
        policy = f"motion [policy: local, program: [{primary}, ReshardIfNeeded]]" if table.sharded else _FULL
        below = self._changed(delete.target, delete.where)
        return [
            head,
            *_indented([policy, *_indented([f"projection ({', '.join(keys)})", *_indented(below)])]),
        ]

    def _insert_head(self, insert: b.Insert) -> str:
        return f"insert {self._name(insert.table.name)} on conflict: {insert.on_conflict}"

    def _update_head(self, update: b.Update) -> list[str]:
        sets = (f"{self._name(name)} = {self._name(f'col_{at}')}" for at, (name, _) in enumerate(update.assignments))
        return [f"update {self._name(update.target.table.name)}", *sets]

    def _delete_head(self, table: str) -> str:
        return f"delete {self._name(table)}"

    def _reference(self, target: b.Base, name: str) -> str:
        column = target.table.column(name)
        kind = _type(column.type if column else "unknown")
        return f"{self._name(target.table.name)}.{self._name(name)}::{kind}"

    def _name(self, name: str) -> str:
        return f'"{name}"'

    def _changed(self, target: b.Base, where: b.Expr | None) -> list[str]:
        scan = [f"scan {self._name(target.table.name)}"]
        return scan if where is None else [f"selection {self._filter(where)}", *_indented(scan)]

    def _filter(self, expression: b.Expr) -> str:
        folded = fold(expression, self._values)
        return self._text(folded if isinstance(folded, b.Const) else expression)

    def _text(self, expression: b.Expr) -> str:
        if isinstance(expression, b.Const):
            return constant(expression.value, expression.type)
        if isinstance(expression, b.Param):
            value = self._values[expression.number - 1] if expression.number <= len(self._values) else None
            return constant(value, expression.type)
        if isinstance(expression, b.Column):
            label = f"{self._name(expression.label)}." if expression.label else ""
            return f"{label}{self._name(expression.name)}::{_type(expression.type)}"
        if isinstance(expression, b.Binary):
            return self._binary(expression)
        if isinstance(expression, b.Cast):
            return f"{self._side(expression.operand)}::{_type(expression.type)}"
        return self._other(expression)

    def _binary(self, expression: b.Binary) -> str:
        return f"{self._side(expression.left)} {expression.operator} {self._side(expression.right)}"

    def _side(self, expression: b.Expr) -> str:
        text = self._text(expression)
        return f"({text})" if isinstance(expression, b.Binary) else text

    def _other(self, expression: b.Expr) -> str:
        if isinstance(expression, b.InList):
            items = ", ".join(self._text(item) for item in expression.items)
            return f"{'not ' * expression.negated}{self._side(expression.operand)} in ROW({items})"
        if isinstance(expression, b.Row):
            return self._row(expression.items)
        if isinstance(expression, b.Call):
            arguments = "*" if expression.star else ", ".join(self._text(a) for a in expression.arguments)
            return f"{expression.name}({arguments})::{_type(expression.type)}"
        if isinstance(expression, b.IsNull):
            return f"{self._side(expression.operand)} is {'not ' * expression.negated}null"
        if isinstance(expression, b.IsBool):
            equation = f"{self._side(expression.operand)} = {constant(expression.value, 'bool')}"
            return f"not ({equation})" if expression.negated else equation
        if isinstance(expression, b.Not):
            return f"not ({self._text(expression.operand)})"
        if isinstance(expression, b.InQuery | b.Scalar | b.Exists):
            return self._subquery(expression)
        return type(expression).__name__.lower()

    def _subquery(self, expression: b.InQuery | b.Scalar | b.Exists) -> str:
        self._subqueries.append(["scan", *_indented(self._query(expression.query))])
        reference = f"ROW(${len(self._subqueries) - 1})"
        if isinstance(expression, b.InQuery):
            return f"{'not ' * expression.negated}{self._side(expression.operand)} in {reference}"
        return f"exists {reference}" if isinstance(expression, b.Exists) else reference


def constant(value: Value, kind: str) -> str:
    """A constant with its type."""
    if value is None:
        return f"NULL::{_type(kind)}"
    if isinstance(value, bool):
        return f"{str(value).lower()}::bool"
    text = f"'{value}'" if isinstance(value, str | datetime) else str(value)
    return f"{text}::{_type(kind)}"


def _type(kind: str) -> str:
    return _TYPES.get(kind, kind)


def _sources_of_key(insert: b.Insert) -> list[int | None]:
    names = [column.name for column in insert.table.columns]
    wanted = [names.index(name) for name in insert.table.distribution or ()]
    return [insert.positions.index(p) if p in insert.positions else None for p in wanted]
