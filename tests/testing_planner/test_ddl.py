"""Schema, user and privilege statements: what they ask for."""

from __future__ import annotations

import pytest

from picopyn.testing.picodata.planner import Catalog, Column, Table, prepare
from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner import storage_names as storage

CATALOG = Catalog(tiers={"default": 3000, "hot": 100})


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (
            "CREATE TABLE t (id INT NOT NULL, name VARCHAR(20), PRIMARY KEY (id)) USING memtx DISTRIBUTED BY (id)",
            Table("t", (Column("id", "int", False), Column("name", "text")), ("id",), ("id",), "default"),
        ),
        (
            'create table "T" ("Id" UNSIGNED PRIMARY KEY) using vinyl distributed globally',
            Table("T", (Column("Id", "int", False),), ("Id",), None, None, engine="vinyl"),
        ),
        (
            "CREATE TABLE t (a INT, b STRING NOT NULL, c NUMERIC(10, 2) NULL, PRIMARY KEY (a, b)) "
            'DISTRIBUTED BY (b) IN TIER "hot" '
            "WAIT APPLIED GLOBALLY OPTION (TIMEOUT = 3.0)",
            Table(
                "t",
                (Column("a", "int", False), Column("b", "text", False), Column("c", "decimal")),
                ("a", "b"),
                ("b",),
                "hot",
            ),
        ),
    ],
)
def test_create_table_describes_the_table(text: str, table: Table) -> None:
    """Columns of the primary key take no NULL; without a distribution the primary key distributes, in the
    default tier.
    """
    statement = prepare(text, CATALOG)
    assert statement.ddl == st.CreateTable(table)
    assert (statement.kind, statement.tag, statement.columns, statement.tier) == (
        "create_table",
        "CREATE TABLE",
        None,
        None,
    )


def test_bucket_id_is_the_second_stored_field() -> None:
    """Recorded tuples: the first column, the bucket, the other columns."""
    ddl = prepare("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", CATALOG).ddl
    assert isinstance(ddl, st.CreateTable)
    assert [column.name for column in ddl.table.format] == ["id", "bucket_id", "v"]


@pytest.mark.parametrize(
    ("text", "kind", "tag", "ddl"),
    [
        ("DROP TABLE IF EXISTS t", "drop_table", "DROP TABLE", st.DropTable("t", True)),
        ("TRUNCATE TABLE t", "truncate", "TRUNCATE TABLE", st.Truncate("t")),
        (
            "ALTER TABLE t ADD COLUMN x INT",
            "alter_table",
            "ALTER TABLE",
            st.AddColumn("t", Column("x", "int")),
        ),
        ("ALTER TABLE t RENAME TO u", "alter_table", "ALTER TABLE", st.RenameTable("t", "u")),
        ("ALTER TABLE t RENAME COLUMN a TO c", "alter_table", "ALTER TABLE", st.RenameColumn("t", "a", "c")),
        (
            "CREATE UNIQUE INDEX i ON t (a, c)",
            "create_index",
            "CREATE INDEX",
            st.CreateIndex("i", "t", ("a", "c"), True),
        ),
        ("DROP INDEX i", "drop_index", "DROP INDEX", st.DropIndex("i")),
        ("CREATE USER u WITH PASSWORD 'it''s'", "create_user", "CREATE ROLE", st.CreateUser("u", "it's")),
        (
            "CREATE USER IF NOT EXISTS u PASSWORD 'p' USING scram-sha256",
            "create_user",
            "CREATE ROLE",
            st.CreateUser("u", "p", "scram-sha256", True),
        ),
        ("ALTER USER u WITH LOGIN", "alter_user", "ALTER ROLE", st.AlterUser("u", login=True)),
        ("DROP USER u", "drop_user", "DROP ROLE", st.DropUser("u")),
        ("GRANT READ ON TABLE t TO u", "grant", "GRANT", st.Grant("read", "t", "u")),
        ("GRANT CREATE TABLE TO u", "grant", "GRANT", st.Grant("create", None, "u")),
        ("REVOKE WRITE ON TABLE t FROM u", "grant", "REVOKE", st.Grant("write", "t", "u", True)),
        ("GRANT CREATE USER TO u", "grant", "GRANT", st.Grant("create", None, "u", kind="user")),
        (
            "ALTER SYSTEM SET governor_auto_offline_timeout = 2.0",
            "alter_system",
            "ALTER SYSTEM",
            st.AlterSystem("governor_auto_offline_timeout", 2.0),
        ),
        (
            "ALTER SYSTEM SET x TO 5 FOR TIER hot",
            "alter_system",
            "ALTER SYSTEM",
            st.AlterSystem("x", 5, "hot"),
        ),
        ("ALTER SYSTEM RESET ALL", "alter_system", "ALTER SYSTEM", st.AlterSystem(None, reset=True)),
        ("DEALLOCATE PREPARE s", "deallocate", "DEALLOCATE", st.Deallocate("s")),
        ("DEALLOCATE ALL", "deallocate", "DEALLOCATE ALL", st.Deallocate(None)),
        ("BEGIN", "begin", "BEGIN", None),
        ("END", "commit", "COMMIT", None),
        ("SET search_path TO x, y", "set", "SET", None),
        ("CREATE SCHEMA s", "schema", "CREATE SCHEMA", None),
        (" ; ", "empty", "", None),
    ],
)
def test_other_statements_say_what_they_ask_for(text: str, kind: str, tag: str, ddl: st.Ddl | None) -> None:
    """Kind, command tag and the parsed wish."""
    statement = prepare(text, CATALOG)
    assert (statement.kind, statement.tag, statement.ddl) == (kind, tag, ddl)


def test_the_storage_keeps_bucket_and_offsets() -> None:
    """A sharded table has a bucket column, a datetime column a companion for its offsets."""
    ddl = prepare('CREATE TABLE "T t" (id INT PRIMARY KEY, f DATETIME)', CATALOG).ddl
    assert isinstance(ddl, st.CreateTable)
    assert storage.create_table_text(ddl.table) == (
        'CREATE TABLE "data"."T t" ("id" bigint, "f" timestamptz, "f offset" smallint, '
        '"bucket_id" bigint, PRIMARY KEY ("id"))'
    )
    assert (
        storage.add_column_text("T t", Column("x", "double"))
        == 'ALTER TABLE "data"."T t" ADD COLUMN "x" double precision'
    )
    assert storage.rename_column_texts(ddl.table, "f", "g") == [
        'ALTER TABLE "data"."T t" RENAME COLUMN "f" TO "g"',
        'ALTER TABLE "data"."T t" RENAME COLUMN "f offset" TO "g offset"',
    ]
