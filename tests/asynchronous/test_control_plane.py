"""What the control plane hands to the engine, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
from random import Random

from picopyn.asynchronous.control_plane import ControlPlane
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.postgres import PostgresDialect
from picopyn.observe import Publisher
from picopyn.routing.plan import Wait
from picopyn.settings import PoolSettings
from picopyn.testing import ScriptedServer
from picopyn.testing.scripted_server import Invalidating
from picopyn.topology import BucketRange, EventBatch, EventBuckets, EventInstance, EventReplicaset, EventTier
from tests.asynchronous.jump_loop import jumping
from tests.engine.test_executor import AT_R1, READONLY
from tests.engine.world import WRITE, World, server_error, settle
from tests.snapshots import two_by_two


class Told(TopologySource):
    """A source that hands over what it is given."""

    def __init__(self, batch: EventBatch) -> None:
        self.batch = batch
        self.refreshes = 0
        self.failures: list[Exception] = []

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.failures:
            raise self.failures.pop(0)
        self.emit(self.batch)

    async def close(self) -> None:
        """Nothing to close."""

    def terminate(self) -> None:
        """Nothing to close."""


def replicasets(*, leaders_known: bool) -> list[EventReplicaset]:
    """Two replicasets without a leader; it may be that we just may not know."""
    return [
        EventReplicaset(uuid=uuid, name=uuid, tier="default", leader_uuid=None, leader_known=leaders_known)
        for uuid in ("r1", "r2")
    ]


def instances(world: World) -> list[EventInstance]:
    """The nodes of a world."""
    return [
        EventInstance(
            uuid=node.uuid,
            name=node.name,
            replicaset_uuid=node.replicaset_uuid,
            tier=node.tier,
            host=node.host,
            port=node.port,
            online=True,
        )
        for node in (server.node for server in world.servers.values())
    ]


def first_batch(world: World, buckets: int | None = 3000) -> EventBatch:
    """All that a user may know who must not read who leads, perhaps without the number of buckets."""
    ranges = EventBuckets("default", (BucketRange(1, 1500, "r1"), BucketRange(1501, 3000, "r2")))
    facts = (EventTier("default", buckets), *replicasets(leaders_known=False), *instances(world), ranges)
    return EventBatch(facts, 1, 1, reset=True)


def control_plane(world: World, source: TopologySource) -> ControlPlane:
    """The control plane of a world, with a source of one's own that is asked on demand only."""
    settings = dataclasses.replace(world.settings, topology_source=source, topology_update_interval=None)
    dialect, rng = PicodataDialect(), Random(1)
    reach = Reach(Dialer(settings, dialect), dialect, [], 1.0, lambda: world.cluster.snapshot, rng)
    return ControlPlane(settings, dialect, reach, Publisher(None), world.cluster.runtime.now, rng)


def led_by(world: World, leader: str, number: int) -> EventBatch:
    """The so manieth batch of a source that may read everything: r1 has this leader."""
    leads = [
        EventReplicaset(uuid=uuid, name=uuid, tier="default", leader_uuid=head, leader_known=True)
        for uuid, head in (("r1", leader), ("r2", "i21"))
    ]
    others = [event for event in first_batch(world).events if not isinstance(event, EventReplicaset)]
    return EventBatch((*leads, *others), 1, number, reset=number == 1)


async def test_what_is_no_news_to_tell_is_planned_with_all_the_same() -> None:
    """A GRANT shows that there is no leader, where it was only not known: nothing that would hang is sent."""
    world = World(two_by_two(leaders_known=False))
    await world.warm()
    source = Told(first_batch(world))
    plane = control_plane(world, source)
    await plane.start(world.cluster, world.executor)
    assert world.cluster.planner.spread("default").wait is None
    source.batch = EventBatch(tuple(replicasets(leaders_known=True)), 1, 2)
    await plane.tracker.refresh_now()
    assert world.cluster.planner.spread("default").wait is Wait.TIER
    await plane.close()
    world.cluster.terminate()


async def test_another_number_of_buckets_makes_everything_learned_worthless() -> None:
    """It is derived from the map where it cannot be read, and the map may grow: routes were made from the old one."""
    world = World(two_by_two(leaders_known=False))
    await world.warm()
    source = Told(first_batch(world, buckets=None))
    plane = control_plane(world, source)
    forgotten: list[str | None] = []
    plane.metadata.tell_forgotten(forgotten.append, lambda query: False)
    await plane.start(world.cluster, world.executor)
    assert world.cluster.snapshot.bucket_counts == {"default": 3000}
    source.batch = EventBatch((EventBuckets("default", (BucketRange(1501, 2999, "r1"),)),), 1, 2)
    await plane.tracker.refresh_now()
    assert forgotten == []
    source.batch = EventBatch((EventBuckets("default", (BucketRange(3001, 4000, "r2"),)),), 1, 3)
    await plane.tracker.refresh_now()
    assert world.cluster.snapshot.bucket_counts == {"default": 4000}
    assert forgotten == [None]
    await plane.close()
    world.cluster.terminate()


async def test_without_a_timer_a_look_is_taken_when_a_call_needs_one() -> None:
    """`topology_update_interval=None`: a call that met an outdated leader asks for it, and does not wait in vain."""
    world = World(two_by_two())
    await world.warm()
    source = Told(led_by(world, "i11", 1))
    plane = control_plane(world, source)
    await plane.start(world.cluster, world.executor)
    world.look_again = plane.look_again
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    source.batch = led_by(world, "i12", 2)
    async with asyncio.timeout(20):
        assert await world.call(WRITE, AT_R1) == "i12"
    assert source.refreshes == 2
    await plane.close()
    world.cluster.terminate()


@jumping
async def test_looks_on_demand_are_few_and_go_on_only_while_calls_wait() -> None:
    """One for all that asked meanwhile; one that fails is tried again for those who wait, and for nobody else."""
    world = World(two_by_two(), acquire_timeout=None)
    await world.warm()
    source = Told(led_by(world, "i11", 1))
    plane = control_plane(world, source)
    await plane.start(world.cluster, world.executor)
    world.look_again = plane.look_again
    looks = {plane.look_again() for _ in range(50)}
    await asyncio.sleep(60)
    assert (looks, source.refreshes) == ({2}, 2)
    source.failures = [OSError("gone")] * 5
    plane.look_again()
    await asyncio.sleep(60)
    assert source.refreshes == 3
    world.servers["i11"].answers = [server_error("XX000", READONLY)]
    source.batch = led_by(world, "i12", 2)
    assert await world.call(WRITE, AT_R1) == "i12"
    assert source.refreshes == 8
    await plane.close()
    await world.cluster.close(world.cluster.runtime.now() + 1)
    await settle()


async def test_topo_stale_cache_unrecoverable() -> None:
    """All nodes that are known have gone: the seeds of the connection string are asked as well, for any purpose."""
    settings = PoolSettings.from_dsn("postgresql://u@h:1/db?sslmode=disable")
    dialect = PostgresDialect()
    with ScriptedServer(Invalidating()) as seed:
        seeds = [(seed.host, seed.port)]
        reach = Reach(Dialer(settings, dialect), dialect, seeds, 20.0, two_by_two, Random(1))
        for found in (await reach.topology(), await reach.metadata(lambda notice: None)):
            assert found is not None
            assert found.endpoint == seeds[0]
            await found.close()
