"""Topology keys: which places of a YugabyteDB a pool prefers, in levels.

Decides what a text of keys says and which places a key means. A part of [`settings`][picopyn.settings]; it knows no
server and no node.

The rules are those of the smart drivers: `cloud.region.zone:level`, separated by commas; the level is 1 to 10, and 1
when it is left out; a zone `*` means every zone of the region; several keys may share a level, and levels may be
missing in between. Places are compared without regard to case.

*Source*: `yugabyte-smart-drivers.md` sections 2.2 (values) and 3.2 (the order of levels).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

ANY_ZONE: Final = "*"
LAST_LEVEL: Final = 10
_LEVEL: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class TopologyKey:
    """One key.

    Attributes:
        cloud: Name of the cloud.
        region: Name of the region.
        zone: Name of the zone, or `*` for all of the region.
        level: 1 … 10; 1 is preferred most.
    """

    cloud: str
    region: str
    zone: str
    level: int = 1

    def matches(self, cloud: str, region: str, zone: str) -> bool:
        """Whether a place is meant, whatever the case of its letters."""
        if (self.cloud.casefold(), self.region.casefold()) != (cloud.casefold(), region.casefold()):
            return False
        return self.zone == ANY_ZONE or self.zone.casefold() == zone.casefold()

    def __str__(self) -> str:
        return f"{self.cloud}.{self.region}.{self.zone}:{self.level}"


def read_topology_keys(value: str | Iterable[str] | None) -> tuple[tuple[TopologyKey, ...], list[str]]:
    """Read keys.

    Args:
        value: A text with commas, or texts of one key each.

    Returns:
        The keys in the order written, and every problem.
    """
    problems: list[str] = []
    texts = value.split(",") if isinstance(value, str) else list(value or ())
    keys = [_key(text.strip(), problems) for text in texts if not (isinstance(value, str) and not text.strip())]
    return tuple(key for key in keys if key is not None), problems


def is_keys(value: Any) -> bool:
    """Whether a value has the form of keys."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(text, str) for text in value))


def _key(text: str, problems: list[str]) -> TopologyKey | None:
    place, colon, level = text.partition(":")
    parts = [part.strip() for part in place.split(".")]
    if len(parts) != 3 or not all(parts):
        problems.append(f"topology_keys: {text!r} is no cloud.region.zone[:level]")
    elif ANY_ZONE in "".join(parts[:2]) or (ANY_ZONE in parts[2] and parts[2] != ANY_ZONE):
        problems.append(f"topology_keys: {text!r} has a '*' that does not stand for the whole zone")
    elif colon and not (_LEVEL.fullmatch(level) and 1 <= int(level) <= LAST_LEVEL):
        problems.append(f"topology_keys: the level of {text!r} is no number from 1 to {LAST_LEVEL}")
    else:
        return TopologyKey(parts[0], parts[1], parts[2], int(level) if colon else 1)
    return None
