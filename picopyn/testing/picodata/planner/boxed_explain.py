"""The lines of EXPLAIN as 26.2 prints them: parts with boxed headings, a tree indented by two blanks, bare names.

The common forms are as recorded; the tree of rarer forms is only alike. *Source*: recorded EXPLAINs on 26.2.1-rc2;
`picodata-protocol.md` section 11 (facets).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.explain import Tree
from picopyn.testing.picodata.planner.statement import Value

_WIDTH = 70
_BARE = re.compile(r"[a-z_][a-z0-9_]*")
_LEADING = re.compile(r" +")


def boxed_lines(plan: b.Plan, values: Sequence[Value], buckets: str, facets: Collection[str]) -> list[str]:
    """All lines.

    Args:
        plan: What is explained.
        values: Its parameters.
        buckets: The line that names its buckets.
        facets: What is wanted: `"logical"`, `"buckets"`. One alone has no headings.
    """
    parts: list[tuple[str, list[str]]] = []
    if "logical" in facets:
        parts.append(("Logical plan", [_halved(line) for line in _BoxedTree(values).plan(plan)]))
    if "buckets" in facets:
        parts.append(("Buckets", [buckets]))
    if len(parts) == 1:
        return parts[0][1]
    lines: list[str] = []
    for heading, body in parts:
        rule = "\u2500" * _WIDTH
        lines += [*([""] if lines else []), rule, f" # {heading}".ljust(_WIDTH), rule, "", *body]
    return lines


def _halved(line: str) -> str:
    indent = _LEADING.match(line)
    return line if indent is None else line[indent.end() // 2 :]


class _BoxedTree(Tree):
    """The tree in the words of 26.2."""

    def _name(self, name: str) -> str:
        return name if _BARE.fullmatch(name) else super()._name(name)

    def _values_row(self, row: Sequence[b.Expr]) -> str:
        return f"value {self._row(row)}"

    def _insert_head(self, insert: b.Insert) -> str:
        return f"insert into {self._name(insert.table.name)} on conflict: {insert.on_conflict}"

    def _update_head(self, update: b.Update) -> list[str]:
        sets = ", ".join(f"{self._name(name)} = col_{at}" for at, (name, _) in enumerate(update.assignments))
        return [f"update {self._name(update.target.table.name)} ({sets})"]

    def _delete_head(self, table: str) -> str:
        return f"delete from {self._name(table)}"

    def _filter(self, expression: b.Expr) -> str:
        return f"({super()._filter(expression)})"

    def _binary(self, expression: b.Binary) -> str:
        text = super()._binary(expression)
        return f"({text})" if expression.operator in ("and", "or") else text

    def _side(self, expression: b.Expr) -> str:
        return self._text(expression)
