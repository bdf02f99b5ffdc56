"""Pools on a YugabyteDB: where their connections go while nothing fails.

The numbers in names and ids are those of `tests/yugabyte-scenarios.md`; as decisions they are all in
`tests/routing/test_placement_scenarios.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.errors import ConfigError, NoNodeAvailable
from picopyn.testing import FaultProxy, YugabyteCluster
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    LONG,
    Connect,
    Factory,
    acquire,
    connected,
    held,
    names,
    release,
    until,
    where,
)

both = pytest.mark.parametrize("facade", FACADES, indirect=True)


NUMBERS = itertools.count(1)


def of(*numbers: int, count: int) -> dict[str, int]:
    return {f"n{number}": count for number in numbers}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, of(1, count=12), id="39"),
        pytest.param({"load_balance": "any"}, of(1, 2, 3, 4, 5, 6, count=2), id="40"),
        pytest.param({"load_balance": "only-rr"}, of(4, 5, 6, count=4), id="41"),
        pytest.param({"load_balance": "prefer-primary"}, of(1, 2, 3, count=4), id="44"),
        pytest.param({"load_balance": True, "topology_keys": "C.R.dc2:1,c.r.dc3:2"}, of(2, 4, count=6), id="48"),
        pytest.param({"load_balance": "only-rr", "topology_keys": "c.r.dc2:1"}, of(4, count=12), id="49"),
    ],
)
async def test_where_twelve_connections_go(
    six: YugabyteCluster, open_pool: OpenPool, options: dict[str, Any], expected: dict[str, int]
) -> None:
    """As the client counts and as the servers count (61); one seed is enough to find all (62)."""
    name = f"twelve {next(NUMBERS)}"
    pool = await open_pool(six.dsn_of("n1"), max_size=12, application_name=name, **options)
    await pool.wait_ready(timeout=LONG)
    connections = await acquire(pool, 12)
    assert where(six, connections) == expected
    for node in set(six.nodes) - set(expected):  # but for the connection that asks for the servers, wherever it is
        while six.sessions(name)[node] > bool(options):
            await asyncio.sleep(0.01)
    assert all(six.sessions(name)[node] >= count for node, count in expected.items())
    await release(pool, connections)


@both
async def test_60_without_balancing_nothing_is_asked(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """No list of servers, no connection beside the callers' own, and the hosts are tried in the order written."""
    pool = await open_pool(six.dsn_of("n3", "n1"), application_name="plain")
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, six, 5) == of(3, count=5)
    wanted = {"{}:{}".format(*six.address_of(name)) for name in ("n1", "n3")}
    assert {node.address for node in pool.topology.nodes()} == wanted
    while any(six.sessions("plain")[name] for name in six.nodes if name != "n3"):  # what told the kind of server leaves
        await asyncio.sleep(0.01)


