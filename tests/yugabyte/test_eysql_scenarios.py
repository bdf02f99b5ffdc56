"""The list of eysql's scenarios stays true."""

from __future__ import annotations

import re
from pathlib import Path

_COUNTS = {"C": 18, "E": 2, "T": 14, "K": 62, "P": 33, "A": 14, "S": 6, "X": 5, "N": 5, "I": 5}


def test_the_list_of_scenarios_names_every_one_and_only_tests_that_exist() -> None:
    """Each scenario once."""
    here = Path(__file__).parent.parent
    text = (here / "eysql-scenarios.md").read_text("utf-8")
    found: list[str] = []
    for cell in re.findall(r"^\| (E-[^|]+?) \|", text, re.MULTILINE):
        for area, first, last in re.findall(r"E-([A-Z])(\d+)(?: to E-[A-Z](\d+))?", cell):
            found += [f"{area}{number}" for number in range(int(first), int(last or first) + 1)]
    assert sorted(found) == sorted(f"{area}{n}" for area, count in _COUNTS.items() for n in range(1, count + 1))
    named = set(re.findall(r"`(test_\w+)`", text))
    files = here.rglob("test_*.py")
    written = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))}
    assert named - written == set()
