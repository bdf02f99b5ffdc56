"""`role="replica"` on a YugabyteDB: read from followers, near by, in sessions that cannot write.

Whether a statement would be read from a follower is what its session's settings say; the embedded cluster has a word of
its own about it (`picopyn_cluster.follower_read()`), which must be the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import asyncpg
import pytest

from picopyn import asynchronous, sync
from picopyn.errors import AcquireTimeout, ConfigError, NoNodeAvailable
from picopyn.observe import ConnectionOpened
from picopyn.testing import YugabyteCluster
from tests.login import with_words
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    LONG,
    SOON,
    WHERE,
    Cluster,
    Factory,
    in_thread,
    in_zone,
    keys,
    place,
    places,
    states,
    tablets_of,
    until,
)
from tests.yugabyte.real import RealCluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

#: How old data may be that a statement of this session reads (milliseconds); NULL if it reads from leaders.
STALENESS = """SELECT CASE WHEN coalesce(nullif(current_setting('yb_read_from_followers', true), ''), 'off')::bool
AND current_setting('transaction_read_only')::bool
THEN coalesce((SELECT setting FROM pg_settings WHERE name = 'yb_follower_read_staleness_ms'),
nullif(current_setting('yb_follower_read_staleness_ms', true), ''), '30000')::int END"""
#: Three nodes in the zone of the client, one in another; each tablet has two copies, on neighbours.
ZONES = ("c.r.a", "c.r.a", "c.r.a", "c.r.b")


@pytest.fixture(scope="module")
def near(four: Cluster) -> dict[str, Any]:
    """A pool's wishes: the zone of the first node."""
    return {"load_balance": True, "topology_keys": keys(four, "n1")}


@pytest.fixture(scope="module")
def four(real: RealCluster | None) -> Iterator[Cluster]:
    """The nodes, and a table with a row for every key; tests leave them as they found them."""
    with nullcontext(real) if real is not None else YugabyteCluster(ZONES) as cluster:
        cluster.execute("DROP TABLE IF EXISTS picopyn_t")
        cluster.execute("CREATE TABLE picopyn_t (id int PRIMARY KEY, v int)")
        cluster.execute("INSERT INTO picopyn_t SELECT i, i FROM generate_series(0, 99) i")
        cluster.shard("picopyn_t", tablets=4, replication=2)
        yield cluster
        cluster.execute("DROP TABLE picopyn_t")


@both
async def test_the_embedded_cluster_says_the_same(four: Cluster, open_pool: OpenPool) -> None:
    """Of the same session."""
    if isinstance(four, RealCluster):
        pytest.skip("a real cluster: it has no other word for it")
    pool = await open_pool(four.dsn, yb_follower_read_staleness_ms=5000)
    for role in ("replica", "leader"):
        assert await pool.fetchval("SELECT picopyn_cluster.follower_read()", role=role) == await pool.fetchval(
            STALENESS, role=role
        )


@both
async def test_reads_for_a_replica_are_read_from_followers(
    four: Cluster, near: dict[str, Any], open_pool: OpenPool
) -> None:
    """Single calls, held connections and transactions, also after a borrower has cleared the session; no others."""
    pool = await open_pool(four.dsn, yb_follower_read_staleness_ms=5000, max_size=1, **near)
    await pool.wait_ready(timeout=LONG)
    for role in ("replica", "prefer_replica"):
        assert await pool.fetchval(STALENESS, role=role) == 5000
    for role in (None, "leader", "prefer_leader", "any"):
        assert await pool.fetchval(STALENESS, role=role) is None
    for options in ({"role": "replica"}, {"read_only": True}):
        async with pool.acquire(**options) as connection:
            assert await connection.fetchval(STALENESS) == 5000
            await connection.execute("SET work_mem = '77MB'; RESET ALL; SET yb_follower_read_staleness_ms = 7000")
            assert await connection.fetchval(STALENESS) == 7000
    async with pool.transaction(role="replica") as connection:
        assert await connection.fetchval(STALENESS) == 5000
    assert await pool.run_transaction(lambda tx: tx.fetchval(STALENESS), role="replica") == 5000
    assert pool.stats().calls["replica_read"] == 2


