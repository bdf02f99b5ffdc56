"""Results as Markdown tables."""

from __future__ import annotations

from benchmarks.estimates import Interval
from benchmarks.plans import BARE, PSYCOPG
from benchmarks.results import Measured, Run, Table

#: What clients are called in tables.
NAMES = {BARE: "asyncpg connection", PSYCOPG: "psycopg connection"}


def everything(run: Run) -> str:
    """All tables of a run, each with its title, and what has to be known."""
    parts = [*warnings(run)]
    for table in run.tables:
        parts += [f"### {table.situation.title}", markdown(table)]
    return "\n\n".join(parts)


def warnings(run: Run) -> list[str]:
    """What makes a run less than a result."""
    found = []
    if run.size_name == "tiny":
        found.append("**A tiny run: it shows that the benchmark works, and no number of it may be quoted.**")
    if not run.sees_foreign:
        found.append("**The load of other processes could not be seen on this platform.**")
    disturbed = sum(one.disturbed for table in run.tables for one in table.measured)
    if disturbed:
        total = sum(len(table.measured) for table in run.tables)
        found.append(
            f"**The machine was not quiet: {disturbed} of {total} series (marked †) have blocks during which other "
            f"processes used more than {run.size.foreign:.0%} of a core."
            + (" No number of this run may be quoted.**" if disturbed > total / 2 else "**")
        )
    if run.stolen is not None and run.stolen > 0.01:
        found.append(f"**The host of the virtual machine took {run.stolen:.1%} of a core during the run.**")
    found += [f"Without {name}: {reason}." for name, reason in run.left_out.items()]
    return found


def markdown(table: Table) -> str:
    """One situation: a line for each client."""
    own = table.situation.tasks > 1
    head = ["client", "calls/s", "ratio", "p50 µs", "p99 µs", "client CPU µs", "added µs", "server CPU µs", "malloc"]
    rows = [head, ["---", *["---:"] * 7, "---"]]
    for measured in table.measured:
        rows.append(_row(table, measured, exclusive=own and measured.client == table.situation.base))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += [f"\nWithout {name}: {reason}." for name, reason in table.missing.items()]
    return "\n".join(lines)


def _row(table: Table, measured: Measured, *, exclusive: bool) -> list[str]:
    each = f"s, a {'thread' if table.situation.threaded else 'task'} each" if exclusive else ""
    name = NAMES.get(measured.client, measured.client) + each
    base = measured.client == table.situation.base
    added = table.added_cpu(measured.client)
    return [
        name + (" †" if measured.disturbed else ""),
        f"{measured.median_throughput:.0f}" + _saturated(measured),
        "1" if base else interval(table.ratio(measured.client)),
        f"{measured.p50:.0f}",
        f"{measured.p99:.0f}",
        f"{measured.median_cpu:.1f}",
        "0" if base else ("?" if added is None else f"{added.middle:+.1f}"),
        "?" if measured.server_cpu is None else f"{measured.server_cpu:.0f}",
        measured.malloc,
    ]


def _saturated(measured: Measured) -> str:
    return " S" if measured.server_busy is not None and measured.server_busy >= 0.95 else ""


def interval(value: Interval | None) -> str:
    """A ratio with where it lies."""
    return "?" if value is None else f"{value.middle:.2f} ({value.low:.2f} … {value.high:.2f})"
