"""Pools on a YugabyteDB whose nodes die, hang, join, leave and return."""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import pairwise
from typing import Any

import pytest

from picopyn.errors import NoNodeAvailable
from picopyn.observe import ConnectionClosed, NodeStateChanged
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES
from tests.yugabyte.conftest import (
    LONG,
    NINE,
    SOON,
    WHERE,
    Cluster,
    Factory,
    Note,
    acquire,
    connected,
    held,
    in_thread,
    in_zone,
    is_even,
    keys,
    names,
    place,
    release,
    states,
    until,
    where,
)

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

THREE = ("c.r.a", "c.r.b", "c.r.c")


class Changes:
    """What a pool told of the states of nodes."""

    def __init__(self) -> None:
        self.told: list[NodeStateChanged] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, NodeStateChanged):
            self.told.append(event)

    def of(self, cluster: Cluster, name: str) -> list[str]:
        """The states of one node, in order."""
        return [event.new for event in self.told if names(cluster)[event.address] == name]


@both
async def test_a_share_moves_at_once_and_comes_back(shared_of: Factory, open_pool: OpenPool, measured: Note) -> None:
    """9 nodes, 3 zones, 30 held connections: within one of each other in the preferred level, all along (15, 33)."""
    cluster = shared_of(3, NINE)
    second = "n4" if "n4" in cluster.nodes else "n2"
    level, wishes = in_zone(cluster, "n1"), {"topology_keys": keys(cluster, "n1", second)}
    if len(level) == 1:  # a real cluster with a node in each zone
        level, wishes = set(cluster.nodes), {}
    share = 30 // (len(level) - 1)
    pool = await open_pool(cluster.dsn_of("n1", "n3"), load_balance=True, max_size=30, **wishes, **SOON)
    await pool.wait_ready(timeout=LONG)
    connections = await acquire(pool, 30)
    assert is_even(where(cluster, connections), level)

    lost = [connection for connection in connections if names(cluster)[connection.node.address] == "n1"]
    kept = [connection for connection in connections if connection not in lost]
    await in_thread(cluster.kill, "n1")
    began = time.monotonic()
    instead = await acquire(pool, len(lost))
    measured("share served elsewhere after (s)", time.monotonic() - began)
    assert is_even(where(cluster, kept + instead), level - {"n1"})
    await until(lambda: all(connection.is_closed() for connection in lost))
    await release(pool, lost)

    began = time.monotonic()
    cluster.restart("n1")
    await until(lambda: "n1" in connected(pool, cluster))
    measured("back after (s)", time.monotonic() - began)
    back = await acquire(pool, share)
    assert where(cluster, back) == {"n1": share}
    await release(pool, kept + instead + back)


@both
async def test_idle_connections_are_trimmed_in_batches(shared_cluster: Factory, open_pool: OpenPool) -> None:
    """Use climbs back when the preferred level does (22, 31); what it leaves behind goes, one batch per interval."""
    cluster, batch, closed = shared_cluster(NINE), 4, []

    def note(event: Any) -> None:
        if isinstance(event, ConnectionClosed) and event.reason == "excess":
            closed.append(time.monotonic())

    await in_thread(cluster.kill, "n1", "n2", "n3")
    began = time.monotonic()
    options: dict[str, Any] = {
        "topology_keys": keys(cluster, "n1", "n4"),
        "rebalance_batch": batch,
        "on_event": note,
        **SOON,
    }
    pool = await open_pool(cluster.dsn_of("n4", "n7"), load_balance=True, **options)
    await until(lambda: connected(pool, cluster) == {"n4", "n5", "n6"})
    assert await held(pool, cluster) == {"n4": 4, "n5": 4, "n6": 4}
    assert set(states(pool, cluster).values()) == {"up", "down"}
    cluster.restart("n1", "n2", "n3")
    await until(lambda: connected(pool, cluster) >= {"n1", "n2", "n3"})
    assert await held(pool, cluster) == {"n1": 4, "n2": 4, "n3": 4}
    await until(lambda: connected(pool, cluster) == {"n1", "n2", "n3"})
    await until(lambda: len(closed) >= 12)
    for count, moment in enumerate(closed, start=1):
        assert count <= batch * int(moment - began), "more than one batch per interval"


