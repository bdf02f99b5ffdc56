"""The PostgreSQL texts run, and give what a real server gave for the same statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from picopyn.testing.picodata.planner import Catalog, NotModelled, ServerError, Statement, Value, prepare
from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner import storage_names as names
from picopyn.testing.picodata.planner.hash import bucket_of
from picopyn.testing.picodata.planner.values import decode_parameter, encode_value
from tests.testing_planner.recorded import catalog_of, load

_CATALOG = catalog_of(
    [
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, d DECIMAL, f DATETIME)",
        "CREATE TABLE s (id INT PRIMARY KEY, k INT, l TEXT) DISTRIBUTED BY (l, k)",
        "CREATE TABLE g (id INT PRIMARY KEY) DISTRIBUTED GLOBALLY",
    ],
    Catalog(keeps_offsets=True),
)
_LOCAL = datetime(2023, 7, 7, 12, tzinfo=timezone(timedelta(hours=3)))


def test_rows_carry_the_bucket_of_the_values_as_given() -> None:
    """A missing column is NULL; an int given for a DECIMAL is stored as a decimal."""
    insert = prepare("INSERT INTO t (d, id) VALUES (5, $1), ($2, 7)", _CATALOG)
    rows = insert.rows([1, Decimal("2.50")])
    assert rows == [
        (bucket_of([1], 3000), (1, None, Decimal(5), None)),
        (bucket_of([7], 3000), (7, None, Decimal("2.50"), None)),
    ]
    assert insert.source_sql is None


def test_a_datetimes_offset_goes_beside_it() -> None:
    """The storage gets the moment and the minutes east of UTC."""
    insert = prepare("INSERT INTO t (id, f) VALUES (1, $1)", _CATALOG)
    (bucket, row) = insert.rows([_LOCAL])[0]
    assert insert.insert_arguments(bucket, row) == [1, None, None, _LOCAL, 1934, 180]
    plain = prepare("INSERT INTO t (id, f) VALUES (1, $1)", replace(_CATALOG, keeps_offsets=False))
    assert plain.insert_arguments(bucket, row) == [1, None, None, _LOCAL, 1934]


def test_rows_of_expressions_come_from_the_storage() -> None:
    """INSERT … SELECT and computed values: the storage computes, the planner finds the buckets."""
    insert = prepare("INSERT INTO t (id) VALUES ($1 + 1)", _CATALOG)
    assert insert.source_sql == "VALUES (($1::bigint + '1'::bigint))"
    assert insert.storage_arguments([4]) == [4]
    assert insert.rows([4], [(5,)]) == [(219, (5, None, None, None))]
    assert prepare("INSERT INTO g VALUES (1)", _CATALOG).rows([]) == [(None, (1,))]


def test_an_update_of_the_sharding_key_moves_the_row() -> None:
    """The new bucket comes as one more argument if the whole key is given; else it is not modelled."""
    update = prepare("UPDATE s SET l = $1, k = 5 WHERE id = $2", _CATALOG)
    assert update.storage_arguments(["x", 1]) == ["x", 1, bucket_of(["x", 5], 3000)]
    with pytest.raises(NotModelled):
        prepare("UPDATE s SET k = 5 WHERE id = 1", _CATALOG)
    assert prepare("EXPLAIN UPDATE s SET k = 5 WHERE id = 1", _CATALOG).explain_lines()[-1] == "buckets = unknown"


def test_parameters_are_passed_in_the_order_of_the_text() -> None:
    """The storage sees only parameters its text uses, each cast to its type."""
    select = prepare("SELECT v FROM t WHERE d = $2 AND id = $1 AND v = $3", _CATALOG)
    assert select.sql == (
        'SELECT r1."v" FROM "data"."t" AS r1 WHERE (((r1."d" = $1::numeric) AND (r1."id" = $2::bigint)) '
        'AND (r1."v" = $3::text))'
    )
    assert select.storage_arguments([1, Decimal(2), "x"]) == [Decimal(2), 1, "x"]


@pytest.fixture
async def storage() -> AsyncIterator[Any]:
    """A connection to an empty schema `data`."""
    postgres = pytest.importorskip("picopyn.testing.postgres", reason="comes with the embedded storage")
    with postgres.PostgresServer().start() as server:
        connection = await asyncpg.connect(**server.connect_arguments, database="postgres", ssl=False)
        await connection.execute(f"CREATE SCHEMA {names.SCHEMA}")
        yield connection
        await connection.close()


async def _apply(storage: Any, catalog: Catalog, ddl: st.Ddl) -> Catalog:
    if isinstance(ddl, st.CreateTable) and ddl.table.name not in catalog.tables:
        await storage.execute(names.create_table_text(ddl.table))
        return catalog.with_table(ddl.table)
    if isinstance(ddl, st.DropTable) and ddl.name in catalog.tables:
        await storage.execute(names.drop_table_text(ddl.name))
        return catalog.without_table(ddl.name)
    if isinstance(ddl, st.AddColumn):
        await storage.execute(names.add_column_text(ddl.table, ddl.column))
        table = catalog.tables[ddl.table]
        return catalog.with_table(replace(table, columns=(*table.columns, ddl.column)))
    if isinstance(ddl, st.Truncate):
        await storage.execute(names.truncate_text(ddl.table))
    return catalog


async def _run(storage: Any, statement: Statement, values: list[Value], format: int) -> tuple[str, list[Any]]:
    if statement.kind == "select":
        found = await storage.fetch(statement.sql, *statement.storage_arguments(values))
        oids = [oid for _, oid in statement.columns or ()]
        rows = [[encode_value(oid, format, v) for oid, v in zip(oids, row, strict=True)] for row in found]
        return f"SELECT {len(rows)}", rows
    if statement.kind != "insert":
        return await storage.execute(statement.sql, *statement.storage_arguments(values)), []
    source = None
    if statement.source_sql is not None:
        source = await storage.fetch(statement.source_sql, *statement.storage_arguments(values))
    done = 0
    for row in statement.rows(values, source):
        done += int((await storage.execute(statement.sql, *statement.insert_arguments(*row))).split()[-1])
    return f"INSERT 0 {done}", []


def _recorded_rows(row: dict[str, Any]) -> list[list[bytes | None]]:
    def field(value: Any) -> bytes | None:
        if value is None:
            return None
        return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()

    return [[field(value) for value in answer[1]] for answer in row["answer"] if answer[0] == "D"]


async def test_recorded_conversations_give_their_recorded_rows(storage: Any) -> None:
    """Every recorded statement on user tables, run one after the other: tags and rows as recorded, in both
    formats.
    """
    catalog, compared = Catalog(keeps_offsets=True), 0
    for row in load("picodata-conversations.json")["conversations"]:
        text = row["do"]
        if not row["section"].startswith(("setup", "simple", "extended")) or "pico_" in text or "version" in text:
            continue
        try:
            statement = prepare(text, catalog, row.get("oids", ()))
        except ServerError:
            continue
        given = row.get("params", [])
        failed = any(answer[0] == "E" for answer in row["answer"])
        if statement.ddl is not None and not failed:
            catalog = await _apply(storage, catalog, statement.ddl)
        if statement.kind not in ("select", "insert", "update", "delete") or failed or "current_" in text:
            continue
        pairs = enumerate(zip(statement.parameter_oids, given, strict=True), 1)
        values = [decode_parameter(oid, 0, None if p is None else p.encode(), n) for n, (oid, p) in pairs]
        tag, rows = await _run(storage, statement, values, int(row["section"] == "extended binary"))
        assert tag == next(answer[1] for answer in row["answer"] if answer[0] == "C")
        expected = _recorded_rows(row)
        ordered = "ORDER BY" in text
        assert (rows if ordered else sorted(rows, key=repr)) == (expected if ordered else sorted(expected, key=repr))
        compared += 1
    assert compared >= 70


async def test_every_recorded_plan_runs(storage: Any) -> None:
    """Each recorded statement that Picodata accepts is valid PostgreSQL after translation."""
    plans = load("picodata-plans.json")
    catalog = Catalog(keeps_offsets=True)
    for text in plans["schema"]:
        ddl = prepare(text, catalog).ddl
        assert ddl is not None
        catalog = await _apply(storage, catalog, ddl)
    await storage.execute(names.create_table_text(names_of_instances()))
    left_out = []
    for row in plans["statements"]:
        if "error" in row:
            continue
        parameters = row.get("params", [])
        try:
            statement = prepare(row["sql"], catalog, [p["oid"] for p in parameters])
        except NotModelled as reason:
            left_out.append((row["sql"], reason.message))
            continue
        values = [
            decode_parameter(p["oid"], 0, p["text"] and p["text"].encode(), n) for n, p in enumerate(parameters, 1)
        ]
        undone = storage.transaction()
        await undone.start()
        await _run(storage, statement, values, 0)
        await undone.rollback()
    assert [text for text, _ in left_out] == [
        "SELECT v FROM o WHERE id = 1 HAVING count(*) > 0",
        "SELECT * FROM ts WHERE k = to_date('2023-07-07', '%Y-%m-%d')",
    ]


def names_of_instances() -> Any:
    """The one system table the plans read."""
    from picopyn.testing.picodata.planner.system_tables import SYSTEM_TABLES

    return SYSTEM_TABLES["_pico_instance"]
