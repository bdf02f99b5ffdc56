"""The short way leads nowhere else than a plan would, and is closed as soon as anything speaks against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from picopyn.engine.express import Express
from picopyn.engine.node_pool import NodePool
from picopyn.engine.place import Place
from picopyn.engine.request import make_request
from picopyn.engine.route_table import CompiledRoute
from picopyn.engine.runtime import Link, Waiter
from picopyn.errors import PoolClosed
from picopyn.routing.plan import Role
from tests.engine.world import READ, SCAN, WRITE, World, broken, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes, all connected."""
    world = World(two_by_two(), max_size=2)
    await world.warm()
    yield world
    world.cluster.terminate()


def goes_the_short_way(world: World, query: str) -> bool:
    route = world.routes.get(query)
    return route is not None and world.express.is_open and world.express.routes.get(query) is route


async def test_the_first_call_of_a_text_opens_it_for_the_next(world: World) -> None:
    """Texts without a key never go it."""
    for query in (READ, WRITE, SCAN):
        await world.call(query, AT_R1)
    assert [goes_the_short_way(world, query) for query in (READ, WRITE, SCAN)] == [True, True, False]
    assert [await world.call(READ, key) for key in (AT_R1, AT_R2)] == ["i11", "i21"]
    assert dict(world.calls())["keyed"] == 4
    assert dict(world.executor.tallies.all()[READ]) == {"keyed": 3}


async def test_whatever_may_outdate_plans_closes_it_until_one_was_made(world: World) -> None:
    """A leader that moved, a node in doubt, a text that is forgotten, a pool that closes."""
    world.open_the_short_way()
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}))
    assert not goes_the_short_way(world, READ)
    assert await world.call(READ, AT_R1) == "i12"
    assert goes_the_short_way(world, READ)
    world.cluster.suspect(world.servers["i21"].node, "the test says so")
    assert not goes_the_short_way(world, READ)
    assert await world.call(READ, AT_R1) == "i12"
    assert not goes_the_short_way(world, READ), "as long as a node is doubted, every call is planned"
    await settle(200)
    assert await world.call(READ, AT_R1) == "i12"
    assert goes_the_short_way(world, READ)
    world.knowledge.forgotten(READ)
    assert READ not in world.express.routes
    world.executor.refuse()
    with pytest.raises(PoolClosed):
        await world.call(WRITE, AT_R1)


class Interleaved(dict[str, CompiledRoute]):
    """Routes during whose look-up the short way is opened, as it may be where callers are threads."""

    express: Express

    def get(self, query: str, default: Any = None) -> Any:
        found = super().get(query, default)
        self.express.open()
        return found


async def test_a_route_of_the_map_before_does_not_lead_on_when_the_new_one_opens_it(world: World) -> None:
    """Where callers are threads, it may be opened between any two of a call's looks."""
    world.open_the_short_way()
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}))
    routes = Interleaved(world.express.routes)
    routes.express, world.express.routes = world.express, routes
    assert await world.call(READ, AT_R1) == "i12"


async def test_a_borrower_has_the_pool_in_whose_queue_he_stands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where callers are threads, a node may leave between his choice and his wait, and get another pool."""
    pool, queue = world.cluster.pools_by_key["i11", "plain"], NodePool.queue

    def queue_as_it_leaves(pool: NodePool, owner: object) -> Waiter[Link]:
        turn = queue(pool, owner)
        world.cluster.adopt(two_by_two(gone=("i11",)))
        return turn

    monkeypatch.setattr(NodePool, "queue", queue_as_it_leaves)
    loan = await world.executor.acquire(make_request("acquire", "", (), Role.LEADER), Place(node="i11"))
    assert loan.pool is pool
    loan.release()
    await settle()
    assert not pool.slots.occupied


async def test_it_stays_closed_to_who_comes_late_while_a_statement_is_suspect(world: World) -> None:
    """Where callers are threads, the next call may be let go that way after a node died under this one."""
    route = world.routes.get(READ)
    assert route is not None
    losses = world.executor._retries.losses
    losses.lost(READ, (AT_R1,), ("i11", 0), 0, world.cluster.runtime.now())
    world.cluster.changes.ring()
    world.express.admit(READ, route)
    assert not goes_the_short_way(world, READ)
    assert await world.call(READ, AT_R1) == "i11"
    assert not losses.suspects
    assert await world.call(READ, AT_R1) == "i11"
    assert goes_the_short_way(world, READ)


async def test_while_a_statement_is_suspect_its_answers_are_noticed(world: World) -> None:
    """One that was answered did not fell the node, so the next loss counts as the first again."""
    losses = world.executor._retries.losses
    world.open_the_short_way()
    world.servers["i11"].answers = [broken()]
    assert await world.call(READ, AT_R1, idempotent=True) == "i11"
    assert not losses.suspects
    world.servers["i11"].answers = [broken()]
    with pytest.raises(Exception, match="may have taken effect"):
        await world.call(WRITE, AT_R1, idempotent=False)
    await settle(200)
    assert await world.call(READ, AT_R1) == "i11"
    assert goes_the_short_way(world, READ) is not bool(losses.suspects)


@pytest.mark.parametrize("seed", range(30))
async def test_it_leads_where_a_plan_leads_whatever_happens(seed: int) -> None:
    """Leaders move and go, nodes are doubted, connections end, texts are forgotten: every call goes as planned."""
    rng = Random(seed)
    world = World(two_by_two(), max_size=2, acquire_timeout=30.0)
    await world.warm()
    short = 0
    for _ in range(60):
        happened = rng.randrange(6)
        if happened == 0:
            leaders = {"r1": rng.choice(("i11", "i12")), "r2": rng.choice(("i21", "i22"))}
            world.cluster.adopt(two_by_two(leaders=leaders))
        elif happened == 1:
            world.cluster.suspect(world.servers[rng.choice(list(world.servers))].node, "the test says so")
        elif happened == 2:
            for link in list(world.servers[rng.choice(list(world.servers))].for_callers)[:1]:
                link.cut()
        elif happened == 3:
            world.knowledge.forgotten(rng.choice((READ, WRITE, None)))
        elif happened == 4:
            world.cluster.changes.ring()
        await settle(rng.choice((0, 1, 50)))
        for query in (READ, WRITE):
            key, role = rng.choice((AT_R1, AT_R2)), rng.choice((Role.LEADER, Role.LEADER, Role.PREFER_LEADER))
            short += goes_the_short_way(world, query)
            planned = world.executor.plan(world.request(query, key, role=role)).candidates
            assert await world.call(query, key, role=role) in {each.node.uuid for each in planned}
    assert short > 10
    pools = [pool for pool in world.cluster.pools if pool.slots.held]
    assert not pools
    world.cluster.terminate()
    await asyncio.sleep(0)
