"""What was aimed at, what was measured, and whether it is met: one line each, from results only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.estimates import CONFIDENCE, Interval, judge
from benchmarks.plans import (
    ASYNCPG_POOL,
    BARE,
    OURS_LIMITED,
    OURS_ROUTED,
    PSYCOPG,
    PSYCOPG_EXECUTE,
    PSYCOPG_POOL,
    PUBLISHED_ROUTED,
)
from benchmarks.results import Gate, Run, Table
from benchmarks.tables import interval


@dataclass(frozen=True)
class Aim:
    """One line.

    Attributes:
        what: What was aimed at.
        where: In which situation.
        measured: The number, for a person.
        verdict: `met`, `missed` or `undecided`.
    """

    what: str
    where: str
    measured: str
    verdict: str


def aims(run: Run, gate: Gate | None) -> list[Aim]:
    """All aims the results say something about."""
    return [*_gate(gate), *_sequential(run), *_busy(run), *_threads(run)]


def at_least(value: Interval, limit: float) -> str:
    """Whether a value is at least a limit, with its whole interval, as sure as asked for."""
    if value.confidence < CONFIDENCE:
        return "undecided"
    if value.low >= limit:
        return "met"
    return "missed" if value.high < limit else "undecided"


_WORDS = {"holds": "met", "fails": "missed", "undecided": "undecided"}


def _gate(gate: Gate | None) -> Iterator[Aim]:
    for line in gate.lines if gate is not None else ():
        title, _, where = line.title.partition(": ")
        value = line.interval
        yield Aim(
            f"client CPU added, {title}, ≤ {line.limit:g} µs a call",
            where,
            f"{value.middle:+.1f} µs ({value.low:+.1f} … {value.high:+.1f})",
            _WORDS[line.verdict],
        )


def _sequential(run: Run) -> Iterator[Aim]:
    for loop, malloc, limit in (("uvloop", "natural", 0.95), ("asyncio", "mapped", 1.4)):
        for placement in ("own core", "same core", "free"):
            table = run.table(loop=loop, operation="read", tasks=1, placement=placement, malloc=malloc)
            if table is not None:
                yield from _ratio(table, BARE, limit, "a bare asyncpg connection")


def _busy(run: Run) -> Iterator[Aim]:
    for loop in ("uvloop", "asyncio"):
        read = run.table(loop=loop, operation="read", tasks=50)
        insert = run.table(loop=loop, operation="insert", tasks=50)
        if read is not None:
            yield from _ratio(read, ASYNCPG_POOL, 2.5, "asyncpg.Pool")
        if insert is not None:
            yield from _ratio(insert, PUBLISHED_ROUTED, 2.0, "picopyn 3.2.0, routed")
        if read is not None:
            yield from _tail(read)


def _threads(run: Run) -> Iterator[Aim]:
    for placement in ("own core", "same core", "free"):
        alone = run.table(loop="threads", tasks=1, placement=placement)
        if alone is not None:
            yield from _cpu(alone, PSYCOPG_EXECUTE, "by `connection.execute`")
            yield from _cpu(alone, PSYCOPG, "with a cursor that is kept")
    for threads in (8, 32):
        busy = run.table(loop="threads", tasks=threads)
        if busy is not None:
            yield from _ratio(busy, PSYCOPG_POOL, 1.5, "psycopg_pool, with a deadline", OURS_LIMITED)


def _cpu(table: Table, other: str, how: str) -> Iterator[Aim]:
    value = table.cpu_ratio(OURS_ROUTED, other)
    if value is not None:
        verdict = _WORDS[judge(value, 1.1)] if _is_quiet(table, OURS_ROUTED, other) else "undecided"
        what = f"client CPU ≤ 1.1 × a bare psycopg connection's, {how}"
        yield Aim(what, table.situation.title, interval(value), verdict)


def _ratio(table: Table, other: str, limit: float, name: str, ours: str = OURS_ROUTED) -> Iterator[Aim]:
    value = table.ratio(ours, other)
    if value is not None:
        verdict = at_least(value, limit) if _is_quiet(table, ours, other) else "undecided"
        yield Aim(f"throughput ≥ {limit:g} × {name}", table.situation.title, interval(value), verdict)


def _is_quiet(table: Table, *clients: str) -> bool:
    """Whether these were measured without other work beside them."""
    return not any(one is not None and one.disturbed for one in map(table.of, clients))


def _tail(table: Table) -> Iterator[Aim]:
    ours = table.of(OURS_ROUTED)
    if ours is not None and ours.p50:
        share = ours.p99 / ours.p50
        verdict = "undecided" if ours.disturbed else "met" if share <= 3 else "missed"
        yield Aim("p99 ≤ 3 × p50", table.situation.title, f"{share:.2f}", verdict)
