"""The accounts of a node pool: nothing is lost, nobody is passed by, nothing outlives its time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picopyn.routing.slots import Slots


def filled(*connections: str, ends: dict[str, float] | None = None) -> Slots[str, str]:
    """Accounts with idle connections, the first of which has been idle for longest."""
    slots: Slots[str, str] = Slots(max_size=len(connections), max_opening=len(connections))
    slots.reserve(len(connections))
    for connection in connections:
        slots.opened(connection, (ends or {}).get(connection, float("inf")))
    return slots


def test_the_connection_used_last_is_taken_first() -> None:
    """Few connections stay warm instead of all being half cold."""
    slots = filled("a", "b")
    assert slots.take() == "b"
    slots.give("b")
    assert slots.take() == "b"
    assert slots.take() == "a"
    assert slots.take() is None


def test_waiters_are_served_in_the_order_of_asking() -> None:
    """A connection that is given back goes to who has waited longest, not to who asks next."""
    slots = filled("a")
    slots.take()
    for waiter in ("first", "second", "third"):
        slots.wait(waiter)
    assert slots.wanted == 0
    assert slots.give("a") == "first"
    assert slots.take() is None
    assert slots.give("a") == "second"
    slots.leave("third")
    assert slots.give("a") is None
    assert slots.take() == "a"


def test_growth_is_bounded_by_size_and_by_concurrent_openings() -> None:
    """A burst of waiters opens connections two at a time, and never more than the pool may have."""
    slots: Slots[str, int] = Slots(max_size=3, max_opening=2)
    for number in range(5):
        slots.wait(number)
    assert slots.wanted == 2
    assert slots.reserve(slots.wanted) == 2
    assert slots.wanted == 0
    assert slots.opened("a") == 0
    assert slots.reserve(slots.wanted) == 1
    assert slots.opened("b") == 1
    assert slots.opened("c") == 2
    assert (slots.wanted, slots.size) == (0, 3)


def test_a_lost_connection_is_replaced_only_for_those_who_wait() -> None:
    """Losing an idle connection opens nothing; losing the last one under a queue does."""
    slots = filled("a")
    assert slots.gone("a") is None
    assert slots.gone("a") is None
    assert (slots.wanted, slots.missing(1)) == (0, 1)
    slots.reserve(1)
    slots.opened("b")
    slots.take()
    slots.wait("w")
    slots.gone("b")
    assert slots.wanted == 1


def test_a_connection_that_ends_under_its_holder_stays_his_until_he_gives_it_back() -> None:
    """What is told of it until then, why it was closed above all, is not lost; nobody else gets it."""
    slots = filled("a", "b")
    slots.ended("b")
    assert slots.take() == "a"
    slots.ended("a")
    assert (slots.idle, list(slots.held), slots.settle("a")) == ([], ["a"], False)
    assert slots.part("a", "state_unknown")
    assert [slots.gone(connection) for connection in "ab"] == ["state_unknown", None]
    assert not slots.condemned


def test_an_idle_connection_leaves_at_the_end_of_its_life_and_a_held_one_when_it_is_given_back() -> None:
    """Nobody loses a connection under his hands because it is old."""
    slots = filled("a", "b", "c", ends={"a": 10.0, "c": 10.0})
    assert slots.take() == "c"
    assert slots.next_end == 10.0
    assert slots.expire(9.9, "lifetime") == []
    assert slots.expire(10.0, "lifetime") == ["a"]
    assert slots.idle == ["b"]
    assert slots.next_end == float("inf")
    assert slots.verdict("c") == "lifetime"
    assert slots.part("c", "lifetime")
    assert (slots.size, slots.occupied) == (1, 3)
    assert [slots.gone(connection) for connection in "ac"] == ["lifetime", "lifetime"]
    assert slots.occupied == 1


def test_what_two_looks_saw_untouched_has_been_idle_since_the_first() -> None:
    """Taking and giving back note no time; a connection that was used in between is not idle."""
    slots = filled("a", "b", "c")
    slots.cool(1.0)
    assert slots.take() == "c"
    slots.give("c")
    slots.cool(2.0)
    assert slots.idle == ["a", "b", "c"]
    assert slots.expire_unused(0.5, "idle") == []
    assert slots.expire_unused(1.0, "idle") == ["a", "b"]
    assert slots.idle == ["c"]
    assert slots.expire_unused(2.0, "idle") == ["c"]


def test_whatever_is_alive_can_be_declared_outdated() -> None:
    """Idle ones leave now, held ones when given back, one that was being opened on arrival."""
    slots = filled("a", "b")
    slots.max_size = 3
    slots.take()
    slots.reserve(1)
    assert slots.expire_all("lifetime") == ["a"]
    assert slots.verdict("b") == "lifetime"
    slots.opened_in_vain("c", "lifetime")
    assert (slots.opening, slots.leaving) == (0, {"a": "lifetime", "c": "lifetime"})


def test_a_debt_is_paid_by_the_connection_given_back_next() -> None:
    """Whichever it is, once; an idle one is given up at once, the one unused for longest first."""
    slots = filled("a", "b", "c")
    assert slots.spare("excess") == "a"
    slots.take()
    slots.take()
    assert slots.spare("excess") is None
    slots.owe("excess")
    assert slots.verdict("b") == "excess"
    assert slots.verdict("c") is None


class Conservation(RuleBasedStateMachine):
    """Whatever happens in whatever order: every connection is in one place, and limits hold."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: Slots[int, int] = Slots(max_size=4, max_opening=2)
        self.number = 0
        self.now = 0.0
        self.alive: set[int] = set()
        self.leaving: set[int] = set()
        self.queue: list[int] = []
        self.ends: dict[int, float] = {}
        self.used: dict[int, float] = {}

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _served(self, waiter: int | None) -> None:
        if waiter is not None:
            assert waiter == self.queue.pop(0)

    def _left(self, connections: list[int]) -> None:
        assert self.alive >= set(connections)
        self.alive -= set(connections)
        self.leaving |= set(connections)

    @rule(seconds=st.floats(0.1, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take_or_wait(self) -> None:
        connection = self.slots.take()
        if connection is None:
            self.queue.append(self._next())
            self.slots.wait(self.number)
            self.slots.reserve(self.slots.wanted)
        else:
            assert connection in self.alive

    @precondition(lambda self: self.slots.held)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(sorted(self.slots.held)))
        self.used[connection] = self.now
        why = self.slots.verdict(connection)
        if why is None:
            self._served(self.slots.give(connection))
        else:
            assert self.slots.part(connection, why)
            self._left([connection])

    @precondition(lambda self: self.slots.opening)
    @rule(how=st.sampled_from(["there", "failed", "in vain"]), life=st.floats(0.1, 10))
    def end_of_opening(self, how: str, life: float) -> None:
        connection = self._next()
        if how == "there":
            self.alive.add(connection)
            self.ends[connection], self.used[connection] = self.now + life, self.now
            self._served(self.slots.opened(connection, self.now + life))
        elif how == "in vain":
            self.slots.opened_in_vain(connection, "lifetime")
            self.leaving.add(connection)
        else:
            self.slots.open_failed()

    @precondition(lambda self: self.alive | self.leaving)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(sorted(self.alive | self.leaving)))
        assert (self.slots.gone(lost) is not None) == (lost in self.leaving)
        self.alive.discard(lost)
        self.leaving.discard(lost)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(sorted(self.alive)))
        idle = ended in self.slots.idle
        self.slots.ended(ended)
        assert ended not in self.slots.idle
        assert not self.slots.settle(ended) or idle
        if idle:
            self.alive.discard(ended)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        dropped = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.slots.part(dropped, "timeout")
        assert not self.slots.part(dropped, "shutdown")
        self._left([dropped])

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.queue))
        self.queue.remove(waiter)
        assert self.slots.leave(waiter)
        assert not self.slots.leave(waiter)

    @rule()
    def look(self) -> None:
        old = self.slots.expire(self.now, "lifetime")
        assert all(self.ends[connection] <= self.now for connection in old)
        self._left(old)
        unused = self.slots.expire_unused(self.now - 2, "idle")
        assert all(self.used[connection] <= self.now - 2 for connection in unused)
        self._left(unused)
        self.slots.cool(self.now)
        assert not any(self.ends[connection] <= self.now for connection in self.slots.idle)

    @rule()
    def expire_all(self) -> None:
        self._left(self.slots.expire_all("lifetime"))
        assert not self.slots.idle
        assert set(self.slots.condemned) >= self.slots.held.keys()

    @rule()
    def give_up_one(self) -> None:
        spare = self.slots.spare("excess")
        if spare is None:
            self.slots.owe("excess")
        else:
            self._left([spare])

    @invariant()
    def every_connection_is_in_one_place(self) -> None:
        assert set(self.slots.idle) | self.slots.held.keys() == self.alive
        assert not set(self.slots.idle) & self.slots.held.keys()
        assert len(self.slots.idle) == len(set(self.slots.idle))
        assert set(self.slots.leaving) == self.leaving
        assert set(self.slots.condemned) - {None} <= self.slots.held.keys()

    @invariant()
    def limits_hold(self) -> None:
        assert 0 <= self.slots.opening <= 2
        assert self.slots.size + self.slots.opening <= 4
        assert self.slots.occupied == self.slots.size + self.slots.opening + len(self.leaving)

    @invariant()
    def nobody_waits_beside_an_idle_connection(self) -> None:
        assert not (self.slots.idle and self.slots.waiters)
        assert list(self.slots.waiters) == self.queue


TestConservation = Conservation.TestCase
TestConservation.settings = settings(max_examples=150, deadline=None)
