"""Durations as PostgreSQL writes them in its own settings: a number and a unit.

This file only reads such a text. It knows no setting, and no limit of one.

*Source*: PostgreSQL 18 documentation, section 19.1.1 "Parameter Names and Values".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Unit → seconds; as at the server, capitals count.
_UNITS: Final[Mapping[str, float]] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_DURATION: Final = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]*)\s*", re.ASCII)


def read_duration(text: str) -> float | None:
    """Read `5s`, `500ms`, `1.5 min`; a plain 0, `off` and `none` are no limit.

    Returns:
        Seconds; None for no limit.

    Raises:
        ValueError: It is none, or a number without a unit; the message says what to write.
    """
    if text.strip().lower() in ("off", "none"):
        return None
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in ("", *_UNITS):
        raise ValueError(f"{text!r} is no duration: write a number with one of the units {', '.join(_UNITS)}, or off")
    number, unit = match[1], match[2]
    if unit or not float(number):
        return float(number) * _UNITS[unit or "s"] or None
    raise ValueError(
        f"{text!r} has no unit: PostgreSQL would read milliseconds, the keyword of this name means seconds; "
        f"write {number}ms or {number}s"
    )
