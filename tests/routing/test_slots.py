"""The accounts of a node pool: nothing is lost, nobody is passed by."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picopyn.routing.slots import Slots


def test_the_connection_used_last_is_taken_first() -> None:
    """Few connections stay warm instead of all being half cold."""
    slots: Slots[str, str] = Slots(max_size=2)
    slots.reserve(2)
    slots.opened("a")
    slots.opened("b")
    first = slots.take()
    assert first == "b"
    slots.give("b")
    assert slots.take() == "b"
    assert slots.take() == "a"
    assert slots.take() is None


def test_waiters_are_served_in_the_order_of_asking() -> None:
    """A connection that is given back goes to who has waited longest, not to who asks next."""
    slots: Slots[str, str] = Slots(max_size=1)
    slots.reserve(1)
    slots.opened("a")
    slots.take()
    assert [slots.wait(w) for w in ("first", "second", "third")] == [0, 0, 0]
    assert slots.give("a") == "first"
    assert slots.take() is None
    assert slots.give("a") == "second"
    slots.leave("third")
    assert slots.give("a") is None
    assert slots.take() == "a"


def test_growth_is_bounded_by_size_and_by_concurrent_openings() -> None:
    """A burst of waiters opens connections two at a time, and never more than the pool may have."""
    slots: Slots[str, int] = Slots(max_size=3, max_opening=2)
    assert [slots.wait(n) for n in range(5)] == [1, 1, 0, 0, 0]
    assert slots.opened("a") == 0
    assert slots.grow() == 1
    assert slots.opened("b") == 1
    assert slots.opened("c") == 2
    assert slots.grow() == 0
    assert slots.size == 3


def test_a_lost_connection_is_replaced_only_for_those_who_wait() -> None:
    """Losing an idle connection opens nothing; losing the last one under a queue does."""
    slots: Slots[str, str] = Slots(max_size=1)
    slots.reserve(1)
    slots.opened("a")
    assert slots.lost("a") == 0
    assert slots.lost("a") == 0
    slots.reserve(1)
    slots.opened("b")
    slots.take()
    slots.wait("w")
    assert slots.lost("b") == 1


class Conservation(RuleBasedStateMachine):
    """Whatever happens in whatever order: every live connection is in one place, and limits hold."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: Slots[int, int] = Slots(max_size=4, max_opening=2)
        self.number = 0
        self.alive: set[int] = set()
        self.queue: list[int] = []

    def _served(self, waiter: int | None) -> None:
        if waiter is not None:
            assert waiter == self.queue.pop(0)

    @rule()
    def take_or_wait(self) -> None:
        connection = self.slots.take()
        if connection is None:
            self.number += 1
            self.queue.append(self.number)
            self.slots.wait(self.number)
        else:
            assert connection in self.alive

    @precondition(lambda self: self.slots.held)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        self._served(self.slots.give(data.draw(st.sampled_from(sorted(self.slots.held)))))

    @precondition(lambda self: self.slots.opening)
    @rule(works=st.booleans())
    def end_of_opening(self, works: bool) -> None:
        if works:
            self.number += 1
            self.alive.add(self.number)
            self._served(self.slots.opened(self.number))
        else:
            self.slots.open_failed()
            self.slots.grow()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(lost)
        self.slots.lost(lost)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.queue))
        self.queue.remove(waiter)
        assert self.slots.leave(waiter)
        assert not self.slots.leave(waiter)

    @invariant()
    def every_connection_is_in_one_place(self) -> None:
        assert set(self.slots.idle) | self.slots.held == self.alive
        assert not set(self.slots.idle) & self.slots.held
        assert len(self.slots.idle) == len(set(self.slots.idle))

    @invariant()
    def limits_hold(self) -> None:
        assert 0 <= self.slots.opening <= 2
        assert self.slots.size + self.slots.opening <= 4

    @invariant()
    def nobody_waits_beside_an_idle_connection(self) -> None:
        assert not (self.slots.idle and self.slots.waiters)
        assert list(self.slots.waiters) == self.queue


TestConservation = Conservation.TestCase
TestConservation.settings = settings(max_examples=150, deadline=None)
