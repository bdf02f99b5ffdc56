"""What the demo promises, and what its exit code says about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Least share of keyed statements that go straight to their owner once the driver has warmed up.
DIRECT_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Promise:
    """One sentence that must be true.

    Attributes:
        text: The sentence.
        kept: Whether it was.
        evidence: What was counted or measured.
    """

    text: str
    kept: bool
    evidence: str


def exit_code(promises: Iterable[Promise]) -> int:
    """0 when every promise was kept, else 1; no promise at all is a broken one."""
    kept = [promise.kept for promise in promises]
    return 0 if kept and all(kept) else 1


def share(part: int, rest: int) -> float:
    """`part` of `part + rest`, 1.0 when both are 0."""
    return part / (part + rest) if part + rest else 1.0


def percent(value: float) -> str:
    """A share as text that never rounds up to 100 %."""
    return "100 %" if value >= 1 else f"{min(value * 100, 99.99):.2f} %"
