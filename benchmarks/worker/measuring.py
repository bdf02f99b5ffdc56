"""One block of calls, and what it cost: time, CPU of this process, of the server and of everybody else.

Reads the kernel's own counters only. What a platform does not tell is None, never a guess.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # pragma: no cover - not on Windows
    resource = None  # type: ignore[assignment]

Call = Callable[[int], Awaitable[object]]

#: CPU time of all tasks of the system since it started: file, and how many of its units make a second.
_WHOLE_SYSTEM = (("/sys/fs/cgroup/cpuacct/cpuacct.usage", 1e9), ("/sys/fs/cgroup/cpu.stat", 1e6))


def system_cpu() -> float | None:
    """Seconds of CPU that all processes used so far, to the nanosecond or microsecond; None where nobody says."""
    for path, unit in _WHOLE_SYSTEM:
        try:
            words = Path(path).read_text("ascii").split()
        except OSError:
            continue
        value = words[1] if words[0] == "usage_usec" else words[0]
        return int(value) / unit if value.isdigit() and _is_whole(int(value) / unit) else None
    return None


def _is_whole(seconds: float) -> bool:
    """Whether a counter is the system's and not only that of a container we are in."""
    busy = busy_ticks()
    return busy is None or seconds >= 0.7 * busy


def busy_ticks() -> float | None:
    """Seconds of CPU that were not idle since the start, to a tick (10 ms)."""
    try:
        numbers = [int(word) for word in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]]
    except OSError:
        return None
    return (sum(numbers[:8]) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def process_cpu(pids: Sequence[int]) -> float | None:
    """Seconds of CPU that single-threaded processes used so far, to the nanosecond; None where nobody says."""
    total, seen = 0, False
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0])
            seen = True
        except OSError:
            continue
    return total / 1e9 if seen else None


def page_faults() -> int | None:
    """Minor page faults of this process so far."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Reading:
    """All counters at one moment.

    Args:
        pids: The server's processes.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        time.sleep(0.0002)  # the kernel accounts for a running task when it leaves the core
        self.server = process_cpu(pids)
        self.system = system_cpu()
        self.own = time.process_time()
        self.faults = page_faults()
        self.wall = time.perf_counter()


def costs(before: Reading, after: Reading, latencies: Sequence[float], wall: float) -> dict[str, Any]:
    """What happened between two readings, ready for JSON.

    Args:
        before: Taken right before the block.
        after: Taken right after it.
        latencies: Duration of every call (seconds).
        wall: Duration of the block (seconds).

    Returns:
        Seconds; `foreign` is the CPU that was neither ours nor the server's, `faults` are the page faults.
    """
    own = after.own - before.own
    server = _difference(before.server, after.server)
    system = _difference(before.system, after.system)
    return {
        "calls": len(latencies),
        "wall": round(wall, 7),
        "client": round(own, 7),
        "server": None if server is None else round(server, 7),
        "foreign": None if system is None or server is None else round(max(0.0, system - own - server), 7),
        "faults": None if before.faults is None or after.faults is None else after.faults - before.faults,
        "latencies": [round(latency * 1e7) for latency in latencies],
    }


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


async def run_block(calls: Sequence[Call], tasks: int, seconds: float, first: int) -> tuple[list[float], float]:
    """Let tasks call one after the other, in a closed loop, for some time.

    Args:
        calls: What they call: task k calls `calls[k % len(calls)]`.
        tasks: How many.
        seconds: After this time none begins another call.
        first: Number of the first key.

    Returns:
        Duration of each call, and of the block until the last answer (seconds).
    """
    clock = time.perf_counter
    latencies: list[float] = []
    began = clock()
    end = began + seconds

    async def one_task(number: int) -> None:
        call, key = calls[number % len(calls)], first + number * 37
        while (started := clock()) < end:
            await call(key)
            latencies.append(clock() - started)
            key += 1

    if tasks == 1:
        await one_task(0)
    else:
        await asyncio.gather(*[one_task(number) for number in range(tasks)])
    return latencies, clock() - began


async def measured(
    calls: Sequence[Call], tasks: int, seconds: float, first: int, pids: Sequence[int]
) -> dict[str, Any]:
    """Run one block and say what it cost; see `costs`."""
    before = Reading(pids)
    latencies, wall = await run_block(calls, tasks, seconds, first)
    return costs(before, Reading(pids), latencies, wall)
