"""How the death of a leader looks: calls per second of every group over time, and the story in a few lines."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from picopyn.cli.demo.killing import Killing, duration
from picopyn.cli.demo.pictures import grid
from picopyn.cli.demo.tally import Tally
from picopyn.cli.demo.timeline import marks, spark

#: Seconds that one character of a timeline stands for.
STEP = 0.25
#: Columns of the picture that are not timeline.
_OTHER_COLUMNS = 70
_NUMBERS = ("before", "no leader", "after", "slowest", "failed")
#: A call that runs for longer than this counts as stuck in the plain lines.
_STUCK = 0.3


def picture(killing: Killing, width: int) -> RenderableType:
    """The picture so far.

    Args:
        killing: What is drawn.
        width: Columns there are.
    """
    drawn = grid("calls per second", "", *_NUMBERS, numbers=_NUMBERS)
    steps = int((time.monotonic() - killing.began) / STEP)
    hidden = max(steps - max(width - _OTHER_COLUMNS, 10), 0)
    drawn.add_row("", Text(_ruler(killing, hidden), style="bold"))
    for name, tally, style in _groups(killing):
        _add_group(drawn, killing, name, tally, style, steps, hidden)
    return Group(drawn, *story(killing))


def _add_group(drawn: Grid, killing: Killing, name: str, tally: Tally, style: str, steps: int, hidden: int) -> None:
    starts = [killing.began + step * STEP for step in range(steps)]
    rates = [tally.rate(start, start + STEP) for start in starts]
    line = Text(spark(rates[hidden:], max(rates, default=0.0)), style=style)
    phases = [f"{tally.rate(*phase):.0f}" for phase in killing.phases()]
    failed = Text(str(len(tally.failures)), style="red" if tally.failures else "green")
    drawn.add_row(name, line, *[*phases, "", ""][:3], duration(tally.slowest(killing.began)), failed)


def _groups(killing: Killing) -> list[tuple[str, Tally, str]]:
    return [
        ("other buckets", killing.others, "green"),
        (f"{killing.replicaset} reads", killing.reads, "cyan"),
        (f"{killing.replicaset} writes", killing.writes, "yellow"),
        ("round robin", killing.plain, "red"),
    ]


def _ruler(killing: Killing, hidden: int) -> str:
    named = ((killing.killed, "killed"), (killing.demoted, "new leader"))
    columns = [(int((at - killing.began) / STEP) - hidden, name) for at, name in named if at is not None]
    return marks([(column, name) for column, name in columns if column >= 0])


def story(killing: Killing) -> list[str]:
    """What happened so far, a line each."""
    killed, name = killing.killed, killing.replicaset
    if killed is None:
        return []
    told = []
    if killing.read_again is not None:
        told.append(f"reads of {name}: its replica answers {duration(killing.read_again - killed)} after the kill")
    if killing.demoted is not None and killing.recovered is not None:
        later = duration(max(killing.recovered - killing.demoted, 0.0))
        told.append(
            f"writes of {name}: the cluster has a new leader after {killing.demoted - killed:.2f} s, "
            f"a write succeeds {later} later"
        )
    if killing.writes.unknown:
        told.append(
            f"{killing.writes.unknown} in flight at the kill ended as OutcomeUnknown: may have happened, or not"
        )
    return told


def line(killing: Killing) -> str:
    """The last second in one line, for where there is no terminal."""
    now = time.monotonic()
    since = max(now - 1.0, killing.began)
    rates = ", ".join(f"{name} {tally.rate(since, now):.0f}" for name, tally, _ in _groups(killing))
    when = "before" if killing.killed is None else f"{now - killing.killed:+.1f} s"
    state = ", no leader" if killing.killed is not None and killing.demoted is None else ""
    return f"{when}{state}: calls/s: {rates} ({killing.plain.stuck(_STUCK)} callers stuck)"
