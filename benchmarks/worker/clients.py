"""The compared clients, each as an asynchronous context manager that gives its calls.

Each one imports what it needs when it is opened, and nothing else: what a process has imported decides how its malloc
behaves (see `docs/performance.md`).
"""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

#: The two operations, and the numbers of keys there are.
READ = "SELECT id, v FROM bench WHERE id = $1"
INSERT = "INSERT INTO written (id, v) VALUES ($1, $2)"
ROWS = 100_000
TEXT = "x" * 40
_RANDOM = random.Random(7)
KEYS = [_RANDOM.randrange(ROWS) for _ in range(4096)]

#: How long a call may wait for a connection of a pool (seconds): longer than any starving lasts.
PATIENCE = 60.0


@dataclass(frozen=True)
class Target:
    """What is to be called.

    Attributes:
        dsn: The server.
        size: Connections.
        read: Whether the operation is the SELECT; else the INSERT.
        hosts: Addresses of the nodes; all are the same server.
        port: Their port.
    """

    dsn: str
    size: int
    read: bool
    hosts: tuple[str, ...]
    port: int

    @property
    def query(self) -> str:
        """Text of the operation."""
        return READ if self.read else INSERT

    def bind(self, owner: Any) -> Callable[[int], Awaitable[object]]:
        """A call of something with asyncpg's methods `fetchrow` and `execute`."""
        if self.read:
            fetchrow = owner.fetchrow
            return lambda number: fetchrow(READ, KEYS[number & 4095])
        execute = owner.execute
        return lambda number: execute(INSERT, number, TEXT)


@dataclass
class Opened:
    """An open client.

    Attributes:
        calls: One call per task in turn.
        exclusive: A task needs one of `calls` for itself: there are no more tasks than those.
        note: What a reader has to know.
        counted: Tells, at the end, how its calls were routed.
    """

    calls: list[Callable[[int], Awaitable[object]]]
    exclusive: bool = False
    note: str = ""
    counted: Callable[[], dict[str, int]] = field(default=dict)


@asynccontextmanager
async def bare(target: Target) -> AsyncIterator[Opened]:
    """`size` asyncpg connections, each for one task."""
    import asyncpg

    connections = [await asyncpg.connect(target.dsn) for _ in range(target.size)]
    try:
        yield Opened([target.bind(connection) for connection in connections], exclusive=True)
    finally:
        for connection in connections:
            await connection.close()


@asynccontextmanager
async def asyncpg_pool(target: Target, **options: Any) -> AsyncIterator[Opened]:
    import asyncpg

    async with asyncpg.create_pool(target.dsn, min_size=target.size, max_size=target.size, **options) as pool:
        yield Opened([target.bind(pool)])


def asyncpg_pool_no_reset(target: Target) -> AbstractAsyncContextManager[Opened]:
    return asyncpg_pool(target, reset=_leave_it)


async def _leave_it(connection: object) -> None:
    """In the place of a pool's reset."""


@asynccontextmanager
async def psycopg_pool(target: Target) -> AsyncIterator[Opened]:
    from psycopg_pool import AsyncConnectionPool

    text = target.query.replace("$1", "%s").replace("$2", "%s")
    options = {"autocommit": True, "prepare_threshold": 0}
    pool = AsyncConnectionPool(
        target.dsn, min_size=target.size, max_size=target.size, open=False, timeout=PATIENCE, kwargs=options
    )

    async def read(number: int) -> object:
        async with pool.connection() as connection:
            return await (await connection.execute(text, (KEYS[number & 4095],))).fetchone()

    async def insert(number: int) -> object:
        async with pool.connection() as connection:
            return await connection.execute(text, (number, TEXT))

    await pool.open(wait=True)
    try:
        yield Opened([read if target.read else insert])
    finally:
        await pool.close()


@asynccontextmanager
async def hasql(target: Target, **options: Any) -> AsyncIterator[Opened]:
    from hasql.driver.asyncpg import PoolManager

    # one connection more or less: hasql keeps one for its checks of the node
    size = max(2, target.size)
    manager = PoolManager(
        target.dsn, acquire_timeout=PATIENCE, pool_factory_kwargs={"min_size": size, "max_size": size, **options}
    )

    async def read(number: int) -> object:
        async with manager.acquire_master() as connection:
            return await connection.fetchrow(READ, KEYS[number & 4095])

    async def insert(number: int) -> object:
        async with manager.acquire_master() as connection:
            return await connection.execute(INSERT, number, TEXT)

    await manager.ready(masters_count=1, replicas_count=0)
    try:
        yield Opened([read if target.read else insert], note="with asyncpg.Pool, its default reset on")
    finally:
        await manager.close()


def picopyn_unrouted(target: Target) -> AbstractAsyncContextManager[Opened]:
    import this_picopyn

    return this_picopyn.pool(target, routed=False)


def picopyn_routed(target: Target) -> AbstractAsyncContextManager[Opened]:
    import this_picopyn

    return this_picopyn.pool(target, routed=True)


def picopyn_limited(target: Target) -> AbstractAsyncContextManager[Opened]:
    import this_picopyn

    return this_picopyn.pool(target, routed=True, deadline=30.0)


def picopyn_connection(target: Target) -> AbstractAsyncContextManager[Opened]:
    import this_picopyn

    return this_picopyn.connection(target)


def published_unrouted(target: Target) -> AbstractAsyncContextManager[Opened]:
    import published_picopyn

    return published_picopyn.pool(target, routed=False)


def published_routed(target: Target) -> AbstractAsyncContextManager[Opened]:
    import published_picopyn

    return published_picopyn.pool(target, routed=True)


#: By the name the coordinator uses.
CLIENTS: dict[str, Callable[[Target], AbstractAsyncContextManager[Opened]]] = {
    "bare": bare,
    "asyncpg.Pool": asyncpg_pool,
    "asyncpg.Pool, no reset": asyncpg_pool_no_reset,
    "psycopg_pool": psycopg_pool,
    "hasql": hasql,
    "picopyn 3.2.0": published_unrouted,
    "picopyn 3.2.0, routed": published_routed,
    "picopyn": picopyn_unrouted,
    "picopyn, routed": picopyn_routed,
    "picopyn, routed, with a deadline": picopyn_limited,
    "picopyn, connection only": picopyn_connection,
}

#: Distributions whose versions belong into the result.
_DISTRIBUTIONS = ("asyncpg", "psycopg", "psycopg-pool", "hasql", "uvloop", "mmh3", "msgspec", "picopyn")


def versions() -> dict[str, str]:
    """Version of every distribution of this environment that takes part."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
