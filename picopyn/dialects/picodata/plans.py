"""Reads an EXPLAIN of Picodata into a plan, in the layouts of 25.6, 26.1 and 26.2.

A plan shows the user's own texts, line breaks included, so any line may be anything: nothing here fails, and what is
not understood stays as text. The buckets are read by [`explain`][picopyn.dialects.picodata.explain].

*Source*: the recorded EXPLAINs of 25.6.0, 26.1.6 and 26.2.1-rc2 (`picodata-conversations.json`); `picodata-protocol.md`
section 11; the lines that `picopyn-anchor.md` C8 names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from picopyn.dialects.base import BucketScope
from picopyn.dialects.picodata.explain import read_buckets
from picopyn.query_plan import PlanNode, PlanScope, QueryPlan

_RULE: Final = re.compile(r"[─━-]{3,}\s*")
_HEADING: Final = re.compile(r"\s*#\s+(?P<name>\S.*?)\s*")
_SUBQUERY: Final = re.compile(r"subquery (?P<name>\$\d+):\s*")
_OPTION: Final = re.compile(r"\s+(?P<name>\w+) = (?P<value>.*)")
_NAME: Final = r"(?:\"(?P<{0}_quoted>(?:[^\"]|\"\")*)\"|(?P<{0}>[^\s\"(]+))"
_OPTIONS: Final = "execution options:"

_SCOPES: Final[Mapping[BucketScope, PlanScope]] = {
    BucketScope.EXACT: "exact",
    BucketScope.AT_MOST: "at_most",
    BucketScope.ANY: "any",
    BucketScope.UNKNOWN: "unknown",
}

#: Kind of a step → how its line begins, with named parts that become attributes. The first that fits wins.
_STEPS: Final = tuple(
    (kind, re.compile(pattern, re.DOTALL))
    for kind, pattern in (
        ("projection", r"projection \("),
        ("selection", r"selection "),
        ("scan cte", r"scan cte (?P<alias>.*)\((?P<subquery>\$\d+)\)\s*"),
        ("scan", rf"scan {_NAME.format('table')}(?: -> {_NAME.format('alias')})?\s*"),
        ("scan", r"scan\s*"),
        ("motion", r"motion \[policy: (?P<policy>.*), program: (?P<program>.*)\]\s*"),
        ("motion", r"motion \[policy: (?P<policy>.*)\]\s*"),
        ("left join", r"left (?:outer )?join on "),
        ("join", r"(?:inner )?join on "),
        ("insert", rf"insert (?:into )?{_NAME.format('table')}(?: on conflict: (?P<on_conflict>\w+))?\s*"),
        ("update", rf"update {_NAME.format('table')}(?: \((?P<set>.*)\))?\s*"),
        ("delete", rf"delete (?:from )?{_NAME.format('table')}\s*"),
        ("value row", r"value (?:row \(data=)?ROW\("),
        ("values", r"values\s*"),
        ("order by", r"order by \("),
        ("group by", r"group by \("),
        ("having", r"having "),
        ("limit", r"limit (?P<limit>\d+)\s*"),
        ("union all", r"union all\b"),
        ("union", r"union\b"),
        ("except", r"except\b"),
    )
)
#: Steps below each other; deeper ones stand beside each other.
_DEEPEST: Final = 200
_WITH_SETS: Final = ("update",)


def read_plan(rows: Sequence[Sequence[Any]]) -> QueryPlan:
    """The plan in the rows of an EXPLAIN, one column of text each."""
    lines = [row[0] for row in rows if row and isinstance(row[0], str)]
    buckets = read_buckets(rows)
    parts = _boxed(lines) if lines and _RULE.fullmatch(lines[0]) else _plain(lines)
    return QueryPlan(
        text="\n".join(lines),
        roots=_trees(parts.plan),
        subqueries={name: _trees(body) for name, body in parts.subqueries.items()},
        bucket_scope=None if buckets is None else _SCOPES[buckets.scope],
        bucket_ranges=() if buckets is None else buckets.ranges,
        options=parts.options,
        sections={name: "\n".join(body).strip("\n") for name, body in parts.sections.items()},
    )


@dataclass(slots=True)
class _Parts:
    """The lines of a plan, sorted."""

    plan: list[str] = field(default_factory=list)
    subqueries: dict[str, list[str]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    sections: dict[str, list[str]] = field(default_factory=dict)

    def take_plan(self, lines: Iterable[str]) -> None:
        body = self.plan
        for line in lines:
            named = _SUBQUERY.fullmatch(line)
            if named is not None:
                body = self.subqueries.setdefault(named["name"], [])
            elif line.strip():
                body.append(line)


def _plain(lines: list[str]) -> _Parts:
    """25.6 and 26.1: the tree, then the options, then the buckets in the last line."""
    parts = _Parts()
    last = [line for line in lines[-1:] if line.strip().startswith("buckets ")]
    body = lines[: len(lines) - len(last)]
    at = max((number for number, line in enumerate(body) if line.rstrip() == _OPTIONS), default=len(body))
    for line in body[at + 1 :]:
        option = _OPTION.fullmatch(line)
        if option is not None:
            parts.options[option["name"]] = option["value"]
        else:
            parts.sections.setdefault(_OPTIONS, []).append(line)
    parts.take_plan(body[:at])
    return parts


def _boxed(lines: list[str]) -> _Parts:
    """26.2: each part below a heading between two rules. The last `Buckets` is that of the server."""
    parts, heads = _Parts(), _headings(lines)
    bodies = [
        (name, lines[at + 2 : (heads[number + 1][0] - 1 if number + 1 < len(heads) else len(lines))])
        for number, (at, name) in enumerate(heads)
    ]
    last = max((number for number, (name, _) in enumerate(bodies) if name == "Buckets"), default=-1)
    for number, (name, body) in enumerate(bodies):
        if number == 0 and name == "Logical plan":
            parts.take_plan(body)
        elif number != last:
            parts.sections.setdefault(name, []).extend(body)
    return parts


def _headings(lines: list[str]) -> list[tuple[int, str]]:
    """(place, name) of every heading."""
    found = []
    for at in range(1, len(lines) - 1):
        heading = _HEADING.fullmatch(lines[at])
        if heading is not None and _RULE.fullmatch(lines[at - 1]) and _RULE.fullmatch(lines[at + 1]):
            found.append((at, heading["name"]))
    return found


@dataclass(slots=True)
class _Growing:
    """A step whose children are still coming."""

    indent: int
    kind: str
    text: str
    attributes: dict[str, str]
    children: list[_Growing] = field(default_factory=list)

    def grown(self) -> PlanNode:
        return PlanNode(self.kind, self.text, self.attributes, tuple(child.grown() for child in self.children))


def _trees(lines: Iterable[str]) -> tuple[PlanNode, ...]:
    """The trees that indentation makes. 26.1 writes what an UPDATE sets on lines of their own, below its name."""
    roots: list[_Growing] = []
    above: list[_Growing] = []
    for line in lines:
        step = _step(line)
        while above and above[-1].indent >= step.indent and not _sets(above[-1], step):
            above.pop()
        del above[_DEEPEST:]
        if above and _sets(above[-1], step):
            above[-1].children.append(step)
            continue
        (above[-1].children if above else roots).append(step)
        above.append(step)
    return tuple(root.grown() for root in roots)


def _sets(above: _Growing, step: _Growing) -> bool:
    if above.kind not in _WITH_SETS or above.indent != step.indent or step.kind not in ("unknown", "set"):
        return False
    step.kind = "set"
    return True


def _step(line: str) -> _Growing:
    text = line.lstrip(" ")
    for kind, pattern in _STEPS:
        found = pattern.match(text)
        if found is not None and (found.end() == len(text) or not pattern.pattern.endswith(r"\s*")):
            return _Growing(len(line) - len(text), kind, text, _attributes(found))
    return _Growing(len(line) - len(text), "unknown", text, {})


def _attributes(found: re.Match[str]) -> dict[str, str]:
    named = {name: text for name, text in found.groupdict().items() if text is not None}
    for name in [name for name in named if name.endswith("_quoted")]:
        named[name.removesuffix("_quoted")] = named.pop(name).replace('""', '"')
    return named
