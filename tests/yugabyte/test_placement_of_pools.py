"""Pools on a YugabyteDB: where their connections go while nothing fails.

The numbers in names and ids are those of `tests/yugabyte-scenarios.md`; as decisions they are all in
`tests/routing/test_placement_scenarios.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from picopyn.engine import first_connection
from picopyn.errors import ConfigError, NoNodeAvailable
from picopyn.testing import FaultProxy, YugabyteCluster
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    LONG,
    WHERE,
    Cluster,
    Connect,
    Factory,
    acquire,
    connected,
    held,
    in_zone,
    is_even,
    keys,
    names,
    need,
    of_type,
    places,
    release,
    until,
    where,
)
from tests.yugabyte.real import RealCluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)


NUMBERS = itertools.count(1)


def of(*numbers: int, count: int) -> dict[str, int]:
    return {f"n{number}": count for number in numbers}


#: By number: what a pool is told, and among whom twelve connections are shared then. Zones are those of nodes.
WISHES: dict[int, tuple[dict[str, Any], Callable[[Cluster], set[str]]]] = {
    39: ({}, lambda cluster: {cluster.nodes[0]}),
    40: ({"load_balance": "any"}, lambda cluster: set(cluster.nodes)),
    41: ({"load_balance": "only-rr"}, lambda cluster: of_type(cluster, "read_replica")),
    44: ({"load_balance": "prefer-primary"}, lambda cluster: of_type(cluster, "primary")),
    48: ({"load_balance": True, "topology_keys": ("n2", "n3")}, lambda cluster: in_zone(cluster, "n2")),
    49: (
        {"load_balance": "only-rr", "topology_keys": ("n2",)},
        lambda cluster: in_zone(cluster, "n2") & of_type(cluster, "read_replica"),
    ),
}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("number", WISHES)
async def test_where_twelve_connections_go(target: Cluster, open_pool: OpenPool, number: int) -> None:
    """As the client counts and as the servers count (61); one seed is enough to find all (62)."""
    options, among = WISHES[number]
    if "topology_keys" in options:
        need(target, 3)
        options = options | {"topology_keys": keys(target, *options["topology_keys"]).swapcase()}
    expected = among(target)
    if not expected:
        pytest.skip("a real cluster: it has no read replica there")
    name = f"twelve {next(NUMBERS)}"
    pool = await open_pool(target.dsn_of("n1"), max_size=12, application_name=name, **options)
    await pool.wait_ready(timeout=LONG)
    connections = await acquire(pool, 12)
    counts = where(target, connections)
    assert is_even(counts, expected)
    for node in set(target.nodes) - expected:  # but for the connection that asks for the servers, wherever it is
        while target.sessions(name)[node] > bool(options):
            await asyncio.sleep(0.01)
    assert all(target.sessions(name)[node] >= count for node, count in counts.items())
    await release(pool, connections)


@both
async def test_60_without_balancing_nothing_is_asked(target: Cluster, open_pool: OpenPool, facade: str) -> None:
    """No list of servers, no connection beside the callers' own, and the hosts are tried in the order written."""
    need(target, 3)
    name = f"plain {facade}"
    pool = await open_pool(target.dsn_of("n3", "n1"), application_name=name)
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, target, 5) == of(3, count=5)
    wanted = {"{}:{}".format(*target.address_of(name)) for name in ("n1", "n3")}
    assert {node.address for node in pool.topology.nodes()} == wanted
    while any(count for node, count in target.sessions(name).items() if node != "n3"):
        await asyncio.sleep(0.01)  # what told the kind of server leaves


@both
async def test_34_37_concurrent_borrowers_are_spread_exactly(target: Cluster, open_pool: OpenPool) -> None:
    """Whoever waits for a connection counts, so thirty at the same moment are ten each."""
    pool = await open_pool(target.dsn, load_balance="only-primary", max_size=30)
    await pool.wait_ready(timeout=LONG)
    connections = await asyncio.gather(*(take(pool) for _ in range(30)))
    assert is_even(where(target, connections), of_type(target, "primary"))
    await release(pool, connections)


