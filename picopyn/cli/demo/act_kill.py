"""Act 3: a leader is killed. What goes on, what waits, and what a client without routing does meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from picopyn.cli.demo.callers import Caller, Reader, Writer, calling
from picopyn.cli.demo.pictures import grid
from picopyn.cli.demo.promises import Promise, no_failure
from picopyn.cli.demo.round_robin import TIMEOUT, RoundRobinCaller
from picopyn.cli.demo.stage import TIER, Stage
from picopyn.cli.demo.tables import ORDERS, TABLES, Table
from picopyn.cli.demo.tally import Tally
from picopyn.cli.demo.timeline import marks, spark

_STEP = 0.25
_LOOK = 0.03
_COLUMNS = 34
_ROWS_PER_CALLER = 20
_CALLERS = 4
_STUCK = 0.3


@dataclass(slots=True)
class Killing:
    """One death, and what was seen of it.

    Attributes:
        victim: Name of the leader that dies.
        replicaset: Its replicaset.
        others: Mixed load on the buckets of all other replicasets.
        reads: Reads of the dead leader's buckets with `prefer_leader`.
        writes: Writes of the dead leader's buckets.
        plain: The client without routing; reads the same buckets as `others`.
        began: When the act began.
        killed: When the leader died.
        demoted: When the cluster had given its role to another instance.
    """

    victim: str
    replicaset: str
    others: Tally = field(default_factory=Tally)
    reads: Tally = field(default_factory=Tally)
    writes: Tally = field(default_factory=Tally)
    plain: Tally = field(default_factory=Tally)
    began: float = 0.0
    killed: float | None = None
    demoted: float | None = None

    @property
    def recovered(self) -> float | None:
        """When the first write of the dead leader's buckets succeeded that began after the death."""
        return None if self.killed is None else self.writes.first_end(self.killed)

    @property
    def read_again(self) -> float | None:
        """When the first such read succeeded."""
        return None if self.killed is None else self.reads.first_end(self.killed)

    def phases(self) -> list[tuple[float, float]]:
        """Before, without leader, afterwards: begin and end of those that have begun."""
        now = time.monotonic()
        moments = [self.began, self.killed, self.demoted]
        begun = [moment for moment in moments if moment is not None]
        return list(zip(begun, [*begun[1:], now], strict=True))


async def play(stage: Stage) -> list[Promise]:
    """Play the act; gives what it promised."""
    replicaset = sorted(stage.leaders)[-1]
    killing = Killing(stage.leaders[replicaset], replicaset)
    stage.screen.act(
        "Act 3: a leader is killed",
        f"{killing.victim} leads {replicaset}; the cluster needs {stage.pace.auto_offline_timeout:g} s to replace it (a real one "
        "30 s by default). Until then\nthe servers leave everything hanging that is not sent to its own, living owner. Beside the "
        f"driver: a\nclient that takes the nodes in turn, with a timeout of {TIMEOUT:g} s; it reads the same rows as the first line.",
    )
    callers, plain = await _cast(stage, killing)
    killing.began = time.monotonic()
    try:
        with stage.screen.watch() as watch:
            async with calling(callers, stage.pace.pause):
                happening = asyncio.create_task(_kill(stage, killing), name="demo kill")
                try:
                    while not happening.done():
                        await asyncio.sleep(_STEP)
                        watch.show(_picture(killing), _line(killing))
                    await happening
                finally:
                    happening.cancel()
    finally:
        for caller in plain:
            caller.close()
    return _promises(killing)


async def _cast(
    stage: Stage, killing: Killing
) -> tuple[list[tuple[Caller, Tally]], list[RoundRobinCaller]]:
    """Make the callers of every group, and the rows they need."""
    mixed = [await _others_rows(stage, killing, TABLES[n % len(TABLES)]) for n in range(stage.pace.callers)]
    affected = await _rows_of(stage, ORDERS, 2 * _CALLERS * _ROWS_PER_CALLER, {killing.replicaset})
    await _write_rows(stage, affected)
    lots = [affected[n :: 2 * _CALLERS] for n in range(2 * _CALLERS)]
    books = stage.books(ORDERS)
    plain = _plain_callers(stage, [ORDERS.key(number) for number in mixed[0]])
    callers: list[tuple[Caller, Tally]] = [
        *((caller, killing.others) for caller in stage.mixed_callers(mixed)),
        *((Reader(books, lot, "prefer_leader"), killing.reads) for lot in lots[:_CALLERS]),
        *((Writer(books, lot), killing.writes) for lot in lots[_CALLERS:]),
        *((caller, killing.plain) for caller in plain),
    ]
    return callers, plain


async def _others_rows(stage: Stage, killing: Killing, table: Table) -> list[int]:
    return await _rows_of(stage, table, _ROWS_PER_CALLER, stage.leaders.keys() - {killing.replicaset})


