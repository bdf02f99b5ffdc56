"""Whose answers the embedded cluster gives: one version of Picodata, as a value.

Decides nothing: the places where versions differ ask here, and name there what was recorded. Must not know texts,
plans or sockets.

*Source*: `picodata-recorded.md` sections 1, 5 and 7; `answer_25_6`, `answer_26_2` in the recorded conversations;
`on_25_6`, `on_26_2` in the recorded plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accent:
    """One version.

    Attributes:
        number: Major and minor number.
        version_text: What the system tables show.
    """

    number: tuple[int, int]
    version_text: str

    @property
    def before_26_1(self) -> bool:
        """Whether it is older than the main reference: nothing executes locally, EXPLAIN knows less."""
        return self.number < (26, 1)

    @property
    def since_26_2(self) -> bool:
        """Whether it is newer than the main reference: `forward`, typed arrays, boxed plans."""
        return self.number >= (26, 2)


#: By the word a user writes.
ACCENTS: Mapping[str, Accent] = {
    "25.6": Accent((25, 6), "25.6.0-0-gembedded"),
    "26.1": Accent((26, 1), "26.1.6-0-gembedded"),
    "26.2": Accent((26, 2), "26.2.1-0-gembedded"),
}

#: The main reference.
DEFAULT = ACCENTS["26.1"]
