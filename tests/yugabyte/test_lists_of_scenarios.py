"""The lists of eysql's and the smart drivers' scenarios stay true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
_EYSQL = {"C": 18, "E": 2, "T": 14, "K": 62, "P": 33, "A": 14, "S": 6, "X": 5, "N": 5, "I": 5}


def numbered(text: str, prefix: str) -> list[str]:
    """Every number of the first column, ranges written out."""
    found: list[str] = []
    for cell in re.findall(rf"^\| ({prefix}-[^|]+?) \|", text, re.MULTILINE):
        for area, first, last in re.findall(rf"{prefix}-([A-Z]?)(\d+)(?: to {prefix}-[A-Z]?(\d+))?", cell):
            found += [f"{area}{number}" for number in range(int(first), int(last or first) + 1)]
    return found


@pytest.mark.parametrize(
    ("name", "prefix", "counts"), [("eysql-scenarios.md", "E", _EYSQL), ("yugabyte-scenarios.md", "Y", {"": 76})]
)
def test_a_list_names_every_scenario_and_only_tests_that_exist(name: str, prefix: str, counts: dict[str, int]) -> None:
    """Each scenario once."""
    text = (TESTS / name).read_text("utf-8")
    assert sorted(numbered(text, prefix)) == sorted(f"{area}{n}" for area, c in counts.items() for n in range(1, c + 1))
    named = set(re.findall(r"`(test_\w+)`", text))
    files = TESTS.rglob("test_*.py")
    written = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))}
    assert named - written == set()
