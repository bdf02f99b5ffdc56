"""Many tasks wait, and many statements run, with one timer; each ends at its own deadline, or before."""

from __future__ import annotations

import asyncio
import random
import time
from math import inf
from typing import Any

import pytest

from picopyn.asynchronous.deadlines import Alarm, Deadlines, clock_of
from picopyn.asynchronous.task_waiter import TaskWaiter


class Clockwork(asyncio.SelectorEventLoop):
    """A loop whose clock stands, and jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 100.0
        self.timers = 0

    def time(self) -> float:
        return self.moment

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, *args, **kwargs)

    def _run_once(self) -> None:
        inside: Any = self
        live = [handle.when() for handle in inside._scheduled if not handle.cancelled()]
        if not inside._ready and live:
            self.moment = max(self.moment, min(live))
        super()._run_once()  # type: ignore[misc]


async def waited(waiter: TaskWaiter[int], deadline: float | None) -> tuple[int | None, float]:
    try:
        got: int | None = await waiter.wait(deadline)
    except TimeoutError:
        got = None
    return got, asyncio.get_running_loop().time()


def run(test: Any) -> None:
    loop = Clockwork()
    try:
        loop.run_until_complete(test(loop))
        assert len([handle for handle in loop._scheduled if not handle.cancelled()]) <= 1  # type: ignore[attr-defined]
    finally:
        loop.close()


def test_those_who_wait_equally_long_share_one_timer() -> None:
    """A hundred come one after the other, each second one is served; all others end at their own moments."""

    async def test(loop: Clockwork) -> None:
        deadlines = Deadlines(loop)
        waiters = [TaskWaiter[int](loop, deadlines) for _ in range(100)]
        tasks = [loop.create_task(waited(w, loop.time() + 30 + n / 1000)) for n, w in enumerate(waiters)]
        await asyncio.sleep(0)
        assert loop.timers == 1
        for number, waiter in enumerate(waiters[::2]):
            assert waiter.wake(number)
        ended = await asyncio.gather(*tasks)
        assert [got for got, _ in ended[::2]] == list(range(50))
        for number, (got, moment) in enumerate(ended[1::2]):
            assert got is None
            assert moment == pytest.approx(130 + (2 * number + 1) / 1000, abs=1e-6)
        assert loop.timers <= 52

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_everybody_ends_when_he_should(seed: int) -> None:
    """Deadlines in any order, some none; served, failed, cancelled or left alone: as with a timer for each."""

    async def test(loop: Clockwork) -> None:
        rng, deadlines = random.Random(seed), Deadlines(loop)
        expected, tasks = [], []
        for _ in range(200):
            waiter = TaskWaiter[int](loop, deadlines)
            served = loop.time() + rng.choice((0.25, 0.7, 2, 5))
            how = rng.choice(("wake", "wake", "fail", "cancel"))
            deadline = loop.time() + rng.choice((0.5, 1, 1, 1, 3)) if rng.random() < 0.9 else None
            task = loop.create_task(waited(waiter, deadline))
            done = {"wake": lambda w=waiter: w.wake(7), "fail": lambda w=waiter: w.fail(TimeoutError())}
            handle = loop.call_at(served, done.get(how, task.cancel))
            task.add_done_callback(lambda _, handle=handle: handle.cancel())
            tasks.append(task)
            expected.append((how, inf if deadline is None else deadline, served))
            await asyncio.sleep(rng.choice((0, 0, 0.1)))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for (how, deadline, served), end in zip(expected, ended, strict=True):
            if isinstance(end, BaseException):
                assert isinstance(end, asyncio.CancelledError)
                assert how == "cancel"
                assert served <= deadline
                continue
            got, moment = end
            assert moment == pytest.approx(min(deadline, served), abs=1e-6)
            assert got == (7 if how == "wake" and served < deadline else None)

    run(test)


def test_an_alarm_rings_for_the_first_of_many() -> None:
    """It is set anew only for a sooner moment, and after it has rung for the one it is told; infinity stops it."""

    async def test(loop: Clockwork) -> None:
        ahead = [130.0, 160.0]
        rang: list[float] = []

        def look(now: float) -> float:
            rang.append(now)
            return next((moment for moment in ahead if moment > now), inf)

        alarm = Alarm(loop, look)
        for moment in (130.0, 160.0, 110.0, 140.0):
            if moment < alarm.rings_at:
                alarm.ring_at(moment)
        assert loop.timers == 2
        await asyncio.sleep(100)
        assert rang == [110.0, 130.0, 160.0]
        assert alarm.rings_at == inf
        alarm.ring_at(loop.time() + 5)
        alarm.ring_at(inf)
        await asyncio.sleep(10)
        assert len(rang) == 3

    run(test)


def test_a_loop_is_asked_for_its_time_unless_that_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """What freezes or moves time for a test puts its clock into a subclass, one loop, or asyncio's own class."""
    loop = asyncio.SelectorEventLoop()
    try:
        assert clock_of(loop) is time.monotonic
        with monkeypatch.context() as patched:
            patched.setattr(loop, "time", lambda: 7.0)
            assert clock_of(loop)() == 7.0
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.BaseEventLoop, "time", lambda _: 8.0)
            assert clock_of(loop)() == 8.0
    finally:
        loop.close()
    moving = Clockwork()
    assert clock_of(moving)() == moving.moment
    moving.close()
