"""`connect` without a pool, for both facades: placed, failed over while opening, counted until closed."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import asyncpg
import pytest

from picopyn import asynchronous, sync
from picopyn.errors import ConfigError, NoNodeAvailable
from picopyn.testing import FaultProxy
from tests.cancelling import eventually
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    WHERE,
    Blocking,
    Cluster,
    Connect,
    Factory,
    connect,
    in_thread,
    in_zone,
    keys,
    need,
    places,
)
from tests.yugabyte.real import RealCluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

__all__ = ["connect"]

THREE = ("c.r.a", "c.r.b", "c.r.c")


@pytest.fixture
def three(real: RealCluster | None, shared_cluster: Factory) -> Cluster:
    """Three nodes in three zones, or a real cluster with at least as many, for tests that do nothing to them."""
    if real is None:
        cluster: Cluster = shared_cluster(THREE)
        return cluster
    need(real, 3)
    return real


async def node_of(cluster: Cluster, connection: Any) -> str:
    return places(cluster)[await connection.fetchval(WHERE)]


async def spread(cluster: Cluster, connections: list[Any]) -> dict[str, int]:
    return dict(sorted(Counter([await node_of(cluster, connection) for connection in connections]).items()))


@both
async def test_12_connections_are_four_each_and_count_until_they_are_closed(
    three: Cluster, connect: Connect, facade: str
) -> None:
    """Whoever closes them (64): we, the server, or nobody, when they are forgotten."""
    cluster, name = three, f"single {facade}"
    options = {"load_balance": True, "application_name": name}
    connections = [await connect(cluster.dsn_of("n1"), **options) for _ in range(4 * len(cluster.nodes))]
    assert await spread(cluster, connections) == dict.fromkeys(cluster.nodes, 4)
    assert sum(cluster.sessions(name).values()) == 4 * len(cluster.nodes), "none for asking is left"
    gone = [connection for connection in connections if await node_of(cluster, connection) == "n2"]
    await gone[0].close()
    gone[1].terminate()
    await in_thread(cluster.end_sessions, "n2", name)
    for connection in gone[2:]:
        with suppress(Exception):
            await connection.fetchval("SELECT 1")
    again = [await connect(cluster.dsn, **options) for _ in range(4)]
    assert await spread(cluster, again) == {"n2": 4}
    del connection
    gc.collect()


@both
async def test_70_many_at_once_and_one_that_is_given_up(three: Cluster, connect: Connect, facade: str) -> None:
    """Those being opened count; one that was cancelled does not any more."""
    cluster, options = three, {"load_balance": True, "application_name": f"many {facade}"}
    await connect(cluster.dsn, **options)
    if facade == "asynchronous":
        given_up = asyncio.create_task(connect(cluster.dsn, **options))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
    many = 4 * len(cluster.nodes) - 1
    opened = await asyncio.gather(*(connect(cluster.dsn, **options) for _ in range(many)))
    assert sum((await spread(cluster, opened)).values()) == many

    async def four_each() -> bool:  # the session that was given up may need a moment to go
        return cluster.sessions(f"many {facade}") == dict.fromkeys(cluster.nodes, 4)

    await eventually(four_each, lambda: cluster.sessions(f"many {facade}"))


async def test_71_both_facades_share_counts(three: Cluster) -> None:
    """What one process opens without a pool is spread together."""
    cluster = three
    awaited = [await asynchronous.connect(cluster.dsn, load_balance=True) for _ in cluster.nodes]
    blocking = [Blocking(await in_thread(partial(sync.connect, cluster.dsn, load_balance=True))) for _ in cluster.nodes]
    assert await spread(cluster, [*awaited, *blocking]) == dict.fromkeys(cluster.nodes, 2)
    for connection in (*awaited, *blocking):
        await connection.close()


@both
async def test_65_66_dead_nodes_are_passed_by(shared_cluster: Factory, connect: Connect) -> None:
    """Each is tried once; the list is read from a survivor when the seed is dead; levels and modes count."""
    cluster = shared_cluster(THREE, read_replicas=("c.r.a",))
    wishes = {"load_balance": True, "topology_keys": keys(cluster, "n1", "n2"), "yb_servers_refresh_interval": 0}
    first = await connect(cluster.dsn_of("n1"), **wishes)
    assert await node_of(cluster, first) in ("n1", "n4")
    await in_thread(cluster.kill, "n1", "n4")
    assert await node_of(cluster, await connect(cluster.dsn_of("n1"), **wishes)) == "n2"
    only = {"load_balance": "only-rr", "yb_servers_refresh_interval": 600}
    with pytest.raises(NoNodeAvailable, match="only-rr") as told:
        await connect(cluster.dsn, **only)
    assert told.value.mode == "load_balance=only-rr"
    cluster.restart("n1", "n4")
    delay = {"failed_host_reconnect_delay_secs": 0}
    await in_thread(cluster.kill, "n2", "n3")
    assert await node_of(cluster, await connect(cluster.dsn, **wishes, **delay)) in ("n1", "n4"), "the delay is no wall"


@both
async def test_a_zone_that_no_node_has_is_told_here_too(
    three: Cluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each key, not for each connection; the connection leads elsewhere all the same."""
    cluster = three
    for levels in ("c.r.nowhere:1,{}:2", "c.r.nowhere:1,{}:2", "{}:1,c.s.nowhere:2"):
        wishes = {"load_balance": True, "topology_keys": levels.format(cluster.node("n2").zone)}
        assert await node_of(cluster, await connect(cluster.dsn, **wishes)) in in_zone(cluster, "n2")
    told = [record.message for record in caplog.records if "no server lies in" in record.message]
    assert told == [f"no server lies in {key} of topology_keys" for key in ("c.r.nowhere:1", "c.s.nowhere:2")]


