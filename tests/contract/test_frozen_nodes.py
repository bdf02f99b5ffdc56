"""A node that accepts connections and says nothing, or does not even accept them, delays nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import black_hole
from tests.contract.conftest import Fresh
from tests.contract.target import Capability, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

CONNECT_TIMEOUT = 4.0


async def _seconds_to_open(dsn: str, **options: object) -> float:
    began = time.monotonic()
    pool = await Pool(dsn, connect_timeout=CONNECT_TIMEOUT, **options).open()
    seconds = time.monotonic() - began
    assert await pool.fetchval("SELECT 1", timeout=CONNECT_TIMEOUT) == 1
    await pool.close(grace=0.1)
    return seconds


async def test_opening_does_not_wait_for_a_frozen_node(fresh: Fresh, measured: Callable[[str, object], None]) -> None:
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
                seconds = await _seconds_to_open(dsn)
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


async def test_opening_does_not_wait_for_a_seed_that_never_accepts(
    target: Target, measured: Callable[[str, object], None]
) -> None:
    """A seed whose packets are dropped, first in the list: another seed is used."""
    with black_hole() as hole:
        seconds = await _seconds_to_open(target.dsn_for(seeds=[(hole.host, hole.port), target.seeds[-1]]))
    measured("open() with a black hole among the seeds (s)", seconds)
    assert seconds < CONNECT_TIMEOUT


async def test_opening_does_not_wait_for_a_node_that_never_accepts(
    target: Target, measured: Callable[[str, object], None]
) -> None:
    """A node of the topology whose packets are dropped: the others are used, whichever it is."""
    for member in await target.members():
        with black_hole() as hole:
            lost = member.endpoint
            away = (hole.host, hole.port)
            seeds = [seed for seed in target.seeds if seed != lost] or target.seeds
            seconds = await _seconds_to_open(
                target.dsn_for(seeds=seeds),
                address_map=lambda host, port, lost=lost, away=away: away if (host, port) == lost else (host, port),
            )
        measured(f"open() with {'a leader' if member.leads else 'a replica'} in a black hole (s)", seconds)
        assert seconds < CONNECT_TIMEOUT
