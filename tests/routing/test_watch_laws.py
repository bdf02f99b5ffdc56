"""Laws of watching over nodes, whatever happens in whatever order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.routing.health import NodeState
from picopyn.routing.watch import LONGEST_REST, SILENCE, TICK
from tests.routing.watching import Watching, Weather

NODES = ["a", "b", "c", "d", "e"]
some_nodes = st.lists(st.sampled_from(NODES), unique=True)
weathers = st.builds(
    Weather,
    busy=some_nodes,
    heard=some_nodes,
    answers=st.dictionaries(st.sampled_from(NODES), st.floats(0, 1)),
    refuses=some_nodes,
    turns=st.integers(1, 3),
    eager=st.booleans(),
    look_every=st.floats(0.01, 2.0),
)
phases = st.lists(st.tuples(weathers, st.integers(1, 40), some_nodes), max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), phases)
def test_silence_ejects_a_minority_at_most(count: int, phases: list[tuple[Weather, int, list[str]]]) -> None:
    """One of two at most, none of one; whatever refuses does not count."""
    watching = Watching(NODES[:count])
    for weather, looks, broken in phases:
        for uuid in set(broken) & set(watching.nodes):
            watching.broke(uuid)
        for _ in range(looks):
            watching.look(weather)
            known = [watching.health.of(uuid) for uuid in watching.nodes]
            ejected = sum(state.state is NodeState.DOWN and state.silent for state in known)
            assert 2 * ejected < count or (count == 2 and ejected == 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans()), max_size=200), st.booleans())
def test_a_node_that_answers_in_time_is_never_in_doubt(looks: list[tuple[float, bool]], busy: bool) -> None:
    """However late this client looks, as long as an answer needs one turn of it."""
    watching = Watching(NODES)
    for look_every, heard in looks:
        watching.look(
            Weather(
                busy=NODES if busy else (),
                heard=NODES if heard else (),
                answers=dict.fromkeys(NODES, 0.0),
                look_every=look_every,
            )
        )
    assert watching.health.all_up
    assert not watching.hung


@settings(max_examples=100, deadline=None)
@given(phases)
def test_a_quiet_node_nobody_complains_about_is_never_asked(phases: list[tuple[Weather, int, list[str]]]) -> None:
    """Probes are for nodes with silent calls, and for nodes in doubt."""
    watching = Watching([*NODES, "quiet"])
    for weather, looks, broken in phases:
        for uuid in broken:
            watching.broke(uuid)
        for _ in range(looks):
            watching.look(weather)
    assert watching.questions("quiet") == []
    assert watching.health.is_up("quiet")


@settings(max_examples=100, deadline=None)
@given(phases)
def test_an_answer_clears_every_doubt(phases: list[tuple[Weather, int, list[str]]]) -> None:
    """Whatever was thought before; every change is told, and once."""
    watching = Watching(NODES)
    for weather, looks, broken in phases:
        for uuid in broken:
            watching.broke(uuid)
        for _ in range(looks):
            watching.look(weather)
    watching.let_pass(watching.now + 30.0, Weather(answers=dict.fromkeys(NODES, 0.0)))
    assert watching.health.all_up
    for uuid in NODES:
        told = ["up", *(new for _, changed, new in watching.changes if changed == uuid)]
        assert all(before != after for before, after in itertools.pairwise(told))
        assert told[-1] == "up"


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 0.2), st.integers(60, 600))
def test_a_node_that_hangs_is_found_within_a_second(opening: float, looks: int) -> None:
    """Its silence, two questions, and a few looks in between; a node that was found busy before, a rest later."""
    watching = Watching(NODES, {"a": opening})
    busy = Weather(busy=["a"], answers={"a": 0.0})
    for _ in range(looks - 50):
        watching.look(busy)
    froze = watching.now
    watching.let_pass(froze + 5, Weather(busy=["a"]))
    found = next(at for at, uuid, new in watching.changes if new == "down")
    assert found - froze <= max(SILENCE, LONGEST_REST) + 2 * (0.25 + 2 * opening) + 5 * TICK
    assert {uuid for _, uuid in watching.hung} == {"a"}