@both
async def test_19_strict_keys_and_a_dead_level(shared_cluster: Factory, open_pool: OpenPool) -> None:
    """Calls wait within their limit, and the error carries what forbids the living; when one returns, it is used."""
    cluster = shared_cluster(THREE)
    wishes = keys(cluster, "n1")
    options = {"topology_keys": wishes, "fallback_to_topology_keys_only": True, "acquire_timeout": 0.3}
    pool = await open_pool(cluster.dsn, load_balance=True, **options, **SOON)
    await pool.wait_ready(timeout=LONG)
    await in_thread(cluster.kill, "n1")
    await until(lambda: states(pool, cluster)["n1"] == "down")
    for call in (pool.fetchval("SELECT 1"), acquire(pool, 1)):
        with pytest.raises(NoNodeAvailable, match="topology_keys=") as told:
            await call
        assert told.value.mode == f"load_balance=any, topology_keys={wishes}, fallback_to_topology_keys_only"
        assert len(told.value.reasons) == 3
    cluster.restart("n1")
    assert await pool.fetchval(WHERE, timeout=LONG) == place(cluster, "n1")


@both
async def test_45_47_node_types_go_down(shared_cluster: Factory, open_pool: OpenPool) -> None:
    """`prefer-rr` goes on with primaries and climbs back; `only-rr` refuses and says so."""
    cluster = shared_cluster(THREE, read_replicas=("c.r.a", "c.r.b"))
    prefers = await open_pool(cluster.dsn_of("n1"), load_balance="prefer-rr", **SOON)
    only = await open_pool(cluster.dsn_of("n1"), load_balance="only-rr", acquire_timeout=0.3, **SOON)
    await prefers.wait_ready(timeout=LONG)
    assert await held(prefers, cluster, 4) == {"n4": 2, "n5": 2}
    await in_thread(cluster.kill, "n4", "n5")
    await until(lambda: {states(prefers, cluster)[name] for name in ("n4", "n5")} == {"down"})
    await prefers.wait_ready(timeout=LONG)
    await until(lambda: connected(prefers, cluster) == {"n1", "n2", "n3"})
    assert await held(prefers, cluster, 6) == {"n1": 2, "n2": 2, "n3": 2}
    await until(lambda: {states(only, cluster)[name] for name in ("n4", "n5")} == {"down"})
    with pytest.raises(NoNodeAvailable, match="only-rr"):
        await acquire(only, 1)
    cluster.restart("n4", "n5")
    await until(lambda: connected(prefers, cluster) >= {"n4", "n5"})
    assert await held(prefers, cluster, 4) == {"n4": 2, "n5": 2}


@both
async def test_35_68_72_nodes_join_leave_and_move(picopyn_yugabyte_cluster: Factory, open_pool: OpenPool) -> None:
    """Within one refresh new calls follow: a node joins, moves to a better zone, is declared dead."""
    cluster = picopyn_yugabyte_cluster(THREE)
    pool = await open_pool(cluster.dsn_of("n1"), load_balance=True, topology_keys="c.r.z:1,c.r.*:2", **SOON)
    await pool.wait_ready(timeout=LONG)
    connections = await acquire(pool, 9)
    assert where(cluster, connections) == {"n1": 3, "n2": 3, "n3": 3}
    assert cluster.add("c.r.d") == "n4"
    await until(lambda: "n4" in connected(pool, cluster))
    connections += await acquire(pool, 9)
    assert sorted(where(cluster, connections).values()) == [4, 4, 5, 5]
    await release(pool, connections)
    cluster.move("n2", "c.r.z")
    await until(lambda: nodes_by_zone(pool).get("z") == 1)
    assert await held(pool, cluster, 4) == {"n2": 4}
    cluster.unlist("n2")
    await until(lambda: len(pool.topology.nodes()) == 3)
    assert await held(pool, cluster, 6) == {"n1": 2, "n3": 2, "n4": 2}


