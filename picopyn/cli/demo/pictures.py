"""What the acts have in common to draw: the cluster, the learned routes, what the instances counted, the promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from picopyn.cli.demo.promises import Promise, percent, share
from picopyn.testing import Counters, Instance

KINDS = ("insert", "select", "update", "delete")


def grid(*columns: str, numbers: Iterable[str] = ()) -> Grid:
    """An empty table in the demo's manner.

    Args:
        *columns: Headings; where there is no room, the first column wraps.
        numbers: Those of them below which numbers stand.
    """
    made = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    right = set(numbers)
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if column in right else "left", no_wrap=index > 0)
    return made


def topology_picture(instances: Mapping[str, Instance], leaders: Mapping[str, str], owned: Mapping[str, str]) -> Grid:
    """The cluster.

    Args:
        instances: By name.
        leaders: Replicaset → name of its leader.
        owned: Replicaset → the buckets it owns, in words.
    """
    made = grid("instance", "address", "replicaset", "role", "buckets")
    for name, instance in instances.items():
        leads = leaders.get(instance.replicaset) == name
        made.add_row(
            name,
            instance.address,
            instance.replicaset,
            Text("leader", style="green") if leads else Text("replica", style="dim"),
            owned.get(instance.replicaset, "") if leads else Text("the same, copied", style="dim"),
        )
    return made


def counters_picture(
    instances: Mapping[str, Instance], leaders: Mapping[str, str], counters: Mapping[str, Counters]
) -> Grid:
    """What each instance executed by itself as the owner, and what it had to forward."""
    headings = [kind.upper() for kind in KINDS]
    made = grid("instance", "role", *headings, "direct", "forwarded", numbers=[*headings, "direct", "forwarded"])
    for name, counted in counters.items():
        leads = leaders.get(instances[name].replicaset) == name
        kinds = [str(counted.direct_by_kind.get(kind, 0) + counted.forwarded_by_kind.get(kind, 0)) for kind in KINDS]
        made.add_row(
            name,
            "leader" if leads else "replica",
            *kinds,
            Text(str(counted.direct), style="green" if counted.direct else "dim"),
            Text(str(counted.forwarded), style="yellow" if counted.forwarded else "dim"),
            style="" if leads else "dim",
        )
    direct, forwarded = total(counters)
    made.caption = f"{percent(share(direct, forwarded))} of {direct + forwarded} statements direct"
    made.caption_justify = "left"
    return made


def total(counters: Mapping[str, Counters]) -> tuple[int, int]:
    """Direct and forwarded statements of all instances."""
    return (
        sum(counted.direct for counted in counters.values()),
        sum(counted.forwarded for counted in counters.values()),
    )


def promises_picture(promises: Sequence[Promise]) -> Grid:
    """Every promise, ticked or not, with its evidence."""
    made = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column()
    for promise in promises:
        mark = Text("✓ kept  ", style="bold green") if promise.kept else Text("✗ BROKEN", style="bold red")
        made.add_row(mark, promise.text, Text(promise.evidence, style="dim" if promise.kept else "red"))
    return made
