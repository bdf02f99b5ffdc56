"""PostgreSQL text for queries and changes, to be run against the cluster's storage."""

from __future__ import annotations

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.buckets import changes_key
from picopyn.testing.picodata.planner.catalog import BUCKET_ID, Table
from picopyn.testing.picodata.planner.errors import NotModelled
from picopyn.testing.picodata.planner.storage_expressions import ExpressionText
from picopyn.testing.picodata.planner.storage_names import STORAGE_TYPES, offset_column, quoted, relation


class StorageText(ExpressionText):
    """Writes one plan; `numbers` then tells which parameters its `$1`, `$2`, … are."""

    def query(self, query: b.Query, outermost: bool = True) -> str:
        """A query; at the outermost level datetimes keep the offset they were stored with."""
        text = self._body(query.body, outermost)
        if query.order_by:
            items = (self.ordered(item, self._sorted_by(item.expression, query.body)) for item in query.order_by)
            text += f" ORDER BY {', '.join(items)}"
        if query.limit is not None:
            text += f" LIMIT {query.limit}"
        return text

    def _sorted_by(self, expression: b.Expr, body: b.Body) -> str:
        if not isinstance(expression, b.Column) or expression.relation != b.OUTPUT:
            return self.expression(expression)
        if isinstance(body, b.Select) and not body.distinct:
            return self.expression(body.items[expression.position].expression)
        return str(expression.position + 1)

    def _body(self, body: b.Body, outermost: bool = False) -> str:
        if isinstance(body, b.Select):
            return self._select(body, outermost)
        if isinstance(body, b.Values):
            return "VALUES " + ", ".join(f"({self.listed(row)})" for row in body.rows)
        left, right = self._body(body.left), self._body(body.right)
        return f"({left}) {body.operator.upper()} ({right})"

    def _select(self, select: b.Select, outermost: bool) -> str:
        source = ["FROM", self._source(select.source)] if select.source else []
        plain = self.offsets and outermost and not (select.aggregated or select.distinct)
        items = ", ".join(self._item(item.expression, plain) for item in select.items)
        if select.aggregated and not select.group_by and any(isinstance(i.expression, b.Column) for i in select.items):
            raise NotModelled("a column outside aggregates without GROUP BY")
        parts = ["SELECT" + " DISTINCT" * select.distinct, items, *source]
        if select.where is not None:
            parts += ["WHERE", self.expression(select.where)]
        if select.group_by:
            parts += ["GROUP BY", self.listed(select.group_by)]
        if select.having is not None:
            parts += ["HAVING", self.expression(select.having)]
        return " ".join(parts)

    def _item(self, expression: b.Expr, plain: bool) -> str:
        text = self.expression(expression)
        if not plain or not isinstance(expression, b.Column) or expression.type != "datetime":
            return text
        table = self.tables.get(expression.relation)
        if table is None or table.system:
            return text
        offset = f"r{expression.relation}.{quoted(offset_column(expression.name))}"
        moment = f"to_char({text} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
        return f"({moment} || '|' || coalesce({offset}, 0))"

    def _source(self, source: b.Source) -> str:
        if isinstance(source, b.Base):
            return self._table(source)
        if isinstance(source, b.Join):
            left, right = self._source(source.left), self._source(source.right)
            kind = "LEFT JOIN" if source.outer else "JOIN"
            return f"{left} {kind} {right} ON {self.expression(source.condition)}"
        names = ", ".join(f"c{position}" for position in range(len(source.columns)))
        return f"({self.query(source.query, outermost=False)}) AS r{source.number}({names})"

    def _table(self, base: b.Base) -> str:
        self.tables[base.number] = base.table
        return f"{relation(base.table.name)} AS r{base.number}"

    def update(self, update: b.Update) -> str:
        """An UPDATE; what only its values tell (bucket, offsets) comes after the parameters, see
        `extra_columns`.
        """
        target = self._table(update.target)
        sets = [f"{quoted(name)} = {self._assigned(update, name, value)}" for name, value in update.assignments]
        where = f" WHERE {self.expression(update.where)}" if update.where is not None else ""
        for at, (name, kind) in enumerate(extra_columns(update, self.offsets), len(self.numbers) + 1):
            sets.append(f"{quoted(name)} = ${at}::{kind}")
        return f"UPDATE {target} SET {', '.join(sets)}{where}"

    def _assigned(self, update: b.Update, name: str, value: b.Expr) -> str:
        column = update.target.table.column(name)
        text = self.expression(value)
        return text if column is None or column.type == value.type else f"({text})::{STORAGE_TYPES[column.type]}"

    def delete(self, delete: b.Delete) -> str:
        """A DELETE."""
        target = self._table(delete.target)
        where = f" WHERE {self.expression(delete.where)}" if delete.where is not None else ""
        return f"DELETE FROM {target}{where}"


def extra_columns(update: b.Update, offsets: bool) -> list[tuple[str, str]]:
    """Storage columns (name, PostgreSQL type) an UPDATE sets besides the columns it names."""
    extra = [(offset_column(name), "smallint") for name, _ in offset_assignments(update)] if offsets else []
    return [*extra, (BUCKET_ID, "bigint")] if changes_key(update) else extra


def offset_assignments(update: b.Update) -> list[tuple[str, b.Expr]]:
    """The assignments to datetime columns."""
    table = update.target.table
    return [(n, e) for n, e in update.assignments if (c := table.column(n)) is not None and c.type == "datetime"]


def insert_columns(table: Table, offsets: bool) -> list[tuple[str, str]]:
    """Storage columns (name, PostgreSQL type) of an INSERT, in the order of its arguments."""
    found = [(column.name, STORAGE_TYPES[column.type]) for column in table.columns]
    if table.sharded:
        found.append((BUCKET_ID, "bigint"))
    if not offsets:
        return found
    return [*found, *((offset_column(c.name), "smallint") for c in table.columns if c.type == "datetime")]


def insert_text(table: Table, on_conflict: str, offsets: bool) -> str:
    """The INSERT of one row, every column given."""
    columns = insert_columns(table, offsets)
    names = ", ".join(quoted(name) for name, _ in columns)
    values = ", ".join(f"${at}::{kind}" for at, (_, kind) in enumerate(columns, 1))
    text = f"INSERT INTO {relation(table.name)} ({names}) VALUES ({values})"
    if on_conflict == "nothing":
        return f"{text} ON CONFLICT DO NOTHING"
    if on_conflict == "replace":
        key = ", ".join(quoted(name) for name in table.primary_key)
        sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name, _ in columns)
        return f"{text} ON CONFLICT ({key}) DO UPDATE SET {sets}"
    return text
