"""Which statements nodes died under, and how often calls may be sent again: pure accounts, each with its laws."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.errors import Fault
from picopyn.routing.losses import MOST_SUSPECTS, REMEMBERED_FOR, Life, LossMemory
from picopyn.routing.retry import MAX_LOSSES, Action, Call, decide
from picopyn.routing.retry_budget import NODES, PER_CALL, PER_SECOND, RetryBudget

READ = "SELECT * FROM t WHERE i = $1"


_LIVES = count()


def life() -> Life:
    """A node in a life that nothing was lost in yet."""
    return "n1", next(_LIVES)


@dataclass
class Caller:
    """Makes calls of repeatable statements at a server that some of them kill, and counts what dies.

    Attributes:
        killed: How many nodes died under calls of ours.
    """

    memory: LossMemory = field(default_factory=LossMemory)
    now: float = 0.0
    killed: int = 0

    def call(self, query: str, args: tuple[object, ...], *, kills: bool) -> Action | None:
        """One call, sent again as often as the rules allow; None when it was answered."""
        sent = 0
        while True:
            sent += 1
            sent_after = self.memory.deaths
            if not kills:
                self.memory.answered(query, args, self.now)
                return None
            self.killed += 1
            known = self.memory.lost(query, args, life(), sent_after, self.now)
            action = decide(Fault.LOST, Call(True, sent, max(sent, known)))
            if action is not Action.NEXT_NODE:
                return action


def test_one_death_allows_another_try() -> None:
    """Nearly all that a dying node had in flight is innocent."""
    memory = LossMemory()
    assert memory.lost(READ, (1,), life(), memory.deaths, 0.0) == 1


def test_the_second_death_without_an_answer_in_between_is_held_against_a_statement() -> None:
    """It was sent after the first one was known, and the next node died too."""
    memory = LossMemory()
    memory.lost(READ, (1,), life(), memory.deaths, 0.0)
    assert memory.lost(READ, (1,), life(), memory.deaths, 0.1) == MAX_LOSSES


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30))
def test_what_was_in_flight_when_a_death_became_known_belongs_to_that_death(args: list[int]) -> None:
    """However many calls of a text, on however many nodes: one event."""
    memory = LossMemory()
    sent_after = memory.deaths
    assert {memory.lost(READ, (arg,), life(), sent_after, 0.0) for arg in args} == {1}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.floats(0, 5)), min_size=1, max_size=60)
)
def test_failovers_count_against_nothing_that_worked_in_between(losses: list[tuple[str, int, float]]) -> None:
    """Every loss is one of another fail-over; as each statement is answered when it is sent again, none is suspect."""
    memory, now = LossMemory(), 0.0
    for query, arg, pause in losses:
        now += pause
        assert memory.lost(query, (arg,), life(), memory.deaths, now) == 1
        memory.answered(query, (arg,), 0.0)
    assert not memory.suspects


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60), st.booleans())
def test_what_always_kills_fells_two_nodes_once_and_then_one_for_each_call(
    calls: list[tuple[bool, int]], same_args: bool
) -> None:
    """Other statements change nothing, nor does the same text with other arguments, where only certain ones kill."""
    caller, deadly = Caller(), 0
    for kills, arg in calls:
        caller.now += 1.0
        if not kills:
            other = READ if same_args else "SELECT 1"
            assert caller.call(other, ("innocent", arg), kills=False) is None
            continue
        args = ("poison",) if same_args else ("never the same", deadly)
        assert caller.call(READ, args, kills=True) is Action.RAISE
        deadly += 1
    assert caller.killed == (deadly + 1 if deadly else 0)


def test_a_death_is_forgotten_after_a_while() -> None:
    """A statement that failed a minute ago gets its second try again."""
    memory = LossMemory()
    memory.lost(READ, (1,), life(), memory.deaths, 0.0)
    assert memory.lost(READ, (1,), life(), memory.deaths, REMEMBERED_FOR) == 1


def test_what_is_too_old_is_dropped_when_anything_is_answered() -> None:
    """Suspects that never come back would cost every later call a look."""
    memory = LossMemory()
    for number in range(10):
        memory.lost(READ, (number,), life(), memory.deaths, float(number))
    memory.answered("SELECT 1", (), REMEMBERED_FOR + 4)
    assert len(memory.suspects) == 6  # five with their arguments, and the text
    memory.answered("SELECT 1", (), REMEMBERED_FOR + 9)
    assert not memory.suspects


@pytest.mark.parametrize("args", [([1, 2],), ({"a": 1},)])
def test_arguments_that_cannot_be_told_apart_leave_the_text(args: tuple[object, ...]) -> None:
    """A list or a dictionary has no hash."""
    memory = LossMemory()
    memory.lost(READ, args, life(), memory.deaths, 0.0)
    assert memory.lost(READ, args, life(), memory.deaths, 0.1) == 2
    memory.answered(READ, args, 0.0)
    assert not memory.suspects


def test_arguments_are_not_kept() -> None:
    """Not in the memory, so not in any dump of it."""
    memory = LossMemory()
    memory.lost(READ, ("a secret",), life(), memory.deaths, 0.0)
    assert "a secret" not in repr(memory.suspects)


def test_the_memory_is_bounded_and_forgets_the_oldest_first() -> None:
    """Whatever statements there are."""
    memory = LossMemory()
    for number in range(2 * MOST_SUSPECTS):
        memory.lost(f"SELECT {number}", (), life(), memory.deaths, 0.0)
    assert len(memory.suspects) == MOST_SUSPECTS
    assert memory.lost(f"SELECT {2 * MOST_SUSPECTS - 1}", (), life(), memory.deaths, 0.0) == 2
    assert memory.lost("SELECT 0", (), life(), memory.deaths, 0.0) == 1


# --- the budget --------------------------------------------------------------------------------------------


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 3), st.integers(0, 100)), max_size=30),
)
def test_retries_are_a_tenth_of_the_calls_and_a_few_more(max_size: int, steps: list[tuple[int, float, int]]) -> None:
    """Whatever is asked for: never more than the reserve, a tenth of what was answered, and ten a second."""
    budget = RetryBudget(max_size, 0.0)
    calls, now, spent = 0, 0.0, 0
    for answered, seconds, wanted in steps:
        calls, now = calls + answered, now + seconds
        spent += sum(budget.spend(calls, now) for _ in range(wanted))
        assert 0 <= budget.left <= budget.reserve
        assert spent <= budget.reserve + PER_CALL * calls + PER_SECOND * now + 1e-6


@pytest.mark.parametrize("max_size", [1, 10, 100])
def test_nodes_that_die_with_everything_in_flight_are_covered(max_size: int) -> None:
    """Several at once, and again when the calls go on."""
    budget = RetryBudget(max_size, 0.0)
    for calls in (0, 10 * int(budget.reserve)):
        assert all(budget.spend(calls, 0.0) for _ in range(NODES * max_size))


def test_a_spent_budget_recovers_with_time_and_with_calls() -> None:
    """Neither needs the other."""
    budget = RetryBudget(1, 0.0)
    while budget.spend(0, 0.0):
        pass
    assert budget.spend(0, 0.2)
    while budget.spend(0, 0.2):
        pass
    assert budget.spend(20, 0.2)
