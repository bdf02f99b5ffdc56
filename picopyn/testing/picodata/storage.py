"""The rows of the embedded cluster, in one PostgreSQL: each row lives once, whoever owns its bucket.

Hands statements on; how tables are laid out is the planner's affair. Must not know roles of instances,
owners of buckets or texts of Picodata's errors; it lets `asyncpg.PostgresError` out.

Every instance has its own connections, because functions such as `pico_instance_uuid()` answer for the
instance asked; its name travels as the session setting `picopyn.instance`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from picopyn.testing.picodata.planner.catalog import Table
from picopyn.testing.picodata.planner.storage_names import SCHEMA, quoted, relation
from picopyn.testing.postgres import PostgresServer

_PER_INSTANCE = 8

Connection = Any  # asyncpg ships no types
T = TypeVar("T")


def primary_key_of(table: Table) -> str:
    """Text that reads a stored row by its primary key (`$1`, `$2`, …), every field in storage order."""
    fields = ", ".join(quoted(column.name) for column in table.format)
    conditions = " AND ".join(f"{quoted(name)} = ${n}" for n, name in enumerate(table.primary_key, 1))
    return f"SELECT {fields} FROM {relation(table.name)} WHERE {conditions}"


class Storage:
    """Connections to the PostgreSQL server, by instance. Owner: `cluster.Cluster`.

    `run` opens at most a handful of connections per instance and queues beyond that; a connection that
    breaks is dropped.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: dict[str, list[Connection]] = {}
        self._open: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, instance: str, use: Callable[[Connection], Awaitable[T]]) -> T:
        """Use a connection of this instance (`""`: of none) for a moment."""
        connection = await self._take(instance)
        try:
            return await use(connection)
        finally:
            self._give(instance, connection)

    async def fetch(self, instance: str, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Rows of a query."""

        async def use(connection: Connection) -> list[Any]:
            return list(await connection.fetch(sql, *arguments))

        return await self.run(instance, use)

    async def execute(self, instance: str, sql: str, arguments: Sequence[Any] = ()) -> int:
        """Run a statement; gives the number of rows PostgreSQL counted."""

        async def use(connection: Connection) -> int:
            status: str = await connection.execute(sql, *arguments)
            last = status.rpartition(" ")[2]
            return int(last) if last.isdigit() else 0

        return await self.run(instance, use)

    async def _take(self, instance: str) -> Connection:
        idle = self._idle.setdefault(instance, [])
        while True:
            while idle:
                connection = idle.pop()
                if not connection.is_closed():
                    return connection
                self._open[instance] -= 1
            if self._open.get(instance, 0) < _PER_INSTANCE:
                return await self._connect(instance)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(instance, deque()).append(waiter)
            await waiter

    async def _connect(self, instance: str) -> Connection:
        self._open[instance] = self._open.get(instance, 0) + 1
        try:
            return await asyncpg.connect(
                **self._server.connect_arguments,
                ssl=False,
                database="postgres",
                server_settings={
                    "picopyn.instance": instance,
                    "search_path": f"{SCHEMA}, pg_catalog",
                    "jit": "off",
                },
                statement_cache_size=1000,
                max_cached_statement_lifetime=0,
            )
        except BaseException:
            self._open[instance] -= 1
            raise

    def _give(self, instance: str, connection: Connection) -> None:
        self._idle[instance].append(connection)
        waiting = self._waiting.get(instance)
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Drop every idle connection."""
        for idle in self._idle.values():
            for connection in idle:
                connection.terminate()
            idle.clear()
