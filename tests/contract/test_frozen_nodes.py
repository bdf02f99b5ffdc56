"""A node that accepts connections and says nothing, or does not even accept them, delays nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from picopyn.errors import NoNodeAvailable
from picopyn.testing import black_hole
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.target import Capability, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

CONNECT_TIMEOUT = 4.0


async def _seconds_to_open(pool_class: Any, dsn: str, **options: object) -> float:
    began = time.monotonic()
    pool = await pool_class(dsn, connect_timeout=CONNECT_TIMEOUT, **options).open()
    seconds = time.monotonic() - began
    assert await pool.fetchval("SELECT 1", timeout=CONNECT_TIMEOUT) == 1
    await pool.close(grace=0.1)
    return seconds


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_opening_does_not_wait_for_a_frozen_node(
    pool_class: Any, fresh: Fresh, measured: Callable[[str, object], None]
) -> None:
    """One instance frozen, a leader or a replica, among the seeds or only in the topology: `open()` returns."""
    target = fresh(auto_offline_timeout=60.0)
    target.need(Capability.FREEZE)
    _, members = await target.two_replicasets_with_replicas()
    for member in members:
        others = [seed for seed in target.seeds if seed != member.endpoint]
        assert others
        await target.freeze(member)
        try:
            for where, dsn in {
                "among the seeds": target.dsn_for(seeds=[member.endpoint, *others]),
                "in the topology": target.dsn_for(seeds=others),
            }.items():
                seconds = await _seconds_to_open(pool_class, dsn)
                measured(f"open() with a frozen {'leader' if member.leads else 'replica'} {where} (s)", seconds)
                assert seconds < CONNECT_TIMEOUT
        finally:
            await target.thaw(member)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_bare_user_does_not_wait_for_a_frozen_node_either(
    pool_class: Any, fresh: Fresh, measured: Callable[[str, object], None]
) -> None:
    """Asking who leads goes on beside a node that does not answer, and its replica's leader is found."""
    target = fresh(auto_offline_timeout=60.0)
    target.need(Capability.FREEZE, Capability.SECOND_USER)
    _, (leader, replica, *_) = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    async with target.bare_user(table) as dsn:
        await target.freeze(replica)
        try:
            began = time.monotonic()
            pool = await pool_class(dsn, connect_timeout=CONNECT_TIMEOUT, topology_update_interval=1.0).open()
            measured("open() of a bare user with a frozen replica (s)", time.monotonic() - began)
            assert time.monotonic() - began < CONNECT_TIMEOUT
            await pool.explain_route(f"SELECT v FROM {table} WHERE id = $1", 1)

            async def found() -> bool:
                known = pool.topology.leader(leader.replicaset_uuid)
                return known is not None and known.uuid == leader.uuid

            await target.until(found, "the leader beside the frozen replica is found")
            measured("its leader was found after (s)", time.monotonic() - began)
            await pool.close(grace=0.1)
        finally:
            await target.thaw(replica)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_opening_does_not_wait_for_a_seed_that_never_accepts(
    pool_class: Any, target: Target, measured: Callable[[str, object], None]
) -> None:
    """A seed whose packets are dropped, first in the list: another seed is used."""
    with black_hole() as hole:
        seconds = await _seconds_to_open(pool_class, target.dsn_for(seeds=[(hole.host, hole.port), target.seeds[-1]]))
    measured("open() with a black hole among the seeds (s)", seconds)
    assert seconds < CONNECT_TIMEOUT


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_opening_does_not_wait_for_a_node_that_never_accepts(
    pool_class: Any, target: Target, measured: Callable[[str, object], None]
) -> None:
    """A node of the topology whose packets are dropped: the others are used, whichever it is."""
    for member in await target.members():
        with black_hole() as hole:
            lost = member.endpoint
            away = (hole.host, hole.port)
            seeds = [seed for seed in target.seeds if seed != lost] or target.seeds
            seconds = await _seconds_to_open(
                pool_class,
                target.dsn_for(seeds=seeds),
                address_map=lambda host, port, lost=lost, away=away: away if (host, port) == lost else (host, port),
            )
        measured(f"open() with {'a leader' if member.leads else 'a replica'} in a black hole (s)", seconds)
        assert seconds < CONNECT_TIMEOUT


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_calls_do_not_wait_for_the_node_that_is_asked_about_the_cluster(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """It is frozen while it is asked: routed calls to the other nodes are answered before that question is over."""
    target = fresh(auto_offline_timeout=600.0)
    target.need(Capability.FREEZE)
    await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn, topology_update_interval=None)
    await pool.wait_ready()
    texts = f"UPDATE {table} SET v = $1 WHERE id = $2", f"SELECT v FROM {table} WHERE id = $1"
    await pool.refresh_topology()  # now there is a connection to ask on
    tracker: Any = pool._control.tracker
    asked = next(m for m in await target.members() if m.endpoint == tracker._source._connection.endpoint)
    others = {member.replicaset for member in await target.members() if member.leads and member.uuid != asked.uuid}
    await pool.explain_route(texts[0], 0, 0)
    keys = [key for key in range(40) if (await pool.explain_route(texts[1], key)).owner in others]
    assert keys

    async def call(number: int) -> float:
        began = time.monotonic()
        key = keys[number % len(keys)]
        await (pool.execute(texts[0], number, key, timeout=60) if number % 2 else pool.fetch(texts[1], key, timeout=60))
        return time.monotonic() - began

    async def calls(first: int) -> list[float]:
        return [await call(number) for number in range(first, 40, 4)]

    async def latencies() -> list[float]:
        return sorted(seconds for some in await asyncio.gather(*map(calls, range(4))) for seconds in some)

    before = await latencies()
    routed = pool.stats().calls["keyed"]
    await target.freeze(asked)
    question = asyncio.create_task(pool.refresh_topology())
    try:
        await target.until(lambda: _answer(tracker._refreshes.running), "the node is asked")
        during = await latencies()
        still_open = not question.done() and tracker._source._connection.endpoint == asked.endpoint
    finally:
        await target.thaw(asked)
        with suppress(NoNodeAvailable):
            await question
    assert still_open, "the calls waited for the question"
    assert pool.stats().calls["keyed"] == routed + 40
    for name, seconds in (("before", before), ("while the question is open", during)):
        measured(f"median {name} (s)", seconds[20])
        measured(f"slowest {name} (s)", seconds[-1])


async def _answer(fact: bool) -> bool:
    return fact
