"""Schedules of disturbances: made from a seed, and never more than the servers can bear."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.cli.chaos.schedule import ENDS, PICODATA, POSTGRES, SERVER, Act, Menu, Step, problems, schedule

MENUS = pytest.mark.parametrize("menu", [PICODATA, POSTGRES], ids=["picodata", "postgres"])


@given(st.integers(0, 1 << 32), st.integers(0, 60), st.sampled_from([PICODATA, POSTGRES]))
def test_every_schedule_keeps_the_rules(seed: int, length: int, menu: Menu) -> None:
    """A majority lives, every trouble ends, and what was added is taken out."""
    steps = schedule(seed, menu, length)
    assert problems(steps, menu) == []
    assert len(steps) >= length


@MENUS
def test_a_seed_makes_the_same_schedule_again(menu: Menu) -> None:
    """And another seed another one."""
    assert schedule(7, menu, 30) == schedule(7, menu, 30)
    assert schedule(7, menu, 30) != schedule(8, menu, 30)


@MENUS
def test_everything_on_the_menu_happens(menu: Menu) -> None:
    """In a long schedule; in a short one, as much of it as it has room for."""
    ends = ENDS if menu.promotes else ENDS - {Act.SUCCEED}
    assert {step.act for step in schedule(1, menu, 200)} == set(menu.acts) | ends
    for seed in range(20):
        assert len({step.act for step in schedule(seed, menu, 12)}) >= 6


def test_the_tempo_is_the_longest_pause() -> None:
    """Half the tempo, half the pauses; the same steps otherwise."""
    slow, fast = schedule(3, PICODATA, 40, tempo=2.0), schedule(3, PICODATA, 40, tempo=1.0)
    assert all(0 < step.pause <= 2.0 for step in slow)
    assert [replace(step, pause=0.0) for step in slow] == [replace(step, pause=0.0) for step in fast]
    assert sum(step.pause for step in slow) == pytest.approx(2 * sum(step.pause for step in fast))


@pytest.mark.parametrize(
    ("steps", "menu", "found"),
    [
        ([Step(Act.KILL, 1)], PICODATA, ["KILL of number 1 never ends"]),
        ([Step(Act.MUTE, 1)], PICODATA, ["MUTE of number 1 never ends"]),
        ([Step(Act.KILL, 1), Step(Act.FREEZE, 2), Step(Act.MEND, 2)], PICODATA, ["step 1, FREEZE: not now"]),
        ([Step(Act.KILL, 1), Step(Act.SWITCH), Step(Act.MEND, 1)], PICODATA, ["step 1, SWITCH: not now"]),
        ([Step(Act.KILL, 1), Step(Act.SUCCEED, 1)], PICODATA, ["step 1, SUCCEED: nobody has to be promoted"]),
        (
            [Step(Act.KILL, 1, leader=False), Step(Act.SUCCEED, 1, leader=False)],
            POSTGRES,
            ["step 1, SUCCEED: nobody has to be promoted"],
        ),
        ([Step(Act.MUTE, 1), Step(Act.SUCCEED, 1)], POSTGRES, ["step 1, SUCCEED: nobody has to be promoted"]),
        ([Step(Act.MEND, 1)], PICODATA, ["step 0, MEND: nothing like that goes on"]),
        ([Step(Act.GROW)], PICODATA, ["what was added stays"]),
        ([Step(Act.SHRINK)], PICODATA, ["step 0, SHRINK: not now"]),
        ([Step(Act.MOVE)], POSTGRES, ["step 0, MOVE: not now"]),
        ([Step(Act.SWITCH, group=1)], POSTGRES, ["step 0, SWITCH: there is no such group"]),
    ],
)
def test_a_schedule_that_goes_too_far_is_found(steps: list[Step], menu: Menu, found: list[str]) -> None:
    """The rules bite."""
    assert [problem for problem in problems(steps, menu) if problem in found] == found


def test_who_is_dead_comes_back_before_the_next_one_dies() -> None:
    """The rule said once more, in other words: between two troubles of servers there is the end of the first."""
    for seed in range(50):
        open_number = 0
        for step in schedule(seed, POSTGRES, 60):
            if step.act in SERVER:
                assert open_number == 0
                open_number = step.number
            elif step.act in ENDS and step.number == open_number:
                open_number = 0
        assert open_number == 0
