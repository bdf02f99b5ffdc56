"""A PostgreSQL that runs elsewhere, with the words of `PostgresServer` that bodies of tests use; and ways to either."""

from __future__ import annotations

from typing import NoReturn

import asyncpg
import pytest

from picopyn.testing import PostgresServer
from tests.login import Address, Login

#: Names servers for the tests that need no fault: writable ones that are equals, and standbys of the first.
REAL = "PICOPYN_TEST_POSTGRES_DSN"


class RealServer:
    """One server.

    Args:
        login: How to log in, as a superuser.
        address: Where.
    """

    def __init__(self, login: Login, address: Address) -> None:
        self.address = address
        self.dsn = login.at([address])
        self._like_ours = (address[0], login.user, login.password, login.database) == (
            *("127.0.0.1", "postgres", ""),
            "postgres",
        )

    @property
    def port(self) -> int:
        """Its port, for what dials this machine as `postgres`, without a password."""
        if not self._like_ours:
            pytest.skip("a real server: the test dials this machine, as `postgres` without a password")
        return self.address[1]

    @property
    def socket_directory(self) -> NoReturn:
        """Its Unix socket."""
        pytest.skip("a real server: its Unix socket is its own affair")


async def look(dsn: str) -> tuple[list[RealServer], list[RealServer]]:
    """The servers of a connection string: those that take writes, and standbys."""
    login = Login(dsn)
    found: dict[bool, list[RealServer]] = {False: [], True: []}
    for address in login.hosts:
        connection = await asyncpg.connect(login.at([address]), timeout=30)
        try:
            found[await connection.fetchval("SELECT pg_is_in_recovery()")].append(RealServer(login, address))
        finally:
            await connection.close()
    return found[False], found[True]


def address(server: PostgresServer) -> Address:
    """Host and port of a server."""
    return server.address if isinstance(server, RealServer) else ("127.0.0.1", server.port or 0)


def together(*servers: PostgresServer) -> str:
    """The connection string of several servers, to which one logs in alike."""
    return Login(servers[0].dsn).at(map(address, servers))


def through(server: PostgresServer, *ports: int) -> str:
    """The connection string of a server, by other ports of this machine: those of proxies."""
    return Login(server.dsn).at(("127.0.0.1", port) for port in ports)
