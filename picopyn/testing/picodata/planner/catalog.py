"""What the embedded cluster knows about its tables and tiers: the planner's only view of the schema.

It knows no rows, no instances and no SQL text. A catalog is immutable; every DDL statement makes a new one
with a larger `version`, so that plans can be kept by (text, version).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent

#: SQL types of columns as Picodata names them in its own plans, with the type OID under which they travel.
#: *Source*: `src/pgproto/value.rs`, `describe.rs` (26.1.6).
TYPE_OIDS: Mapping[str, int] = {
    "int": 20,
    "text": 25,
    "bool": 16,
    "double": 701,
    "decimal": 1700,
    "uuid": 2950,
    "datetime": 1184,
    "json": 114,
    "unknown": 705,
    "bool[]": 1000,
    "int[]": 1016,
    "double[]": 1022,
    "decimal[]": 1231,
    "text[]": 1009,
    "uuid[]": 2951,
    "datetime[]": 1185,
}

#: Name of the column every sharded table has besides its own.
BUCKET_ID = "bucket_id"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; `type` is a key of `TYPE_OIDS`."""

    name: str
    type: str
    nullable: bool = True

    @property
    def oid(self) -> int:
        """Type OID under which values of this column travel."""
        return TYPE_OIDS[self.type]


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        name: The name as stored (unquoted names are folded to lower case before).
        columns: The user's columns, in order, without `bucket_id`.
        primary_key: Column names.
        distribution: Column names of the sharding key, in order; None for a global table.
        tier: Name of the tier that holds the rows; None for a global table.
        version: Changes with every DDL statement that touches the table.
        owner: Name of the user who created it.
        engine: `"memtx"` or `"vinyl"`.
        system: Whether it is one of the `_pico_*` tables.
    """

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    distribution: tuple[str, ...] | None = None
    tier: str | None = None
    version: int = 1
    owner: str = "admin"
    engine: str = "memtx"
    system: bool = False

    @property
    def sharded(self) -> bool:
        """Whether the rows live in buckets."""
        return self.distribution is not None

    @property
    def format(self) -> tuple[Column, ...]:
        """All stored fields in storage order: `bucket_id` is the second field of a sharded table.

        *Source*: recorded tuples such as `[801, 1640, "p", null]` and `_pico_table.format` (26.1.6).
        """
        if not self.sharded:
            return self.columns
        return (self.columns[0], Column(BUCKET_ID, "int", False), *self.columns[1:])

    def column(self, name: str) -> Column | None:
        """The user's column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every table and tier at one moment.

    Attributes:
        tables: The users' tables by name (system tables are known to the planner itself).
        tiers: Number of buckets by tier name; 0 for a tier without sharded data.
        version: Grows with every change; plans may be kept by (text, version).
        default_tier: Tier of tables created without `IN TIER`.
        double_form: `"older"` or `"26.1"`, how doubles are hashed (see `hash`).
        keeps_offsets: Whether the storage has the columns of `storage_names.offset_column`, so that a
            datetime is given back with the offset it came with (made by `storage_names.create_table_text`).
        accent: Whose answers are given.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    tiers: Mapping[str, int] = field(default_factory=lambda: {"default": 3000})
    version: int = 1
    default_tier: str = "default"
    double_form: str = "older"
    keeps_offsets: bool = False
    accent: Accent = DEFAULT

    def with_table(self, table: Table) -> Catalog:
        """A newer catalog in which this table exists as given, with the new version number."""
        version = self.version + 1
        tables = {**self.tables, table.name: replace(table, version=version)}
        return replace(self, tables=tables, version=version)

    def without_table(self, name: str) -> Catalog:
        """A newer catalog without the table."""
        tables = {key: table for key, table in self.tables.items() if key != name}
        return replace(self, tables=tables, version=self.version + 1)
