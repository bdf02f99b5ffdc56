"""Keyed calls over connections that refuse to send a statement on: what a refusal becomes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from picopyn.dialects.base import Purpose
from picopyn.engine.place import Place
from picopyn.errors import Fault
from picopyn.observe import StatementRetried
from picopyn.routing.sharding import ShardingKey
from tests.asynchronous.jump_loop import jumping
from tests.engine.world import READ, SCAN, WRITE, World, server_error, settle
from tests.snapshots import two_by_two

AT_R1, AT_R2 = 2, 1
NOT_HERE = (
    'sbroad: invalid option: cannot satisfy "forward = off": buckets are not present on the current node, try using '
    '"forward = ro_to_rw" instead'
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes, all connected; keyed calls are strict."""
    world = World(two_by_two(), strict_routing=True)
    await world.warm()
    yield world
    await world.cluster.close(world.cluster.runtime.now() + 1)


def refused(world: World, times: int = 1) -> asyncpg.PostgresError:
    """The leader of r1 refuses so many calls, as one whose buckets have moved."""
    error = server_error("XX000", NOT_HERE)
    world.servers["i11"].answers = [error] * times
    return error


async def test_only_keyed_calls_run_on_strict_connections(world: World) -> None:
    """A scan would be refused there; who borrows a connection by a key may run anything on it."""
    assert await world.call(READ, AT_R1) == "i11"
    assert ("i11", Purpose.STRICT) in world.purposes
    await world.call(SCAN, 5)
    request = world.request("")
    loan = await world.executor.acquire(request, Place(key=ShardingKey(values=(AT_R1,))))
    assert loan.pool.purpose is Purpose.PLAIN
    loan.release()
    strict = [uuid for uuid, purpose in world.purposes if purpose is Purpose.STRICT]
    assert strict == ["i11"]


async def test_a_refusal_becomes_a_look_at_the_cluster_and_another_try(world: World) -> None:
    """The map was outdated: the call goes to the new owner, a write as well, and it is counted."""
    refused(world)
    call = world.call(WRITE, AT_R1)
    await settle()
    assert world.refreshes_asked
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}), look=world.refreshes_asked)
    assert await call == "i12"
    assert world.counters.retries["MISROUTED"] == 1
    assert [event.fault for event in world.events if isinstance(event, StatementRetried)] == [Fault.MISROUTED]
    assert world.knowledge.checked[0] == WRITE


async def test_the_route_is_compared_with_the_servers_answer_and_may_be_dropped(world: World) -> None:
    """Not the map but the route was wrong: the text is not keyed any more, and runs where it is sent on."""
    refused(world)

    def check(query: str, args: Any) -> None:
        del world.knowledge.known[query]
        world.knowledge.forgotten(query)

    world.knowledge.check = check  # type: ignore[method-assign]
    assert await world.call(READ, AT_R1) in ("i11", "i21")
    assert world.calls()["unlearned"] == 1


@jumping
async def test_a_call_that_is_refused_for_good_ends_with_the_servers_error() -> None:
    """As long as it may wait it is tried, more than three times; it is never sent on behind the caller's back."""
    world = World(two_by_two(), strict_routing=True)
    await world.warm()
    refused(world, 1000)
    with pytest.raises(asyncpg.PostgresError, match="forward = off") as caught:
        await world.call(WRITE, AT_R1, timeout=20.0)
    notes = "\n".join(caught.value.__notes__)
    assert "would have to send the statement on" in notes
    assert world.counters.retries["MISROUTED"] > 3
    assert {uuid for uuid, server in world.servers.items() if server.calls} == {"i11"}
    await world.cluster.close(world.cluster.runtime.now() + 1)


async def test_without_the_setting_keyed_calls_run_on_plain_connections() -> None:
    """There is no strict connection then."""
    world = World(two_by_two())
    await world.warm()
    assert await world.call(READ, AT_R1) == "i11"
    assert {purpose for _, purpose in world.purposes} == {Purpose.PLAIN}
    await world.cluster.close(world.cluster.runtime.now() + 1)
