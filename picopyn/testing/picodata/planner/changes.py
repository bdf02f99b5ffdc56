"""Names and types of INSERT, UPDATE and DELETE.

*Source* of the refusals: recorded on 26.1.6; `picodata-protocol.md` section 7.
"""

from __future__ import annotations

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.errors import NotModelled, column_not_found, sbroad, space_not_found
from picopyn.testing.picodata.planner.expressions import comparable
from picopyn.testing.picodata.planner.queries import Queries
from picopyn.testing.picodata.planner.scope import Scope


def bind_insert(insert: s.Insert, queries: Queries) -> b.Insert:
    """An INSERT with its target columns and the types of its source."""
    table = _own(queries.table(insert.table, space_not_found))
    positions = _positions(table, insert.columns)
    wanted = tuple(table.columns[position].type for position in positions)
    source = queries.query(insert.source, {}, wanted)
    if len(source.columns) != len(positions):
        raise sbroad(f"invalid query: INSERT expects {len(positions)} columns, got {len(source.columns)}")
    for at, ((_, kind), column_type) in enumerate(zip(source.columns, wanted, strict=True), 1):
        if not comparable(kind, column_type):
            raise sbroad(f"INSERT column at position {at} is of type {column_type}, but expression is of type {kind}")
    for position, column in enumerate(table.columns):
        if not column.nullable and position not in positions:
            raise NotModelled("INSERT without a value for a column that takes no NULL")
    return b.Insert(table, positions, source, insert.on_conflict)


def _own(table: Table) -> Table:
    if table.system:
        raise NotModelled("writing to a system table")
    return table


def _positions(table: Table, columns: tuple[str, ...] | None) -> tuple[int, ...]:
    names = [column.name for column in table.columns]
    if columns is None:
        return tuple(range(len(names)))
    for name in columns:
        if name not in names:
            raise column_not_found(name)
    return tuple(names.index(name) for name in columns)


def bind_update(update: s.Update, queries: Queries) -> b.Update:
    """An UPDATE with the types of its assignments."""
    target = queries.target(update.table)
    table = _own(target.table)
    if update.source is not None:
        _refuse_source(update.source, table, queries)
    scope = Scope([target])
    binder = queries.expressions(scope)
    assignments = []
    for name, value in update.assignments:
        column = table.column(name)
        if column is None:
            raise column_not_found(name)
        if name in table.primary_key:
            raise sbroad(f'invalid query: it is illegal to update primary key column: "{name}"')
        expression = binder.bind(value, column.type)
        if not comparable(expression.type, column.type):
            raise NotModelled(f"assigning {expression.type} to a column of type {column.type}")
        assignments.append((name, expression))
    return b.Update(target, tuple(assignments), _where(update.where, scope, queries))


def _refuse_source(source: s.Source, table: Table, queries: Queries) -> None:
    """UPDATE … FROM works only if the other table has no column named like the primary key (recorded); not
    modelled.
    """
    if isinstance(source, s.TableRef):
        other = queries.table(source.name)
        for name in table.primary_key:
            if other.column(name) is not None:
                raise sbroad(f"duplicated value: column name {name} is ambiguous")
    raise NotModelled("UPDATE … FROM")


def bind_delete(delete: s.Delete, queries: Queries) -> b.Delete:
    """A DELETE."""
    target = queries.target(delete.table)
    _own(target.table)
    return b.Delete(target, _where(delete.where, Scope([target]), queries))


def _where(where: s.Expression | None, scope: Scope, queries: Queries) -> b.Expr | None:
    return queries.expressions(scope, filtering=True).condition(where) if where is not None else None
