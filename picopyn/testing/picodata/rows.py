"""Rows read and written in the storage on behalf of a statement, and the storage's refusals in Picodata's
words.

Decides how many statements the storage sees for one of ours. Must not know instances' roles.

*Source* of the texts: recorded section "simple" (duplicate key, NULL, division by zero), by way of
`planner.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.planner import errors
from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.errors import ServerError
from picopyn.testing.picodata.planner.statement import Statement
from picopyn.testing.picodata.storage import Storage, primary_key_of

_STORED = {
    "int": "integer",
    "text": "string",
    "bool": "boolean",
    "double": "double",
    "decimal": "decimal",
    "uuid": "uuid",
    "datetime": "datetime",
    "json": "any",
}


class Rows:
    """Owner: the server process."""

    def __init__(self, cluster: Cluster, storage: Storage) -> None:
        self._cluster = cluster
        self._storage = storage

    async def select(self, at: str, statement: Statement, values: Sequence[Any]) -> list[Any]:
        """Rows of a SELECT or VALUES.

        Raises:
            ServerError: The storage refused.
        """
        try:
            return await self._storage.fetch(at, statement.sql, statement.storage_arguments(values))
        except asyncpg.PostgresError as error:
            raise errors.numbered(_in_our_words(error), self._cluster.accent) from None

    async def write(self, at: str, statement: Statement, values: Sequence[Any]) -> int:
        """Number of rows an INSERT, UPDATE, DELETE or DO changed.

        Raises:
            ServerError: The storage refused; nothing was changed by this statement.
        """
        if statement.kind == "do":
            return sum([await self.write(at, step, values) for step in statement.body])
        try:
            if statement.kind == "insert":
                return await self._insert(at, statement, values)
            return await self._storage.execute(at, statement.sql, statement.storage_arguments(values))
        except asyncpg.PostgresError as error:
            raise _in_our_words(error) from None

    async def _insert(self, at: str, statement: Statement, values: Sequence[Any]) -> int:
        source = None
        if statement.source_sql is not None:
            source = await self._storage.fetch(at, statement.source_sql, statement.storage_arguments(values))
        rows = statement.rows(values, source)
        table = self._cluster.catalog.tables[next(iter(statement.writes))]
        for bucket, row in rows:
            _check_nulls(table, bucket, row)

        async def store(connection: Any) -> int:
            if len(rows) == 1:
                return await self._store(connection, statement, table, rows[0])
            async with connection.transaction():
                return sum([await self._store(connection, statement, table, row) for row in rows])

        return await self._storage.run(at, store)

    async def _store(self, connection: Any, statement: Statement, table: Table, row: tuple[int | None, Any]) -> int:
        try:
            status: str = await connection.execute(statement.sql, *statement.insert_arguments(*row))
        except asyncpg.UniqueViolationError as error:
            raise await self._duplicate(table, row, getattr(error, "constraint_name", None) or "") from None
        return int(status.rpartition(" ")[2])

    async def _duplicate(self, table: Table, row: tuple[int | None, Any], constraint: str) -> ServerError:
        bucket, values = row
        named = dict(zip((column.name for column in table.columns), values, strict=True))
        key = [named[name] for name in table.primary_key]
        found = await self._storage.fetch("", primary_key_of(table), key)
        index = constraint
        if constraint == f"{table.name}_pkey":
            index = f"{self._cluster.table_id(table.name)}_pkey"
        old = list(found[0].values()) if found else []
        return errors.duplicate_key(index, table.name, old, _stored(table, bucket, values), table.sharded)


def _stored(table: Table, bucket: int | None, values: Sequence[Any]) -> list[Any]:
    """A row in storage order."""
    return [values[0], bucket, *values[1:]] if table.sharded else list(values)


def _check_nulls(table: Table, bucket: int | None, values: Sequence[Any]) -> None:
    for position, (column, value) in enumerate(zip(table.format, _stored(table, bucket, values), strict=True), 1):
        if value is None and not column.nullable:
            raise errors.null_in_field(position, column.name, _STORED[column.type])


def _in_our_words(error: asyncpg.PostgresError) -> ServerError:
    text = str(error.args[0]) if error.args else str(error)
    if isinstance(error, asyncpg.RaiseError):
        return errors.sbroad(text)
    return errors.sbroad(f"Failed to execute SQL statement: {text}")