@both
async def test_a_host_that_ends_while_it_is_asked_is_passed_by(three: Cluster, connect: Connect) -> None:
    """Its connection is good for nothing; another host is asked."""
    cluster = three
    with FaultProxy(*cluster.address_of("n1")) as proxy:
        proxy.cut_at(b"yb_servers")
        dsn = cluster.dsn_of("n2").replace("@", f"@127.0.0.1:{proxy.port},")
        wishes = {"load_balance": True, "topology_keys": keys(cluster, "n3")}
        assert await node_of(cluster, await connect(dsn, **wishes)) in in_zone(cluster, "n3")
        assert proxy.accepted == 1


@both
async def test_a_host_that_hangs_is_waited_for_once(three: Cluster, connect: Connect) -> None:
    """Under whichever address the list has it."""
    cluster = three
    inside = cluster.address_of("n1")
    with FaultProxy(*inside) as proxy:
        proxy.freeze()
        outside = ("127.0.0.1", proxy.port)
        connection = await connect(
            cluster.dsn_of("n2").replace("@", f"@127.0.0.1:{proxy.port},"),
            load_balance=True,
            topology_keys=keys(cluster, "n1", "n2"),
            connect_timeout=0.5,
            address_map=lambda host, port: outside if (host, port) == inside else (host, port),
        )
        assert await node_of(cluster, connection) in (in_zone(cluster, "n1") | in_zone(cluster, "n2")) - {"n1"}
        assert proxy.accepted == 1


@both
async def test_without_balancing_the_first_host_that_works(shared_cluster: Factory, connect: Connect) -> None:
    """What only pools have is refused."""
    cluster = shared_cluster(THREE)
    await in_thread(cluster.kill, "n2")
    assert await node_of(cluster, await connect(cluster.dsn_of("n2", "n3", "n1"))) == "n3"
    with pytest.raises(ConfigError, match="after_connect"):
        await connect(cluster.dsn, after_connect=print)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await connect(cluster.dsn_of("n1"), database="picopyn_nowhere", load_balance=True)


@both
async def test_a_plain_postgresql_is_connected_to_in_every_mode(three: Cluster, connect: Connect) -> None:
    """The first host that works."""
    plain = three.storage_dsn.removesuffix("postgres") + "template1"
    for dialect in ("auto", "yugabyte"):
        connection = await connect(plain, load_balance=True, dialect=dialect)
        assert await connection.fetchval("SELECT 1") == 1


@both
async def test_a_real_cluster(real_dsn: str, connect: Connect) -> None:
    """Three connections for each server are three at each."""
    admin = await asyncpg.connect(real_dsn)
    count = await admin.fetchval("SELECT count(*) FROM yb_servers()")
    await admin.close()
    opened = [await connect(real_dsn, load_balance=True) for _ in range(3 * count)]
    assert set(Counter([await each.fetchval(WHERE) for each in opened]).values()) == {3}
