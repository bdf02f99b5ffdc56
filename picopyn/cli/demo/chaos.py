"""`picopyn demo --chaos`: random disturbances of two clusters under load, and whether every law was kept.

This file decides what is shown of it. What happens, and what must be true of it, is decided in `picopyn.cli.chaos`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rich.markup import escape

from picopyn import __version__
from picopyn.asynchronous import Pool
from picopyn.cli.chaos.field import Field
from picopyn.cli.chaos.laws import LAWS
from picopyn.cli.chaos.picodata_field import PicodataField
from picopyn.cli.chaos.postgres_field import PostgresField
from picopyn.cli.chaos.run import Report, run
from picopyn.cli.chaos.schedule import schedule
from picopyn.cli.demo.play import conclude
from picopyn.cli.demo.promises import Promise, exit_code
from picopyn.cli.demo.screen import Screen
from picopyn.cli.demo.threaded import ThreadedPool

_FIELDS: dict[str, Callable[[], Field]] = {"Picodata": PicodataField, "PostgreSQL": PostgresField}
_PLOTS = {
    "Picodata": "Two replicasets of two instances; the embedded cluster does what a real one was recorded to do.",
    "PostgreSQL": "A real primary with two replicas; a commit waits for one of them.",
}
#: What a law promises, in a sentence.
_SENTENCES = {
    "lost": "no acknowledged write is lost",
    "doubled": "no write happens twice",
    "invented": "nothing appears that nobody wrote",
    "stale": "no fresh read is stale",
    "failed": "calls fail only when their connection broke",
}
#: Steps and longest pause between two (seconds), at full length and in a hurry.
_LENGTH = {False: (15, 0.8), True: (4, 0.3)}
#: Broken laws that are told one by one.
_TOLD = 5


def play(seed: int, *, quick: bool, threads: bool, screen: Screen | None = None) -> int:
    """Play it.

    Args:
        seed: What happens; the same seed disturbs in the same order.
        quick: A few steps only.
        threads: Whether the callers are threads, and the pool is `picopyn.sync.Pool`.
        screen: Where it is shown; None: standard output.

    Returns:
        0 when every law was kept, else 1.
    """
    screen = screen or Screen()
    began = time.monotonic()
    screen.title(f"picopyn {__version__}: chaos with seed {seed}")
    promises: list[Promise] = []
    for number, name in enumerate(_FIELDS, 1):
        screen.act(f"Act {number}: {name}", _PLOTS[name])
        promises += _promises(name, _act(name, seed, quick, threads, screen), screen)
    again = f"The same disturbances again: picopyn demo --chaos --seed {seed}"
    conclude(screen, promises, again, time.monotonic() - began)
    return exit_code(promises)


def _act(name: str, seed: int, quick: bool, threads: bool, screen: Screen) -> Report:
    with screen.busy("starting the servers"):
        field = _FIELDS[name]()
    try:
        length, tempo = _LENGTH[quick]
        return asyncio.run(_run(field, seed, length, tempo, threads, screen))
    finally:
        with screen.busy("stopping everything"):
            field.close()


async def _run(field: Field, seed: int, length: int, tempo: float, threads: bool, screen: Screen) -> Report:
    pool_class: type[Pool] | type[ThreadedPool] = ThreadedPool if threads else Pool
    async with pool_class(field.dsn, **field.options) as pool:
        await pool.wait_ready()
        steps = schedule(seed, field.menu, length, tempo)
        return await run(field, pool, seed, steps, tell=lambda text: screen.say(f"  {text}"))


def _promises(name: str, report: Report, screen: Screen) -> list[Promise]:
    calls = sum(report.counts.values())
    screen.say(f"{calls} calls; {report.unknown} with unknown outcome, {report.given_up} of them repeatable")
    for breach in report.broken[:_TOLD]:
        screen.say(f"[red]{escape(str(breach))}[/]")
    broken = [breach.law for breach in report.broken]
    return [
        Promise(
            f"{name}: {_SENTENCES[law]}",
            calls > 0 and law not in broken,
            f"{broken.count(law)} breaches in {calls} calls",
        )
        for law in LAWS
    ]
