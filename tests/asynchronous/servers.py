"""A real PostgreSQL seen from outside: the sessions a pool has there, and pools whose accounts must agree with them."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from picopyn.asynchronous import Pool
from picopyn.testing import PostgresServer
from tests.cancelling import eventually

_SESSIONS = (
    "SELECT pid, state, query FROM pg_stat_activity WHERE application_name = $1 AND backend_type = 'client backend'"
)


class Watch:
    """An administrator's view of the sessions of one application. Owned by a test.

    Args:
        server: Where to look.
        application: Which ones.
        pool_class: What pools are made of.
    """

    def __init__(self, server: PostgresServer, application: str, pool_class: Any = Pool) -> None:
        self.server = server
        self.application = application
        self.pool_class = pool_class
        self.admin: asyncpg.Connection

    async def __aenter__(self) -> Watch:
        self.admin = await asyncpg.connect(self.server.dsn)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.admin.close()

    def pool(self, **options: Any) -> Any:
        """A pool whose sessions are seen here."""
        return self.pool_class(
            self.server.dsn, application_name=self.application, dialect="postgres", **{"ssl": "disable", **options}
        )

    async def sessions(self) -> list[int]:
        """Process numbers of the sessions."""
        return [row["pid"] for row in await self.admin.fetch(_SESSIONS, self.application)]

    async def kill(self) -> None:
        """End all sessions, as an administrator does."""
        await self.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", self.application
        )

    async def no_session(self) -> None:
        """Wait until the server has none."""

        async def none() -> bool:
            return not await self.sessions()

        await eventually(none, lambda: f"sessions of {self.application} are left")

    async def agrees(self, pool: Pool, where: str = "") -> None:
        """Wait until nothing is in use, nobody waits, and the server has as many sessions as the pool says.

        One more per node may be a probe's, which is kept for a while.
        """
        seen: list[object] = []

        async def settled() -> bool:
            totals = count(pool)
            sessions = len(await self.sessions())
            seen[:] = [where, totals, f"{sessions} sessions"]
            return totals[1:] == (0, 0, 0) and 0 <= sessions - totals[0] <= len(pool.topology.nodes())

        await eventually(settled, lambda: seen)


def count(pool: Pool) -> tuple[int, int, int, int]:
    """Idle, in use, being opened, waiting: over all nodes."""
    nodes = pool.stats().nodes.values()
    return (
        sum(node.idle for node in nodes),
        sum(node.in_use for node in nodes),
        sum(node.connecting for node in nodes),
        sum(node.waiting for node in nodes),
    )


async def gathered(*calls: Any) -> list[Any]:
    """Results and errors of calls that run together."""
    return await asyncio.gather(*calls, return_exceptions=True)
