"""A PostgreSQL for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from picopyn.testing import PostgresServer
from tests.asynchronous.servers import Watch
from tests.cancelling import nothing_left_behind


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all."""
    with PostgresServer(port=0) as server:
        yield server


@pytest.fixture
async def watch(postgres: PostgresServer, request: pytest.FixtureRequest, pool_class: Any) -> AsyncIterator[Watch]:
    """The server with an eye on the sessions of this test; none may be left, nor a task, nor a complaint."""
    async with nothing_left_behind(), Watch(postgres, request.node.name[:60], pool_class) as watch:
        yield watch
        await watch.no_session()
