"""`Pool` on plain PostgreSQL is just a fast pool: one server or several, nothing asked, nothing polled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.static_source import StaticTopologySource
from picopyn.dsn import Endpoint
from picopyn.errors import NoNodeAvailable, UsageError
from picopyn.testing import PostgresServer, ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk
from picopyn.topology import EventBatch, Topology
from tests.cancelling import eventually
from tests.login import Login
from tests.postgres.conftest import OpenPool, until
from tests.postgres.pooler import Pooler
from tests.postgres.real import address
from tests.threads import FACADES

NOBODY = "127.0.0.1:1"


def of(*servers: PostgresServer | str) -> str:
    """A connection string for servers and other addresses."""
    known = [server.dsn for server in servers if not isinstance(server, str)]
    login = Login(known[0] if known else "postgresql://postgres@h/postgres")
    hosts = [Login(f"postgresql://{each}/").hosts[0] if isinstance(each, str) else address(each) for each in servers]
    return login.at(hosts)


class Starting:
    """A server that is starting up: it takes no session."""

    async def play(self, talk: Talk) -> None:
        talk.send(wire.error_response("57P03", "the database system is starting up"))


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("dialect", ["auto", "postgres"])
@pytest.mark.parametrize("min_size", [0, 1, 2])
async def test_a_pool_has_the_connections_it_is_told_to_have_and_no_other(
    postgres: PostgresServer, admin: Any, open_pool: OpenPool, dialect: str, min_size: int
) -> None:
    """No connection for topology or statements: the first one, which told what the server is, serves calls."""
    name = f"only {dialect} {min_size}"
    pool = await open_pool(of(postgres), dialect=dialect, min_size=min_size, application_name=name)
    await until(lambda: sum(node.idle for node in pool.stats().nodes.values()) >= max(min_size, 1))
    assert await pool.fetchval("SELECT $1::int + 1", 1) == 2
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"

    async def as_many_as_told() -> (
        bool
    ):  # where threads call, the one that told what the server is needs a moment to go
        return int(await admin.fetchval(count, name)) == max(min_size, 1)

    await eventually(as_many_as_told, pool.stats)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_nothing_but_the_callers_statements_is_sent(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Not one query of our own, from opening to closing; arrays of built-in types need none either."""
    async with Pooler("127.0.0.1", postgres.port or 0, sessions=None) as recorder:
        pool = await open_pool(recorder.dsn)
        assert await pool.fetchval("SELECT $1::int8[]", [1, None]) == [1, None]
        await pool.refresh_topology()
        await pool.explain_route("SELECT $1::int", 1)
        await pool.fetch("SELECT 1")
        await pool.close()
        assert recorder.texts == ["SELECT $1::int8[]", "SELECT 1"]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_every_host_is_a_node_with_a_lasting_name(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """Identity is computed from the address: the same in every process; a host given twice is one node."""
    pool = await open_pool(of(postgres, postgres_too, postgres))
    again = await open_pool(of(postgres_too, postgres))
    assert {node.address for node in pool.topology.nodes()} == {
        f"127.0.0.1:{server.port}" for server in (postgres, postgres_too)
    }
    assert {node.uuid for node in pool.topology.nodes()} == {node.uuid for node in again.topology.nodes()}
    with pytest.raises(UsageError):
        pool.update_topology_interval(2.0)
    assert (await pool.refresh_topology()).version == pool.topology.version


async def test_a_source_of_fixed_nodes_says_the_same_again_and_again() -> None:
    """The first batch replaces what was known, later ones change nothing."""
    batches: list[EventBatch] = []
    source = StaticTopologySource([Endpoint("h", 1), Endpoint("/run/postgresql", 5432), Endpoint("::1", 1)])
    source.listen(batches.append)
    await source.refresh()
    await source.refresh()
    topology = Topology()
    assert not topology.apply(batches[0]).empty
    assert topology.apply(batches[1]).empty
    assert [node.name for node in topology.snapshot.nodes()] == ["/run/postgresql:5432", "[::1]:1", "h:1"]
    await source.close()
    await source.refresh()
    source.terminate()
    assert len(batches) == 2


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_equal_hosts_are_used_by_load(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """A host that is busy gets nothing while the other is idle."""
    pool = await open_pool(of(postgres, postgres_too), max_size=2, min_size=2)
    await pool.wait_ready()
    async with pool.acquire() as busy:
        others = Counter([await pool.fetchval("SELECT inet_server_port()") for _ in range(20)])
        assert others == {port: 20 for port in (postgres.port, postgres_too.port) if port != busy.node.port}
    spread = Counter(await asyncio.gather(*(pool.fetchval("SELECT inet_server_port()") for _ in range(40))))
    assert set(spread) == {postgres.port, postgres_too.port}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("dialect", ["auto", "postgres"])
async def test_a_dead_host_and_one_that_is_starting_cost_no_call(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, dialect: str
) -> None:
    """The pool opens, all calls succeed on the others, and the states tell why."""
    with ScriptedServer(Starting(), greet=False) as starting:
        pool = await open_pool(of(NOBODY, f"127.0.0.1:{starting.port}", postgres, postgres_too), dialect=dialect)
        ports = Counter(await asyncio.gather(*(pool.fetchval("SELECT inet_server_port()") for _ in range(50))))
        assert set(ports) <= {postgres.port, postgres_too.port}
        await until(lambda: [node.state for node in pool.stats().nodes.values()].count("down") == 2)
        seen: set[int] = set()
        while seen != {postgres.port, postgres_too.port}:  # a host may be in doubt for a moment
            seen.add(await pool.fetchval("SELECT inet_server_port()"))
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_no_host_that_answers_is_told_with_all_reasons(open_pool: OpenPool) -> None:
    """One error lists each host with its own reason."""
    with ScriptedServer(Starting(), greet=False) as starting:
        place = f"127.0.0.1:{starting.port}"
        with pytest.raises(NoNodeAvailable) as caught:
            await open_pool(of(NOBODY, place), connect_timeout=2)
        assert set(caught.value.reasons) == {NOBODY, place}
        assert "starting up" in caught.value.reasons[place]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_host_that_comes_back_is_used_again(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """It is probed in the background, without a call having to fail."""
    stays = postgres.port
    with PostgresServer(port=0) as other:
        port = other.port
        pool = await open_pool(of(postgres, other))
        await pool.wait_ready()
    ports = {await pool.fetchval("SELECT inet_server_port()", idempotent=True) for _ in range(20)}
    assert ports == {stays}
    with PostgresServer(port=port):
        await pool.wait_ready()
        found = {await pool.fetchval("SELECT inet_server_port()") for _ in range(40)}
        assert found == {stays, port}
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_write_refused_by_a_standby_goes_to_the_next_host(open_pool: OpenPool) -> None:
    """Hosts that are declared equals are not watched; what had no effect at one is tried at the other."""
    with (
        PostgresServer(port=0, settings={"default_transaction_read_only": "on"}) as standby,
        PostgresServer(port=0) as primary,
    ):
        for server in (standby, primary):
            outside = await asyncpg.connect(server.dsn, server_settings={"default_transaction_read_only": "off"})
            await outside.execute("CREATE TABLE t (id int)")
            await outside.close()
        pool = await open_pool(of(standby, primary), role="any")
        await pool.wait_ready()
        for number in range(30):
            assert await pool.execute("INSERT INTO t VALUES ($1)", number) == "INSERT 0 1"
        assert pool.stats().retries
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await (await open_pool(of(standby))).execute("CREATE TABLE u (id int)")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("form", ["key=value", "uri"])
async def test_a_unix_socket_is_a_host(postgres: PostgresServer, open_pool: OpenPool, form: str) -> None:
    """Its directory is written as the host; the port is part of the socket's name."""
    directory, port = postgres.socket_directory, postgres.port
    dsn = {
        "key=value": f"host={directory} port={port} user=postgres dbname=postgres",
        "uri": f"postgresql://postgres@{directory.replace('/', '%2F')}:{port}/postgres",
    }[form]
    pool = await open_pool(dsn)
    assert await pool.fetchval("SELECT inet_client_addr()") is None
    (node,) = pool.topology.nodes()
    assert node.address == f"{directory}:{port}"
    mixed = await open_pool(f"host={directory},127.0.0.1 port={port} user=postgres dbname=postgres", min_size=2)
    await mixed.wait_ready()
    seen = {await mixed.fetchval("SELECT inet_client_addr() IS NULL") for _ in range(40)}
    assert seen == {True, False}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_transactions_work_on_an_acquired_connection(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """They are the server's own."""
    pool = await open_pool(of(postgres))
    await pool.execute("CREATE TABLE IF NOT EXISTS kept (id int)")
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO kept VALUES (1)")
        await transaction.rollback()
    assert await pool.fetchval("SELECT count(*) FROM kept") == 0
