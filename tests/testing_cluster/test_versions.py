"""What a user of `PicodataCluster(version=…)` meets: the refusals of `forward`, arrays, and no execution by oneself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PicodataCluster
from tests.testing_cluster.conftest import Connect, hangs

Factory = Callable[..., PicodataCluster]
INSTANCES = ("default_1_1", "default_1_2", "default_2_1", "default_2_2")


def with_table(factory: Factory, version: str) -> tuple[PicodataCluster, str]:
    """A cluster of this version with a row of key 1, and the leader that owns it."""
    cluster = factory(version=version)
    cluster.execute("CREATE TABLE IF NOT EXISTS owned (id INT NOT NULL PRIMARY KEY, v TEXT)")
    cluster.execute("INSERT INTO owned VALUES (1, 'a') ON CONFLICT DO REPLACE")
    owner = cluster.owner_of("default", cluster.bucket_of("owned", 1))
    return cluster, cluster.leaders()[owner]


async def refusal(connection: Any, sql: str) -> str:
    """The text of the refusal; empty when it ran."""
    try:
        await connection.fetch(sql)
    except asyncpg.PostgresError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("options", ["forward=off", "forward=off,read_preference=any"])
async def test_a_connection_that_forbids_forwarding_works_at_the_owner_only(
    picopyn_cluster_factory: Factory, connect: Connect, options: str
) -> None:
    """Recorded on 26.2.1-rc2: keyed statements only there, scans nowhere, what has no buckets everywhere."""
    cluster, leader = with_table(picopyn_cluster_factory, "26.2")
    cluster.reset_counters()
    for at in INSTANCES:
        connection = await connect(cluster, at, options=options)
        text = await refusal(connection, "SELECT * FROM owned WHERE id = 1")
        assert text == "" if at == leader else 'try using "forward = ro_to_rw" instead' in text
        scan = await refusal(connection, "SELECT * FROM owned")
        assert 'buckets span multiple nodes and are not present on the current node, try using "forward = on"' in scan
        for anywhere in ("SELECT 1", "SELECT name FROM _pico_tier", "EXPLAIN SELECT * FROM owned"):
            assert await refusal(connection, anywhere) == ""
    refused = {name: counters.refused for name, counters in cluster.counters().items()}
    assert refused == {name: 1 if name == leader else 2 for name in INSTANCES}


async def test_the_text_of_a_statement_may_forbid_forwarding_too(
    picopyn_cluster_factory: Factory, connect: Connect
) -> None:
    """OPTION wins over the connection, and older servers do not know it."""
    cluster, leader = with_table(picopyn_cluster_factory, "26.2")
    elsewhere = next(name for name in INSTANCES if name != leader)
    connection = await connect(cluster, elsewhere, options="forward=off")
    assert await refusal(connection, "SELECT * FROM owned WHERE id = 1 OPTION (FORWARD = on)") == ""
    assert await refusal(connection, "SELECT * FROM owned WHERE id = 1 OPTION (FORWARD = ro_to_rw)") == ""
    text = await refusal(connection, "SELECT * FROM owned OPTION (FORWARD = ro_to_rw)")
    assert 'cannot satisfy "forward = ro_to_rw": buckets span multiple nodes' in text
    older, _ = with_table(picopyn_cluster_factory, "26.1")
    connection = await connect(older, "default_1_1", options="forward=off")
    assert await refusal(connection, "SELECT * FROM owned") == ""
    assert "parsing error" in await refusal(connection, "SELECT * FROM owned OPTION (FORWARD = off)")


async def test_typed_arrays_are_parameters_and_results_from_26_2_on(
    picopyn_cluster_factory: Factory, connect: Connect
) -> None:
    """Both ways, over a pool; asyncpg alone cannot (recorded), and older servers refuse the type."""
    cluster, leader = with_table(picopyn_cluster_factory, "26.2")
    arrays = (("int", [1, None, 3]), ("text", ["a", 'b"c', "NULL", ""]), ("bool", [True, False]), ("int", []))
    async with Pool(cluster.dsn) as pool:
        for kind, value in arrays:
            assert await pool.fetchval(f"SELECT $1::{kind}[]", value) == value
    connection = await connect(cluster, leader)
    with pytest.raises(asyncpg.PostgresError, match="current_setting not found"):
        await connection.fetchval("SELECT $1::int[]", [1])
    older, leader = with_table(picopyn_cluster_factory, "26.1")
    connection = await connect(older, leader)
    with pytest.raises(asyncpg.PostgresError, match="array types"):
        await connection.fetchval("SELECT $1::int[]", [1])


async def test_25_6_executes_nothing_by_itself(picopyn_fresh_cluster: Factory, connect: Connect) -> None:
    """Every statement on sharded rows is forwarded, and with one leader dead all of them hang, at every instance."""
    cluster, leader = with_table(picopyn_fresh_cluster, "25.6")
    connection = await connect(cluster, leader)
    cluster.reset_counters()
    await connection.fetch("SELECT * FROM owned WHERE id = 1")
    counters = cluster.counters()[leader]
    assert (counters.direct, counters.forwarded) == (0, 1)
    other = next(name for name in cluster.leaders().values() if name != leader)
    cluster.kill(other)
    task = await hangs(cluster, leader, connection.fetch("SELECT * FROM owned WHERE id = 1"))
    task.cancel()
