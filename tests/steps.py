"""How much Python a piece of work takes, without a clock: counted, so that a busy machine does not matter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def python_steps(work: Callable[[], object]) -> int:
    """How many calls of Python functions, and resumptions of generators, a piece of work makes."""
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps
        steps += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return steps
