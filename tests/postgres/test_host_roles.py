"""`Pool` on a primary with streaming replicas: every call goes where its role says, whatever happens to the servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AcquireTimeout, ConfigError, UsageError
from picopyn.staleness import StalenessPolicy
from picopyn.stats import HostStats, NodeStats
from picopyn.testing import FaultProxy, PostgresCluster, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.threads import FACADES

Factory = Callable[..., PostgresCluster]

PORT = "SELECT inet_server_port()"
WRITE = "INSERT INTO t VALUES ($1)"


@pytest.fixture
def servers(picopyn_postgres_cluster: Factory) -> PostgresCluster:
    """A primary n1 and replicas n2 and n3, with a table `t`."""
    cluster = picopyn_postgres_cluster()
    cluster.execute("CREATE TABLE t (i INT)")
    cluster.wait_caught_up()
    return cluster


def port(servers: PostgresCluster, *names: str) -> set[int]:
    return {servers.address_of(name)[1] for name in names}


def leaders(pool: Pool) -> set[int]:
    return {node.port for node in pool.topology.nodes(role="leader")}


def replicas(pool: Pool) -> set[int]:
    return {node.port for node in pool.topology.nodes(role="replica")}


async def ports(pool: Pool, role: str | None = None, calls: int = 30) -> set[int]:
    """Where calls go now."""
    return {await pool.fetchval(PORT, role=role) for _ in range(calls)}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_every_call_goes_where_its_role_says(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """Without one it goes to the primary: calls, held connections, transactions."""
    pool = await open_pool(servers.dsn)
    await pool.wait_ready(leaders=1, replicas=2)
    first, others = port(servers, "n1"), port(servers, "n2", "n3")
    for role, expected in (
        (None, first),
        ("leader", first),
        ("prefer_leader", first),
        ("replica", others),
        ("prefer_replica", others),
        ("any", first | others),
    ):
        assert await ports(pool, role, 60) == expected
    async with pool.acquire() as connection:
        assert connection.node.port in first
    async with pool.acquire(role="replica") as connection:
        assert connection.node.port in others
    async with pool.transaction() as connection:
        await connection.execute(WRITE, 1)
    await pool.executemany(WRITE, [(2,), (3,)])
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await pool.execute(WRITE, 4, role="replica")
    assert await pool.fetchval("SELECT count(*) FROM t") == 3
    calls = pool.stats().calls
    assert calls["replica_read"] >= 120


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("any", ["n1"]),
        ("read-write", ["n1"]),
        ("primary", ["n1"]),
        ("read-only", ["n2", "n3"]),
        ("standby", ["n2", "n3"]),
        ("prefer-standby", ["n2", "n3"]),
    ],
)
async def test_session_attributes(servers: PostgresCluster, open_pool: OpenPool, word: str, names: list[str]) -> None:
    """Libpq's words; where every host may answer, the primary does."""
    pool = await open_pool(f"{servers.dsn}?target_session_attrs={word}")
    await pool.wait_ready(leaders=1, replicas=2)
    assert await ports(pool) == port(servers, *names)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_watchers_have_connections_of_their_own(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """One per host beside the pool's; when all of those are taken, roles are watched all the same."""
    pool = await open_pool(servers.dsn, max_size=1, application_name="mine", refresh_delay=0.05)
    await pool.wait_ready(leaders=1, replicas=2)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'"
    assert [servers.execute(count, name) for name in servers.nodes] == [[("2",)]] * 3
    async with pool.acquire(), pool.acquire(role="replica"), pool.acquire(role="replica"):
        servers.read_only("n1", True)
        await until(lambda: not leaders(pool))
        servers.read_only("n1", False)
        await until(lambda: leaders(pool) == port(servers, "n1"))


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_write_waits_while_nobody_takes_writes(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """The refused write runs again as soon as it can, and no refusal reaches the caller."""
    pool = await open_pool(servers.dsn, refresh_delay=60)
    await pool.wait_ready(leaders=1, replicas=2)
    servers.read_only("n1", True)
    write = asyncio.create_task(pool.execute(WRITE, 1, timeout=60))
    await until(lambda: not leaders(pool))
    assert await ports(pool, "replica", 60) == port(servers, "n1", "n2", "n3")  # it reads, like any other
    assert not write.done()
    servers.read_only("n1", False)
    assert await write == "INSERT 0 1"
    assert pool.stats().retries == {"NOT_LEADER": 1}
    with pytest.raises(AcquireTimeout, match="no host that takes writes"):
        servers.read_only("n1", True)
        await pool.execute(WRITE, 2, timeout=0.5)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_refusal_on_a_held_connection_makes_the_pool_look(
    servers: PostgresCluster, open_pool: OpenPool
) -> None:
    """The borrower gets the error; the next call knows better."""
    pool = await open_pool(servers.dsn, refresh_delay=60)
    await pool.wait_ready(leaders=1, replicas=2)
    async with pool.acquire() as connection:
        servers.read_only("n1", True)
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute(WRITE, 1)
        await until(lambda: not leaders(pool))


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_call_that_reads_anywhere_may_turn_out_to_write(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """A replica refuses it without effect, and it goes to the primary."""
    pool = await open_pool(servers.dsn, role="prefer_replica")
    await pool.wait_ready(leaders=1, replicas=2)
    for number in range(5):
        await pool.execute(WRITE, number)
    assert await pool.fetchval("SELECT count(*) FROM t", role="leader") == 5
    assert pool.stats().retries == {"NOT_LEADER": 5}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_two_primaries_are_told_once_and_the_newer_one_is_used(
    servers: PostgresCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A promotion that left the old primary running: nothing is written there, from the first look on."""
    caplog.set_level(logging.WARNING)
    pool = await open_pool(servers.dsn, refresh_delay=0.05)
    await pool.wait_ready(leaders=1, replicas=2)
    await asyncio.to_thread(servers.promote, "n2")
    await until(lambda: leaders(pool) == port(servers, "n2"))
    late = await open_pool(servers.dsn)
    assert leaders(late) == port(servers, "n2")
    for _ in range(20):
        assert await pool.fetchval(PORT) in port(servers, "n2")
    await late.close()
    await pool.close()
    told = [record.getMessage() for record in caplog.records if "several hosts take writes" in record.getMessage()]
    assert len(told) == 2  # one for each pool
    assert "(timeline 2) is used as the primary" in told[0]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_stale_replica_comes_last(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """Behind the fresh one, and behind the primary where that may answer; it is used when nothing else is left."""
    limit = StalenessPolicy(max_lag_bytes=0)
    pool = await open_pool(servers.dsn, role="replica", staleness=limit, refresh_delay=0.02)
    await pool.wait_ready(leaders=1, replicas=2)
    servers.wait_caught_up()
    servers.pause_replay("n2")
    servers.execute("INSERT INTO t VALUES (1)")
    servers.wait_caught_up("n3")

    async def goes_to(role: str, *names: str) -> None:
        """Soon, and from then on."""
        while await ports(pool, role, 20) != port(servers, *names):
            pass

    await goes_to("replica", "n3")
    servers.pause_replay("n3")
    servers.execute("INSERT INTO t VALUES (2)")
    await goes_to("prefer_replica", "n1")
    await goes_to("replica", "n2", "n3")
    servers.resume_replay("n2")
    servers.wait_caught_up("n2")
    await goes_to("replica", "n2")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_frozen_host_delays_nobody(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """Neither the opening, nor a refresh, nor the calls."""
    servers.freeze("n3")
    pool = await open_pool(servers.dsn, refresh_timeout=60)
    await pool.wait_ready(leaders=1, replicas=1)
    assert await ports(pool, "replica") == port(servers, "n2")
    await pool.refresh_topology()
    assert await ports(pool) == port(servers, "n1")
    servers.thaw("n3")
    await until(lambda: replicas(pool) == port(servers, "n2", "n3"))


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_replica_is_waited_for_and_never_replaced_in_silence(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """A single primary has none; a pool that does not look at roles says so."""
    watching = await open_pool(postgres.dsn, role="prefer_replica")
    assert await watching.fetchval(PORT) == postgres.port
    with pytest.raises(AcquireTimeout, match="no replica can be reached"):
        await watching.fetchval(PORT, role="replica", timeout=0.2)
    plain = await open_pool(postgres.dsn)
    with pytest.raises(UsageError, match="does not watch the roles"):
        await plain.fetchval(PORT, role="replica")
    assert await plain.fetchval(PORT, role="prefer_replica") == postgres.port
    with pytest.raises(ConfigError, match="role must be one of"):
        await plain.fetchval(PORT, role="master")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_balancer_of_ones_own(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """It chooses among the hosts that are equally good."""
    chosen: list[Any] = []

    def first(among: Any) -> int:
        chosen.append(sorted(node.port for node in among.nodes))
        return [node.port for node in among.nodes].index(min(chosen[-1]))

    pool = await open_pool(servers.dsn, role="replica", balancer_policy=first)
    await pool.wait_ready(leaders=1, replicas=2)
    assert await ports(pool) == {min(port(servers, "n2", "n3"))}
    assert chosen[-1] == sorted(port(servers, "n2", "n3"))
    turns = await open_pool(servers.dsn, role="replica", balancer_policy="round_robin")
    await turns.wait_ready(leaders=1, replicas=2)
    await until(lambda: len(replicas(turns)) == 2)
    seen = [await turns.fetchval(PORT) for _ in range(6)]
    assert seen[0] != seen[1]
    assert seen == seen[:2] * 3


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_link_that_is_cut_and_one_that_is_mute(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """The watcher finds its way back, whatever became of its connection."""
    host, number = servers.address_of("n1")
    with FaultProxy(host, number) as proxy:
        others = servers.dsn_of("n2", "n3").removeprefix("postgresql://postgres@")
        pool = await open_pool(
            f"postgresql://postgres@127.0.0.1:{proxy.port},{others}", refresh_delay=0.05, refresh_timeout=0.3
        )
        await pool.wait_ready(leaders=1, replicas=2)
        assert leaders(pool) == {proxy.port}
        for trouble in (proxy.cut, proxy.mute):
            trouble()
            proxy.let_pass()
            assert await pool.execute(WRITE, 1, idempotent=True, timeout=60) == "INSERT 0 1"
            await pool.refresh_topology()
            assert leaders(pool) == {proxy.port}


# --- hasql's words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_hasqls_words(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """`ready`, `acquire(read_only=)`, `acquire_master`, `acquire_replica`, `wait_masters_ready`."""
    pool = await open_pool(servers.dsn)
    await pool.ready()
    await pool.ready(1, 2)
    await pool.wait_masters_ready(1)
    assert pool.available_pool_count == 3
    first, others = port(servers, "n1"), port(servers, "n2", "n3")
    for acquiring, expected in (
        (pool.acquire(), first),
        (pool.acquire(read_only=False), first),
        (pool.acquire_master(timeout=5), first),
        (pool.acquire(read_only=True), others),
        (pool.acquire_replica(), others),
        (pool.acquire_replica(master_as_replica_weight=0.0), others),
    ):
        async with acquiring as connection:
            assert connection.node.port in expected
    drawn = set()
    for _ in range(60):
        async with pool.acquire_replica(master_as_replica_weight=1.0) as connection:
            drawn.add(connection.node.port)
    assert drawn == first | others


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_hasqls_fallback(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Without a replica: the primary where that was allowed, per call or by the pool; else the call waits."""
    pool = await open_pool(postgres.dsn, role="leader")
    for allowed in ({"fallback_master": True}, {"master_as_replica_weight": 1.0}):
        async with pool.acquire_replica(**allowed, timeout=5) as connection:
            assert connection.node.port == postgres.port
    for refused in ({}, {"fallback_master": False}, {"master_as_replica_weight": 0.0}):
        with pytest.raises(AcquireTimeout):
            await pool.acquire_replica(**refused, timeout=0.1)
    falls = await open_pool(postgres.dsn, role="replica", fallback_master=True)
    assert await falls.fetchval(PORT) == postgres.port
    with pytest.raises(AcquireTimeout):
        await falls.acquire_replica(fallback_master=False, timeout=0.1)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_hasqls_words_that_contradict(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Refused where they are said."""
    pool = await open_pool(postgres.dsn, role="leader")
    for counts in ((-1, 5), (2, -10), (1, None), (None, 2)):
        with pytest.raises(ValueError, match="_count"):
            await pool.ready(*counts)
    for weight in (-0.1, 1.1, 2.0):
        with pytest.raises(ValueError, match="segment"):
            pool.acquire_replica(master_as_replica_weight=weight)
    with pytest.raises(ValueError, match="about connections to a replica"):
        pool.acquire(read_only=False, master_as_replica_weight=0.5)
    with pytest.raises(ValueError, match="fallback_master is about connections to a replica"):
        pool.acquire(read_only=False, fallback_master=True)
    with pytest.raises(UsageError, match="leave read_only= out"):
        pool.acquire(role="leader", read_only=True)


# --- what is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_statistics_tell_role_writability_and_lag_of_every_host(
    servers: PostgresCluster, open_pool: OpenPool
) -> None:
    """In bytes and in seconds, with and without a limit; a primary that refuses writes is told as such."""
    limit = StalenessPolicy(max_lag_bytes=0)
    limited = await open_pool(servers.dsn, role="prefer_replica", staleness=limit, refresh_delay=0.02)
    plain = await open_pool(servers.dsn, refresh_delay=0.02)

    def told(pool: Any, name: str) -> NodeStats:
        host, number = servers.address_of(name)
        (found,) = (node for node in pool.stats().nodes.values() if node.address == f"{host}:{number}")
        return cast(NodeStats, found)

    def host(pool: Any, name: str) -> HostStats:
        return told(pool, name).host or HostStats(writable=True)

    for pool, stale in ((limited, False), (plain, None)):
        await pool.wait_ready(leaders=1, replicas=2)
        primary = replace(host(pool, "n1"), response_time=None)
        assert (told(pool, "n1").role, primary) == ("leader", HostStats(writable=True))
        await until(lambda pool=pool: host(pool, "n2").lag_bytes == 0)
        assert (told(pool, "n2").role, host(pool, "n2").lag, host(pool, "n2").stale) == ("replica", 0.0, stale)
        assert not host(pool, "n2").writable
        assert (host(pool, "n2").response_time or 0) > 0
    servers.pause_replay("n2")
    servers.execute("INSERT INTO t VALUES (1)")
    for pool, stale in ((limited, True), (plain, None)):
        await until(lambda pool=pool: (host(pool, "n2").lag_bytes or 0) > 0 and (host(pool, "n2").lag or 0) > 0)
        assert host(pool, "n2").stale is stale
        await until(lambda pool=pool: host(pool, "n3").lag_bytes == 0)
    servers.read_only("n1", True)
    await until(lambda: not host(plain, "n1").writable)
    await until(lambda: told(plain, "n1").role == "replica")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_limit_for_replicas_where_there_is_none_is_told_once(
    postgres: PostgresServer, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool works, and one warning says that the limit means nothing."""
    caplog.set_level(logging.WARNING)
    limit = StalenessPolicy(max_lag=1.0)
    pool = await open_pool(postgres.dsn, role="prefer_replica", staleness=limit, refresh_delay=0.02)
    assert await pool.fetchval(PORT) == postgres.port
    for _ in range(3):
        await pool.refresh_topology()
    told = [record.getMessage() for record in caplog.records if "staleness limits replicas" in record.getMessage()]
    assert len(told) == 1
    assert "none of the hosts is one" in told[0]
