"""The client beside the driver: plain asyncpg connections to every node, taken in turn, no routing.

It is as good as such a client can be: it has a timeout for each call, drops a connection that timed out and opens a new
one, and goes on at once where a node refuses. It does not know which node owns a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import asyncpg

from picopyn.cli.demo.tally import Tally
from picopyn.testing import Instance

#: Longest time of one call, and of one connect (seconds).
TIMEOUT = 1.0


class RoundRobinCaller:
    """One caller with one connection to each node; reads by key, each call at the next node.

    Args:
        instances: Every node.
        user: Whose name it uses.
        password: Theirs.
        query: A SELECT by key.
        keys: Arguments for it, taken in turn.
        first: Index of the node it begins with.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        user: str,
        password: str,
        query: str,
        keys: Sequence[tuple[Any, ...]],
        first: int = 0,
    ) -> None:
        self._instances = instances
        self._user = user
        self._password = password
        self._query = query
        self._keys = keys
        self._turns = count(first)
        self._open: dict[str, asyncpg.Connection] = {}

    async def step(self, tally: Tally) -> None:
        """Make one call at the next node."""
        turn = next(self._turns)
        instance = self._instances[turn % len(self._instances)]
        try:
            with tally.timing():
                async with asyncio.timeout(TIMEOUT):
                    connection = await self._connection(instance)
                    await connection.fetchrow(self._query, *self._keys[turn % len(self._keys)])
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._drop(instance.name)

    def close(self) -> None:
        """Drop every connection."""
        for name in list(self._open):
            self._drop(name)

    async def _connection(self, instance: Instance) -> asyncpg.Connection:
        connection = self._open.get(instance.name)
        if connection is None or connection.is_closed():
            connection = await asyncpg.connect(
                host=instance.host,
                port=instance.port,
                ssl=False,
                user=self._user,
                password=self._password,
                database="picodata",
            )
            self._open[instance.name] = connection
        return connection

    def _drop(self, name: str) -> None:
        connection = self._open.pop(name, None)
        if connection is not None:
            connection.terminate()
