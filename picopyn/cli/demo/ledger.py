"""The demo's own books: what the server acknowledged, compared in the end with what it stores. Pure.

A row that was never touched by a call with an unknown outcome has exactly one allowed state. A call whose outcome is
unknown adds one: the row may be as before, or as the call would have left it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Table, and the values of the row's key.
Key = tuple[str, tuple[Any, ...]]
#: The row's `state` column; None: there is no such row.
State = str | None


@dataclass(frozen=True, slots=True)
class Audit:
    """Books and storage, compared.

    Attributes:
        there: Rows that must be there, and are, once, as acknowledged.
        lost: Rows that must be there and are not.
        twice: Rows that are there more than once.
        differing: Rows that hold something that was never written, or was overwritten.
        back: Rows that were deleted and are there, and rows nobody wrote.
        unknown: Rows whose last call had an unknown outcome.
        happened: How many of these calls took effect.
    """

    there: int
    lost: tuple[Key, ...]
    twice: tuple[Key, ...]
    differing: tuple[Key, ...]
    back: tuple[Key, ...]
    unknown: int
    happened: int

    @property
    def sound(self) -> bool:
        """Nothing acknowledged is lost, doubled or changed, and nothing is there that must not be."""
        return not (self.lost or self.twice or self.differing or self.back)


class Ledger:
    """The books. Owner: the demo; callers write into it from one event loop."""

    def __init__(self) -> None:
        self._allowed: dict[Key, frozenset[State]] = {}
        self._unknown: dict[Key, State] = {}

    def acknowledged(self, key: Key, state: State) -> None:
        """The server said that the row is like this now."""
        self._allowed[key] = frozenset({state})

    def unknown(self, key: Key, state: State) -> None:
        """Nobody knows whether the row is like this now, or as before."""
        self._allowed[key] = self._allowed.get(key, frozenset({None})) | {state}
        self._unknown[key] = state

    def allowed(self, key: Key) -> frozenset[State]:
        """The states a row may be in."""
        return self._allowed.get(key, frozenset({None}))

    def audit(self, stored: Iterable[tuple[Key, str]]) -> Audit:
        """Compare with everything that is stored.

        Args:
            stored: Key and state of every row of every table.
        """
        found: defaultdict[Key, list[State]] = defaultdict(list)
        for key, state in stored:
            found[key].append(state)
        wrong = {key: states for key, states in found.items() if not set(states) <= self.allowed(key)}
        return Audit(
            there=sum(
                len(found[key]) == 1 and key not in wrong
                for key, allowed in self._allowed.items()
                if None not in allowed and key in found
            ),
            lost=tuple(k for k, allowed in self._allowed.items() if None not in allowed and k not in found),
            twice=tuple(key for key, states in found.items() if len(states) > 1),
            differing=tuple(key for key in wrong if self.allowed(key) != {None}),
            back=tuple(key for key in wrong if self.allowed(key) == {None}),
            unknown=len(self._unknown),
            happened=sum((found.get(key) or [None])[-1] == state for key, state in self._unknown.items()),
        )
