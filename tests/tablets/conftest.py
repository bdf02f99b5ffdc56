"""Three servers with tablets, and the pools of the tests on plain PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from picopyn.testing import PostgresServer
from tests.postgres.conftest import nothing_left_behind, open_pool
from tests.tablets.sharded import Sharded

__all__ = ["nothing_left_behind", "open_pool"]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[PostgresServer]]:
    """Three servers."""
    started: list[PostgresServer] = []
    try:
        for _ in range(3):
            started.append(PostgresServer(port=0).start())
        yield started
    finally:
        for server in started:
            server.stop()


@pytest.fixture
async def sharded(servers: list[PostgresServer]) -> AsyncIterator[Sharded]:
    """The servers, freshly cut."""
    cluster = Sharded(servers)
    await cluster.prepare()
    yield cluster
    await cluster.close()
