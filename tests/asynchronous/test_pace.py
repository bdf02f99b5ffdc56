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
async def test_who_is_cancelled_in_the_queue_holds_up_nobody() -> None:
    """His turn passes unused."""
    pace, loop = Pace(), asyncio.get_running_loop()
    await pace.turn()
    start = loop.time()
    second, third = asyncio.create_task(pace.turn()), asyncio.create_task(pace.turn())
    await settle()
    second.cancel()
    await third
    assert loop.time() - start == pytest.approx(2 * GAP)
    assert second.cancelled()
