"""A server's plan for one statement, as a value: a tree of steps, the buckets, the options.

It decides nothing and knows no layout: dialects make it from what the server says. What a dialect does not know is kept
as the server wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

#: How much a server says about the buckets of a statement.
PlanScope = Literal["exact", "at_most", "any", "unknown"]


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One step of a plan.

    Attributes:
        kind: What it does, in one or two words (`"projection"`, `"selection"`, `"scan"`, `"motion"`, `"insert"` …);
            `"unknown"` for a line that is not understood.
        text: The line as the server wrote it, without its indentation.
        attributes: What is read out of the line: `table` and `alias` of a scan, `policy` and `program` of a motion,
            `table` and `on_conflict` of an insert …
        children: The steps below it, in order.
    """

    kind: str
    text: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    children: tuple[PlanNode, ...] = ()

    def walk(self) -> Iterator[PlanNode]:
        """This step and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def _lines(self, depth: int) -> Iterator[str]:
        yield "  " * depth + self.text
        for child in self.children:
            yield from child._lines(depth + 1)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A server's plan for one statement with its arguments bound. It may show their values: keep it out of logs.

    Attributes:
        text: All that the server said, line by line.
        roots: The trees of steps; one, where the plan is understood.
        subqueries: Name (`"$0"`) → the steps of a query inside the statement.
        bucket_scope: Whether `bucket_ranges` are exactly the buckets concerned (`"exact"`) or an upper bound
            (`"at_most"`); `"any"`: no sharded table takes part; `"unknown"`: known only while running; None: the server
            did not say, or it could not be read.
        bucket_ranges: Inclusive (first, last) pairs, ascending.
        options: Options that hold for the execution, by name.
        sections: Heading → text, of parts of the plan that are none of the above.
    """

    text: str
    roots: tuple[PlanNode, ...] = ()
    subqueries: Mapping[str, tuple[PlanNode, ...]] = field(default_factory=dict)
    bucket_scope: PlanScope | None = None
    bucket_ranges: tuple[tuple[int, int], ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)

    def walk(self) -> Iterator[PlanNode]:
        """All steps, those of the subqueries last."""
        for root in self.roots:
            yield from root.walk()
        for roots in self.subqueries.values():
            for root in roots:
                yield from root.walk()

    def find(self, kind: str) -> tuple[PlanNode, ...]:
        """All steps of a kind."""
        return tuple(node for node in self.walk() if node.kind == kind)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that are read or changed, each once."""
        return tuple(dict.fromkeys(node.attributes["table"] for node in self.walk() if "table" in node.attributes))

    @property
    def bucket_count(self) -> int:
        """Number of buckets named."""
        return sum(last - first + 1 for first, last in self.bucket_ranges)

    def __str__(self) -> str:
        return self.text
