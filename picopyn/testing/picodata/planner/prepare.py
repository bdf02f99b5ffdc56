"""From a text to a `Statement`: parse, look up names and types, and offer what the server half asks for.

This is the planner's front door; everything it decides itself is which tables and tiers a statement may
combine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner import syntax as s
from picopyn.testing.picodata.planner.boxed_explain import boxed_lines
from picopyn.testing.picodata.planner.buckets import Estimate, key_positions
from picopyn.testing.picodata.planner.catalog import TYPE_OIDS, Catalog, Table
from picopyn.testing.picodata.planner.changes import bind_delete, bind_insert, bind_update
from picopyn.testing.picodata.planner.errors import NotModelled, sbroad
from picopyn.testing.picodata.planner.explain import buckets_line, explain_lines, shown_buckets
from picopyn.testing.picodata.planner.hash import bucket_of
from picopyn.testing.picodata.planner.insertion import (
    check_key_change,
    insert_arguments,
    needs_storage,
    rows_of,
    update_arguments,
)
from picopyn.testing.picodata.planner.parameters import Parameters
from picopyn.testing.picodata.planner.queries import Queries
from picopyn.testing.picodata.planner.statement import Buckets, Rows, Statement, Value
from picopyn.testing.picodata.planner.statement_parser import Command, StatementParser
from picopyn.testing.picodata.planner.storage_text import StorageText, insert_text

_TAGS = {"select": "SELECT", "insert": "INSERT 0", "update": "UPDATE", "delete": "DELETE"}


def prepare(text: str, catalog: Catalog, declared_oids: Sequence[int] = (), own_tier: str = "default") -> Statement:
    """What Picodata answers to Parse of this text.

    Args:
        text: One statement.
        catalog: Tables and tiers now.
        declared_oids: Parameter types the client declared; 0 and 705 leave one open.
        own_tier: Tier of the asked instance: EXPLAIN counts its buckets where every bucket takes part.

    Raises:
        ServerError: Picodata refuses the text, with its own words.
        NotModelled: Picodata may well take it; the embedded cluster cannot say.
    """
    try:
        return _prepare(text, catalog, Parameters(declared_oids, catalog.accent), own_tier)
    except RecursionError:
        raise NotModelled("a text nested so deeply") from None


def _prepare(text: str, catalog: Catalog, parameters: Parameters, own_tier: str) -> Statement:
    parsed = StatementParser(text, catalog).statement()
    if isinstance(parsed, Command):
        return Statement(text, parsed.kind, parsed.tag, ddl=parsed.ddl, parameter_oids=parameters.oids())
    planner = _Planner(text, catalog, parameters, own_tier)
    if isinstance(parsed, s.Explain):
        return planner.explain(parsed)
    if isinstance(parsed, s.Block):
        return planner.block(parsed.statements)
    return planner.statements([parsed])[0]


class _Planner:
    def __init__(self, text: str, catalog: Catalog, parameters: Parameters, own_tier: str) -> None:
        self._text = text
        self._catalog = catalog
        self._parameters = parameters
        self._own_count = catalog.tiers.get(own_tier, 0)

    def statements(self, parsed: Sequence[s.Dml], runnable: bool = True) -> list[Statement]:
        """Statements that share the parameters; bound twice, so that a later place may decide a type."""
        for statement in parsed:
            self._bound(statement)
        self._parameters.final = True
        bound = [self._bound(statement) for statement in parsed]
        return [self._statement(st, *found, runnable) for st, found in zip(parsed, bound, strict=True)]

    def explain(self, parsed: s.Explain) -> Statement:
        """EXPLAIN: needs no storage text."""
        explained = self.statements([parsed.statement], runnable=False)[0]
        plan = self._bound(parsed.statement)[0]
        accent = self._catalog.accent

        def lines(values: Sequence[Value]) -> list[str]:
            options = {name: value for name, value in explained.bound_options(values).items() if value is not None}
            buckets = shown_buckets(plan, explained.buckets(values), accent)
            if accent.since_26_2:
                return boxed_lines(plan, values, buckets_line(buckets, self._own_count), parsed.facets)
            return explain_lines(plan, values, buckets, self._own_count, options)

        return replace(
            explained,
            kind="explain",
            tag="EXPLAIN",
            columns=(("EXPLAIN" if accent.since_26_2 else "QUERY PLAN", 25),),
            explained=explained,
            find_lines=lines,
        )

    def block(self, parsed: Sequence[s.Dml]) -> Statement:
        """DO: the statements run one after the other."""
        body = tuple(self.statements(parsed))
        tables = {name: None for statement in body for name in statement.tables}
        tier = self._tier({name: self._catalog.tables[name] for name in tables if name in self._catalog.tables})

        def buckets(values: Sequence[Value]) -> Buckets:
            found = [statement.buckets(values) for statement in body]
            numbers = [f.numbers for f in found if f.scope in ("exact", "at_most")]
            if any(f.scope == "unknown" for f in found):
                return Buckets("unknown")
            if not numbers:
                return Buckets("any")
            known = [n for n in numbers if n is not None]
            return Buckets("exact", frozenset().union(*known) if len(known) == len(numbers) else None)

        return Statement(
            self._text,
            "do",
            "DO",
            tier=tier,
            tables=tuple(tables),
            reads=frozenset().union(*(statement.reads for statement in body)),
            writes=frozenset().union(*(statement.writes for statement in body)),
            versions={name: version for statement in body for name, version in statement.versions.items()},
            parameter_oids=self._parameters.oids(),
            columns=() if self._catalog.accent.since_26_2 else None,  # recorded
            body=body,
            find_buckets=buckets,
        )

    def _bound(self, parsed: s.Dml) -> tuple[b.Plan, Mapping[str, Table]]:
        queries = Queries(self._catalog, self._parameters)
        for value in parsed.options.values():
            if isinstance(value, s.Parameter):
                self._parameters.meet(value.number)
                self._parameters.want(value.number, "int")
        plan: b.Plan
        if isinstance(parsed, s.Insert):
            plan = bind_insert(parsed, queries)
        elif isinstance(parsed, s.Update):
            plan = bind_update(parsed, queries)
        elif isinstance(parsed, s.Delete):
            plan = bind_delete(parsed, queries)
        else:
            plan = queries.query(parsed.query, {})
        return plan, queries.tables

    def _tier(self, tables: Mapping[str, Table]) -> str | None:
        tiers = {table.tier for table in tables.values() if table.sharded}
        if len(tiers) > 1:
            raise sbroad("Query cannot use tables from different tiers")
        return next(iter(tiers), None)

    def _statement(self, parsed: s.Dml, plan: b.Plan, tables: Mapping[str, Table], runnable: bool) -> Statement:
        kind = "select" if isinstance(parsed, s.SelectStatement) else type(parsed).__name__.lower()
        if kind != "select" and "read_preference" in parsed.options:
            raise sbroad("invalid OptionSpec: read_preference option is supported only for DQL queries")
        target = {parsed.table} if not isinstance(parsed, s.SelectStatement) else set()
        sources = set(tables) if kind in ("select", "update", "delete") else _sources(plan, tables)
        tier = self._tier(tables)
        numbered = {n: v.number for n, v in parsed.options.items() if isinstance(v, s.Parameter)}
        statement = Statement(
            self._text,
            kind,
            _TAGS[kind],
            tier=tier,
            tables=tuple(tables),
            reads=frozenset(sources),
            writes=frozenset(target),
            versions={name: table.version for name, table in tables.items() if not table.system},
            parameter_oids=self._parameters.oids(),
            columns=_columns(plan),
            dk_meta=_dk_meta(plan),
            options={n: v for n, v in parsed.options.items() if not isinstance(v, s.Parameter)},
            parameter_options=numbered,
            system=all(table.system for table in tables.values()),
            find_buckets=lambda values: Estimate(self._catalog, tier, values).plan(plan),
        )
        return self._runnable(statement, plan) if runnable else statement

    def _runnable(self, statement: Statement, plan: b.Plan) -> Statement:
        """The statement with its storage text."""
        count = self._catalog.tiers.get(statement.tier or "", 0)
        form, offsets = self._catalog.double_form, self._catalog.keeps_offsets
        hash_key = partial(bucket_of, bucket_count=count, double_form=form)
        text = StorageText(offsets)
        if isinstance(plan, b.Insert):
            return self._runnable_insert(statement, plan, text, hash_key)
        if isinstance(plan, b.Update):
            check_key_change(plan)
            sql = text.update(plan)
        else:
            sql = text.delete(plan) if isinstance(plan, b.Delete) else text.query(plan)

        def arguments(values: Sequence[Value]) -> list[Any]:
            extra = update_arguments(plan, values, hash_key, offsets) if isinstance(plan, b.Update) else []
            return [*(values[number - 1] for number in text.numbers), *extra]

        return replace(statement, sql=sql, find_arguments=arguments)

    def _runnable_insert(
        self, statement: Statement, plan: b.Insert, text: StorageText, hash_key: partial[int]
    ) -> Statement:
        source = text.query(plan.source) if needs_storage(plan) else None
        offsets = self._catalog.keeps_offsets

        def rows(values: Sequence[Value], given: Sequence[Sequence[Any]] | None) -> Rows:
            return rows_of(plan, values, given, hash_key)

        return replace(
            statement,
            sql=insert_text(plan.table, plan.on_conflict, offsets),
            source_sql=source,
            on_conflict=plan.on_conflict,
            find_arguments=lambda values: [values[number - 1] for number in text.numbers],
            find_rows=rows,
            find_insert_arguments=lambda bucket, row: insert_arguments(plan.table, bucket, row, offsets),
        )


def _sources(plan: b.Plan, tables: Mapping[str, Table]) -> set[str]:
    """Tables an INSERT reads: all but its target, and the target if its source names it too."""
    assert isinstance(plan, b.Insert)
    others = set(tables) - {plan.table.name}
    return others | ({plan.table.name} if _reads(plan.source.body, plan.table.name) else set())


def _reads(part: b.Body | b.Source | None, name: str) -> bool:
    if isinstance(part, b.Base):
        return part.table.name == name
    if isinstance(part, b.Derived):
        return _reads(part.query.body, name)
    if isinstance(part, b.Join | b.SetOperation):
        return _reads(part.left, name) or _reads(part.right, name)
    return isinstance(part, b.Select) and _reads(part.source, name)


def _columns(plan: b.Plan) -> tuple[tuple[str, int], ...] | None:
    if not isinstance(plan, b.Query):
        return None
    return tuple((name, TYPE_OIDS[kind]) for name, kind in plan.columns)


def _dk_meta(plan: b.Plan) -> tuple[tuple[int, int], ...]:
    """The parameters that are the sharding key of a one-row INSERT … VALUES; empty in every other case.

    *Source*: `picodata-protocol.md` section 4.
    """
    if not isinstance(plan, b.Insert) or not isinstance(plan.source.body, b.Values) or not plan.table.sharded:
        return ()
    rows = plan.source.body.rows
    if len(rows) != 1:
        return ()
    found = []
    for position in key_positions(plan.table):
        value = rows[0][plan.positions.index(position)] if position in plan.positions else None
        if isinstance(value, b.Cast) and value.operand.type == value.type:
            value = value.operand
        if not isinstance(value, b.Param):
            return ()
        found.append((value.number, TYPE_OIDS[value.type]))
    return tuple(found)