@both
async def test_the_very_first_borrowers_are_spread_exactly_too(
    six: YugabyteCluster, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`open` waits a moment for a connection to each node; here that is as long as it takes."""
    monkeypatch.setattr(first_connection, "GRACE", LONG)
    pool = await open_pool(six.dsn, load_balance="only-primary", max_size=20)
    connections = await asyncio.gather(*(take(pool) for _ in range(30)))
    assert where(six, connections) == of(1, 2, 3, count=10)
    await release(pool, connections)


async def take(pool: Any) -> Any:
    return await pool.acquire(timeout=LONG)


@both
async def test_64_73_borrowing_changes_no_counts_and_closing_leaves_nothing(
    target: Cluster, open_pool: OpenPool, facade: str
) -> None:
    """Twelve are four each, again and again; at the end no server has a session of ours."""
    name = f"counted {facade}"
    pool = await open_pool(target.dsn, load_balance="only-primary", application_name=name, max_size=12)
    await pool.wait_ready(timeout=LONG)
    for _ in range(3):
        assert is_even(await held(pool, target), of_type(target, "primary"))
    assert sum(target.sessions(name).values()) >= 12
    await pool.close()
    while any(target.sessions(name).values()):
        await asyncio.sleep(0.01)


@both
async def test_calls_are_spread_like_connections(target: Cluster, open_pool: OpenPool) -> None:
    """Every node of the wanted type gets some; a node can be asked for by its address."""
    wanted = of_type(target, "read_replica") or of_type(target, "primary")
    pool = await open_pool(target.dsn, load_balance="prefer-rr")
    await pool.wait_ready(timeout=LONG)
    known = places(target)
    served = Counter([known[await pool.fetchval(WHERE)] for _ in range(20 * len(wanted))])
    assert set(served) == wanted
    async with pool.acquire(node="{}:{}".format(*target.address_of("n1"))) as connection:
        assert where(target, [connection]) == of(1, count=1)
    async with pool.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1


@both
async def test_a_drained_node_gets_nothing_new(target: Cluster, open_pool: OpenPool) -> None:
    """Placement goes on without it, and with it again afterwards."""
    need(target, 2)
    wanted = of_type(target, "primary")
    pool = await open_pool(target.dsn, load_balance="only-primary")
    await pool.wait_ready(timeout=LONG)
    name = "{}:{}".format(*target.address_of("n2"))
    await pool.drain(name)
    assert is_even(await held(pool, target, 6), wanted - {"n2"})
    pool.undrain(name)
    await pool.wait_ready(timeout=LONG)
    assert is_even(await held(pool, target, 6), wanted)


@both
async def test_the_topology_shows_places_and_types(target: Cluster, open_pool: OpenPool) -> None:
    """The tier is the type of a node, the failure domain its place, the uuid its own."""
    pool = await open_pool(target.dsn_of("n1"), load_balance=True)
    nodes = {names(target)[node.address]: node for node in pool.topology.nodes()}
    assert nodes.keys() == set(target.nodes)
    for name, node in nodes.items():
        told = target.node(name)
        assert (node.tier, ".".join(node.failure_domain.values())) == (told.node_type, told.zone)
        assert node.uuid == told.uuid or not told.uuid
    assert list(nodes["n1"].failure_domain) == ["cloud", "region", "zone"]


@both
async def test_only_nodes_in_use_have_connections(target: Cluster, open_pool: OpenPool) -> None:
    """`min_size` counts for each node of the best level; the others get none until they are needed."""
    need(target, 2)
    wanted = in_zone(target, "n1") & of_type(target, "primary")
    options = {"load_balance": "only-primary", "topology_keys": keys(target, "n1")}
    pool = await open_pool(target.dsn, min_size=2, **options)
    await pool.wait_ready(timeout=LONG)
    await until(lambda: sum(node.idle for node in pool.stats().nodes.values()) == 2 * len(wanted))
    assert connected(pool, target) == wanted


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
async def test_private_addresses_from_inside(own_six: YugabyteCluster, open_pool: OpenPool) -> None:
    """Although public ones exist; and a function for tunnels has the last word."""
    pool = await open_pool(own_six.dsn_of("n1"), load_balance=True)
    assert {node.host for node in pool.topology.nodes()} == {own_six.node(name).host for name in own_six.nodes}
    moved = await open_pool(
        own_six.dsn_of("n1"),
        load_balance=True,
        address_map=lambda host, port: (
            next(n.public_ip for n in map(own_six.node, own_six.nodes) if n.host == host),
            port,
        ),
    )
    assert {node.host for node in moved.topology.nodes()} == {own_six.node(name).public_ip for name in own_six.nodes}


@both
async def test_a_node_with_an_ipv6_address(own_cluster: Factory, open_pool: OpenPool, connect: Connect) -> None:
    """Listed in another form than the connection string has it: it is dialled, and it is the seed, not one more."""
    cluster = own_cluster(PRIMARIES_HERE)
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
    target: Cluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture, dialect: str
) -> None:
    """It is served, the first host that works, and one line says so."""
    plain = target.storage_dsn.removesuffix("postgres") + "template1"
    with caplog.at_level(logging.INFO, logger="picopyn"):
        pool = await open_pool(f"{plain}?load_balance=true&dialect={dialect}")
        assert await pool.fetchval("SELECT 1") == 1
        await pool.wait_ready(timeout=LONG)
        told = [r for r in caplog.records if "yb_servers()" in r.message or "no YugabyteDB" in r.message]
        assert len(told) == 1


@pytest.fixture(scope="module")
def denied(real: RealCluster | None) -> Iterator[YugabyteCluster]:
    """Three nodes and a read replica; `app` may not ask for them."""
    if real is not None:
        pytest.skip("a real cluster: everybody may ask it for servers")
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
async def test_a_refusing_mode_waits_as_long_as_a_call_may(target: Cluster, open_pool: OpenPool) -> None:
    """The opening, too: `acquire_timeout` counts where nodes that may not be used live on."""
    options = {"load_balance": "only-rr", "topology_keys": "c.r.dc0", "fallback_to_topology_keys_only": True}
    with pytest.raises(NoNodeAvailable) as told:
        await open_pool(target.dsn, connect_timeout=600.0, acquire_timeout=0.2, **options)
    assert told.value.mode == "load_balance=only-rr, topology_keys=c.r.dc0:1, fallback_to_topology_keys_only"


@both
async def test_a_zone_that_no_node_has_is_told(
    target: Cluster, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the cluster can tell; where nothing else is allowed, calls say what forbids the others."""
    options = {"load_balance": True, "topology_keys": "c.r.nowhere:1"}
    pool = await open_pool(target.dsn, **options)
    assert sum("no server lies in c.r.nowhere:1" in record.message for record in caplog.records) == 1
    await pool.wait_ready(timeout=LONG)
    with pytest.raises(NoNodeAvailable, match="is not allowed") as refused:
        await open_pool(target.dsn, fallback_to_topology_keys_only=True, acquire_timeout=0.2, **options)
    assert refused.value.mode == "load_balance=any, topology_keys=c.r.nowhere:1, fallback_to_topology_keys_only"


@both
async def test_a_session_is_cleared_without_binding_it(target: Cluster, open_pool: OpenPool) -> None:
    """No DISCARD, no SET SESSION AUTHORIZATION; but what a borrower bound himself does not reach the next one."""
    target.execute("DROP ROLE IF EXISTS picopyn_someone")
    target.execute("CREATE ROLE picopyn_someone")
    pool = await open_pool(target.dsn_of("n1"), max_size=1)
    for text, question in (
        ("SET work_mem = '77MB'", "SHOW work_mem"),
        ("SET ROLE picopyn_someone", "SELECT current_user::text"),
        ("SET SESSION AUTHORIZATION picopyn_someone", "SELECT session_user::text"),
        ("CREATE TEMP TABLE picopyn_mine (i INT)", "SELECT to_regclass('picopyn_mine')::text"),
    ):
        async with pool.acquire() as connection:
            before, expected = connection.get_server_pid(), await connection.fetchval(question)
            await connection.execute(text)
            assert await connection.fetchval(question) != expected
        async with pool.acquire() as connection:
            assert await connection.fetchval(question) == expected
            assert connection.get_server_pid() == before
    target.execute("DROP ROLE picopyn_someone")


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
    target: Cluster, open_pool: OpenPool
) -> None:
    """Nothing that a pool is told is ignored because nobody said beforehand what its server is."""
    with pytest.raises(ConfigError) as told:
        await open_pool(target.dsn, balancer_policy="round_robin", topology_update_interval=3)
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
