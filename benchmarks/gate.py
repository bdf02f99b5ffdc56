"""The gate: routing, pool, deadline and statistics together add at most 4 µs of client CPU to a call.

Several fresh processes, one after the other; each holds a bare asyncpg connection without a time limit, our pool
without a route, with one, and with one and a `command_timeout`, all on one core with the server, and runs short blocks
of them in turn. From each process comes one number: the median difference within its rounds. The statement is made over
the processes, since memory layout and hash seeds make processes differ by more than blocks do. Blocks beside foreign
load are repeated; where too few are clean, a limit can be found to hold, but not to fail.

On asyncio's own loop malloc is pinned to its cheap state: else the bare connection would pay for its large buffer, and
hide what we add.

    python -m benchmarks.gate [--processes 24] [--rounds 30] [--seconds 0.02]
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks import environment, machine, plans, results
from benchmarks.comparing import core_of_client, tell, today
from benchmarks.estimates import Interval, difference, judge, median_interval
from benchmarks.interleaving import Patience, Series, interleave
from benchmarks.plans import BARE, OURS, OURS_LIMITED, OURS_ROUTED, Situation
from benchmarks.results import Gate, GateLine
from benchmarks.server import BenchServer, bench_server
from benchmarks.workers import Worker

#: What is compared, and the most that may lie between (microseconds).
LIMITS = ((OURS_LIMITED, BARE, 4.0), (OURS_ROUTED, BARE, 4.0), (OURS_ROUTED, OURS, 1.0))
_CLIENTS = (BARE, OURS, OURS_ROUTED, OURS_LIMITED)


def gate(processes: int, rounds: int, seconds: float, patience: float, loops: tuple[str, ...] = ()) -> Gate:
    """Measure and judge."""
    loops = loops or (("uvloop", "asyncio") if environment.has_uvloop() else ("asyncio",))
    shared = Patience(patience)
    lines: list[GateLine] = []
    repeated, disturbed = 0, False
    with bench_server() as server:
        placement = "free" if server.core is None else "same core"
        for loop in loops:
            for operation in ("read", "insert"):
                situation = Situation(loop, operation, 1, placement, "kept" if loop == "asyncio" else "natural")
                tell(situation.title)
                held = [one_process(situation, server, rounds, seconds, shared) for _ in range(processes)]
                repeated += sum(one.repeated for series in held for one in series)
                disturbed |= any(one.disturbed for series in held for one in series)
                lines += judged(situation, held)
    return Gate(today(), machine.describe(), rounds, seconds, repeated, disturbed, tuple(lines))


def one_process(
    situation: Situation, server: BenchServer, rounds: int, seconds: float, patience: Patience
) -> list[Series]:
    """All blocks of one fresh process."""
    size = plans.SIZES["standard"]
    server.empty()
    series = [Series(name) for name in _CLIENTS]
    with ExitStack() as stack:
        core = core_of_client(server, situation.placement)
        worker = stack.enter_context(Worker(_CLIENTS, situation, server, size.connections, core))
        worker.wait_open()
        for position in range(len(series)):
            worker.block(position, 1, seconds, (), warm=True)
        pids = server.pids()
        interleave(
            series,
            lambda position, number: worker.block(position, 1, seconds, pids),
            rounds,
            size.foreign,
            size.tries,
            patience,
        )
    return series


def judged(situation: Situation, processes: list[list[Series]]) -> list[GateLine]:
    """One line for each limit."""
    lines = []
    for ours, theirs, limit in LIMITS:
        values = []
        for series in processes:
            cpu = {one.name: one.summary().cpu for one in series}
            within = difference(cpu[ours], cpu[theirs])
            if within is not None:
                values.append(round(within.middle, 2))
        if values:
            interval = median_interval(values)
            title = f"{ours} − {_name(theirs)}: {situation.title}"
            lines.append(GateLine(title, limit, tuple(values), interval, verdict(interval, limit, processes)))
    return lines


def verdict(interval: Interval, limit: float, processes: list[list[Series]]) -> str:
    """The verdict; what others do at the same time only adds, so beside other work nothing fails."""
    found = judge(interval, limit)
    disturbed = any(one.disturbed for series in processes for one in series)
    return "undecided" if found == "fails" and disturbed else found


def _name(client: str) -> str:
    return "asyncpg connection" if client == BARE else f"{client}, not routed"


def sentence(line: GateLine) -> str:
    """What one line says."""
    interval = line.interval
    return (
        f"{line.verdict:>9}: ≤ {line.limit:g} µs: median {interval.middle:+.2f} µs, between {interval.low:+.2f} and "
        f"{interval.high:+.2f} with {interval.confidence:.0%} confidence, {len(line.processes)} processes: {line.title}"
    )


def main(words: list[str] | None = None) -> int:
    """Parse the command line, measure, print, save; 1 when a limit is known to be broken."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds that repeated blocks may cost")
    parser.add_argument("--loop", action="append", default=[], choices=("asyncio", "uvloop"))
    parser.add_argument("--save", type=Path, default=results.RESULTS / results.GATE)
    options = parser.parse_args(words)
    found = gate(options.processes, options.rounds, options.seconds, options.patience, tuple(options.loop))
    results.save(found, options.save)
    for line in found.lines:
        print(sentence(line))
    if found.disturbed:
        print("the machine was not quiet: some blocks were measured beside other work")
    return int(any(line.verdict == "fails" for line in found.lines))


if __name__ == "__main__":
    raise SystemExit(main())
