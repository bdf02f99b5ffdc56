"""The whole comparison: every situation, every client that is there."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime

import msgspec

from benchmarks import environment, machine, plans
from benchmarks.interleaving import Block, Patience, Series, interleave
from benchmarks.plans import Situation, Size
from benchmarks.results import Measured, Run, Table
from benchmarks.server import BenchServer, bench_server
from benchmarks.worker.measuring import system_cpu
from benchmarks.workers import Worker, WorkerFailed


def compare(
    size_name: str, nodes: int = 1, only: str = "", without: tuple[str, ...] = (), seconds: float | None = None
) -> Run:
    """Run the comparison.

    Args:
        size_name: A key of `SIZES`.
        nodes: Addresses the topology tells of.
        only: Only situations whose title has this text.
        without: Clients to leave out.
        seconds: Patience, if not the size's.
    """
    size = plans.SIZES[size_name]
    if seconds is not None:
        size = msgspec.structs.replace(size, patience=seconds)
    patience = Patience(size.patience)
    left_out = {**environment.left_out(), **dict.fromkeys(without, "left out as told"), **_published()}
    available = tuple(name for name in plans.EVERYBODY if name not in left_out)
    loops = ("uvloop", "asyncio") if environment.has_uvloop() else ("asyncio",)
    if len(loops) < 2:
        left_out["uvloop"] = "not installed: pip install --group bench"
    for name, reason in left_out.items():
        tell(f"without {name}: {reason}")
    began, stolen = time.monotonic(), machine.stolen()
    with bench_server(nodes) as server:
        tables = []
        places = placements(server)
        for situation in (*plans.situations(size, places, loops), *plans.thread_situations(size, places)):
            if only in situation.title:
                tables.append(measure(situation, plans.clients(situation, available), server, size, patience))
        took, version = time.monotonic() - began, server.version
    return Run(
        made=today(),
        size_name=size_name,
        size=size,
        machine=machine.describe(),
        server=version,
        nodes=nodes,
        sees_foreign=system_cpu() is not None,
        stolen=None if stolen is None else round(((machine.stolen() or stolen) - stolen) / took, 4),
        took=round(took, 1),
        left_out=left_out,
        tables=tuple(tables),
    )


def placements(server: BenchServer) -> tuple[str, ...]:
    """Where the client may run."""
    return ("free",) if server.core is None else ("own core", "same core")


def core_of_client(server: BenchServer, placement: str) -> int | None:
    """The core the client is bound to."""
    if server.core is None:
        return None
    return server.core if placement == "same core" else machine.cores()[0]


def measure(situation: Situation, names: tuple[str, ...], server: BenchServer, size: Size, patience: Patience) -> Table:
    """Measure one situation, each client in a fresh process of its own."""
    tell(situation.title)
    server.empty()
    core = core_of_client(server, situation.placement)
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        started = [
            (name, stack.enter_context(Worker([name], situation, server, size.connections, core))) for name in names
        ]
        workers = {}
        for name, worker in started:
            try:
                worker.wait_open().block(0, situation.tasks, size.warm_up, (), warm=True)
                workers[name] = worker
            except WorkerFailed as error:
                missing[name] = str(error)
                tell(f"  without {name}: {error}")
        measured = _measure(situation, workers, server.pids(), size, patience)
    return Table(situation, measured, missing)


def _measure(
    situation: Situation, workers: dict[str, Worker], pids: list[int], size: Size, patience: Patience
) -> tuple[Measured, ...]:
    busy = situation.tasks > 1
    rounds, seconds = (size.busy_rounds, size.busy_seconds) if busy else (size.rounds, size.seconds)
    series = [Series(name) for name in workers]
    held = list(workers.values())

    def block(position: int, number: int) -> Block:
        return held[position].block(0, situation.tasks, seconds, pids, counted=number == rounds - 1)

    interleave(series, block, rounds, size.foreign, size.tries, patience)
    return tuple(
        one.summary(worker.hello["notes"][0], worker.hello["versions"])
        for one, worker in zip(series, held, strict=True)
    )


def today() -> str:
    """The day, in UTC."""
    return datetime.now(UTC).date().isoformat()


def tell(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


def _published() -> dict[str, str]:
    try:
        environment.published_command()
    except environment.NotInstalled as error:
        return dict.fromkeys((plans.PUBLISHED, plans.PUBLISHED_ROUTED), f"could not be installed: {error}")
    return {}