@both
async def test_34_37_concurrent_borrowers_are_spread_exactly(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """Whoever waits for a connection counts, so thirty at the same moment are ten each."""
    pool = await open_pool(six.dsn, load_balance="only-primary", max_size=20)
    await pool.wait_ready(timeout=LONG)
    connections = await asyncio.gather(*(take(pool) for _ in range(30)))
    assert where(six, connections) == of(1, 2, 3, count=10)
    await release(pool, connections)


async def take(pool: Any) -> Any:
    return await pool.acquire(timeout=LONG)


@both
async def test_64_73_borrowing_changes_no_counts_and_closing_leaves_nothing(
    six: YugabyteCluster, open_pool: OpenPool
) -> None:
    """Twelve are four each, again and again; at the end no server has a session of ours."""
    pool = await open_pool(six.dsn, load_balance="only-primary", application_name="counted")
    await pool.wait_ready(timeout=LONG)
    for _ in range(3):
        assert await held(pool, six) == of(1, 2, 3, count=4)
    await pool.close()
    while any(six.sessions("counted").values()):
        await asyncio.sleep(0.01)


@both
async def test_calls_are_spread_like_connections(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """Every node of the wanted type gets some; a node can be asked for by its address."""
    pool = await open_pool(six.dsn, load_balance="only-rr")
    await pool.wait_ready(timeout=LONG)
    known = {six.node(name).host: name for name in six.nodes}
    served = Counter([known[await pool.fetchval("SELECT host(inet_server_addr())")] for _ in range(60)])
    assert set(served) == {"n4", "n5", "n6"}
    async with pool.acquire(node="{}:{}".format(*six.address_of("n1"))) as connection:
        assert where(six, [connection]) == of(1, count=1)
    async with pool.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1


@both
async def test_a_drained_node_gets_nothing_new(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """Placement goes on without it, and with it again afterwards."""
    pool = await open_pool(six.dsn, load_balance="only-primary")
    await pool.wait_ready(timeout=LONG)
    name = "{}:{}".format(*six.address_of("n2"))
    await pool.drain(name)
    assert await held(pool, six, 6) == of(1, 3, count=3)
    pool.undrain(name)
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, six, 6) == of(1, 2, 3, count=2)


@both
async def test_the_topology_shows_places_and_types(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """The tier is the type of a node, the failure domain its place, the uuid its own."""
    pool = await open_pool(six.dsn_of("n2"), load_balance=True)
    nodes = {names(six)[node.address]: node for node in pool.topology.nodes()}
    assert nodes.keys() == set(six.nodes)
    assert {name: node.uuid for name, node in nodes.items()} == {name: six.node(name).uuid for name in six.nodes}
    assert {node.tier for name, node in nodes.items() if name > "n3"} == {"read_replica"}
    assert nodes["n5"].failure_domain == {"cloud": "c", "region": "r", "zone": "dc3"}


@both
async def test_only_nodes_in_use_have_connections(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """`min_size` counts for each node of the best level; the others get none until they are needed."""
    keys = "c.r.dc1:1,c.r.dc2:2"
    pool = await open_pool(six.dsn, load_balance="only-primary", topology_keys=keys, min_size=2)
    await pool.wait_ready(timeout=LONG)
    await until(lambda: sum(node.idle for node in pool.stats().nodes.values()) == 2)
    assert connected(pool, six) == {"n1"}


# what the list of servers may be like


@pytest.mark.parametrize("columns", [8, 9])
@both
async def test_older_releases(picopyn_yugabyte_cluster: Factory, open_pool: OpenPool, columns: int) -> None:
    """Without `universe_uuid`, and without `uuid`, where the address is the identity."""
    cluster = picopyn_yugabyte_cluster(PRIMARIES_HERE, columns=columns, tablets=None)
    pool = await open_pool(cluster.dsn_of("n1"), load_balance=True)
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, cluster) == of(1, 2, 3, count=4)


PRIMARIES_HERE = ("c.r.a", "c.r.b", "c.r.c")


@both
async def test_public_addresses_from_outside(shared_cluster: Factory, open_pool: OpenPool) -> None:
    """Who came in by a public address dials all nodes by theirs; the private ones cannot be reached here."""
    cluster = shared_cluster(PRIMARIES_HERE, public="only")
    pool = await open_pool(cluster.dsn_of("n1", public=True), load_balance=True)
    await pool.wait_ready(timeout=LONG)
    assert {node.host for node in pool.topology.nodes()} == {cluster.node(name).public_ip for name in cluster.nodes}
    assert await held(pool, cluster) == of(1, 2, 3, count=4)


@both
async def test_private_addresses_from_inside(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """Although public ones exist; and a function for tunnels has the last word."""
    pool = await open_pool(six.dsn_of("n1"), load_balance=True)
    assert {node.host for node in pool.topology.nodes()} == {six.node(name).host for name in six.nodes}
    moved = await open_pool(
        six.dsn_of("n1"),
        load_balance=True,
        address_map=lambda host, port: (next(n.public_ip for n in map(six.node, six.nodes) if n.host == host), port),
    )
    assert {node.host for node in moved.topology.nodes()} == {six.node(name).public_ip for name in six.nodes}


@both
async def test_a_node_with_an_ipv6_address(shared_cluster: Factory, open_pool: OpenPool, connect: Connect) -> None:
    """Listed in another form than the connection string has it: it is dialled, and it is the seed, not one more."""
    cluster = shared_cluster(PRIMARIES_HERE)
    with FaultProxy(*cluster.address_of("n1"), listen="::1") as door:
        long = f"host = '0:0:0:0:0:0:0:1', port = {door.port}"
        cluster.execute(f"UPDATE picopyn_cluster.servers SET {long} WHERE name = 'n1'")
        try:
            options = {"load_balance": True, "topology_keys": "c.r.a"}
            pool = await open_pool(f"postgresql://postgres@[::1]:{door.port}/postgres", **options)
            await pool.wait_ready(timeout=LONG)
            mine = f"[::1]:{door.port}"
            assert {node.address for node in pool.topology.nodes() if node.tier} >= {mine}
            assert len(pool.topology.nodes()) == 3
            async with pool.acquire() as connection:
                assert connection.node.address == mine
            before = door.accepted
            single = await connect(cluster.dsn_of("n2"), **options)
            assert await single.fetchval("SELECT 1") == 1
            assert door.accepted == before + 1
        finally:
            cluster.move("n1", "c.r.a")


@both
@pytest.mark.parametrize("dialect", ["auto", "yugabyte"])
async def test_a_plain_postgresql_behind_the_connection_string(
    six: YugabyteCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    """It is served, the first host that works, and one line says so."""
    plain = six.storage_dsn.removesuffix("postgres") + "template1"
    with caplog.at_level(logging.INFO, logger="picopyn"):
        pool = await open_pool(f"{plain}?load_balance=true&dialect={dialect}")
        assert await pool.fetchval("SELECT 1") == 1
        await pool.wait_ready(timeout=LONG)
        told = [r for r in caplog.records if "yb_servers()" in r.message or "no YugabyteDB" in r.message]
        assert len(told) == 1


@pytest.fixture(scope="module")
def denied() -> Iterator[YugabyteCluster]:
    """Three nodes and a read replica; `app` may not ask for them."""
    with YugabyteCluster(PRIMARIES_HERE, read_replicas=("c.r.d",)) as cluster:
        cluster.deny("app")
        yield cluster


@both
async def test_who_may_not_ask_for_the_servers(
    denied: YugabyteCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Uses the hosts in their order, and is told once."""
    pool = await open_pool(denied.dsn_of("n2", "n1").replace("postgres@", "app@"), load_balance=True)
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, denied, 4) == of(2, count=4)
    assert sum("may not ask" in record.message for record in caplog.records) == 1


@both
async def test_a_refusing_mode_without_a_list_refuses(
    denied: YugabyteCluster, open_pool: OpenPool, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody tells which nodes may be used: a plain PostgreSQL, or no right to ask. At once, with the mode."""
    caplog.set_level(logging.INFO, logger="picopyn")
    masked = denied.dsn.replace("postgres@", "app@")
    plain = denied.storage_dsn.removesuffix("postgres") + "template1"
    keys = {"load_balance": True, "topology_keys": "c.r.a", "fallback_to_topology_keys_only": True}
    patient = {"acquire_timeout": 600.0, "connect_timeout": 600.0}
    for dsn, dialect in ((masked, "auto"), (plain, "auto"), (plain, "yugabyte")):
        for options, mode in (
            ({"load_balance": "only-rr"}, "load_balance=only-rr"),
            (keys, "load_balance=any, topology_keys=c.r.a:1, fallback_to_topology_keys_only"),
        ):
            for opening in (
                open_pool(dsn, dialect=dialect, **options, **patient),
                connect(dsn, dialect=dialect, **options),
            ):
                with pytest.raises(NoNodeAvailable, match="no node is known to be one that") as told:
                    await opening
                assert told.value.mode == mode
    assert "no node may be used" in caplog.text
    assert "first host that works" not in caplog.text
    opened = await open_pool(masked, load_balance="prefer-rr")
    assert await opened.fetchval("SELECT 1") == 1


@both
async def test_a_refusing_mode_waits_as_long_as_a_call_may(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """The opening, too: `acquire_timeout` counts where nodes that may not be used live on."""
    options = {"load_balance": "only-rr", "topology_keys": "c.r.dc1", "fallback_to_topology_keys_only": True}
    with pytest.raises(NoNodeAvailable) as told:
        await open_pool(six.dsn, connect_timeout=600.0, acquire_timeout=0.2, **options)
    assert told.value.mode == "load_balance=only-rr, topology_keys=c.r.dc1:1, fallback_to_topology_keys_only"


@both
async def test_a_zone_that_no_node_has_is_told(
    six: YugabyteCluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the cluster can tell; where nothing else is allowed, calls say what forbids the others."""
    keys = "c.r.nowhere:1"
    options = {"load_balance": True, "topology_keys": keys}
    pool = await open_pool(six.dsn, **options)
    assert sum("no server lies in c.r.nowhere:1" in record.message for record in caplog.records) == 1
    await pool.wait_ready(timeout=LONG)
    with pytest.raises(NoNodeAvailable, match="is not allowed") as refused:
        await open_pool(six.dsn, fallback_to_topology_keys_only=True, acquire_timeout=0.2, **options)
    assert refused.value.mode == "load_balance=any, topology_keys=c.r.nowhere:1, fallback_to_topology_keys_only"


@both
async def test_a_session_is_cleared_without_binding_it(six: YugabyteCluster, open_pool: OpenPool) -> None:
    """No DISCARD, no SET SESSION AUTHORIZATION; but what a borrower bound himself does not reach the next one."""
    six.execute("CREATE ROLE someone")
    pool = await open_pool(six.dsn_of("n1"), max_size=1)
    for text, question, expected in (
        ("SET work_mem = '77MB'", "SHOW work_mem", "4MB"),
        ("SET ROLE someone", "SELECT current_user::text", "postgres"),
        ("SET SESSION AUTHORIZATION someone", "SELECT session_user::text", "postgres"),
        ("CREATE TEMP TABLE mine (i INT)", "SELECT to_regclass('mine')::text", None),
    ):
        async with pool.acquire() as connection:
            before = connection.get_server_pid()
            await connection.execute(text)
        async with pool.acquire() as connection:
            assert await connection.fetchval(question) == expected
            assert connection.get_server_pid() == before
    six.execute("DROP ROLE someone")


def test_settings_are_checked_together(pool_class: Any) -> None:
    """One error, before any socket is opened."""
    with pytest.raises(ConfigError) as told:
        pool_class(
            "postgresql://h?load_balance=OnlyPrimary&topology_keys=a.b.c:11,*.b.c&yb_servers_refresh_interval=601"
            "&failed_host_reconnect_delay_secs=-1&rebalance_batch=0&fallback_to_topology_keys_only=maybe"
        )
    assert len(told.value.problems) == 7
    assert "here it is written only-primary" in str(told.value)


@both
async def test_settings_of_other_servers_are_refused_once_the_server_is_known(
    six: YugabyteCluster, open_pool: OpenPool
) -> None:
    """Nothing that a pool is told is ignored because nobody said beforehand what its server is."""
    with pytest.raises(ConfigError) as told:
        await open_pool(six.dsn, balancer_policy="round_robin", topology_update_interval=3)
    assert [problem.split()[0] for problem in told.value.problems] == ["on", "balancer_policy"]


@both
async def test_a_real_cluster(real_dsn: str, open_pool: OpenPool) -> None:
    """What the servers list is what the pool uses, evenly."""
    pool = await open_pool(real_dsn, load_balance=True, max_size=30)
    await pool.wait_ready(timeout=LONG)
    connection = await asyncpg.connect(real_dsn)
    listed = await connection.fetch("SELECT host, port, zone FROM yb_servers()")
    await connection.close()
    nodes = pool.topology.nodes()
    assert {node.failure_domain["zone"] for node in nodes} == {row["zone"] for row in listed}
    connections = await acquire(pool, 3 * len(listed))
    assert set(Counter(connection.node.uuid for connection in connections).values()) == {3}
    await release(pool, connections)
