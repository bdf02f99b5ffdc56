"""hasql's own test scenarios, in its words, on real servers; `tests/hasql-scenarios.md` says where the others are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from picopyn.errors import AcquireTimeout
from picopyn.testing import PostgresCluster, PostgresServer
from tests.postgres.conftest import OpenPool, until
from tests.postgres.history import PATIENCE
from tests.threads import FACADES

Factory = Callable[..., PostgresCluster]

POLICIES = ("greedy", "round_robin", "random_weighted", "two_choices")
PORT = "SELECT inet_server_port()"

over_both_facades = pytest.mark.parametrize("facade", FACADES, indirect=True)


@pytest.fixture
def servers(picopyn_postgres_cluster: Factory) -> PostgresCluster:
    """A primary n1 and replicas n2 and n3."""
    return picopyn_postgres_cluster()


def port(servers: PostgresCluster, *names: str) -> set[int]:
    return {servers.address_of(name)[1] for name in names}


def by_role(pool: Any, role: str) -> list[Any]:
    return [node for node in pool.stats().nodes.values() if node.role == role]


@over_both_facades
async def test_h_r2_h_r6_ready_tells_who_is_there_now(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """One of two replicas down: one is left. All down and the primary back: ready for one master and no replica."""
    pool = await open_pool(servers.dsn)
    await pool.ready(1, 2, timeout=PATIENCE)
    await asyncio.to_thread(servers.kill, "n3")
    await until(lambda: [node.state for node in by_role(pool, "replica")].count("down") == 1)
    await pool.ready(1, 1, timeout=PATIENCE)
    assert pool.available_pool_count == 2
    with pytest.raises(TimeoutError, match="without a connection"):
        await pool.ready(1, 2, timeout=0.1)
    for name in ("n1", "n2"):
        await asyncio.to_thread(servers.kill, name)
    await until(lambda: {node.state for node in pool.stats().nodes.values()} == {"down"})
    with pytest.raises(TimeoutError):
        await pool.ready(1, 0, timeout=0.1)
    await asyncio.to_thread(servers.restart, "n1")
    await pool.ready(1, 0, timeout=PATIENCE)
    assert await pool.fetchval(PORT, timeout=PATIENCE) in port(servers, "n1")
    assert pool.available_pool_count == 1


@over_both_facades
async def test_h_a1_h_m3_a_held_master_connection_is_counted_at_the_master(
    servers: PostgresCluster, open_pool: OpenPool
) -> None:
    """One in use there while it is held, none afterwards, and it is the master's; the others are what they were."""
    pool = await open_pool(servers.dsn)
    await pool.ready(1, 2, timeout=PATIENCE)
    await until(lambda: pool.stats().in_use == 0)
    async with pool.acquire_master() as connection:
        assert {connection.node.port} == port(servers, "n1")
        (master,) = by_role(pool, "leader")
        assert (master.state, master.in_use) == ("up", 1)
        assert [(node.state, node.in_use) for node in by_role(pool, "replica")] == [("up", 0)] * 2
        assert pool.stats().in_use == 1
    await until(lambda: pool.stats().in_use == 0)
    assert by_role(pool, "leader")[0].idle >= 1


@over_both_facades
async def test_h_b1_h_b2_h_b6_h_b7_every_policy_keeps_to_the_roles(
    servers: PostgresCluster, open_pool: OpenPool
) -> None:
    """A master is a master, a replica none, with weight 0 never; a weight for a write is refused."""
    for policy in POLICIES:
        pool = await open_pool(servers.dsn, balancer_policy=policy)
        await pool.ready(1, 2, timeout=PATIENCE)
        async with pool.acquire_master() as connection:
            assert {connection.node.port} == port(servers, "n1")
        for _ in range(20):
            async with pool.acquire_replica(master_as_replica_weight=0.0) as connection:
                assert {connection.node.port} < port(servers, "n2", "n3")
        with pytest.raises(ValueError, match="replica"):
            pool.acquire(read_only=False, master_as_replica_weight=0.5)
        await pool.close()


