"""Hosts that leave politely: nobody is disturbed, nothing fails, and a primary that is drained is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from picopyn.errors import AcquireTimeout
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.threads import FACADES

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'draining'"


async def test_one_of_several_equal_hosts(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, admin: Any
) -> None:
    """A transaction that runs there is waited for; afterwards the server has no session of the pool."""
    dsn = f"postgresql://postgres@127.0.0.1:{postgres.port},127.0.0.1:{postgres_too.port}/postgres"
    pool = await open_pool(dsn, dialect="postgres", role="any", application_name="draining", min_size=1)
    await pool.wait_ready(timeout=30)
    address = f"127.0.0.1:{postgres.port}"
    async with pool.acquire(node=address) as connection, connection.transaction():
        draining = asyncio.create_task(pool.drain(address))
        await until(lambda: any(node.state == "draining" for node in pool.stats().nodes.values()))
        ports = {await pool.fetchval("SELECT inet_server_port()") for _ in range(20)}
        assert ports == {postgres_too.port}
        assert await connection.fetchval("SELECT inet_server_port()") == postgres.port
        assert not draining.done()
    await asyncio.wait_for(draining, 20)
    while await admin.fetchval(SESSIONS):
        await asyncio.sleep(0.01)
    pool.undrain(address)
    await pool.wait_ready(timeout=30)
    assert {await pool.fetchval("SELECT inet_server_port()") for _ in range(50)} == {postgres.port, postgres_too.port}


async def test_a_primary_and_its_replica(picopyn_postgres_cluster: Any, open_pool: OpenPool) -> None:
    """Reads go to who is left; writes wait for the next primary, or for the same one."""
    servers = picopyn_postgres_cluster(replicas=1)
    old, replica = servers.primary, next(name for name in servers.nodes if name != servers.primary)
    places = {name: "{}:{}".format(*servers.address_of(name)) for name in servers.nodes}
    ports = {name: servers.address_of(name)[1] for name in servers.nodes}
    pool = await open_pool(servers.dsn, acquire_timeout=30)
    await pool.ready(timeout=30)
    port = "SELECT inet_server_port()"
    assert await pool.fetchval(port, role="prefer_replica") == ports[replica]
    await pool.drain(places[replica])
    assert await pool.fetchval(port, role="prefer_replica") == ports[old]
    with pytest.raises(AcquireTimeout):
        await pool.fetchval(port, role="replica", timeout=0.1)
    pool.undrain(places[replica])
    await pool.ready(timeout=30)

    await pool.drain(places[old])
    waiting = asyncio.create_task(pool.fetchval(port))
    assert await pool.fetchval(port, role="prefer_leader") == ports[replica]
    assert not waiting.done()
    pool.undrain(places[old])
    assert await waiting == ports[old]

    await pool.drain(places[old])
    waiting = asyncio.create_task(pool.fetchval("SELECT pg_is_in_recovery()"))
    await asyncio.to_thread(servers.promote, replica)
    assert await waiting is False
    await asyncio.to_thread(servers.stop, old)
    assert await pool.fetchval(port) == ports[replica]
