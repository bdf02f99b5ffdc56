"""Raw asyncpg connections to the embedded cluster, and whether a statement runs or hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PicodataCluster

Connect = Callable[..., Awaitable[Any]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A function (cluster, instance name, user, start-up keys) to a raw asyncpg connection."""
    opened = []

    async def open_one(cluster: PicodataCluster, at: str, user: str = "admin", **keys: str) -> Any:
        instance = cluster.instances[at]
        connection = await asyncpg.connect(
            host=instance.host,
            port=instance.port,
            user=user,
            password=cluster.password(user),
            database="db",
            ssl=False,
            server_settings=keys,
        )
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.terminate()


async def hangs(cluster: PicodataCluster, at: str, step: Awaitable[Any]) -> asyncio.Task[Any]:
    """Start a statement and return its task once one more statement hangs at the instance.

    Raises:
        ClusterError: It did not come to hang.
    """
    before = cluster.counters()[at].hanging
    task = asyncio.ensure_future(step)
    await asyncio.sleep(0)
    await asyncio.to_thread(cluster.wait_hanging, before + 1, at)
    assert not task.done(), task
    return task
