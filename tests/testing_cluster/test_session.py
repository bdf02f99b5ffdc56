"""Corners of the protocol as the embedded cluster speaks it, which the recorded conversations do not hold."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterator

import asyncpg
import pytest

from picopyn.testing import PicodataCluster
from tests.testing_cluster import wire_client as wire
from tests.testing_cluster.conftest import Connect
from tests.testing_cluster.wire_client import WireClient

Factory = Callable[..., PicodataCluster]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PicodataCluster]:
    """One instance with a table of five rows."""
    with PicodataCluster(replicasets=1, replication=1) as cluster:
        cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY, v TEXT)")
        cluster.execute("INSERT INTO o VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')")
        yield cluster


@pytest.fixture
def client(cluster: PicodataCluster) -> Iterator[WireClient]:
    """A logged-in raw connection."""
    with raw(cluster) as client:
        assert client.start("admin", cluster.password())[-1] == ["Z", "I"]
        yield client


def raw(cluster: PicodataCluster) -> WireClient:
    """A raw connection before its start-up."""
    instance = cluster.instances["default_1_1"]
    return WireClient(instance.host, instance.port)


def request(code: int) -> bytes:
    """A start-up packet that is only a code."""
    return struct.pack("!II", 8, code)


def test_tls_is_declined_and_other_requests_are_closed(cluster: PicodataCluster) -> None:
    """SSLRequest gets N and the start-up may follow; GSS, cancel and protocol 2 are closed without a word."""
    with raw(cluster) as client:
        client.send(request(80877103))
        assert client._socket.recv(1) == b"N"
        assert client.start("admin", cluster.password())[-1] == ["Z", "I"]
    for code in (80877104, 80877102, 131072):
        with raw(cluster) as client:
            assert client.exchange(request(code)) == [["CLOSED"]]


def test_no_key_data_is_sent_and_the_status_is_always_idle(client: WireClient) -> None:
    """BEGIN opens nothing."""
    assert client.query("BEGIN") == [["C", "BEGIN"], ["Z", "I"]]
    assert client.query("SELECT nocol FROM o")[-1] == ["Z", "I"]


def test_an_error_is_sent_at_once_and_everything_until_sync_is_skipped(client: WireClient) -> None:
    """A client that flushes after Parse sees the refusal without a Sync."""
    client.send(wire.parse("SELEC") + wire.describe() + wire.FLUSH)
    assert wire.written(*client.receive())[0] == "E"
    assert client.exchange(wire.bind() + wire.execute() + wire.SYNC) == [["Z", "I"]]


def test_a_failing_simple_query_inside_an_open_group_waits_for_sync(client: WireClient) -> None:
    """It looks like a hang."""
    client.send(wire.parse("SELECT 1") + wire.packed("Q", wire.text("SELEC")))
    assert [wire.written(*client.receive())[0] for _ in range(2)] == ["1", "E"]
    assert client.exchange(wire.SYNC) == [["Z", "I"]]


def test_a_portal_can_be_read_in_parts_and_not_again(client: WireClient) -> None:
    """Suspended until its rows are all sent; running it once more is refused; it dies at Sync."""
    ask = wire.parse("SELECT id FROM o WHERE id IN (1, 2, 3) ORDER BY id") + wire.bind(portal="p")
    got = client.exchange(ask + wire.execute("p", 2) + wire.execute("p", 2) + wire.execute("p") + wire.SYNC)
    rows = [["D", ["1"]], ["D", ["2"]], ["s"], ["D", ["3"]], ["C", "SELECT 3"]]
    assert got[:-2] == [["1"], ["2"], *rows]
    assert "Can't execute portal in state Done" in got[-2][1]["M"]
    assert "Couldn't find portal 'p'" in client.exchange(wire.execute("p") + wire.SYNC)[0][1]["M"]


def test_names_of_portals_and_statements_are_not_reused_silently(client: WireClient) -> None:
    """42P03 and 42P05; unnamed ones are replaced; closing a statement closes its portals."""
    ask = wire.parse("SELECT 1", "s") + wire.bind(statement="s", portal="p")
    got = client.exchange(ask + wire.bind(statement="s", portal="p") + wire.SYNC)
    assert got[2][1]["C"] == "42P03"
    assert client.exchange(wire.parse("SELECT 2", "s") + wire.SYNC)[0][1]["C"] == "42P05"
    assert client.exchange(wire.parse("SELECT 1") + wire.parse("SELECT 2") + wire.SYNC) == [["1"], ["1"], ["Z", "I"]]
    closed = wire.bind(statement="s", portal="p") + wire.close("S", "s") + wire.execute("p") + wire.SYNC
    assert client.exchange(closed)[2][0] == "E"


def test_statements_can_be_deallocated(client: WireClient) -> None:
    """One by name, or all."""
    client.exchange(wire.parse("SELECT 1", "one") + wire.parse("SELECT 2", "two") + wire.SYNC)
    assert client.query("DEALLOCATE one")[-1] == ["Z", "I"]
    assert client.exchange(wire.bind(statement="one") + wire.SYNC)[0][0] == "E"
    assert client.query("DEALLOCATE ALL")[0] == ["C", "DEALLOCATE ALL"]
    assert client.exchange(wire.bind(statement="two") + wire.SYNC)[0][0] == "E"


def test_effects_of_a_pipeline_stay_when_a_later_statement_fails(client: WireClient) -> None:
    """There is no transaction."""
    parts = [
        part
        for key in (50, 50, 51)
        for part in (wire.parse(f"INSERT INTO o VALUES ({key}, 'p')"), wire.bind(), wire.execute())
    ]
    client.exchange(b"".join(parts) + wire.SYNC)
    assert client.query("SELECT id FROM o WHERE id IN (50, 51)")[1] == ["D", ["50"]]
    client.query("DELETE FROM o WHERE id = 50")


async def test_many_rows_go_through_one_pipeline(cluster: PicodataCluster, connect: Connect) -> None:
    """As `executemany` sends them."""
    cluster.execute("CREATE TABLE pipe (id INT NOT NULL PRIMARY KEY, v TEXT)")
    connection = await connect(cluster, "default_1_1")
    await connection.executemany("INSERT INTO pipe VALUES ($1, $2)", [(n, "x" * 50) for n in range(300)])
    assert await connection.fetchval("SELECT count(*) FROM pipe") == 300


async def test_values_of_every_type_come_back_as_they_were_sent(cluster: PicodataCluster, connect: Connect) -> None:
    """In binary, by way of the storage."""
    from datetime import UTC, datetime
    from decimal import Decimal
    from uuid import UUID

    cluster.execute(
        "CREATE TABLE types (i INT NOT NULL PRIMARY KEY, t TEXT, b BOOLEAN, d DOUBLE, n DECIMAL, u UUID, m DATETIME)"
    )
    connection = await connect(cluster, "default_1_1")
    row = (
        -(1 << 63),
        "É日本",
        True,
        1.25,
        Decimal("-123.4500"),
        UUID("9035910e-8342-4460-8c25-25e5f10d9876"),
        datetime(2023, 7, 7, 12, 34, 56, 500000, UTC),
    )
    await connection.execute("INSERT INTO types VALUES ($1, $2, $3, $4, $5, $6, $7)", *row)
    found = tuple(await connection.fetchrow("SELECT * FROM types"))
    assert found == row
    assert str(found[4]) == "-123.4500"


async def test_control_works_beside_a_running_loop_and_from_threads(cluster: PicodataCluster, connect: Connect) -> None:
    """Each order comes on a connection of its own; a long one does not hold up the others."""
    waiting = threading.Thread(target=lambda: cluster.wait_leader("default_1", timeout=5), daemon=True)
    began = time.monotonic()
    waiting.start()
    connection = await connect(cluster, "default_1_1")
    values = await asyncio.gather(*(asyncio.to_thread(cluster.counters) for _ in range(8)))
    assert all(value.keys() == {"default_1_1"} for value in values)
    assert await connection.fetchval("SELECT 1") == 1
    waiting.join()
    assert time.monotonic() - began < 30


async def test_a_statement_outside_the_model_says_so(cluster: PicodataCluster, connect: Connect) -> None:
    """It is never answered with an invention."""
    connection = await connect(cluster, "default_1_1")
    with pytest.raises(asyncpg.FeatureNotSupportedError, match="not modelled by the embedded cluster"):
        await connection.execute("UPDATE _pico_tier SET bucket_count = 5 WHERE name = 'default'")
