"""Numbers over time as one line of text, with marks above it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"


def spark(values: Iterable[float], top: float) -> str:
    """One character for each value; nothing at all is a dot.

    Args:
        values: Not negative.
        top: The value that fills the line; larger ones look like it.
    """
    return "".join(_bar(value, top) for value in values)


def _bar(value: float, top: float) -> str:
    if value <= 0 or top <= 0:
        return _NOTHING
    return _BLOCKS[min(int(value / top * len(_BLOCKS)), len(_BLOCKS) - 1)]


def marks(named: Sequence[tuple[int, str]]) -> str:
    """A line with `▼ name` above each named column, given in order; one that would cover another moves right."""
    line = ""
    for column, name in named:
        line = f"{line:<{column}}" if len(line) <= column else f"{line} "
        line += f"▼ {name}"
    return line
