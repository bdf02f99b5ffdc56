"""Names and types of whole queries: FROM clauses, projections, set operations, WITH."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.catalog import Catalog, Table
from picopyn.testing.picodata.planner.errors import NotModelled, column_not_found, sbroad, table_not_found
from picopyn.testing.picodata.planner.expressions import Expressions
from picopyn.testing.picodata.planner.functions import common_type
from picopyn.testing.picodata.planner.parameters import Parameters
from picopyn.testing.picodata.planner.scope import Scope, sources_of
from picopyn.testing.picodata.planner.system_tables import SYSTEM_TABLES
from picopyn.testing.picodata.planner.walk import calls_in

Ctes = Mapping[str, s.Cte]


class Queries:
    """Binds the queries of one statement.

    Attributes:
        tables: Every table met, in order of appearance.
        parameters: The statement's parameters.
    """

    def __init__(self, catalog: Catalog, parameters: Parameters) -> None:
        self.catalog = catalog
        self.parameters = parameters
        self.tables: dict[str, Table] = {}
        self._numbers = count(b.OUTPUT + 1)

    def table(self, name: str, missing: Callable[[str], Exception] = table_not_found) -> Table:
        """A table by name, noted as one of the statement's."""
        found = self.catalog.tables.get(name) or SYSTEM_TABLES.get(name)
        if found is None:
            if name.startswith("_pico_"):
                raise NotModelled(f"the system table {name}")
            raise missing(name)
        return self.tables.setdefault(name, found)

    def target(self, name: str) -> b.Base:
        """The table an UPDATE or DELETE changes."""
        return b.Base(next(self._numbers), self.table(name), name)

    def expressions(self, scope: Scope | None, ctes: Ctes | None = None, filtering: bool = False) -> Expressions:
        """A binder for expressions that stand in this scope."""
        return Expressions(scope, self.parameters, lambda query: self.query(query, ctes or {}), filtering)

    def query(self, query: s.Query, ctes: Ctes, wanted: tuple[str | None, ...] = ()) -> b.Query:
        """A query; `wanted` are the types its output columns are for."""
        visible = {**ctes, **{cte.name: cte for cte in query.ctes}}
        body, columns = self._body(query.body, visible, wanted)
        order = self._order(query.order_by, columns, visible)
        return b.Query(body, columns, order, query.limit)

    def _body(
        self, body: s.Body, ctes: Ctes, wanted: tuple[str | None, ...]
    ) -> tuple[b.Body, tuple[tuple[str, str], ...]]:
        if isinstance(body, s.Select):
            return self._select(body, ctes, wanted)
        if isinstance(body, s.Values):
            return self._values(body, ctes, wanted)
        left, left_columns = self._body(body.left, ctes, wanted)
        right, right_columns = self._body(body.right, ctes, wanted)
        if len(left_columns) != len(right_columns):
            raise NotModelled("set operations over queries with different numbers of columns")
        columns = tuple(
            (name, common_type(body.operator.upper(), (kind, other)))
            for (name, kind), (_, other) in zip(left_columns, right_columns, strict=True)
        )
        return b.SetOperation(body.operator, left, right), columns

    def _values(
        self, values: s.Values, ctes: Ctes, wanted: tuple[str | None, ...]
    ) -> tuple[b.Body, tuple[tuple[str, str], ...]]:
        binder = self.expressions(None, ctes)
        width = len(values.rows[0])
        if any(len(row) != width for row in values.rows):
            raise sbroad("VALUES lists must all be the same length")
        hints = wanted if len(wanted) == width else (None,) * width
        rows = tuple(
            tuple(binder.bind(expression, hint) for expression, hint in zip(row, hints, strict=True))
            for row in values.rows
        )
        kinds = (common_type("VALUES", [row[at].type for row in rows]) for at in range(width))
        return b.Values(rows), tuple((f"COLUMN_{at}", kind) for at, kind in enumerate(kinds, 1))

    def _select(
        self, select: s.Select, ctes: Ctes, wanted: tuple[str | None, ...]
    ) -> tuple[b.Body, tuple[tuple[str, str], ...]]:
        source = self._source(select.source, ctes) if select.source else None
        scope = Scope(sources_of(source)) if source else None
        binder = self.expressions(scope, ctes)
        filters = self.expressions(scope, ctes, filtering=True)
        where = filters.condition(select.where) if select.where else None
        items = tuple(self._items(select.items, binder, scope, wanted))
        group_by = tuple(_grouped(binder.bind(e), e, items) for e in select.group_by)
        having = binder.condition(select.having) if select.having else None
        calls = [call for item in items for call in calls_in(item.expression)]
        calls += calls_in(having) if having else []
        if having is not None and not group_by and self.catalog.accent.before_26_1:
            _refuse_columns(items)
        aggregated = bool(group_by or having) or any(call.aggregate for call in calls)
        windows = tuple(call.over for call in calls if call.over)
        bound = b.Select(items, source, where, group_by, having, select.distinct, aggregated, windows)
        return bound, tuple((item.name, item.expression.type) for item in items)

    def _items(
        self,
        items: tuple[s.Item, ...],
        binder: Expressions,
        scope: Scope | None,
        wanted: tuple[str | None, ...],
    ) -> Iterator[b.Item]:
        unnamed = 0
        hints = dict(enumerate(wanted)) if len(wanted) == len(items) else {}
        for at, item in enumerate(items):
            if isinstance(item.expression, s.Star):
                if scope is None:
                    raise NotModelled("SELECT * without FROM")
                yield from (b.Item(column, column.name) for column in scope.visible(item.expression.qualifier))
                continue
            expression = binder.bind(item.expression, hints.get(at))
            name = item.alias
            if name is None and isinstance(expression, b.Column):
                name = expression.name
            if name is None:
                unnamed += 1
                name = f"col_{unnamed}"
            yield b.Item(expression, name)

    def _source(self, source: s.Source, ctes: Ctes) -> b.Source:
        if isinstance(source, s.TableRef):
            return self._named_source(source, ctes)
        if isinstance(source, s.QueryRef):
            query = self.query(source.query, ctes)
            return b.Derived(next(self._numbers), query, source.alias or "", query.columns)
        left, right = self._source(source.left, ctes), self._source(source.right, ctes)
        scope = Scope([*sources_of(left), *sources_of(right)])
        condition = self.expressions(scope, ctes, filtering=True).condition(source.condition)
        return b.Join(left, right, condition, source.outer)

    def _named_source(self, source: s.TableRef, ctes: Ctes) -> b.Source:
        label = source.alias or source.name
        if source.name in ctes:
            cte = ctes[source.name]
            outer = {name: other for name, other in ctes.items() if name != source.name}
            query = self.query(cte.query, outer)
            return b.Derived(next(self._numbers), query, label, _renamed(query.columns, cte), cte=True)
        base = b.Base(next(self._numbers), self.table(source.name), label, source.alias is not None)
        if source.indexed_by:
            raise sbroad(f"index {source.indexed_by} not found")
        return base

    def _order(
        self, items: tuple[s.OrderItem, ...], columns: tuple[tuple[str, str], ...], ctes: Ctes
    ) -> tuple[b.OrderItem, ...]:
        if not items:
            return ()
        binder = self.expressions(_OutputScope(columns), ctes)
        return binder.order([_ordinal(item, columns) for item in items])


