"""Plays the scenario files of `tests/spec/health`: nodes, what they do in phases, and what is thought of them.

A file is `{"title", "given": {"nodes", "openings"}, "phases": [{"until", "broke", <weather>, "expect"}]}`, where the
weather is what [`Weather`][tests.routing.watching.Weather] says, and the keys of `expect` are questions of `QUESTIONS`.
Times are seconds from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.routing.watching import Watching, Weather

SCENARIOS = sorted((Path(__file__).parents[1] / "spec" / "health").glob("*.json"))
WEATHER = {field.name for field in fields(Weather)}


def _within(moments: list[float], limits: list[float]) -> bool:
    return bool(moments) and limits[0] - 1e-9 <= moments[0] <= limits[1] + 1e-9


#: What a scenario may ask of a phase: (what happened in it, expected) → whether it holds.
QUESTIONS: dict[str, Callable[[Watching, Any], bool]] = {
    "states": lambda w, expected: {uuid: w.states()[uuid] for uuid in expected} == expected,
    "changes": lambda w, expected: [[uuid, new] for _, uuid, new in w.changes] == expected,
    "changed_between": lambda w, expected: all(
        _within([at for at, u, new in w.changes if (u, new) == (uuid, state)], limits)
        for uuid, state, *limits in expected
    ),
    "asked": lambda w, expected: {uuid: len(w.questions(uuid)) for uuid in expected} == expected,
    "asked_at_most": lambda w, expected: all(len(w.questions(uuid)) <= most for uuid, most in expected.items()),
    "first_asked_between": lambda w, expected: all(_within(w.questions(u), limits) for u, limits in expected.items()),
    "never": lambda w, expected: not [uuid for _, uuid, new in w.changes if new in expected],
    "hung": lambda w, expected: sorted({uuid for _, uuid in w.hung}) == expected,
    "down_count": lambda w, expected: len(w.down()) == expected,
}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Every scenario file holds, phase by phase."""
    scenario = json.loads(path.read_text())
    watching = Watching(**scenario["given"])
    for number, phase in enumerate(scenario["phases"], 1):
        watching.begin_anew()
        for uuid in phase.get("broke", ()):
            watching.broke(uuid)
        watching.let_pass(phase["until"], Weather(**{word: phase[word] for word in WEATHER & set(phase)}))
        for question, expected in phase["expect"].items():
            seen = f"changes {watching.changes}, asked {watching.asked}, hung {watching.hung}"
            where = f"{scenario['title']}: phase {number}: {question}; {seen}"
            assert QUESTIONS[question](watching, expected), where


def test_there_are_scenarios() -> None:
    """The runner finds its files."""
    assert len(SCENARIOS) >= 12
