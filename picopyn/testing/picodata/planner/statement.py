"""The planner's answer about one statement text: everything the server half needs to describe and run it.

A `Statement` is made once per (text, catalog version, declared parameter types) and never changes; what
depends on the bound values is asked with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from picopyn.testing.picodata.planner.catalog import Column, Table

#: A bound value; doubles that Picodata would have turned into integers already are integers (see `values`).
Value = None | bool | int | float | str | Decimal | UUID | datetime


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets a statement touches, with its values bound.

    Attributes:
        scope: `"exact"`, `"at_most"`, `"any"` (no sharded table takes part) or `"unknown"` (known only
            while running).
        numbers: Bucket numbers; None means every bucket of the tier. Empty for `"any"` and `"unknown"`.
    """

    scope: str
    numbers: frozenset[int] | None = frozenset()

    @property
    def all(self) -> bool:
        """Whether every bucket takes part."""
        return self.numbers is None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE; `table.version` and `table.owner` are for the server to set."""

    table: Table
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    """DROP TABLE."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ALTER TABLE … ADD COLUMN."""

    table: str
    column: Column
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """ALTER TABLE … RENAME COLUMN … TO …."""

    table: str
    column: str
    new_name: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    """ALTER TABLE … RENAME TO …."""

    table: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE."""

    table: str


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """CREATE INDEX."""

    name: str
    table: str
    columns: tuple[str, ...]
    unique: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateUser:
    """CREATE USER; `method` is `"md5"`, `"scram-sha256"`, `"chap-sha1"` or `"ldap"`."""

    name: str
    password: str
    method: str = "md5"
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterUser:
    """ALTER USER … WITH PASSWORD …, or WITH [NO]LOGIN (`login` not None)."""

    name: str
    password: str | None = None
    method: str | None = None
    login: bool | None = None


@dataclass(frozen=True, slots=True)
class DropUser:
    """DROP USER."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """GRANT, or REVOKE with `revoke` set.

    Attributes:
        privilege: `"read"`, `"write"`, `"create"`, `"drop"`, `"alter"` …
        table: The table it is for; None for all tables (`GRANT READ TABLE TO u`, `GRANT CREATE TABLE TO u`).
        grantee: User name.
        revoke: Whether it is taken away.
        kind: `"table"`, or `"user"` for privileges on users (`GRANT CREATE USER TO u`; `table` is then a
            user's name).
    """

    privilege: str
    table: str | None
    grantee: str
    revoke: bool = False
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class AlterSystem:
    """ALTER SYSTEM SET name = value [FOR TIER t | FOR ALL TIERS]; RESET has `reset` set, `name` None meaning
    ALL.
    """

    name: str | None
    value: int | float | str | bool | None = None
    tier: str | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Deallocate:
    """DEALLOCATE; `name` None means ALL."""

    name: str | None


Ddl = (
    CreateTable
    | DropTable
    | AddColumn
    | RenameColumn
    | RenameTable
    | Truncate
    | CreateIndex
    | DropIndex
    | CreateUser
    | AlterUser
    | DropUser
    | Grant
    | AlterSystem
    | Deallocate
)


Rows = list[tuple[int | None, tuple[Value, ...]]]


def _no_buckets(_: Sequence[Value]) -> Buckets:
    return Buckets("any")


def _nothing(*_: Any) -> list[Any]:
    return []


@dataclass(frozen=True)
class Statement:
    """One prepared statement.

    Attributes:
        text: The text as it came.
        kind: `"select"`, `"insert"`, `"update"`, `"delete"`, `"explain"`, `"create_table"`,
            `"drop_table"`, `"alter_table"`, `"truncate"`, `"create_index"`, `"drop_index"`, `"grant"` (REVOKE
            too), `"create_user"`, `"alter_user"`, `"drop_user"`, `"alter_system"`, `"begin"`, `"commit"`,
            `"rollback"`, `"set"`, `"deallocate"`, `"empty"`, `"do"`, `"schema"` (CREATE or DROP SCHEMA, a
            no-op). A VALUES list is a `"select"`.
        tag: The command tag; D appends " n" for select, insert, update, delete, explain and do.
        tier: Tier of the sharded tables, or None.
        tables: Every table named, in order of appearance.
        reads: Tables whose rows are read.
        writes: Tables whose rows change.
        versions: Version of each user table at the time of planning.
        parameter_oids: What ParameterDescription says.
        columns: (name, OID) of the result, or None for NoData.
        dk_meta: (one-based parameter, OID) in the order of the sharding key.
        options: Options written in the text, in lower case, e.g. `{"sql_motion_row_max": 0}`.
        parameter_options: Options whose value is a parameter, with its number; see `bound_options`.
        ddl: What a schema, user or session statement asks for.
        system: Reads only system tables, or calls `pico_*` functions or `version()`; never a user's table.
        sql: PostgreSQL text. SELECT, UPDATE, DELETE: run it with `storage_arguments(values)`. INSERT: run
            it once per row of `rows(…)` with `insert_arguments(bucket, row)`. Empty for everything else.
        source_sql: Only for an INSERT whose rows must be computed by the storage (INSERT … SELECT,
            expressions): run it with `storage_arguments(values)` and hand its rows to `rows(values, source)`.
        on_conflict: `"fail"`, `"nothing"` or `"replace"`.
        explained: For EXPLAIN: the statement explained.
        body: For DO: the statements of the block; all share the parameters.
    """

    text: str
    kind: str
    tag: str = ""
    tier: str | None = None
    tables: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    versions: Mapping[str, int] = field(default_factory=dict)
    parameter_oids: tuple[int, ...] = ()
    columns: tuple[tuple[str, int], ...] | None = None
    dk_meta: tuple[tuple[int, int], ...] = ()
    options: Mapping[str, int | str] = field(default_factory=dict)
    ddl: Ddl | None = None
    system: bool = False
    sql: str = ""
    source_sql: str | None = None
    on_conflict: str = "fail"
    explained: Statement | None = None
    body: tuple[Statement, ...] = ()
    parameter_options: Mapping[str, int] = field(default_factory=dict)
    find_buckets: Callable[[Sequence[Value]], Buckets] = field(default=_no_buckets, repr=False)
    find_lines: Callable[[Sequence[Value]], list[str]] = field(default=_nothing, repr=False)
    find_arguments: Callable[[Sequence[Value]], list[Any]] = field(default=_nothing, repr=False)
    find_rows: Callable[[Sequence[Value], Sequence[Sequence[Any]] | None], Rows] = field(default=_nothing, repr=False)
    find_insert_arguments: Callable[[int | None, Sequence[Value]], list[Any]] = field(default=_nothing, repr=False)

    def buckets(self, values: Sequence[Value] = ()) -> Buckets:
        """The buckets that take part with these values bound; for EXPLAIN, of what it explains."""
        return self.find_buckets(values)

    def explain_lines(self, values: Sequence[Value] = ()) -> list[str]:
        """The rows of an EXPLAIN with these values bound; the last one names the buckets."""
        return self.find_lines(values)

    def bound_options(self, values: Sequence[Value]) -> dict[str, int | str | None]:
        """`options` together with those whose value is a parameter."""
        found: dict[str, int | str | None] = dict(self.options)
        for name, number in self.parameter_options.items():
            value = values[number - 1]
            found[name] = value if isinstance(value, int) else None
        return found

    def storage_arguments(self, values: Sequence[Value]) -> list[Any]:
        """The arguments for `sql` (SELECT, UPDATE, DELETE) or `source_sql` (INSERT)."""
        return self.find_arguments(values)

    def rows(self, values: Sequence[Value], source: Sequence[Sequence[Any]] | None = None) -> Rows:
        """The rows an INSERT stores: (bucket, or None for a global table; every column in the table's order).

        Args:
            values: The bound values.
            source: The rows that `source_sql` gave, if the statement has one.
        """
        return self.find_rows(values, source)

    def insert_arguments(self, bucket: int | None, row: Sequence[Value]) -> list[Any]:
        """The arguments for `sql` of an INSERT, for one of its rows."""
        return self.find_insert_arguments(bucket, row)
