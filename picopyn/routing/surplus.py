"""Which nodes have idle connections too many, now that use goes elsewhere.

Connections follow the calls by themselves; what they leave behind is idle, and is closed little by little, so that a
node that joined or returned does not cost a storm of closing. It closes nothing.

*Source*: `hasql-eysql.md` B.7 (rebalancing: strays first, then the busiest while it has two more than the least busy).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Holding:
    """The connections to one node.

    Attributes:
        size: How many are alive.
        idle: How many of them nobody uses.
        least: How many are kept in any case.
        home: Use goes there now.
    """

    size: int
    idle: int
    least: int
    home: bool


def surplus(holdings: Mapping[str, Holding], batch: int) -> list[str]:
    """Choose idle connections to close.

    Args:
        holdings: The connections to every node, by uuid.
        batch: Most connections to choose.

    Returns:
        The node of each, so one node may stand there several times.
    """
    left = dict(holdings)
    chosen: list[str] = []
    while len(chosen) < batch:
        node = _stray(left) or _fullest(left)
        if node is None:
            break
        chosen.append(node)
        left[node] = replace(left[node], size=left[node].size - 1, idle=left[node].idle - 1)
    return chosen


def _stray(holdings: Mapping[str, Holding]) -> str | None:
    """A node that is no home and has an idle connection; the one with most of them. None without any home."""
    if not any(holding.home and holding.size for holding in holdings.values()):
        return None
    strays = {uuid: h for uuid, h in holdings.items() if not h.home and _may_give(h)}
    return max(strays, key=lambda uuid: strays[uuid].idle, default=None)


def _fullest(holdings: Mapping[str, Holding]) -> str | None:
    """The home with most connections, if one of them is idle and another home has two less."""
    homes = {uuid: h for uuid, h in holdings.items() if h.home}
    sizes = [holding.size for holding in homes.values()]
    candidates = {uuid: h for uuid, h in homes.items() if _may_give(h) and h.size - min(sizes) >= 2}
    return max(candidates, key=lambda uuid: candidates[uuid].size, default=None)


def _may_give(holding: Holding) -> bool:
    return holding.idle > 0 and holding.size > holding.least