async def _rows_of(stage: Stage, table: Table, how_many: int, owners: Iterable[str]) -> list[int]:
    """New numbers of rows that these replicasets own, by the cluster's word."""
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
    cluster = stage.cluster
    credentials = {"user": "admin", "password": cluster.password(), "database": "picodata"}
    instances = list(stage.instances.values())
    return [
        RoundRobinCaller(instances, credentials, ORDERS.select, keys, first=number) for number in range(_CALLERS)
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
        if killing.demoted is None:
            leaders = await asyncio.to_thread(cluster.leaders)
            if leaders.get(killing.replicaset) not in (None, killing.victim):
                killing.demoted = time.monotonic()
    await asyncio.sleep(pace.after)


# --- how it looks ---------------------------------------------------------------------------------------


def _groups(killing: Killing) -> list[tuple[str, Tally, str]]:
    return [
        ("other buckets", killing.others, "green"),
        (f"{killing.replicaset} reads", killing.reads, "cyan"),
        (f"{killing.replicaset} writes", killing.writes, "yellow"),
        ("round robin", killing.plain, "red"),
    ]


def _picture(killing: Killing) -> RenderableType:
    picture = grid(
        "calls per second", "", "before", "no leader", "after", "slowest", "failed",
        numbers=["before", "no leader", "after", "slowest", "failed"],
    )  # fmt: skip
    steps = int((time.monotonic() - killing.began) / _STEP)
    shift = max(steps - _COLUMNS, 0)
    picture.add_row("", Text(_ruler(killing, shift), style="bold"))
    for name, tally, style in _groups(killing):
        rates = _rates(tally, killing.began, steps)
        phases = [f"{tally.rate(*phase):.0f}" for phase in killing.phases()]
        line = Text(spark(rates[shift:], max(rates, default=0.0)), style=style)
        picture.add_row(
            name, line, *(phases + ["", "", ""])[:3], _duration(tally.slowest(killing.began)), _failed(tally)
        )
    return Group(picture, *_story(killing))


def _rates(tally: Tally, began: float, steps: int) -> list[float]:
    return [tally.rate(began + step * _STEP, began + (step + 1) * _STEP) for step in range(steps)]


def _ruler(killing: Killing, shift: int) -> str:
    named = ((killing.killed, "killed"), (killing.demoted, "new leader"))
    columns = [(int((at - killing.began) / _STEP) - shift, name) for at, name in named if at is not None]
    return marks([(column, name) for column, name in columns if column >= 0])


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _failed(tally: Tally) -> Text:
    if tally.unknown:
        return Text(f"{len(tally.failures)}, {tally.unknown} unknown", style="yellow")
    return Text(str(len(tally.failures)), style="red" if tally.failures else "green")


def _story(killing: Killing) -> list[str]:
    """What happened so far, one sentence each."""
    killed = killing.killed
    if killed is None:
        return []
    told = []
    if killing.read_again is not None:
        told.append(f"reads of {killing.replicaset} answered by its replica {_duration(killing.read_again - killed)} after the kill")
    if killing.demoted is not None:
        told.append(f"the cluster named a new leader after {killing.demoted - killed:.2f} s")
        if killing.recovered is not None:
            told.append(f"writes of {killing.replicaset} came back {_duration(max(killing.recovered - killing.demoted, 0.0))} later")
    return ["; ".join(told)] if told else []


def _line(killing: Killing) -> str:
    now = time.monotonic()
    since = max(now - 1.0, killing.began)
    rates = ", ".join(f"{name} {tally.rate(since, now):.0f}/s" for name, tally, _ in _groups(killing))
    when = "before the kill" if killing.killed is None else f"{now - killing.killed:+.1f} s after the kill"
    if killing.killed is not None and killing.demoted is None:
        when += ", no leader"
    return f"{when}: {rates} ({killing.plain.stuck(_STUCK)} of {_CALLERS} stuck)"


# --- what it promises -----------------------------------------------------------------------------------


def _promises(killing: Killing) -> list[Promise]:
    killed = killing.killed or killing.began
    until = killing.demoted or time.monotonic()
    span = until - killed
    others = no_failure("calls of all other buckets went on while there was no leader", killing.others)
    went_on = killing.others.count(killed, until) > 0
    reads = no_failure(f"reads of {killing.replicaset} with prefer_leader were answered by its replica", killing.reads)
    answered = killing.reads.count(killed, until) > 0
    writes = no_failure(f"writes of {killing.replicaset} waited, and came back with the new leader", killing.writes, unknown_too=True)
    return [
        Promise(others.text, others.kept and went_on, f"{others.evidence}, {killing.others.count(killed, until)} in {span:.1f} s, slowest {_duration(killing.others.slowest(killed))}"),
        Promise(reads.text, reads.kept and answered, f"{reads.evidence}, {killing.reads.count(killed, until)} in {span:.1f} s"),
        Promise(writes.text, writes.kept and killing.recovered is not None, f"{writes.evidence}{_came_back(killing)}"),
    ]


def _came_back(killing: Killing) -> str:
    if killing.recovered is None or killing.killed is None:
        return ", not back"
    return f", back {killing.recovered - killing.killed:.2f} s after the kill"