def _refuse_columns(items: tuple[b.Item, ...]) -> None:
    """HAVING without GROUP BY leaves no columns (recorded on 25.6; later versions take them)."""
    for item in items:
        if isinstance(item.expression, b.Column):
            name = item.expression.name
            raise sbroad(f'invalid query: found column reference ("{name}") outside aggregate function')


class _OutputScope(Scope):
    """What ORDER BY sees: the output columns of its own query."""

    def __init__(self, columns: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        self._columns = columns

    def resolve(self, name: str, qualifier: str | None) -> b.Column:
        found = [at for at, (column, _) in enumerate(self._columns) if column == name]
        if not found:
            raise column_not_found(name)
        return b.Column(b.OUTPUT, found[0], name, self._columns[found[0]][1])


def _ordinal(item: s.OrderItem, columns: tuple[tuple[str, str], ...]) -> s.OrderItem:
    """`ORDER BY 2` means the second output column."""
    number = item.expression
    if not isinstance(number, s.Literal) or number.type != "int":
        return item
    position = int(number.text)
    if not 0 < position <= len(columns):
        raise NotModelled("ORDER BY a number that is no column")
    return s.OrderItem(s.Name(columns[position - 1][0]), item.descending, item.nulls_first)


def _grouped(expression: b.Expr, written: s.Expression, items: tuple[b.Item, ...]) -> b.Expr:
    """`GROUP BY 2` means the second output column."""
    if isinstance(written, s.Literal) and written.type == "int" and 0 < int(written.text) <= len(items):
        return items[int(written.text) - 1].expression
    return expression


def _renamed(columns: tuple[tuple[str, str], ...], cte: s.Cte) -> tuple[tuple[str, str], ...]:
    if not cte.columns:
        return columns
    if len(cte.columns) != len(columns):
        raise NotModelled("a CTE with another number of column names than columns")
    return tuple((name, kind) for name, (_, kind) in zip(cte.columns, columns, strict=True))
