"""A statement that nobody has seen before runs at once: what is to be learned about it is learned beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from picopyn.asynchronous import Pool
from picopyn.stats import MetadataStats
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.target import Capability, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster


def learning(pool: Pool) -> MetadataStats:
    """The counters of learning."""
    stats = pool.stats().metadata
    assert stats is not None
    return stats


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_first_execution_of_a_text_runs_unrouted(target: Target, open_pool: OpenPool) -> None:
    """The first call of each text is sent without a route, later ones with it."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn)
    await pool.wait_ready()
    texts = {
        f"INSERT INTO {table} VALUES ($1, $2)": (1, 1),
        f"SELECT v FROM {table} WHERE id = $1": (1,),
        f"UPDATE {table} SET v = $1 WHERE id = $2": (2, 1),
        f"DELETE FROM {table} WHERE id = $1": (1,),
    }
    for number, (text, args) in enumerate(texts.items(), 1):
        await pool.execute(text, *args)
        assert pool.stats().calls["unlearned"] == number
    await asyncio.gather(*(pool.explain_route(text, *args) for text, args in texts.items()))
    for text, args in texts.items():
        await pool.execute(text, *args)
    calls = pool.stats().calls
    assert (calls["unlearned"], calls["keyed"], calls["waited_for_leader"]) == (4, 4, 0)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_first_execution_does_not_wait_for_a_node_that_is_asked_and_hangs(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """With every node frozen that leads nobody, a new text returns its rows while its question is still open."""
    target = fresh(auto_offline_timeout=60.0)
    target.need(Capability.FREEZE)
    await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn, topology_update_interval=None)
    await pool.wait_ready()
    await pool.explain_route(f"INSERT INTO {table} VALUES ($1, $2)", 1, 1)  # now there is a connection to ask on
    followers = [member for member in await target.members() if not member.leads]
    for member in followers:
        await target.freeze(member)
    try:
        text = f"SELECT v FROM {table} WHERE id = $1"
        assert await pool.fetch(text, 1, timeout=10) == []
        while learning(pool).pending != 1:  # where threads call, it is asked by another one
            await asyncio.sleep(0.01)
        assert pool.stats().calls["unlearned"] == 1
        for number in range(20):
            await pool.fetch(text, number, timeout=10)
        measured("questions still open after 21 calls", learning(pool).pending)
    finally:
        for member in followers:
            await target.thaw(member)