def nodes_by_zone(pool: Any) -> dict[str, int]:
    zones = [node.failure_domain.get("zone", "") for node in pool.topology.nodes()]
    return {zone: zones.count(zone) for zone in zones}


@both
async def test_25_66_69_the_seed_dies(picopyn_yugabyte_cluster: Factory, open_pool: OpenPool) -> None:
    """The only host of the connection string, and the connection that asks for the servers: both move to a survivor."""
    cluster = picopyn_yugabyte_cluster(THREE)
    pool = await open_pool(cluster.dsn_of("n1"), load_balance=True, application_name="mover", **SOON)
    await pool.wait_ready(timeout=LONG)
    assert await held(pool, cluster, 6) == {"n1": 2, "n2": 2, "n3": 2}
    await in_thread(cluster.kill, "n1")
    await until(lambda: states(pool, cluster)["n1"] == "down")
    assert cluster.add("c.r.d") == "n4"
    await until(lambda: "n4" in connected(pool, cluster))
    assert await held(pool, cluster, 9) == {"n2": 3, "n3": 3, "n4": 3}
    assert states(pool, cluster).keys() == {"n1", "n2", "n3", "n4"}, "dead but listed"


@both
async def test_65_a_failed_host_is_left_out_for_a_while(
    shared_of: Factory, open_pool: OpenPool, measured: Note
) -> None:
    """At least as long as the setting says, although it is back at once; then it is found by itself, and told once."""
    cluster, changes = shared_of(3, THREE), Changes()
    options: dict[str, Any] = {"failed_host_reconnect_delay_secs": 1, "yb_servers_refresh_interval": 1}
    pool = await open_pool(cluster.dsn, load_balance=True, on_event=changes, **options)
    await pool.wait_ready(timeout=LONG)
    began = time.monotonic()
    await in_thread(cluster.kill, "n1")
    await until(lambda: states(pool, cluster)["n1"] == "down")
    cluster.restart("n1")
    await until(lambda: states(pool, cluster)["n1"] == "up")
    assert time.monotonic() - began >= 1
    measured("left out for (s)", time.monotonic() - began)
    told = [state for state in changes.of(cluster, "n1") if state in ("down", "up")]
    assert told[-2:] == ["down", "up"]
    assert all(before != after for before, after in pairwise(told)), "one event per change"


@both
async def test_a_session_ended_by_an_administrator_is_no_failed_node(
    shared_of: Factory, open_pool: OpenPool, facade: str
) -> None:
    """Its place is free again, and the node goes on being used."""
    cluster, changes, name = shared_of(3, THREE), Changes(), f"ended {facade}"
    pool = await open_pool(cluster.dsn, load_balance=True, application_name=name, on_event=changes, **SOON)
    await pool.wait_ready(timeout=LONG)
    assert is_even(await held(pool, cluster, 9), set(cluster.nodes))
    await in_thread(cluster.end_sessions, "n1", name)
    await until(lambda: states(pool, cluster)["n1"] == "up" and "n1" in connected(pool, cluster))
    await pool.fetchval("SELECT 1", idempotent=True)
    await until(lambda: "n1" in connected(pool, cluster))
    assert "n1" in await held(pool, cluster, 9)
    down = [event.reason for event in changes.told if event.new == "down"]
    assert all("hangs" in reason for reason in down), "but for one that a busy machine kept waiting"