@over_both_facades
async def test_h_b3_h_b4_h_b5_h_b8_without_replicas(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """The master where a fallback or weight 1 allows it, without waiting; else the call waits, and ends in time."""
    for policy in POLICIES:
        pool = await open_pool(postgres.dsn, role="leader", balancer_policy=policy)
        for allowed in (
            {"fallback_master": True},
            {"master_as_replica_weight": 1.0},
            {"master_as_replica_weight": 1.0, "fallback_master": False},
        ):
            async with pool.acquire_replica(**allowed, timeout=PATIENCE) as connection:
                assert connection.node.port == postgres.port
        with pytest.raises(AcquireTimeout):
            await pool.acquire_replica(master_as_replica_weight=0.0, timeout=0.05)
        await pool.close()


@over_both_facades
async def test_h_b10_a_call_waits_for_the_role_it_needs(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """Round robin: for a master that comes back, and for a replica that does; with a fallback it does not wait."""
    pool = await open_pool(servers.dsn, balancer_policy="round_robin", refresh_delay=0.05)
    await pool.ready(1, 2, timeout=PATIENCE)

    async def takes(acquiring: Any) -> int:
        async with acquiring as connection:
            return int(connection.node.port)

    servers.read_only("n1", True)
    await until(lambda: not by_role(pool, "leader"))
    master = asyncio.create_task(takes(pool.acquire_master(timeout=PATIENCE)))
    assert await takes(pool.acquire_replica()) in port(servers, "n1", "n2", "n3")
    assert not master.done()
    servers.read_only("n1", False)
    assert {await master} == port(servers, "n1")
    for name in ("n2", "n3"):
        await asyncio.to_thread(servers.kill, name)
    await until(lambda: {node.state for node in by_role(pool, "replica")} == {"down"})
    assert {await takes(pool.acquire_replica(fallback_master=True, timeout=PATIENCE))} == port(servers, "n1")
    assert {await takes(pool.acquire_master())} == port(servers, "n1")
    replica = asyncio.create_task(takes(pool.acquire_replica(timeout=PATIENCE)))
    await asyncio.to_thread(servers.restart, "n2")
    assert {await replica} == port(servers, "n2")


@over_both_facades
async def test_h_x2_reads_fall_back_to_the_master_and_return(servers: PostgresCluster, open_pool: OpenPool) -> None:
    """Both replicas are stopped one after the other, and started again: no read fails."""
    pool = await open_pool(servers.dsn, role="replica", fallback_master=True, refresh_delay=0.05)
    await pool.ready(1, 2, timeout=PATIENCE)
    seen: list[int] = []
    over = asyncio.Event()

    async def read() -> None:
        while not over.is_set():
            seen.append(await pool.fetchval(PORT, idempotent=True, timeout=PATIENCE))

    readers = [asyncio.create_task(read()) for _ in range(4)]

    async def only(*names: str) -> None:
        seen.clear()
        await until(lambda: set(seen[-20:]) == port(servers, *names) or any(reader.done() for reader in readers))

    await only("n2", "n3")
    await asyncio.to_thread(servers.stop, "n2")
    await only("n3")
    await asyncio.to_thread(servers.stop, "n3")
    await only("n1")
    await asyncio.to_thread(servers.restart, "n2")
    await only("n2")
    await asyncio.to_thread(servers.restart, "n3")
    await only("n2", "n3")
    over.set()
    await asyncio.gather(*readers)


def test_the_list_of_scenarios_names_every_one_and_only_tests_that_exist() -> None:
    """So that it stays true."""
    here = Path(__file__).parent.parent
    text = (here / "hasql-scenarios.md").read_text()
    ids = re.findall(r"^\| (H-[A-Z]\d+) \|", text, re.MULTILINE)
    counts = {"D": 11, "R": 14, "A": 11, "C": 8, "B": 12, "S": 14, "M": 6, "O": 10, "V": 8, "X": 2}
    assert ids == [f"H-{area}{number}" for area, count in counts.items() for number in range(1, count + 1)]
    named = set(re.findall(r"`(test_\w+)`", text))
    written = {
        name for path in here.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))
    }
    assert named - written == set()
    own = {name for name in written if name.startswith("test_h_")}
    assert own - named == set()
