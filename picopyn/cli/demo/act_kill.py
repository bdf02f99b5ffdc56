"""Act 3: a leader is killed. What goes on, what waits, and what a client without routing does meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from picopyn.cli.demo.callers import Caller, Reader, Writer, calling
from picopyn.cli.demo.kill_picture import STEP, line, picture
from picopyn.cli.demo.killing import Killing, promises
from picopyn.cli.demo.promises import Promise
from picopyn.cli.demo.round_robin import TIMEOUT, RoundRobinCaller
from picopyn.cli.demo.stage import TIER, Stage
from picopyn.cli.demo.tables import ORDERS, TABLES, Table
from picopyn.cli.demo.tally import Tally

_LOOK = 0.03
_ROWS_PER_CALLER = 20


async def play(stage: Stage) -> tuple[list[Promise], str]:
    """Play the act; gives what it promised, and what it showed in one sentence."""
    replicaset = sorted(stage.leaders)[-1]
    killing = Killing(stage.leaders[replicaset], replicaset)
    _introduce(stage, killing)
    callers, plain = await _cast(stage, killing)
    killing.began = time.monotonic()
    try:
        with stage.screen.watch() as watch:
            async with calling(callers, stage.pace.pause), asyncio.TaskGroup() as group:
                happening = group.create_task(_kill(stage, killing), name="demo kill")
                while not happening.done():
                    await asyncio.sleep(STEP)
                    watch.show(picture(killing, stage.screen.width), line(killing))
    finally:
        for caller in plain:
            caller.close()
    return promises(killing), _contrast(killing)


def _introduce(stage: Stage, killing: Killing) -> None:
    stage.screen.act(
        "Act 3: a leader is killed",
        f"{killing.victim} leads {killing.replicaset}. The cluster needs {stage.pace.auto_offline_timeout:g} s to "
        "replace it (a real one 30 s by default); until then its servers leave hanging whatever is not sent to its "
        "own, living owner. 'round robin' is a client without routing: it takes the nodes in turn, with a timeout of "
        f"{TIMEOUT:g} s, and reads rows of the other buckets.",
    )


async def _cast(stage: Stage, killing: Killing) -> tuple[list[tuple[Caller, Tally]], list[RoundRobinCaller]]:
    """Make the callers of every group, and the rows they need."""
    mixed = [await _others_rows(stage, killing, TABLES[n % len(TABLES)]) for n in range(stage.pace.callers)]
    few = max(stage.pace.callers // 2, 1)
    affected = await _rows_of(stage, ORDERS, 2 * few * _ROWS_PER_CALLER, {killing.replicaset})
    await _write_rows(stage, affected)
    lots = [affected[n :: 2 * few] for n in range(2 * few)]
    books = stage.books(ORDERS)
    plain = _plain_callers(stage, [ORDERS.key(number) for number in mixed[0]])
    callers: list[tuple[Caller, Tally]] = [
        *((caller, killing.others) for caller in stage.mixed_callers(mixed)),
        *((Reader(books, lot, "prefer_leader"), killing.reads) for lot in lots[:few]),
        *((Writer(books, lot), killing.writes) for lot in lots[few:]),
        *((caller, killing.plain) for caller in plain),
    ]
    return callers, plain


async def _others_rows(stage: Stage, killing: Killing, table: Table) -> list[int]:
    return await _rows_of(stage, table, _ROWS_PER_CALLER, stage.leaders.keys() - {killing.replicaset})


async def _rows_of(stage: Stage, table: Table, how_many: int, owners: Iterable[str]) -> list[int]:
    """New numbers of rows that these replicasets own, by the cluster's word, not by the driver's."""
    wanted = set(owners)

    def owned(number: int) -> bool:
        bucket = stage.cluster.bucket_of(table.name, *table.key(number))
        return stage.cluster.owner_of(TIER, bucket) in wanted

    def choose() -> list[int]:
        chosen: list[int] = []
        while len(chosen) < how_many:
            chosen += filter(owned, stage.numbers(1))
        return chosen

    return await asyncio.to_thread(choose)


async def _write_rows(stage: Stage, numbers: Sequence[int]) -> None:
    books, tally = stage.books(ORDERS), Tally()
    await asyncio.gather(*(books.insert(tally, number, "new") for number in numbers))


def _plain_callers(stage: Stage, keys: Sequence[tuple[object, ...]]) -> list[RoundRobinCaller]:
    user, password = "admin", stage.cluster.password()
    instances = list(stage.instances.values())
    return [
        RoundRobinCaller(instances, user, password, ORDERS.select, keys, first=number)
        for number in range(stage.pace.callers)
    ]


async def _kill(stage: Stage, killing: Killing) -> None:
    pace, cluster = stage.pace, stage.cluster
    await asyncio.sleep(pace.before)
    await asyncio.to_thread(cluster.kill, killing.victim)
    killing.killed = time.monotonic()
    give_up = killing.killed + pace.auto_offline_timeout + pace.give_up
    while killing.recovered is None or killing.demoted is None:
        if time.monotonic() > give_up:
            return
        await asyncio.sleep(_LOOK)
        leaders = await asyncio.to_thread(cluster.leaders)
        if killing.demoted is None and leaders.get(killing.replicaset) not in (None, killing.victim):
            killing.demoted = time.monotonic()
    await asyncio.sleep(pace.after)


def _contrast(killing: Killing) -> str:
    """The point of it all, in numbers."""
    outage = killing.outage()
    before = (killing.began, outage[0])
    plain, routed = killing.plain, killing.others
    return (
        f"Without that leader, on the other buckets: picopyn {routed.rate(*outage):.0f} calls/s "
        f"(was {routed.rate(*before):.0f}), round robin {plain.rate(*outage):.0f} (was {plain.rate(*before):.0f})."
    )