@both
async def test_a_node_is_frozen_when_the_pool_opens(shared_of: Factory, open_pool: OpenPool, measured: Note) -> None:
    """Nobody waits for it, neither the opening nor a call; without balancing the second host serves."""
    cluster = shared_of(3, THREE)
    cluster.freeze("n1")
    for number, options in enumerate(({"load_balance": True}, {})):
        began = time.monotonic()
        pool = await open_pool(cluster.dsn, connect_timeout=LONG, **options, **SOON)
        assert await pool.fetchval(WHERE) != place(cluster, "n1")
        measured(f"open and one call, {number} (s)", time.monotonic() - began)
    cluster.thaw("n1")


@both
async def test_a_node_freezes_while_it_is_used(shared_of: Factory, open_pool: OpenPool, measured: Note) -> None:
    """Calls that may be repeated run elsewhere, others are told; the node is used again when it answers."""
    cluster = shared_of(3, (*THREE, "c.r.d"))
    pool = await open_pool(cluster.dsn, load_balance=True, **SOON)
    await pool.wait_ready(timeout=LONG)
    await held(pool, cluster, 20)
    cluster.freeze("n1")
    began = time.monotonic()
    found = await asyncio.gather(*(pool.fetchval(WHERE, idempotent=True, timeout=LONG) for _ in range(40)))
    measured("all calls answered after (s)", time.monotonic() - began)
    assert place(cluster, "n1") not in found
    await until(lambda: states(pool, cluster)["n1"] == "down")
    assert "n1" not in await held(pool, cluster, 9)
    cluster.thaw("n1")
    await until(lambda: states(pool, cluster)["n1"] == "up" and "n1" in connected(pool, cluster))
    assert "n1" in await held(pool, cluster, 30)


@both
async def test_another_cluster_is_not_taken_for_ours(
    picopyn_yugabyte_cluster: Factory, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A seed that leads to another universe, by a mistake of names, is told once; its nodes never mix with ours."""
    ours, theirs = picopyn_yugabyte_cluster(THREE), picopyn_yugabyte_cluster(THREE)
    hosts = f"{ours.address_of('n1')[0]}:5433,{theirs.address_of('n1')[0]}:5433"
    pool = await open_pool(f"postgresql://postgres@{hosts}/postgres", load_balance=True, **SOON)
    await pool.wait_ready(timeout=LONG)
    first = ours if any(node.tier and node.address in names(ours) for node in pool.topology.nodes()) else theirs
    other = theirs if first is ours else ours
    await in_thread(first.kill, *first.nodes)
    with caplog.at_level(logging.WARNING):
        await until(lambda: any("of another cluster" in record.message for record in caplog.records))
    first.restart(*first.nodes)
    await until(lambda: not {node.address for node in pool.topology.nodes()} & set(names(other)))
    spread = await held(pool, first)
    while set(spread.values()) != {4}:  # a thread's connection that ended in the outage is found out when it is wanted
        await asyncio.sleep(0.05)
        spread = await held(pool, first)
    assert spread.keys() == set(first.nodes)


@both
async def test_a_hook_that_fails_at_one_node(shared_of: Factory, open_pool: OpenPool) -> None:
    """`after_connect` blames no node; calls go where it succeeds, and where it does again after a while."""
    cluster = shared_of(3, THREE)
    first, ran = place(cluster, "n1"), list[tuple[str, int]]()
    broken, others = {first}, set(cluster.nodes) - {"n1"}

    async def hook(connection: Any) -> None:
        where, pid = await connection.fetchrow(f"{WHERE}, pg_backend_pid()")
        ran.append((where, pid))
        if where in broken:
            raise ValueError("the hook fails here")

    pool = await open_pool(cluster.dsn, load_balance=True, after_connect=hook, **SOON)
    await until(lambda: connected(pool, cluster) == others and first in dict(ran))
    assert len(set(ran)) == len(ran), "once per connection"
    assert is_even(await held(pool, cluster, 8), others)
    assert set(states(pool, cluster).values()) == {"up"}
    broken.clear()
    await until(lambda: "n1" in connected(pool, cluster))
    assert is_even(await held(pool, cluster, 9), set(cluster.nodes))
