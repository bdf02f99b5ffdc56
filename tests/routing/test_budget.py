"""The common limit of all node pools: it holds, and no node starves beside another one's plenty."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picopyn.routing.budget import Budget
from picopyn.routing.slots import Slots


class Node:
    """A pool of connections to one node, as far as a budget looks at it."""

    def __init__(self, *idle: int, held: int = 0, waiters: int = 0) -> None:
        self.slots: Slots[int, int] = Slots(max_size=4, max_opening=2)
        for number in (*idle, *range(1000, 1000 + held)):
            self.slots.reserve(1)
            self.slots.opened(number)
        for _ in range(held):
            self.slots.take()
        for number in range(waiters):
            self.slots.wait(number)


def budget(limit: int | None, *nodes: Node) -> Budget[Node]:
    """A budget whose members are these."""
    made: Budget[Node] = Budget(limit)
    made.members.update(dict.fromkeys(nodes))
    return made


def test_without_a_limit_everything_is_granted() -> None:
    """The pools' own limits are another matter."""
    assert budget(None, Node(held=4)).allow(7) == 7


def test_whatever_exists_counts() -> None:
    """Connections being opened and being closed are sessions at a server as well."""
    node, other = Node(1, 2, held=1), Node()
    node.slots.reserve(1)
    node.slots.part(1, "idle")
    shared = budget(6, node, other)
    assert shared.allow(9) == 2
    node.slots.gone(1)
    assert shared.allow(9) == 3


def test_a_node_without_a_connection_gets_the_place_of_an_idle_one() -> None:
    """Of the pool that has most of them; even its last."""
    rich, poor, asker = Node(1, 2), Node(3), Node(waiters=1)
    shared = budget(3, rich, poor, asker)
    assert shared.grant(asker, 1) == 0
    assert shared.needs_more
    assert shared.donor(asker) is rich
    assert budget(1, poor, asker).donor(asker) is poor


def test_where_nothing_is_idle_the_connection_given_back_next_is_owed() -> None:
    """Wherever that is; one for each node that has nothing."""
    busy, other, asker = Node(held=3, waiters=5), Node(held=1), Node(waiters=1)
    shared = budget(4, busy, other, asker)
    assert shared.grant(asker, 1) == 0
    assert shared.donor(asker) is None
    assert shared.debtors(asker) == [busy, other]
    assert shared.needs_more
    busy.slots.part(1000, "excess")
    assert not shared.needs_more
    assert shared.debtors(busy) == []


def test_a_node_that_has_some_gets_only_what_another_can_spare() -> None:
    """At least two more than it has, and idle: so shares even out and never swing."""
    asker = Node(held=1, waiters=9)
    assert budget(4, asker, Node(1, 2)).donor(asker) is None
    spare = Node(1, 2, 3)
    assert budget(4, asker, spare).donor(asker) is spare
    assert budget(4, asker, Node(held=3, waiters=9)).donor(asker) is None


def test_a_free_place_goes_first_to_who_has_nothing() -> None:
    """Then in the order of asking."""
    first, second, starved, busy = Node(held=1, waiters=1), Node(held=1, waiters=1), Node(waiters=1), Node(held=1)
    shared = budget(3, first, second, starved, busy)
    assert [shared.grant(node, 1) for node in (first, second, starved)] == [0, 0, 0]
    assert shared.queue() == [starved, first, second]
    busy.slots.gone(1000)
    assert shared.grant(starved, 1) == 1
    assert shared.queue() == [first, second]
    shared.gave_up(first)
    assert shared.queue() == [second, first]


def test_one_pool_may_owe_a_connection_to_each_of_several_nodes() -> None:
    """The first that is given back leaves for one of them, and the next is owed as well."""
    busy, first, second = Node(held=2), Node(waiters=1), Node(waiters=1)
    shared = budget(2, busy, first, second)
    assert [shared.grant(node, 1) for node in (first, second)] == [0, 0]
    busy.slots.owe("excess")
    assert busy.slots.verdict(1000) == "excess"
    busy.slots.part(1000, "excess")
    assert shared.needs_more
    busy.slots.part(1001, "excess")
    assert not shared.needs_more


class Sharing(RuleBasedStateMachine):
    """Whatever happens in whatever order, with every decision carried out."""

    LIMIT = 2

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [Node() for _ in range(3)]
        self.budget = budget(self.LIMIT, *self.nodes)
        self.number = 0

    def _grow(self, node: Node) -> None:
        node.slots.reserve(self.budget.grant(node, node.slots.wanted))
        if not self.budget.is_hungry(node):
            return
        donor = self.budget.donor(node)
        if donor is not None:
            assert donor.slots.spare("excess") is not None
        else:
            for debtor in self.budget.debtors(node):
                debtor.slots.owe("excess")

    def _freed(self) -> None:
        for node in self.budget.queue():
            self._grow(node)

    def _some(self, data: st.DataObject, wanted: list[tuple[Node, int]]) -> tuple[Node, int]:
        return data.draw(st.sampled_from(wanted))

    @rule(index=st.integers(0, 2))
    def take_or_wait(self, index: int) -> None:
        node = self.nodes[index]
        if node.slots.take() is None:
            self.number += 1
            node.slots.wait(self.number)
            self._grow(node)

    @precondition(lambda self: any(node.slots.waiters for node in self.nodes))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        node, waiter = self._some(data, [(node, one) for node in self.nodes for one in node.slots.waiters])
        node.slots.leave(waiter)

    @precondition(lambda self: any(node.slots.opening for node in self.nodes))
    @rule(works=st.booleans(), data=st.data())
    def end_of_opening(self, works: bool, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([node for node in self.nodes if node.slots.opening]))
        if works:
            self.number += 1
            node.slots.opened(self.number)
        else:
            node.slots.open_failed()
            node.slots.drain_waiters()
        self._grow(node)
        self._freed()

    @precondition(lambda self: any(node.slots.held for node in self.nodes))
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        node, held = self._some(data, [(node, link) for node in self.nodes for link in sorted(node.slots.held)])
        if not self.budget.needs_more:
            node.slots.release_debt()
        why = node.slots.verdict(held)
        if why is None:
            node.slots.give(held)
        else:
            node.slots.part(held, why)
            self.budget.gave_up(node)
            if self.budget.needs_more:
                node.slots.owe("excess")
            self._grow(node)

    @precondition(lambda self: any(node.slots.leaving for node in self.nodes))
    @rule(data=st.data())
    def goodbye(self, data: st.DataObject) -> None:
        node, link = self._some(data, [(node, link) for node in self.nodes for link in sorted(node.slots.leaving)])
        node.slots.gone(link)
        self._freed()
        self._grow(node)

    @invariant()
    def the_limit_holds(self) -> None:
        assert sum(node.slots.occupied for node in self.nodes) <= self.LIMIT

    @invariant()
    def nobody_starves_beside_plenty(self) -> None:
        for node in self.nodes:
            slots = node.slots
            if slots.waiters and not slots.size and not slots.opening:
                assert self.budget.is_hungry(node)
                assert not any(other.slots.idle for other in self.nodes) or not self.budget.needs_more
                busy = [other for other in self.nodes if other.slots.held]
                assert not self.budget.needs_more or all(None in other.slots.condemned for other in busy)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=150, deadline=None)
