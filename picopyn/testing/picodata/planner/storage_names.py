"""How tables, columns and types are called in the PostgreSQL that stores the embedded cluster's rows.

Tables live in schema `data`, with a column `bucket_id` if they are sharded, and beside each datetime column
one named `<column> offset` with the minutes east of UTC the value was given with: PostgreSQL alone would
forget them.
"""

from __future__ import annotations

from collections.abc import Iterator

from picopyn.testing.picodata.planner.catalog import BUCKET_ID, Column, Table

#: PostgreSQL types of the planner's types.
STORAGE_TYPES = {
    "int": "bigint",
    "text": "text",
    "bool": "boolean",
    "double": "double precision",
    "decimal": "numeric",
    "uuid": "uuid",
    "datetime": "timestamptz",
    "json": "json",
}
STORAGE_TYPES |= {f"{kind}[]": f"{name}[]" for kind, name in STORAGE_TYPES.items()}

#: The schema of all tables, and of the functions an instance answers itself.
SCHEMA = "data"


def quoted(name: str) -> str:
    """A name as PostgreSQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def relation(name: str) -> str:
    """A table or function of the storage."""
    return f"{quoted(SCHEMA)}.{quoted(name)}"


def offset_column(name: str) -> str:
    """Name of the column that keeps the offsets of a datetime column."""
    return f"{name} offset"


def create_table_text(table: Table) -> str:
    """PostgreSQL text that makes the storage of a table; NULLs are checked by `Statement.null_violation`."""
    parts = [*_column_texts(table)]
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in table.primary_key)})")
    return f"CREATE TABLE {relation(table.name)} ({', '.join(parts)})"


def _column_texts(table: Table) -> Iterator[str]:
    for column in table.columns:
        yield from column_texts(column)
    if table.sharded:
        yield f"{quoted(BUCKET_ID)} bigint"


def column_texts(column: Column) -> list[str]:
    """The storage columns of one column, for CREATE TABLE or, each after ADD COLUMN, for ALTER TABLE."""
    texts = [f"{quoted(column.name)} {STORAGE_TYPES[column.type]}"]
    if column.type == "datetime":
        texts.append(f"{quoted(offset_column(column.name))} smallint")
    return texts


def add_column_text(table: str, column: Column) -> str:
    """PostgreSQL text that adds a column."""
    return f"ALTER TABLE {relation(table)} " + ", ".join(f"ADD COLUMN {text}" for text in column_texts(column))


def drop_table_text(name: str) -> str:
    """PostgreSQL text that drops the storage of a table."""
    return f"DROP TABLE {relation(name)}"


def truncate_text(name: str) -> str:
    """PostgreSQL text that empties a table."""
    return f"TRUNCATE {relation(name)}"


def rename_table_text(name: str, new_name: str) -> str:
    """PostgreSQL text that renames a table."""
    return f"ALTER TABLE {relation(name)} RENAME TO {quoted(new_name)}"


def rename_column_texts(table: Table, name: str, new_name: str) -> list[str]:
    """PostgreSQL texts that rename a column."""
    pairs = [(name, new_name)]
    column = table.column(name)
    if column and column.type == "datetime":
        pairs.append((offset_column(name), offset_column(new_name)))
    return [f"ALTER TABLE {relation(table.name)} RENAME COLUMN {quoted(a)} TO {quoted(c)}" for a, c in pairs]
