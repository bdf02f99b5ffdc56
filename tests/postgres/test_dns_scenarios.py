"""What went wrong in comparable drivers, class *dns*: names that stand for other addresses than they did."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.asynchronous import host_watchers
from picopyn.testing import FaultProxy, PostgresCluster
from tests.postgres.conftest import OpenPool, until
from tests.postgres.history import PATIENCE
from tests.threads import FACADES

Factory = Callable[..., PostgresCluster]

NAME = "db.test"
PORT = "SELECT inet_server_port()"

over_both_facades = pytest.mark.parametrize("facade", FACADES, indirect=True)


class Addresses:
    """Loopback addresses with one port, each the door of a server, and a name for some of them.

    Attributes:
        named: The addresses that the name has now.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.named: list[str] = []
        self.port = 0
        self._stack = stack

    def door(self, servers: PostgresCluster, name: str, address: str) -> FaultProxy:
        """Let an address lead to a server."""
        host, number = servers.address_of(name)
        proxy = self._stack.enter_context(FaultProxy(host, number, listen=address, own_port=self.port))
        self.port = proxy.port
        return proxy

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{NAME}:{self.port}/postgres"


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Addresses]:
    """The system's look-up, with one more name; names are looked up again a hundred times as often."""
    monkeypatch.setattr(host_watchers, "LOOK_UP_EVERY", 0.3)
    monkeypatch.setattr(host_watchers, "LOOK_UP_EAGERLY", 0.1)
    resolve = socket.getaddrinfo
    with ExitStack() as stack:
        known = Addresses(stack)

        def look_up(host: Any, port: Any, *args: Any, **more: Any) -> Any:
            if host not in (NAME, NAME.encode()):
                return resolve(host, port, *args, **more)
            if more.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "not an address")
            return [found for address in known.named for found in resolve(address, port, *args, **more)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        yield known


@over_both_facades
async def test_dns_re_resolve(picopyn_postgres_cluster: Factory, open_pool: OpenPool, addresses: Addresses) -> None:
    """A name that moves to another server is followed by every new connection; nothing is kept from before."""
    servers = picopyn_postgres_cluster(replicas=1)
    addresses.named = ["127.0.0.2"]
    first = addresses.door(servers, "n1", "127.0.0.2")
    addresses.door(servers, "n2", "127.0.0.3")
    pool = await open_pool(addresses.dsn, role="any", ssl="disable", min_size=1)
    assert await pool.fetchval(PORT) == servers.address_of("n1")[1]
    addresses.named = ["127.0.0.3"]
    first.refuse()
    first.cut()
    moved = await pool.fetchval(PORT, idempotent=True, timeout=PATIENCE)
    assert moved == servers.address_of("n2")[1]


@over_both_facades
async def test_dns_re_resolve_while_the_old_server_still_answers(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, addresses: Addresses
) -> None:
    """Not cut, and read-only: the address it has now is a host more, and writes go there."""
    servers = picopyn_postgres_cluster(replicas=1)
    servers.execute("CREATE TABLE t (i INT)")
    servers.wait_caught_up()
    addresses.named = ["127.0.0.2"]
    addresses.door(servers, "n2", "127.0.0.2")
    addresses.door(servers, "n1", "127.0.0.3")
    pool = await open_pool(addresses.dsn, role="prefer_leader", ssl="disable", refresh_delay=0.1)
    assert await pool.fetchval(PORT) == servers.address_of("n2")[1]
    addresses.named = ["127.0.0.3", "127.0.0.2"]
    assert await pool.execute("INSERT INTO t VALUES (1)", role="leader", timeout=PATIENCE) == "INSERT 0 1"
    assert {node.host for node in pool.topology.nodes()} == {"127.0.0.2", "127.0.0.3"}


@over_both_facades
async def test_every_address_of_a_name_is_a_seed_and_all_are_asked_at_once(
    picopyn_postgres_cluster: Factory, open_pool: OpenPool, addresses: Addresses
) -> None:
    """One that is mute holds up neither the opening nor the reading of roles; a dead one is a node all the same."""
    servers = picopyn_postgres_cluster(replicas=1)
    addresses.named = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    addresses.door(servers, "n2", "127.0.0.2").mute()
    addresses.door(servers, "n1", "127.0.0.3")
    addresses.door(servers, "n2", "127.0.0.4")
    pool = await open_pool(addresses.dsn, role="leader", ssl="disable", connect_timeout=60, refresh_delay=0.1)
    assert await pool.fetchval(PORT, timeout=PATIENCE) == servers.address_of("n1")[1]
    assert await pool.fetchval(PORT, role="replica", timeout=PATIENCE) == servers.address_of("n2")[1]
    assert [node.host for node in pool.topology.nodes(role="leader")] == ["127.0.0.3"]
    await until(lambda: {node.host for node in pool.topology.nodes()} == set(addresses.named))
