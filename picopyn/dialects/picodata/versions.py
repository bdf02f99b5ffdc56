"""Reads version numbers, and knows since when a server can what the driver uses.

*Source*: picodata CHANGELOG (25.5.1, 26.1.0); `picodata-recorded.md` section 3.
"""

from __future__ import annotations

#: The first version with the function `_pico_bucket()`.
BUCKET_FUNCTION = (25, 5, 1)
#: The first version that executes locally, and so shows by an error who leads.
LOCAL_EXECUTION = (26, 1)


def read_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version such as `25.5.1-12-gabc`; empty when there are none."""
    numbers: list[int] = []
    for part in text.split("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def may_be_at_least(text: str, first: tuple[int, ...]) -> bool:
    """Whether a server has a version, or may have it because its own is not known."""
    version = read_version(text)
    return not version or version >= first
