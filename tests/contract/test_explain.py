"""`Pool.explain`: the server's plan as an object, over both facades and every accent."""

from __future__ import annotations

import random
from collections.abc import Callable

import asyncpg
import pytest

from picopyn.errors import UsageError
from picopyn.query_plan import QueryPlan
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.threads import FACADES

Factory = Callable[..., PicodataCluster]

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)


@pytest.mark.parametrize("version", ["25.6", "26.1", "26.2"])
async def test_a_plan_is_an_object_whatever_the_version(
    picopyn_cluster_factory: Factory, open_pool: OpenPool, version: str
) -> None:
    """Steps, tables, buckets; nothing is executed, and a statement the server refuses is the server's error."""
    cluster = picopyn_cluster_factory(version=version)
    table = f"explained_{random.getrandbits(32)}"
    cluster.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    pool = await open_pool(cluster.dsn, acquire_timeout=30)
    update: QueryPlan = await pool.explain(f"UPDATE {table} SET v = $1 WHERE id = $2", 7, 1, timeout=30)
    assert [node.kind for node in update.walk() if node.kind != "set"][:2] == ["update", "motion"]
    assert update.tables == (table,)
    assert update.bucket_ranges == ((1934, 1934),)
    scan: QueryPlan = await pool.explain(f"SELECT count(*) FROM {table} WHERE v = 5")
    assert scan.bucket_scope == ("at_most" if version == "26.2" else "exact")
    assert scan.bucket_count == 3000
    assert scan.find("unknown") == ()
    assert (await pool.explain("SELECT 1")).bucket_scope == "any"
    assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0
    with pytest.raises(asyncpg.PostgresError, match="not found"):
        await pool.explain("SELECT * FROM no_such_table")
    with pytest.raises(UsageError, match="EXPLAIN itself"):
        await pool.explain("explain SELECT 1")
    cluster.execute(f"DROP TABLE {table}")