@both
async def test_a_pool_for_replicas(four: Cluster, open_pool: OpenPool) -> None:
    """Its role counts where a call names none, and such connections are those that it keeps ready."""
    opened: list[str] = []

    def on_event(event: Any) -> None:
        if isinstance(event, ConnectionOpened) and event.purpose in ("plain", "replica reads"):
            opened.append(event.purpose)

    dsn, count = four.dsn_of("n1"), 2 * len(four.nodes)
    pool = await open_pool(with_words(dsn, "role=replica&load_balance=any"), min_size=2, on_event=on_event)
    await pool.wait_ready(timeout=LONG)
    assert await pool.fetchval(STALENESS) == 30_000, "the server's own"
    async with pool.acquire() as connection:
        assert await connection.fetchval(STALENESS) == 30_000
    await until(lambda: len(opened) >= count)
    assert set(opened) == {"replica reads"}
    assert await pool.fetchval(STALENESS, role="leader") is None
    assert "plain" in opened
    last = four.nodes[-1]
    alone = await open_pool(four.dsn_of(last), role="prefer_replica", yb_follower_read_staleness_ms=1000)
    assert await alone.fetchval(STALENESS) == 1000
    assert await alone.fetchval(WHERE) == place(four, last)


@both
async def test_nothing_is_written_there(four: Cluster, near: dict[str, Any], open_pool: OpenPool) -> None:
    """The server refuses, and says so; who only prefers a replica has it done elsewhere, once."""
    pool = await open_pool(four.dsn, **near)
    for write in ("INSERT INTO picopyn_t VALUES ($1, 1)", "DELETE FROM picopyn_t WHERE id = $1"):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await pool.execute(write, 1000, role="replica")
    prefers = {"role": "prefer_replica"}
    await pool.execute("INSERT INTO picopyn_t VALUES ($1, 1)", 1000, **prefers)
    await pool.executemany("INSERT INTO picopyn_t VALUES ($1, 1)", [(1001,), (1002,)], **prefers)
    assert await pool.execute("DELETE FROM picopyn_t WHERE id >= $1", 1000, **prefers) == "DELETE 3"
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.execute("INSERT INTO picopyn_t VALUES (1, 1)", **prefers)
    async with pool.acquire(**prefers) as connection:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("INSERT INTO picopyn_t VALUES (1000, 1)")
    assert await pool.fetchval("SELECT count(*) FROM picopyn_t") == 100


@both
async def test_a_keyed_read_goes_to_a_copy_near_by(four: Cluster, near: dict[str, Any], open_pool: OpenPool) -> None:
    """Of the nodes in the zone, to those that hold one; where none does, to any of them, and never elsewhere."""
    tablets = tablets_of(four, "picopyn_t")
    pool = await open_pool(four.dsn, yb_follower_read_staleness_ms=1000, **near)
    await pool.wait_ready(timeout=LONG)
    while await pool.fetchval("SELECT count(*) FROM picopyn_t", role="replica") != 100:
        await asyncio.sleep(0.05)  # followers of a real cluster show what was written a second ago
    before = pool.stats().calls["replica_read"]
    read = f"{WHERE}, current_setting('yb_read_from_followers', true), v FROM picopyn_t WHERE id = $1"
    assert (await pool.explain_route(read, 1, role="replica")).buckets == (4624,)
    known, here = places(four), in_zone(four, "n1")
    served: dict[int, set[str]] = {}
    right = 0
    for key in range(100):
        where, follows, value = await pool.fetchrow(read, key, role="replica")
        assert (follows, value) == ("on", key)
        code = (await pool.explain_route(read, key)).buckets[0]
        number = next(number for number, tablet in enumerate(tablets) if tablet.start <= code < tablet.end)
        served.setdefault(number, set()).add(known[where])
        right += known[where] in (tablets[number].copies & here or here)
    assert right >= 90, "but for nodes that a busy machine kept waiting"
    assert set().union(*served.values()) <= here
    assert all(served[number] >= tablets[number].copies & here for number in served), "each of them gets some"
    assert pool.stats().calls["replica_read"] - before == 100


