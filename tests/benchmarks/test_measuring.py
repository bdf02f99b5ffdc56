"""One block of calls, and whose CPU was whose."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.worker.measuring import Reading, costs, process_cpu, run_block, system_cpu


def reading(own: float, system: float | None, server: float | None, faults: int | None = 0) -> Any:
    return SimpleNamespace(own=own, system=system, server=server, faults=faults)


def test_foreign_is_what_is_neither_ours_nor_the_servers() -> None:
    """CPU of the system that neither client nor server used is foreign."""
    found = costs(reading(1.0, 10.0, 5.0, 3), reading(1.2, 10.6, 5.1, 8), [0.001, 0.002], 0.25)
    assert (found["client"], found["server"], found["foreign"]) == pytest.approx((0.2, 0.1, 0.3))
    assert (found["calls"], found["faults"], found["latencies"]) == (2, 5, [10000, 20000])


def test_what_the_kernel_does_not_tell_stays_unknown() -> None:
    """Unknown counters make unknown results, not zeros."""
    found = costs(reading(1.0, None, None, None), reading(1.2, None, None, None), [0.001], 0.25)
    assert (found["server"], found["foreign"], found["faults"]) == (None, None, None)


def test_less_than_nothing_is_nothing() -> None:
    """The kernel's counters lag a little behind each other, which must not look like negative load."""
    found = costs(reading(1.0, 10.0, 5.0), reading(1.2, 10.2, 5.1), [0.001], 0.25)
    assert found["foreign"] == 0.0


def test_a_busy_neighbour_is_seen() -> None:
    """A process that computes beside a block is found in the block's foreign CPU."""
    if system_cpu() is None:
        pytest.skip("this platform does not tell")
    code = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as neighbour:
        try:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
            before = Reading([1])
            while neighbour_cpu(neighbour.pid) < 0.3:
                time.sleep(0.01)
            foreign = costs(before, Reading([1]), [], 1.0)["foreign"]
            assert foreign is None or foreign >= 0.1
        finally:
            neighbour.kill()


def neighbour_cpu(pid: int) -> float:
    return process_cpu([pid]) or 1.0


async def test_tasks_call_in_closed_loops() -> None:
    """Each task makes its next call when it has the answer, so there are never more calls than tasks."""
    running, most = 0, 0

    async def call(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    latencies, wall = await run_block([call], 7, 0.01, 0)
    assert most == 7
    assert running == 0
    assert len(latencies) >= 7
    assert wall >= 0.01


async def test_tasks_share_the_calls_in_turn() -> None:
    """Task k uses call k, so that bare connections are never shared by two tasks."""
    seen: set[tuple[int, str]] = set()

    def call(number: int) -> Any:
        async def one(key: int) -> None:
            task = asyncio.current_task()
            assert task is not None
            seen.add((number, task.get_name()))
            await asyncio.sleep(0)

        return one

    await run_block([call(0), call(1), call(2)], 3, 0.005, 0)
    assert len(seen) == 3


async def test_a_single_task_calls_one_after_the_other() -> None:
    """Sequential calls use different keys."""
    keys: list[int] = []

    async def call(number: int) -> None:
        keys.append(number)
        await asyncio.sleep(0)

    await run_block([call], 1, 0.002, 40)
    assert keys == list(range(40, 40 + len(keys)))
