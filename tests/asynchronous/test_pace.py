"""Connections are begun a moment apart; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from picopyn.asynchronous.pace import GAP, Pace
from tests.asynchronous.jump_loop import jumping, settle


@jumping
async def test_beginnings_wanted_at_once_come_one_after_the_other() -> None:
    """In the order of asking, the first without a delay: fifty at once never share a turn of the loop."""
    pace, began = Pace(), list[tuple[int, float]]()
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def begin(number: int) -> None:
        await pace.turn()
        began.append((number, loop.time() - start))

    await asyncio.gather(*(begin(number) for number in range(50)))
    assert began == [(number, pytest.approx(number * GAP)) for number in range(50)]


@jumping
async def test_who_comes_later_than_the_gap_waits_for_nothing() -> None:
    """The usual case: a connection now and then."""
    pace, loop = Pace(), asyncio.get_running_loop()
    await pace.turn()
    await asyncio.sleep(GAP)
    before = loop.time()
    await pace.turn()
    assert loop.time() == before


@jumping
async def test_turns_that_were_given_up_are_used() -> None:
    """Three hundred who leave hold up nobody who comes later."""
    pace, loop = Pace(), asyncio.get_running_loop()
    start = loop.time()
    await pace.turn()
    leaving = [asyncio.create_task(pace.turn()) for _ in range(300)]
    await settle()
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    assert all(task.cancelled() for task in leaving)
    await asyncio.gather(pace.turn(), pace.turn())
    assert loop.time() - start == pytest.approx(2 * GAP)
