"""One authority for all, and one that nobody trusts; a plain PostgreSQL behind proxies that end TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.settings import PoolSettings
from picopyn.testing import FaultProxy, PostgresServer
from tests.tls.certificates import Authority

Dial = Callable[..., Awaitable[Connection]]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that clients trust."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no client knows."""
    return Authority(tmp_path_factory.mktemp("stranger"), "Unknown authority")


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL without TLS."""
    with PostgresServer(port=0) as server:
        yield server


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Callable[..., FaultProxy]]:
    """Starts proxies in front of the server."""
    with ExitStack() as running:

        def start(tls: Any = None, listen: str = "127.0.0.1") -> FaultProxy:
            assert server.port is not None
            return running.enter_context(FaultProxy("127.0.0.1", server.port, tls=tls, listen=listen))

        yield start


@pytest.fixture
async def dial(server: PostgresServer) -> AsyncIterator[Dial]:
    """Connects through a proxy with the settings given; connections are dropped at the end."""
    opened: list[Connection] = []

    async def connect(proxy: FaultProxy, *, host: str | None = None, **settings: Any) -> Connection:
        user = settings.pop("user", server.connect_arguments["user"])
        database = settings.pop("database", "postgres")
        told = PoolSettings.from_dsn(f"postgresql://{user}@h/{database}", **settings)
        dialer = Dialer(told, PicodataDialect(startup=False))
        opened.append(await dialer.dial((host or proxy.host, proxy.port), Purpose.PLAIN))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.terminate()
    await asyncio.sleep(0)  # their sockets are closed in the loop's next turn
