"""A leader dies: the calls of all other buckets go on as if nothing had happened, and its own come back in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AcquireTimeout, OutcomeUnknown
from picopyn.observe import ConnectionClosed, Event, TopologyChanged
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.load import Load
from tests.contract.target import Capability, Member, Target
from tests.threads import FACADES

pytestmark = [pytest.mark.cluster, pytest.mark.stops_instances]


class Witness:
    """What the pool told, with the moment it did."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Event]] = []
        self.refreshes: Callable[[], int] = lambda: 0
        self.changes: list[tuple[float, int]] = []

    def __call__(self, event: Event) -> None:
        self.seen.append((time.monotonic(), event))

    def noticed_after(self, moment: float) -> float | None:
        """When the first broken connection was noticed."""
        broken = (at for at, e in self.seen if isinstance(e, ConnectionClosed) and e.reason == "broken" and at > moment)
        return next(broken, None)

    def led_anew(self, replicaset: str, after: float) -> float | None:
        """When the pool learned of a new leader of a replicaset."""
        for at, event in self.seen:
            if at > after and isinstance(event, TopologyChanged):
                _, new = event.leaders_changed.get(replicaset, (None, None))
                if new is not None:
                    return at
        return None


async def _keys_by_owner(pool: Pool, select: str, count: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number in range(count):
        found.setdefault((await pool.explain_route(select, number)).owner or "", []).append(number)
    return found


async def _watch_hanging(target: Target, most: dict[str, int]) -> None:
    while Capability.COUNT_HANGING in target.can:
        for name, count in (await target.hanging()).items():
            most[name] = max(most.get(name, 0), count)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_dead_leader_stops_its_own_writes_only(
    fresh: Fresh, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Calls of other buckets: no failure, no wait. Its reads: its replica. Its writes: with the new leader."""
    seconds = 30.0 if full_size else 3.0
    target = fresh(auto_offline_timeout=seconds)
    target.need(Capability.KILL)
    healthy, wounded = await target.two_replicasets_with_replicas()
    await target.set_auto_offline_timeout(seconds)
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    select, update = f"SELECT v FROM {table} WHERE id = $1", f"UPDATE {table} SET v = $1 WHERE id = $2"
    witness = Witness()
    pool = await open_pool(target.dsn, topology_update_interval=1.0, on_event=witness)
    await pool.wait_ready()
    await pool.explain_route(update, 1, 1)
    keys = await _keys_by_owner(pool, select, 60)
    for number in range(60):
        await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", number, 0)
    ours, theirs = keys[healthy[0].replicaset], keys[wounded[0].replicaset]

    async def write(numbers: list[int], number: int) -> None:
        assert await pool.execute(update, number, numbers[number % len(numbers)], timeout=90) == "UPDATE 1"

    async def read(numbers: list[int], number: int, role: str | None = None) -> None:
        assert await pool.fetchrow(select, numbers[number % len(numbers)], timeout=90, role=role) is not None

    async def scan(_: int) -> None:
        assert await pool.fetchval(f"SELECT count(*) FROM {table}", timeout=90) == 60

    async def unlearned(number: int) -> None:
        text = f"SELECT v AS c{number} FROM {table} WHERE id = $1"
        assert await pool.fetchrow(text, ours[number % len(ours)], timeout=90) is not None

    hung: dict[str, int] = {}
    async with Load() as load:
        load.start("our writes", lambda n: write(ours, n), tasks=3)
        load.start("our reads", lambda n: read(ours, n), tasks=3)
        load.start("their reads", lambda n: read(theirs, n, "prefer_leader"), tasks=2)
        load.start("their writes", lambda n: write(theirs, n), tasks=2)
        await load.wait("calls of every sort", lambda: len({done.label for done in load.done}) == 4)
        killed = time.monotonic()
        await target.kill(wounded[0])
        await load.wait("the loss is noticed", lambda: witness.noticed_after(killed) is not None)
        watching = asyncio.create_task(_watch_hanging(target, hung))
        load.start("scans", scan, tasks=2)
        load.start("unlearned texts", unlearned, tasks=2, pause=0.05)
        await load.wait(
            "writes come back",
            lambda: any(done.error is None for done in load.of("their writes", began_after=killed)),
            timeout=seconds + 30,
        )
        await load.wait("scans come back", lambda: len(load.of("scans")) > 2)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    led = witness.led_anew(wounded[0].replicaset_uuid, killed)
    assert led is not None
    _check_our_calls(load, killed, led, measured)
    _check_their_calls(load, killed, led, measured)
    measured("most statements hanging at an instance", max(hung.values(), default=0))
    assert not any(hung.values()), "a call of ours hung at a third node"
    _check_what_waited(load, killed, led, measured)


def _check_our_calls(load: Load, killed: float, led: float, measured: Callable[[str, object], None]) -> None:
    ours = [d for d in load.done if d.label in ("our writes", "our reads") and killed < d.ended and d.began < led]
    measured("other buckets: calls during the outage", len(ours))
    measured("other buckets: slowest call (s)", max(done.seconds for done in ours))
    assert not load.failures("our writes", "our reads")
    assert len(ours) > 50
    assert all(done.seconds < (led - killed) / 2 for done in ours), "a call waited for the dead node"


def _check_their_calls(load: Load, killed: float, led: float, measured: Callable[[str, object], None]) -> None:
    assert not load.failures("their reads")
    first_read = load.of("their reads", ended_after=killed, began_after=killed)[0]
    measured("prefer_leader reads of its buckets answer again after (s)", first_read.ended - killed)
    slowest = max(d.seconds for d in load.of("their reads", ended_after=killed))
    measured("slowest of these reads (s)", slowest)
    assert first_read.ended < led, "reads waited for the new leader"
    assert slowest < (led - killed) / 2
    writes = load.of("their writes", ended_after=killed)
    lost = [done for done in writes if done.error is not None]
    assert all(isinstance(done.error, OutcomeUnknown) for done in lost), lost
    assert len(lost) <= 2, "only what was in flight may be unknown"
    first_write = next(d for d in writes if d.error is None and d.ended > led)
    measured("seconds from the kill to the new leader's first look", led - killed)
    measured("seconds from that look to the first write", first_write.ended - led)
    measured("writes in flight whose outcome is unknown", len(lost))
    assert not [d for d in writes if d.error is None and killed + 0.2 < d.ended < led]


def _check_what_waited(load: Load, killed: float, led: float, measured: Callable[[str, object], None]) -> None:
    assert not load.failures("scans", "unlearned texts")
    unlearned = load.of("unlearned texts", ended_after=killed)
    during = [done for done in unlearned if done.ended < led]
    measured("texts never seen before, answered during the outage", len(during))
    measured("scans that waited on our side", sum(1 for done in load.of("scans") if done.began < led))
    assert during, "an unlearned text of another bucket waited for the new leader"
    assert not [done for done in load.of("scans") if done.ended < led], "scans hang now"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_writes_come_back_with_the_first_look_after_the_promotion(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """A waiting write is sent by the first snapshot that names the new leader, whatever the interval is."""
    target = fresh(auto_offline_timeout=2.0)
    target.need(Capability.KILL)
    _, wounded = await target.two_replicasets_with_replicas()
    await target.set_auto_offline_timeout(2.0)
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    insert = f"INSERT INTO {table} VALUES ($1, $2)"
    witness = Witness()
    pool = await open_pool(target.dsn, topology_update_interval=30.0, on_event=witness)
    await pool.wait_ready()
    number = await _key_of(pool, insert, wounded[0])
    killed = time.monotonic()
    await target.kill(wounded[0])
    writing = asyncio.create_task(pool.execute(insert, number, 1, timeout=90))
    promoted = asyncio.create_task(_promotion(target, wounded[0]))
    assert await writing == "INSERT 0 1"
    written = time.monotonic()
    led = witness.led_anew(wounded[0].replicaset_uuid, killed)
    assert led is not None
    changes = [at for at, event in witness.seen if isinstance(event, TopologyChanged) and led < at < written]
    measured("seconds from the promotion to the write", written - await promoted)
    measured("seconds from the look to the write", written - led)
    assert not changes, "the write needed a second look"


async def _key_of(pool: Pool, insert: str, leader: Member) -> int:
    for number in range(1000):
        if (await pool.explain_route(insert, number, 1)).owner == leader.replicaset:
            return number
    raise AssertionError(f"no key of {leader.replicaset}")


async def _promotion(target: Target, dead: Member) -> float:
    while True:
        with suppress(OSError, KeyError):
            if (await target.leaders())[dead.replicaset].name != dead.name:
                return time.monotonic()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_scans_in_flight_when_a_leader_dies_come_back_too(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """The server leaves them hanging for good; they are ended after the leader moved, and sent again."""
    target = fresh(auto_offline_timeout=2.0)
    target.need(Capability.KILL)
    _, wounded = await target.two_replicasets_with_replicas()
    await target.set_auto_offline_timeout(2.0)
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn, topology_update_interval=1.0)
    await pool.wait_ready()
    for number in range(20):
        await pool.execute(f"INSERT INTO {table} VALUES ($1, 0)", number)

    async def scan(_: int) -> None:
        assert await pool.fetchval(f"SELECT count(*) FROM {table}", timeout=60) == 20

    async with Load() as load:
        load.start("scans", scan, tasks=6, pause=0.0)
        await load.wait("scans", lambda: len(load.done) > 20)
        killed = time.monotonic()
        await target.kill(wounded[0])
        most: dict[str, int] = {}
        watching = asyncio.create_task(_watch_hanging(target, most))
        await load.wait("scans come back", lambda: len(load.of("scans", began_after=killed + 1.5)) > 20)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    measured("scans that hung at the server", max(most.values(), default=0))
    measured("slowest scan (s)", max(done.seconds for done in load.done))
    assert not load.failures()


async def _is_away(pool: Pool, member: Member) -> bool:
    return pool.stats().nodes[member.uuid].state != "up"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_on_25_6_calls_of_other_buckets_wait_here_too(fresh: Fresh, open_pool: OpenPool) -> None:
    """Such a server executes nothing by itself: it would hang. A limit that ends says why; a leader ends the wait."""
    target = fresh(auto_offline_timeout=300.0, version="25.6")
    target.need(Capability.KILL, Capability.RESTART, Capability.OWN_SHAPE)
    healthy, wounded = await target.two_replicasets_with_replicas()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    select, update = f"SELECT v FROM {table} WHERE id = $1", f"UPDATE {table} SET v = $1 WHERE id = $2"
    pool = await open_pool(target.dsn, topology_update_interval=1.0, acquire_timeout=60)
    await pool.wait_ready()
    keys = await _keys_by_owner(pool, select, 20)
    mine, theirs = keys[healthy[0].replicaset][0], keys[wounded[0].replicaset][0]
    await pool.explain_route(update, 1, mine)
    await pool.execute(update, 1, mine)
    await target.kill(wounded[0])
    with suppress(OutcomeUnknown, AcquireTimeout):
        await pool.execute(update, 1, theirs, timeout=0.2)
    await target.until(partial(_is_away, pool, wounded[0]), "the pool knows")
    most: dict[str, int] = {}
    watching = asyncio.create_task(_watch_hanging(target, most))
    with pytest.raises(AcquireTimeout, match="of the tier has no reachable leader, and the server would hang"):
        await pool.execute(update, 1, mine, timeout=0.2)
    calls = [pool.execute(update, 1, mine), pool.fetch(select, mine), pool.fetch(select, mine, role="replica")]
    waiting = asyncio.gather(*calls)
    await target.start(wounded[0])
    await asyncio.wait_for(waiting, 60)
    watching.cancel()
    assert not any(most.values())
