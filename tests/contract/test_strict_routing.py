"""Proof of routing: keyed calls on connections that refuse to send a statement on, on the accent of Picodata 26.2."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from picopyn.routing.route import RouteKind
from picopyn.stats import PoolStats
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.threads import FACADES

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)

Factory = Callable[..., PicodataCluster]

#: The mix of YCSB, in percent.
MIX = {"select": 50, "update": 30, "delete": 10, "insert": 10}


class Statements:
    """Four statements by key, with so many parameters each."""

    def __init__(self, table: str, width: int) -> None:
        self.table = table
        self.width = width
        columns = [f"c{n}" for n in range(1, width)]
        self.ddl = f"CREATE TABLE {table} ({', '.join(['id INT PRIMARY KEY', *(f'{c} INT' for c in columns)])}, z INT)"
        marks = [f"${n}" for n in range(1, width + 1)]
        conditions = [f"{c} = ${n}" for n, c in enumerate(columns, 2)]
        where = " AND ".join(["id = $1", *conditions])
        sets = ", ".join(f"{c} = ${n}" for n, c in enumerate(columns, 1)) or "z = z + 1"
        self.texts = {
            "insert": f"INSERT INTO {table} ({', '.join(['id', *columns])}, z) VALUES ({', '.join(marks)}, 0)",
            "select": f"SELECT * FROM {table} WHERE {where}",
            "delete": f"DELETE FROM {table} WHERE {where}",
            "update": f"UPDATE {table} SET {sets} WHERE id = ${width}",
        }

    def arguments(self, verb: str, key: int) -> tuple[int, ...]:
        """Arguments for a key; the other values are the same for all."""
        others = (0,) * (self.width - 1)
        return (*others, key) if verb == "update" else (key, *others)


def counted(cluster: PicodataCluster) -> tuple[int, int, int]:
    """Direct, forwarded and refused, of all instances."""
    counters = cluster.counters().values()
    return sum(c.direct for c in counters), sum(c.forwarded for c in counters), sum(c.refused for c in counters)


async def warm_up(pool: Any, tables: Sequence[Statements]) -> None:
    """Learn every text, and open the connections."""
    for statements in tables:
        for verb, text in statements.texts.items():
            explained = await pool.explain_route(text, *statements.arguments(verb, 1))
            assert explained.direct, explained
        for key in range(-40, 0):
            await pool.execute(statements.texts["insert"], *statements.arguments("insert", key))


async def one_call(pool: Any, statements: Statements, verb: str, keys: list[int], rng: random.Random) -> None:
    """One call of the mix; it finds what it should."""
    if verb == "insert":
        key = rng.getrandbits(60)
        keys.append(key)
    else:
        key = rng.choice(keys) if verb != "delete" else keys.pop(rng.randrange(len(keys)))
    args = statements.arguments(verb, key)
    if verb == "select":
        assert await pool.fetchval(statements.texts[verb], *args) == key
    else:
        assert (await pool.execute(statements.texts[verb], *args)).endswith(" 1")


@pytest.mark.timeout(900)
async def test_a_mix_of_statements_by_key_is_direct_and_never_refused(
    picopyn_cluster_factory: Factory, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Reads, updates, deletes and inserts by key, with 1, 3 and 40 parameters: at least 99.9 % direct, none refused."""
    cluster = picopyn_cluster_factory(version="26.2")
    tables = [Statements(f"ycsb_{width}_{random.getrandbits(32)}", width) for width in (1, 3, 40)]
    for statements in tables:
        cluster.execute(statements.ddl)
    pool = await open_pool(cluster.dsn, strict_routing=True, acquire_timeout=30)
    await warm_up(pool, tables)
    rng = random.Random(5)
    verbs = [verb for verb, share in MIX.items() for _ in range(share)]
    rng.shuffle(verbs)
    cluster.reset_counters()
    calls = 0
    for statements in tables:
        keys = list(range(-40, 0))
        for verb in verbs * (60 if full_size else 1):
            await one_call(pool, statements, verb, keys, rng)
            calls += 1
    direct, forwarded, refused = counted(cluster)
    measured("direct share", direct / (direct + forwarded))
    assert direct >= calls
    assert forwarded <= calls // 1000
    assert refused == 0
    stats: PoolStats = pool.stats()
    assert stats.retries.get("MISROUTED", 0) == 0
    for statements in tables:
        for text in statements.texts.values():
            assert stats.texts[text].direct == sum(stats.texts[text].calls.values())
    for statements in tables:
        cluster.execute(f"DROP TABLE {statements.table}")


