"""A PostgreSQL, connections to it that block, and proxies in front of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.sync import Connection, connect
from picopyn.testing import FaultProxy, PostgresServer
from tests.tls.conftest import authority, proxy, server, stranger

__all__ = ["authority", "proxy", "server", "stranger"]

Open = Callable[..., Connection]


@pytest.fixture
def opened(server: PostgresServer) -> Iterator[Open]:
    """Opens connections, through a proxy or without; they are dropped at the end."""
    with ExitStack() as at_the_end:

        def open_one(proxy: FaultProxy | None = None, *, host: str | None = None, **settings: Any) -> Connection:
            where = server if proxy is None else proxy
            dsn = f"postgresql://postgres@{host or '127.0.0.1'}:{where.port}/postgres"
            connection = connect(dsn, **settings)
            at_the_end.callback(connection.terminate)
            return connection

        yield open_one


@pytest.fixture
def connection(opened: Open) -> Connection:
    """One connection."""
    return opened()


@pytest.fixture
def admin(opened: Open) -> Connection:
    """Another one, to look at the server from outside."""
    return opened()


@pytest.fixture(autouse=True)
def no_threads_left_behind() -> Iterator[None]:
    """After every test: no thread of ours, but for those that are just telling a server something."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("picopyn "):
            thread.join(5)
            assert not thread.is_alive(), thread.name


def until(met: Callable[[], Any]) -> None:
    """Wait for something that a server brings about; the test's own time limit ends it."""
    pause = threading.Event()
    while not met():
        pause.wait(0.005)
