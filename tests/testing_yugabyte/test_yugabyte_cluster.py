"""`YugabyteCluster`: what it says is what a YugabyteDB says, and each of its nodes fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.testing import YugabyteCluster
from picopyn.testing.postgres_binaries import PostgresFailed
from picopyn.testing.yugabyte.greeting import Greeting

Factory = Callable[..., YugabyteCluster]

ZONES = ("aws.west.a", "aws.west.b", "aws.east.c")
WHERE = "SELECT host(inet_server_addr()) || ':' || inet_server_port()"


@pytest.fixture(scope="module")
def shared() -> Iterator[YugabyteCluster]:
    """A cluster for tests that leave it as they found it."""
    with YugabyteCluster(ZONES, read_replicas=("aws.east.r",), public="own") as cluster:
        yield cluster


async def connect(cluster: YugabyteCluster, name: str, **options: Any) -> Any:
    return await asyncpg.connect(cluster.dsn_of(name), **options)


async def servers(cluster: YugabyteCluster, name: str = "n1", **options: Any) -> list[dict[str, Any]]:
    connection = await connect(cluster, name, **options)
    try:
        return [dict(row) for row in await connection.fetch("SELECT * FROM yb_servers()")]
    finally:
        await connection.close()


async def test_every_node_names_all_nodes(shared: YugabyteCluster) -> None:
    """Ten columns of the types of the original, the same rows at every node, and where a session is."""
    rows = await servers(shared)
    assert [await servers(shared, name) for name in shared.nodes] == [rows] * 4
    node = shared.node("n4")
    assert rows[3] == {
        "host": node.host,
        "port": 5433,
        "num_connections": 0,
        "node_type": "read_replica",
        "cloud": "aws",
        "region": "east",
        "zone": "r",
        "public_ip": node.public_ip,
        "uuid": node.uuid,
        "universe_uuid": shared.universe_uuid,
    }
    connection = await connect(shared, "n2")
    assert "-YB-" in connection.get_settings().server_version
    assert await connection.fetchval(WHERE) == "{}:{}".format(*shared.address_of("n2"))
    assert await connection.fetchval("SELECT yb_server_cloud() || yb_server_region() || yb_server_zone()") == "awswestb"
    assert shared.sessions() == {"n1": 0, "n2": 1, "n3": 0, "n4": 0}
    await connection.close()


async def test_rows_are_the_same_at_every_node(shared: YugabyteCluster) -> None:
    """What is written through one node is read through another, by its public address too."""
    one, other = await connect(shared, "n1"), await asyncpg.connect(shared.dsn_of("n2", public=True))
    await one.execute("CREATE TABLE IF NOT EXISTS seen (i INT)")
    await one.execute("INSERT INTO seen VALUES (1)")
    assert await other.fetchval("SELECT i FROM seen") == 1
    assert await other.fetchval("SELECT host(inet_server_addr())") == shared.node("n2").host
    await one.execute("DROP TABLE seen")
    await one.close()
    await other.close()


async def test_nodes_fail_one_by_one(picopyn_yugabyte_cluster: Factory) -> None:
    """A killed node resets and refuses, and stays listed until the master declares it dead; a frozen one is silent."""
    cluster = picopyn_yugabyte_cluster(ZONES)
    first, second = await connect(cluster, "n1"), await connect(cluster, "n2")
    await asyncio.to_thread(cluster.kill, "n1")
    ended = (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError, OSError)
    with pytest.raises(ended):
        await first.fetch("SELECT 1")
    with pytest.raises(ConnectionRefusedError):
        await connect(cluster, "n1")
    assert len(await servers(cluster, "n2")) == 3
    cluster.unlist("n1")
    assert len(await servers(cluster, "n2")) == 2
    assert await second.fetchval("SELECT 1") == 1
    cluster.freeze("n2")
    held = asyncio.create_task(second.fetchval("SELECT 2"))
    assert len(await servers(cluster, "n3")) == 2
    assert not held.done()
    assert cluster.states() == {"n1": "down", "n2": "frozen", "n3": "running"}
    cluster.thaw("n2")
    assert await held == 2
    cluster.restart("n1")
    assert len(await servers(cluster, "n1")) == 3
    await asyncio.to_thread(cluster.end_sessions, "n2")
    with pytest.raises((asyncpg.AdminShutdownError, *ended)):
        await second.fetch("SELECT 1")
    for nonsense in (lambda: cluster.kill("n9"), lambda: cluster.thaw("n1"), lambda: cluster.restart("n1")):
        with pytest.raises(PostgresFailed):
            nonsense()


@pytest.mark.parametrize("columns", [8, 9])
async def test_older_releases_have_fewer_columns(picopyn_yugabyte_cluster: Factory, columns: int) -> None:
    """And no view of tablets; a node that moved, one that joined, and who may not ask."""
    cluster = picopyn_yugabyte_cluster(ZONES, columns=columns, tablets=None)
    cluster.move("n1", "gcp.north.x")
    assert cluster.add("aws.west.d") == "n4"
    rows = await servers(cluster)
    assert [len(row) for row in rows] == [columns] * 4
    assert [f"{row['cloud']}.{row['region']}.{row['zone']}" for row in rows] == [
        "gcp.north.x",
        "aws.west.b",
        "aws.east.c",
        "aws.west.d",
    ]
    cluster.deny("app")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await servers(cluster, user="app")
    with pytest.raises(PostgresFailed, match="42P01"):
        cluster.execute("SELECT * FROM yb_tablet_metadata")


async def test_tablets_have_leaders_and_masks(picopyn_yugabyte_cluster: Factory) -> None:
    """All hash codes once, leaders in turn; who may not read the table sees no name, but the codes."""
    cluster = picopyn_yugabyte_cluster(ZONES)
    cluster.execute("CREATE TABLE t (i INT PRIMARY KEY); CREATE ROLE app LOGIN")
    cluster.shard("t", tablets=4)
    query = "SELECT relname, start_hash_code s, end_hash_code e, leader FROM yb_tablet_metadata ORDER BY s"
    connection = await connect(cluster, "n1", user="app")
    rows = await connection.fetch(query)
    assert [row["s"] for row in rows] == [0, *[row["e"] for row in rows[:-1]]]
    assert rows[-1]["e"] == 65536
    assert {row["relname"] for row in rows} == {"<insufficient privilege>"}
    assert {row["leader"] for row in rows} == {"{}:{}".format(*cluster.address_of(name)) for name in cluster.nodes}
    cluster.lead("n2", instead_of="n1")
    assert "{}:{}".format(*cluster.address_of("n1")) not in {row["leader"] for row in await connection.fetch(query)}
    properties = await connection.fetchrow("SELECT p.* FROM pg_class, yb_table_properties(oid) p WHERE relname = 't'")
    assert (properties["num_tablets"], properties["num_hash_key_columns"]) == (4, 1)
    await connection.close()


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_only_the_version_changes_in_a_greeting(piece: int) -> None:
    """However the answers are cut into pieces; what follows the greeting passes untouched."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    def status(version: bytes) -> bytes:
        return message(b"S", b"server_version\0" + version + b"\0")

    around = message(b"R", bytes(4)), message(b"S", b"TimeZone\0UTC\0") + message(b"Z", b"I") + status(b"18.1")
    said = b"N" + around[0] + status(b"18.1") + around[1]
    greeting = Greeting("15.12-YB-1")
    got = b"".join(greeting(said[start : start + piece]) for start in range(0, len(said), piece))
    assert got == b"N" + around[0] + status(b"15.12-YB-1") + around[1]