async def test_moved_buckets_cost_refusals_and_no_hop(
    picopyn_fresh_cluster: Factory, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """The servers' own view lags, ours is older still: refused calls look again, and arrive without being sent on."""
    cluster = picopyn_fresh_cluster(version="26.2")
    cluster.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    pool = await open_pool(cluster.dsn, strict_routing=True, topology_update_interval=60, acquire_timeout=30)
    insert, select = "INSERT INTO t VALUES ($1, $2)", "SELECT v FROM t WHERE id = $1"
    for text, args in ((insert, (0, 0)), (select, (0,))):
        assert (await pool.explain_route(text, *args)).direct
    cluster.set_view_lag(0.5)
    cluster.move_buckets("default", 1, 1500, "default_2")
    cluster.reset_counters()
    for key in range(20):
        assert await pool.execute(insert, key, key) == "INSERT 0 1"
        assert await pool.fetchval(select, key) == key
    direct, forwarded, refused = counted(cluster)
    measured("refused", refused)
    assert (direct, forwarded) == (40, 0)
    assert refused >= 1
    assert pool.stats().retries["MISROUTED"] == refused


async def test_what_has_no_key_runs_beside_it(picopyn_cluster_factory: Factory, open_pool: OpenPool) -> None:
    """Scans, sets of keys with several owners, NULL in the key, DDL: executed unrouted, once, with the right result."""
    cluster = picopyn_cluster_factory(version="26.2")
    table = f"beside_{random.getrandbits(32)}"
    cluster.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    pool = await open_pool(cluster.dsn, strict_routing=True, acquire_timeout=30)
    for key in range(10):
        await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", key, 0)
    update = f"UPDATE {table} SET v = v + 1 WHERE v >= $1"
    for count in range(1, 4):
        assert await pool.execute(update, 0) == "UPDATE 10"
        assert await pool.fetchval(f"SELECT sum(v) FROM {table}") == 10 * count
    assert await pool.fetch(f"SELECT * FROM {table} WHERE id = $1", None) == []
    several = f"SELECT id FROM {table} WHERE id IN ($1, $2, $3, $4)"
    for _ in range(3):
        assert len(await pool.fetch(several, 1, 2, 3, 4)) == 4
        await pool.explain_route(several, 1, 2, 3, 4)
    async with pool.acquire() as connection:
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 10
    stats: PoolStats = pool.stats()
    await asyncio.sleep(0)
    assert stats.texts[update].direct == 0
    assert stats.texts[update].unkeyed + stats.texts[update].unknown == 3
    assert stats.texts[several].forwarded + stats.texts[several].unknown == 3
    assert stats.routing.unkeyed >= stats.texts[update].unkeyed
    cluster.execute(f"DROP TABLE {table}")


async def test_literals_lead_to_the_owner(picopyn_cluster_factory: Factory, open_pool: OpenPool) -> None:
    """A literal in the key, and a text without parameters; on a server that ignores the setting too."""
    cluster = picopyn_cluster_factory(version="26.1")
    table = f"literals_{random.getrandbits(32)}"
    cluster.execute(f"CREATE TABLE {table} (a INT, b TEXT, v INT, PRIMARY KEY (a, b)) DISTRIBUTED BY (b, a)")
    pool = await open_pool(cluster.dsn, strict_routing=True, acquire_timeout=30)
    insert = f"INSERT INTO {table} VALUES ($1, 'x', 0)"
    select = f"SELECT a FROM {table} WHERE a = $1 AND b = 'x'"
    constant = f"SELECT v FROM {table} WHERE a = 3 AND b = 'x'"
    for text, args in ((insert, (1,)), (select, (1,)), (constant, ())):
        assert (await pool.explain_route(text, *args)).direct, text
    cluster.reset_counters()
    for key in range(30):
        await pool.execute(insert, key)
        assert await pool.fetchval(select, key) == key
    assert await pool.fetchval(constant) == 0
    assert counted(cluster) == (61, 0, 0)
    assert pool.stats().texts[constant].calls == {"constant": 1}
    cluster.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize("version", ["25.6", "26.2"])
@pytest.mark.parametrize("user", ["admin", "bare"])
async def test_routes_are_learned_from_every_accent(
    picopyn_cluster_factory: Factory, open_pool: OpenPool, version: str, user: str
) -> None:
    """25.6 names in its notices what its plans do not; 26.2 prints boxes; rights on system tables are not needed."""
    cluster = picopyn_cluster_factory(version=version)
    if user != "admin":
        user = f"bare_{random.getrandbits(32)}"
        cluster.create_user(user, "Secret-123")
    table = f"learned_{random.getrandbits(32)}"
    cluster.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    for right in ("READ", "WRITE"):
        cluster.execute(f"GRANT {right} ON TABLE {table} TO {user}")
    pool = await open_pool(cluster.dsn_for(user), strict_routing=True, acquire_timeout=30)
    texts = {
        f"INSERT INTO {table} VALUES ($1, 0)": RouteKind.KEYED,
        f"INSERT INTO {table} (v, id) VALUES ($2, $1)": RouteKind.KEYED,
        f"SELECT v FROM {table} WHERE id = $1": RouteKind.KEYED,
        f"SELECT v FROM {table} WHERE id = $1 ORDER BY v LIMIT 1": RouteKind.KEYED,
        f"UPDATE {table} SET v = v + 1 WHERE id = $1": RouteKind.KEYED,
        f"SELECT v FROM {table} WHERE id > $1": RouteKind.NOT_KEYED,
    }
    for text, kind in texts.items():
        args = (1, 2)[: text.count("$")]
        explained = await pool.explain_route(text, *args)
        assert explained.kind is kind, explained
        assert explained.buckets == ((1934,) if kind is RouteKind.KEYED else ())
    assert await pool.execute(f"INSERT INTO {table} VALUES ($1, 0)", 7) == "INSERT 0 1"
    assert await pool.fetchval(f"SELECT v FROM {table} WHERE id = $1", 7) == 0
    cluster.execute(f"DROP TABLE {table}")
