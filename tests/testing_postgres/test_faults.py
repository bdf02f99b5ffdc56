"""A node of a PostgreSQL cluster that is killed, stopped, frozen, started again, or turned read-only."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import asyncpg
import pytest

from picopyn.testing import PostgresCluster
from tests.testing_postgres.conftest import (
    Place,
    connect,
    insert,
    living_segments,
    rows,
    until,
    wait_until,
    with_table,
)


async def test_a_killed_node_resets_its_connections_and_refuses_new_ones(cluster: PostgresCluster) -> None:
    """While its port stays taken, so that nobody else answers there."""
    connection = await connect(cluster, "n1")
    cluster.kill("n1")
    assert cluster.states() == {"n1": "down", "n2": "replica", "n3": "replica"}
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    with pytest.raises(ConnectionRefusedError):
        await connect(cluster, "n1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(cluster.address_of("n1"))


def test_a_killed_node_has_no_process_and_no_shared_memory(place: Place) -> None:
    """Only the shell of the whole cluster is left."""
    with PostgresCluster(replicas=0) as cluster:
        segments = place.segments()
        assert segments <= living_segments()
        cluster.kill("n1")
        assert len(place.processes()) == 1
        assert not segments & living_segments()


async def test_a_killed_node_starts_again_with_what_it_acknowledged(cluster: PostgresCluster) -> None:
    """At its old address; a primary is a primary again."""
    address = cluster.address_of("n1")
    for value in range(5):
        insert(cluster, value)
        cluster.kill("n1")
        cluster.restart("n1")
    assert cluster.address_of("n1") == address
    assert cluster.states()["n1"] == "primary"
    assert rows(cluster, "n1") == [0, 1, 2, 3, 4]
    cluster.wait_caught_up()
    assert rows(cluster, "n2") == rows(cluster, "n3") == [0, 1, 2, 3, 4]


def test_a_killed_replica_catches_up_when_it_is_started(cluster: PostgresCluster) -> None:
    """With what it missed."""
    cluster.kill("n2")
    insert(cluster, 1)
    cluster.wait_caught_up()
    cluster.restart("n2")
    cluster.wait_caught_up("n2")
    assert rows(cluster, "n2") == [1]


def test_a_server_that_somebody_else_killed_is_down_and_can_be_started(place: Place) -> None:
    """Its shared memory does not outlive the cluster."""
    with PostgresCluster(replicas=0) as cluster:
        for turn in range(2):
            segments = place.segments()
            (lock_file,) = place.path.glob("pcp-*/n1/data/postmaster.pid")
            os.kill(int(lock_file.read_text().splitlines()[0]), signal.SIGKILL)
            wait_until(lambda: cluster.states() == {"n1": "down"}, "it is not down")
            wait_until(lambda: len(place.processes()) == 1, "its processes are left")
            if not turn:
                cluster.restart("n1")
                assert not segments & living_segments()
    assert not segments & living_segments()


async def test_a_stopped_node_tells_its_clients(cluster: PostgresCluster) -> None:
    """57P01, in the middle of a statement."""
    connection = await connect(cluster, "n2")
    asked = asyncio.create_task(connection.fetchval("SELECT pg_sleep(60)"))
    await until(lambda: _active(cluster, "n2", "pg_sleep"))
    await asyncio.to_thread(cluster.stop, "n2")
    told = (asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)  # as the end of the stream comes with it
    with pytest.raises(told, match="terminating connection due to administrator command"):
        await asked
    assert cluster.states()["n2"] == "down"
    cluster.restart("n2")
    assert cluster.states()["n2"] == "replica"


async def _active(cluster: PostgresCluster, name: str, text: str) -> bool:
    others = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
    return any(text in str(query) for (query,) in await asyncio.to_thread(cluster.execute, others, name))


def test_the_replicas_of_a_stopped_primary_have_everything(cluster: PostgresCluster) -> None:
    """So a planned switch loses nothing: stop, promote, rejoin."""
    for value in range(20):
        insert(cluster, value)
    cluster.stop("n1")
    cluster.promote("n3")
    cluster.rejoin("n1")
    cluster.wait_caught_up()
    assert cluster.states() == {"n1": "replica", "n2": "replica", "n3": "primary"}
    assert [rows(cluster, name) for name in cluster.nodes] == [list(range(20))] * 3


async def test_a_frozen_node_accepts_connections_and_says_nothing(cluster: PostgresCluster) -> None:
    """What was asked meanwhile is answered when it is thawed."""
    connection = await connect(cluster, "n1")
    cluster.freeze("n1")
    assert cluster.states()["n1"] == "frozen"
    with socket.create_connection(cluster.address_of("n1"), timeout=5):
        pass
    with pytest.raises(TimeoutError):
        await connect(cluster, "n1", timeout=0.1)
    asked = asyncio.create_task(connection.fetchval("SELECT 7"))
    await asyncio.sleep(0)
    assert not asked.done()
    cluster.thaw("n1")
    assert await asked == 7
    assert cluster.states()["n1"] == "primary"
    await connection.close()


def test_every_process_of_a_frozen_node_stands_still(place: Place) -> None:
    """The shells beside it do not."""
    with PostgresCluster(replicas=0) as cluster:
        cluster.freeze("n1")
        servers = [pid for pid in place.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"]
        assert len(servers) > 3
        assert {_state(pid) for pid in servers} == {"T"}
        cluster.thaw("n1")
        assert "T" not in {_state(pid) for pid in servers}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_node_can_be_killed_and_started(cluster: PostgresCluster) -> None:
    """As any other."""
    cluster.freeze("n2")
    cluster.kill("n2")
    cluster.restart("n2")
    assert cluster.states()["n2"] == "replica"


async def test_a_read_only_node_refuses_writes_in_open_sessions_too(cluster: PostgresCluster) -> None:
    """From the very next statement on, and takes them again when it is turned back."""
    connection = await connect(cluster, "n1")
    for value in range(5):
        cluster.read_only("n1", True)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("INSERT INTO t VALUES (-1)")
        with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
            await asyncpg.connect(cluster.dsn_of("n1"), target_session_attrs="read-write")
        cluster.read_only("n1", False)
        await connection.execute("INSERT INTO t VALUES ($1)", value)
    assert cluster.states()["n1"] == "primary"
    await connection.close()


@pytest.mark.parametrize("how", ["down", "frozen"])
async def test_a_node_that_does_not_run_is_read_only_when_it_does_again(cluster: PostgresCluster, how: str) -> None:
    """The order is not lost."""
    away, back = {"down": (cluster.stop, cluster.restart), "frozen": (cluster.freeze, cluster.thaw)}[how]
    away("n1")
    cluster.read_only("n1", True)
    back("n1")

    async def refuses() -> bool:
        return cluster.execute("SHOW default_transaction_read_only", "n1") == [("on",)]

    await until(refuses)


async def test_a_commit_waits_for_synchronous_replicas(picopyn_postgres_cluster: object) -> None:
    """As many as asked for; then it is safe with any that is promoted."""
    assert callable(picopyn_postgres_cluster)
    cluster = with_table(picopyn_postgres_cluster(synchronous=1))
    cluster.stop("n2")
    insert(cluster, 1)
    cluster.freeze("n3")
    connection = await connect(cluster, "n1")
    asked = asyncio.create_task(connection.execute("INSERT INTO t VALUES (2)"))
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    async def waiting() -> bool:
        return bool(await asyncio.to_thread(cluster.execute, waits, "n1"))

    await until(waiting)
    assert not asked.done()
    cluster.thaw("n3")
    await asked
    connection.terminate()
    cluster.kill("n1")
    cluster.restart("n2")
    assert cluster.promote() == "n3"
    assert rows(cluster, "n3") == [1, 2]
