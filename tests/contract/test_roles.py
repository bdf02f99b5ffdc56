"""Reads off the leader, where the caller asked for them, and leaders that change while calls go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import UsageError
from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.contract.load import Load
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

CREATE = "CREATE TABLE orders (id INT PRIMARY KEY, region TEXT) DISTRIBUTED BY (id)"
INSERT = "INSERT INTO orders VALUES ($1, $2)"
SELECT = "SELECT region FROM orders WHERE id = $1"
UPDATE = "UPDATE orders SET region = $2 WHERE id = $1"
OFF = ("replica", "prefer_replica", "any")

Start = Callable[..., PicodataCluster]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts a cluster with the table; it ends with the test."""
    running: list[PicodataCluster] = []

    def begin(**shape: Any) -> PicodataCluster:
        running.append(PicodataCluster(**{"replicasets": 2, "replication": 2, **shape}).start())
        running[-1].execute(CREATE)
        return running[-1]

    yield begin
    for cluster in running:
        cluster.shutdown()


async def learned(pool: Pool) -> None:
    """Rows 0 … 39 are there, and it is known where the texts go."""
    await asyncio.gather(*(pool.execute(INSERT, number, "new") for number in range(40)))
    for text, args in ((INSERT, (0, "")), (SELECT, (0,)), (UPDATE, (0, ""))):
        assert (await pool.explain_route(text, *args)).reason.endswith("keyed")


def executed(cluster: PicodataCluster) -> dict[str, Counter[str]]:
    """What the leaders, and the others, have executed themselves; and what was forwarded, by whomever."""
    leaders = set(cluster.leaders().values())
    found: dict[str, Counter[str]] = {"leader": Counter(), "replica": Counter(), "forwarded": Counter()}
    for name, counters in cluster.counters().items():
        found["leader"]["direct"] += counters.direct if name in leaders else 0
        found["replica"]["reads"] += 0 if name in leaders else counters.replica
        found["forwarded"]["all"] += counters.forwarded
    return found


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_reads_go_where_their_role_says(start: Start, open_pool: OpenPool) -> None:
    """Replicas answer from their own rows; writes go to leaders; nothing is forwarded; `leader` stays the default."""
    cluster = start()
    pool = await open_pool(cluster.dsn)
    await learned(pool)
    cluster.wait_views()
    for role, share in (("leader", 0), ("prefer_leader", 0), ("replica", 40), ("prefer_replica", 40), ("any", None)):
        cluster.reset_counters()
        assert [await pool.fetchval(SELECT, number, role=role) for number in range(40)] == ["new"] * 40
        seen = executed(cluster)
        assert seen["forwarded"]["all"] == 0
        reads = seen["replica"]["reads"]
        assert reads == share or (share is None and 0 < reads < 40)
        assert seen["leader"]["direct"] == 40 - reads
    assert pool.stats().calls["replica_read"] >= 80

    cluster.reset_counters()
    for role in ("prefer_replica", "any"):
        for number in range(10):
            assert await pool.execute(UPDATE, number, "new", role=role) == "UPDATE 1"
    assert executed(cluster)["leader"]["direct"] == 20
    cluster.reset_counters()
    for call in (pool.execute(UPDATE, 1, "new", role="replica"), pool.executemany(INSERT, [(99, "")], role="replica")):
        with pytest.raises(UsageError, match="may write"):
            await call
    assert sum(counters.direct + counters.forwarded for counters in cluster.counters().values()) == 0

    assert await pool.fetchval("SELECT count(*) FROM orders", role="replica") == 40  # of several owners: forwarded
    replicas = {node.uuid for node in pool.topology.nodes(role="replica")}
    for _ in range(4):
        async with pool.acquire(role="replica") as connection:
            assert connection.node.uuid in replicas
            assert await connection.fetchval(SELECT, 3) == "new"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_replicas_answer_while_their_leader_is_dead(start: Start, open_pool: OpenPool) -> None:
    """Without waiting: the server would demote it only in a minute."""
    cluster = start(auto_offline_timeout=60.0)
    async with Load() as load:
        pools = {role: await open_pool(cluster.dsn, role=role, acquire_timeout=20.0) for role in OFF}
        for role, pool in pools.items():
            await learned(await open_pool(cluster.dsn)) if role == OFF[0] else None
            await pool.fetchval(SELECT, 0)
            await pool.explain_route(SELECT, 0)

        async def read(role: str, number: int) -> None:
            assert await pools[role].fetchval(SELECT, number % 40) == "new"

        for role in OFF:
            load.start(role, lambda number, role=role: read(role, number))  # type: ignore[misc]
        await load.wait("reads", lambda: all(len(load.of(role)) > 40 for role in OFF))
        await asyncio.to_thread(cluster.kill, cluster.leaders()["default_1"])
        killed = len(load.done)
        await load.wait("reads", lambda: all(sum(d.label == role for d in load.done[killed:]) > 80 for role in OFF))
        await load.stop()
    assert load.failures() == []


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_planned_switch_costs_no_call(
    start: Start, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """The old leader refuses writes for 0.1 to 0.2 s (recorded); they run again, once each, at the new one."""
    cluster = start()
    pool = await open_pool(cluster.dsn, acquire_timeout=20.0)
    await learned(pool)
    written: dict[int, int] = {}

    async def write(number: int) -> None:
        key = number % 40
        assert await pool.execute(UPDATE, key, str(number)) == "UPDATE 1"
        written[key] = number

    async def insert(number: int) -> None:
        assert await pool.execute(INSERT, 1000 + number, "new") == "INSERT 0 1"

    async with Load() as load:
        load.start("write", write, tasks=4)
        load.start("insert", insert, tasks=4)
        load.start("read", lambda number: pool.fetchval(SELECT, number % 40), tasks=2)
        for replicaset, leader in cluster.leaders().items():
            new = next(name for name in cluster.instances if name != leader and name.startswith(replicaset))
            before = len(load.done)
            await load.wait("calls", lambda before=before: len(load.done) > before + 50)  # type: ignore[misc]
            await asyncio.to_thread(cluster.promote, new)
            before = len(load.done)
            await load.wait("calls", lambda before=before: len(load.done) > before + 50)  # type: ignore[misc]
        await load.stop()
    assert load.failures() == []
    assert pool.stats().retries.get("NOT_LEADER", 0) > 0
    assert pool.stats().outcome_unknown == 0
    for key, number in written.items():
        assert await pool.fetchval(SELECT, key) == str(number)
    assert await pool.fetchval("SELECT count(*) FROM orders") == 40 + len(load.of("insert"))
    measured("longest call over a switch, s", max(done.seconds for done in load.done))
