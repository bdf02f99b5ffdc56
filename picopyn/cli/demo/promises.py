"""What the demo promises, and what its exit code says about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from picopyn.cli.demo.tally import Tally

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
    """A share as text; what is not all is never rounded up to all."""
    value = min(value, 0.9999) if value < 1 else 1.0
    return f"{value * 100:.2f}".rstrip("0").rstrip(".") + " %"


def no_failure(text: str, *tallies: Tally, unknown_too: bool = False) -> Promise:
    """The promise that no call failed.

    Args:
        text: The promise.
        *tallies: Whose calls.
        unknown_too: Unknown outcomes do not break it: something was killed while these calls ran.
    """
    failures = [failure for tally in tallies for failure in tally.failures]
    good = sum(tally.good for tally in tallies)
    unknown = sum(tally.unknown for tally in tallies)
    evidence = f"{len(failures)} of {good + len(failures) + unknown} failed"
    if unknown:
        evidence += f", {unknown} with unknown outcome"
    if failures:
        evidence += f": {failures[0]}"
    return Promise(text, good > 0 and not failures and (unknown_too or not unknown), evidence)
