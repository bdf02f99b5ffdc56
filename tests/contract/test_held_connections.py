"""Connections that are held, on a cluster: where they lead, what is refused, and that nothing is reset."""

from __future__ import annotations

import asyncpg
import pytest

from picopyn.errors import NoNodeAvailable, NotSupported, UsageError
from picopyn.routing.sharding import ShardingKey
from tests.contract.conftest import OpenPool
from tests.contract.target import Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

#: Longer than any answer takes (seconds).
LONG = 20.0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_held_connection_leads_where_one_says(target: Target, open_pool: OpenPool) -> None:
    """To a node by name, uuid or address; to a leader; to the owner of a key."""
    pool = await open_pool(target.dsn)
    await pool.wait_ready()
    for node in pool.topology.nodes():
        for name in (node.name, node.uuid, node.address):
            async with pool.acquire(node=name) as connection:
                assert connection.node.uuid == node.uuid
                assert await connection.fetchval("SELECT 1") == 1
    leaders = {node.uuid for node in pool.topology.nodes(role="leader")}
    for _ in range(5):
        async with pool.acquire(role="leader") as connection:
            assert connection.node.uuid in leaders
    for number in range(20):
        key = ShardingKey("default", (number,))
        owner = pool.topology.owner("default", key.locate(pool._executor._dialect.key_hash, 3000) or 0)
        async with pool.acquire(key=key) as connection:
            assert connection.node.replicaset_uuid == owner
            assert connection.node.uuid in leaders
    with pytest.raises(NoNodeAvailable, match="nobody"):
        await pool.acquire(node="nobody")
    with pytest.raises(UsageError, match="knows no tier"):
        await pool.acquire(key=ShardingKey("no such tier", (1,)))


async def _never(connection: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_what_looks_like_a_transaction_and_is_none_is_refused(target: Target, open_pool: OpenPool) -> None:
    """Picodata answers BEGIN and COMMIT; every statement takes effect by itself all the same."""
    pool = await open_pool(target.dsn)
    with pytest.raises(NotSupported, match="run_transaction"):
        await pool.run_transaction(_never)
    with pytest.raises(NotSupported, match="nothing can be rolled back"):
        pool.transaction()
    async with pool.acquire() as connection:
        with pytest.raises(NotSupported, match="every statement takes effect by itself"):
            connection.transaction()
        with pytest.raises(NotSupported):
            connection.cursor("SELECT 1")
        statement = await connection.prepare("SELECT 1")
        with pytest.raises(NotSupported):
            statement.cursor()
        assert await statement.fetchval() == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_held_connection_is_free_at_once_when_it_comes_back(target: Target, open_pool: OpenPool) -> None:
    """Nothing is sent for that: sessions have no state to clear."""
    pool = await open_pool(target.dsn, max_size=1)
    await pool.wait_ready()
    before = pool.stats().connects
    for _ in range(10):
        async with pool.acquire() as connection:
            await connection.fetchval("SELECT 1")
        assert sum(node.in_use for node in pool.stats().nodes.values()) == 0
    assert pool.stats().connects == before


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_text_that_fails_is_answered_where_a_statement_was_only_prepared(
    target: Target, open_pool: OpenPool
) -> None:
    """Between Parse and Sync the server would leave a simple query that fails without the end of its answer."""
    table = await target.create_table("id INT PRIMARY KEY")
    pool = await open_pool(target.dsn, max_size=1)
    await pool.wait_ready()
    node = pool.topology.nodes(role="leader")[0].name
    async with pool.acquire(node=node) as connection:
        await connection.prepare("SELECT 1")
        with pytest.raises(asyncpg.PostgresError, match="parsing"):
            await connection.execute("SELEC", timeout=LONG)
        await connection.prepare(f"SELECT id FROM {table}")
        assert await connection.execute(f"DELETE FROM {table}", timeout=LONG) == "DELETE 0"
    with pytest.raises(asyncpg.DataError, match="argument"):
        await pool.execute(f"DELETE FROM {table} WHERE id = $1", "no number", node=node)
    with pytest.raises(asyncpg.PostgresError, match="parsing"):
        await pool.execute("SELEC", node=node, timeout=LONG)
