"""What went wrong in comparable drivers, class *route*: each scenario of public bug reports, as far as it applies.

Names are those of the scenario list. Roles other than `leader` and `prefer_leader` do not exist yet, so the read-only
halves of two scenarios speak of `prefer_leader`.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from picopyn.errors import AcquireTimeout
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.load import Load
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

WHO = "SELECT pico_instance_name(pico_instance_uuid())"

_ONE_CALL = """
import asyncio, sys
from picopyn.asynchronous import Pool

async def main():
    async with Pool(sys.argv[1]) as pool:
        print(await pool.fetchval(sys.argv[2]))

asyncio.run(main())
"""


def _check_spread(served: Counter[str], leaders: int) -> None:
    """Every leader got its share, within four standard deviations."""
    calls = sum(served.values())
    mean, spread = calls / leaders, 4 * math.sqrt(calls / leaders * (1 - 1 / leaders))
    assert len(served) == leaders, served
    assert all(mean - spread <= count <= mean + spread for count in served.values()), served


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_route_many_processes_same_order(
    pool_class: Any, target: Target, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Thirty pools with the same DSN, one call each: they do not all begin at the same node."""
    leaders = len(await target.leaders())
    if leaders < 2:
        pytest.skip("the cluster has one leader only")
    served: Counter[str] = Counter()
    for _ in range(300 if full_size else 30):
        async with pool_class(target.dsn) as pool:
            served[await pool.fetchval(WHO)] += 1
    measured("first calls by node", dict(served))
    _check_spread(served, leaders)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_route_many_processes_same_order_for_what_is_no_call(
    pool_class: Any, fresh: Fresh, measured: Callable[[str, object], None]
) -> None:
    """The connections that watch the cluster and learn statements do not all go to the first node either."""
    target = fresh(replicasets=3, replication=1)
    target.need(Capability.OWN_SHAPE, Capability.COUNT_LOGINS)
    pools = [pool_class(target.dsn, min_size=1, max_size=1) for _ in range(30)]
    await asyncio.gather(*(pool.open() for pool in pools))

    async def complete() -> bool:
        return sum((await target.logins()).values()) == 30 * 3 + 30 * 2

    await target.until(complete, "every pool has one connection to each node, one to watch, one to learn")
    extra = Counter({name: count - 30 for name, count in (await target.logins()).items()})
    await asyncio.gather(*(pool.close() for pool in pools))
    measured("watching and learning connections by node", dict(extra))
    _check_spread(extra, 3)


@pytest.mark.full
async def test_route_many_processes_same_order_in_processes(
    target: Target, measured: Callable[[str, object], None]
) -> None:
    """The same with a process for each."""
    served: Counter[str] = Counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(30):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _ONE_CALL, target.dsn, WHO, stdout=asyncio.subprocess.PIPE, env=environment
        )
        answer, _ = await process.communicate()
        served[answer.decode().strip()] += 1
    measured("first calls by node", dict(served))
    _check_spread(served, len(await target.leaders()))


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_route_retry_uses_old_target(
    fresh: Fresh, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """The leader is switched to and fro under writes: no call fails, and each is refused at most twice."""
    target = fresh()
    target.need(Capability.PROMOTE)
    _, (first, second, *_) = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    insert, update = f"INSERT INTO {table} VALUES ($1, 0)", f"UPDATE {table} SET v = $1 WHERE id = $2"
    pool = await open_pool(target.dsn, topology_update_interval=1.0)
    await pool.wait_ready()
    keys = [n for n in range(60) if (await pool.explain_route(update, 1, n)).owner == first.replicaset]
    for number in keys:
        await pool.execute(insert, number)
    refused: list[float] = []

    async def write(number: int) -> None:
        assert await pool.execute(update, number, keys[number % len(keys)], timeout=20) == "UPDATE 1"

    async with Load() as load:
        load.start("writes", write, tasks=4)
        for flip in range(50 if full_size else 6):
            await target.promote((second, first)[flip % 2])
            done = len(load.done)
            await load.wait("writes after the switch", lambda done=done: len(load.done) > done + 20)
            refused.append(sum(pool.stats().retries.values()))
    measured("writes", len(load.done))
    measured("refusals in all", refused[-1])
    measured("slowest write (s)", max(done.seconds for done in load.done))
    assert not load.failures()
    per_flip = [after - before for before, after in zip([0, *refused], refused, strict=False)]
    assert max(per_flip) <= 2 * 4, "a call was sent again and again to the old leader"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_route_no_replica(fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]) -> None:
    """A replicaset of one: `prefer_leader` reads stay there, wait no longer than allowed, and find a later replica."""
    target = fresh(replicasets=2, replication=1, auto_offline_timeout=60.0)
    target.need(Capability.OWN_SHAPE, Capability.KILL)
    assert isinstance(target, EmbeddedTarget)
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    select = f"SELECT v FROM {table} WHERE id = $1"
    pool = await open_pool(target.dsn, role="prefer_leader", topology_update_interval=1.0, acquire_timeout=0.5)
    leaders = await target.leaders()
    explained = {(await pool.explain_route(select, number)).owner: number for number in range(50)}
    before = await target.direct()
    for number in range(100):
        await pool.fetchrow(select, number)
    assert await target.direct() - before == 100
    assert pool.stats().calls["replica_read"] == 0

    doomed = leaders["default_2"]
    await target.kill(doomed)
    began = time.monotonic()
    with pytest.raises(AcquireTimeout, match="default_2"):
        await pool.fetchrow(select, explained["default_2"])
    measured("seconds until the error with acquire_timeout 0.5", time.monotonic() - began)
    assert time.monotonic() - began >= 0.5

    waiting = asyncio.create_task(pool.fetchrow(select, explained["default_2"], timeout=30))
    await asyncio.to_thread(target.cluster.add_instance, "default_2")
    assert await waiting is None
    assert pool.stats().calls["replica_read"] + pool.stats().calls["waited_for_leader"] >= 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_route_undetermined_role(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """A node that answers too late who it is holds nobody up; it counts again when it answers again.

    That a frozen node leaves the set of readers needs hang detection, which is not here yet.
    """
    target = fresh(auto_offline_timeout=60.0)
    target.need(Capability.FREEZE, Capability.SECOND_USER)
    _, (leader, replica, *_) = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    select = f"SELECT v FROM {table} WHERE id = $1"
    async with target.bare_user(table) as dsn:
        pool = await open_pool(dsn, topology_update_interval=1.0)
        await pool.explain_route(select, 1)
        for _ in range(2):
            await target.freeze(replica)
            try:

                async def known() -> bool:
                    found = pool.topology.leader(leader.replicaset_uuid)
                    return found is not None and found.uuid == leader.uuid

                await target.until(known, "the leader is found beside a frozen replica")
                async with Load() as load:
                    for number in range(100):
                        await load.once("read", lambda n: pool.fetchrow(select, n, role="prefer_leader"), number)
                assert not load.failures()
                measured("slowest read beside a frozen replica (s)", max(done.seconds for done in load.done))
            finally:
                await target.thaw(replica)
        assert pool.stats().calls["replica_read"] == 0
        await pool.close()
