"""Blocks and results as a run could have given them."""

from __future__ import annotations

from typing import Any

from benchmarks.estimates import median_interval
from benchmarks.machine import Machine
from benchmarks.plans import (
    ALL,
    ASYNCPG_POOL,
    OURS_LIMITED,
    OURS_ROUTED,
    PUBLISHED_ROUTED,
    SIZES,
    THREADED,
    Situation,
)
from benchmarks.results import Gate, GateLine, Layers, Measured, Run, Table

MACHINE = Machine("Some Processor", 2, True, 8.0, "Linux", "6.1", "glibc 2.36", "cpython 3.11.7", False)


def block(calls: int = 100, *, wall: float = 0.1, foreign: float | None = 0.0, **more: Any) -> dict[str, Any]:
    """A block of calls of 200 µs, each with 50 µs of client CPU and one page fault."""
    return {
        "calls": calls,
        "wall": wall,
        "client": calls * 50e-6,
        "server": calls * 20e-6,
        "foreign": foreign,
        "faults": calls,
        "latencies": [2000] * calls,
        **more,
    }


def measured(client: str, throughput: float, cpu: float, *, p99: float = 300.0, disturbed: bool = False) -> Measured:
    """A client whose six rounds were all alike."""
    return Measured(
        client=client,
        throughput=(throughput,) * 6,
        cpu=(cpu,) * 6,
        server_cpu=20.0,
        p50=150.0,
        p99=p99,
        busy=0.9,
        server_busy=0.4,
        faults=0.0,
        repeated=1,
        disturbed=disturbed,
        note="",
        versions={"asyncpg": "0.32.0"},
        counted={"keyed": 600} if client == OURS_ROUTED else {},
    )


def table(situation: Situation, *, disturbed: bool = False) -> Table:
    """One in which we take as long as a bare connection, and everybody else twice as long."""
    everybody = THREADED if situation.threaded else ALL
    fast = (situation.base, OURS_ROUTED, OURS_LIMITED)
    speeds = {name: 10000.0 if name in fast else 5000.0 for name in everybody}
    clients = [measured(name, speed, 4e5 / speed, disturbed=disturbed) for name, speed in speeds.items()]
    return Table(situation, tuple(clients), {"somebody": "no such module"})


def run(*, disturbed: bool = False, sees_foreign: bool = True, size: str = "standard") -> Run:
    """A run of three situations with tasks, and of two with threads."""
    situations = (
        Situation("uvloop", "read", 1, "own core"),
        Situation("uvloop", "read", 50, "own core"),
        Situation("uvloop", "insert", 50, "own core"),
        Situation("threads", "read", 1, "own core"),
        Situation("threads", "read", 8, "own core"),
    )
    tables = tuple(table(situation, disturbed=disturbed) for situation in situations)
    left_out = {"hasql": "not installed: pip install --group bench"}
    return Run(
        "2026-01-02", size, SIZES[size], MACHINE, "PostgreSQL 18.6", 1, sees_foreign, 0.0, 61.5, left_out, tables
    )


def gate() -> Gate:
    """A gate whose limit holds."""
    values = (2.0, 2.5, 3.0, 3.0, 3.1, 3.4)
    line = GateLine("ours − theirs: fetchrow by key", 4.0, values, median_interval(values), "holds")
    return Gate("2026-01-02", MACHINE, 10, 0.1, 0, False, (line,))


def layers() -> Layers:
    """A dissection."""
    return Layers("2026-01-02", MACHINE, {"way, by key": 1.25, "whole, by key": 3.5})


__all__ = ["ASYNCPG_POOL", "PUBLISHED_ROUTED", "block", "gate", "layers", "measured", "run", "table"]
