"""Reads from an EXPLAIN which buckets a statement concerns, in the layouts of Picodata 25.6, 26.1 and 26.2.

Plan lines show bound values and literals, line breaks included, so a line that looks like the answer may be
the user's own text. The real one is the last line of the older layout, and in the newer one the first line
below the last heading that says "Buckets". This file knows the layouts; it does not know what the buckets
mean.

*Source*: `picodata-conversations.json` and `picodata-plans.json` (25.6.0, 26.1.6, 26.2.1-rc2); Picodata,
`docs/docs/reference/sql/explain.md`, `test/int/sql/explain_buckets.sql`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from picopyn.dialects.base import BucketAnswer, BucketScope

_LINE = re.compile(r"buckets (?P<sign>=|<=) (?:(?P<word>any|unknown)|\[(?P<list>[\d\s,-]*)\])")
_ITEM = re.compile(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*")
_RULE = re.compile(r"[─━-]{3,}")
_HEADING = re.compile(r"#\s+Buckets")
_WORDS = {"any": BucketScope.ANY, "unknown": BucketScope.UNKNOWN}


def read_buckets(rows: Sequence[Sequence[Any]]) -> BucketAnswer | None:
    """The buckets an EXPLAIN named.

    Args:
        rows: The rows of the answer, one column of text each.

    Returns:
        What the server said, or None when there is no such line or it cannot be read.
    """
    lines = [line.strip() for row in rows if row and isinstance(row[0], str) for line in row[0].split("\n")]
    answer = _answer_line([line for line in lines if line])
    return _parse(answer) if answer is not None else None


def _answer_line(lines: list[str]) -> str | None:
    """The line that holds the answer, of lines that are not empty."""
    if lines and _RULE.fullmatch(lines[0]):
        for at in range(len(lines) - 3, 0, -1):
            if _is_heading(lines, at):
                return lines[at + 2]
        return None
    return lines[-1] if lines else None


def _is_heading(lines: list[str], at: int) -> bool:
    boxed = _RULE.fullmatch(lines[at - 1]) and _RULE.fullmatch(lines[at + 1])
    return bool(boxed) and _HEADING.fullmatch(lines[at]) is not None


def _parse(line: str) -> BucketAnswer | None:
    said = _LINE.fullmatch(line)
    if said is None:
        return None
    if said["word"]:
        return BucketAnswer(_WORDS[said["word"]])
    ranges = _ranges(said["list"])
    if ranges is None:
        return None
    return BucketAnswer(BucketScope.EXACT if said["sign"] == "=" else BucketScope.AT_MOST, ranges)


def _ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """`1,5-7` → ((1, 1), (5, 7)); None unless they are buckets, ascending and apart."""
    if not text.strip():
        return ()
    ranges: list[tuple[int, int]] = []
    for item in text.split(","):
        read = _ITEM.fullmatch(item)
        if read is None:
            return None
        first = int(read[1])
        last = int(read[2] or first)
        if not (ranges[-1][1] if ranges else 0) < first <= last:
            return None
        ranges.append((first, last))
    return tuple(ranges)