@both
async def test_when_a_zone_is_down_the_next_one_answers(shared_of: Factory, open_pool: OpenPool) -> None:
    """As everything else; a pool that must not leave its zone refuses with its mode."""
    cluster = shared_of(3, ("c.r.a", "c.r.b", "c.r.c"))
    gone, last = sorted(in_zone(cluster, "n3")), place(cluster, "n3")
    if len(gone) > 1:
        pytest.skip("a real cluster: its third node is not alone in its zone")
    levels = keys(cluster, "n3")
    wishes = {"load_balance": True, "topology_keys": levels, "role": "replica", **SOON}
    pool = await open_pool(cluster.dsn, **wishes)
    strict = await open_pool(cluster.dsn, fallback_to_topology_keys_only=True, acquire_timeout=0.3, **wishes)
    await pool.wait_ready(timeout=LONG)
    assert await pool.fetchval(WHERE) == last
    await in_thread(cluster.kill, "n3")
    assert await pool.fetchval(WHERE, idempotent=True, timeout=LONG) != last
    await until(lambda: states(strict, cluster)["n3"] == "down")
    with pytest.raises(NoNodeAvailable) as told:
        await strict.fetchval(WHERE)
    assert told.value.mode == f"load_balance=any, topology_keys={levels}, fallback_to_topology_keys_only"


@both
async def test_a_server_without_follower_reads_says_so(four: Cluster, open_pool: OpenPool) -> None:
    """A release, or a plain PostgreSQL, that does not know the setting; other calls go on."""
    plain = four.storage_dsn.removesuffix("postgres") + "template1"
    pool = await open_pool(plain, dialect="yugabyte", acquire_timeout=0.5)
    told = ""
    while "yb_read_from_followers" not in told:  # not in the first one, if nothing was answered within its time
        with pytest.raises(AcquireTimeout) as refused:
            await pool.fetchval("SELECT 1", role="replica")
        told = str(refused.value)
    assert await pool.fetchval("SELECT 1", timeout=LONG) == 1
    assert await pool.fetchval("SELECT 1", role="prefer_replica", timeout=LONG) == 1
    with pytest.raises(NoNodeAvailable):
        await open_pool(plain, dialect="yugabyte", role="replica", connect_timeout=1)


async def connect(facade: str, *args: Any, **options: Any) -> Any:
    """A connection without a pool, and what it says."""
    if facade == "asynchronous":
        connection = await asynchronous.connect(*args, **options)
        try:
            return await connection.fetchval(STALENESS)
        finally:
            await connection.close()

    def blocking() -> Any:
        opened = sync.connect(*args, **options)
        try:
            return opened.fetchval(STALENESS)
        finally:
            opened.close()

    return await asyncio.to_thread(blocking)


@both
async def test_without_a_pool(four: Cluster, facade: str) -> None:
    """Whether the dialect is known beforehand or not; a staleness without the role is refused."""
    for dialect in ("auto", "yugabyte"):
        for balance in (False, True):
            options = {"dialect": dialect, "load_balance": balance}
            assert await connect(facade, four.dsn, role="replica", **options) == 30_000
            assert await connect(facade, four.dsn, role="leader", **options) is None
    both_said = {"role": "prefer_replica", "yb_follower_read_staleness_ms": 2000}
    assert await connect(facade, four.dsn, load_balance=True, **both_said) == 2000
    with pytest.raises(ConfigError, match="role='replica'"):
        await connect(facade, four.dsn, yb_follower_read_staleness_ms=2000)


@both
async def test_a_real_cluster(real_dsn: str, open_pool: OpenPool) -> None:
    """Its sessions say that the settings are in force, and it answers."""
    pool = await open_pool(real_dsn, load_balance=True, yb_follower_read_staleness_ms=5000)
    asked = "SELECT coalesce((SELECT setting FROM pg_settings WHERE name = $1::text), current_setting($1::text, true))"
    for name, expected in (
        ("yb_read_from_followers", "on"),
        ("yb_follower_read_staleness_ms", "5000"),
        ("transaction_read_only", "on"),
    ):
        assert await pool.fetchval(asked, name, role="replica") == expected
    assert await pool.fetchval(asked, "yb_read_from_followers") in ("off", "", None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"yb_follower_read_staleness_ms": 30}, "a whole number from 1000"),
        ({"yb_follower_read_staleness_ms": 5000, "dialect": "postgres"}, "is for YugabyteDB"),
        ({"yb_follower_read_staleness_ms": 5000, "dialect": "picodata"}, "is for YugabyteDB"),
        ({"role": "follower"}, "role must be one of"),
        (
            {"role": "replica", "dialect": "yugabyte", "fallback_master": True},
            "fallback_master is for plain PostgreSQL",
        ),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_opened(
    pool_class: Any, options: dict[str, Any], words: str
) -> None:
    """By its name."""
    with pytest.raises(ConfigError, match=words):
        pool_class("postgresql://h", **options)
