"""What is known of a cluster whose servers list each other, beyond the nodes of a snapshot: seeds and what is wanted.

Its one owner, a topology source, feeds it before it emits the nodes; planners read it when they are made.
"""

from __future__ import annotations

from picopyn.routing.placement import Placement


class ServerTable:
    """The seeds and the wishes. Owned by a topology source.

    Args:
        placement: Where calls are wanted.

    Attributes:
        placement: Where calls are wanted.
        seeds: Uuids of the nodes behind the hosts of the connection string, in the order written.
        discovered: Servers have been listed at least once.
        unlisted: Why there is no list, where the servers have said so; empty else.
    """

    __slots__ = ("discovered", "placement", "seeds", "unlisted")

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.seeds: tuple[str, ...] = ()
        self.discovered = False
        self.unlisted = ""

    @property
    def unknown(self) -> str:
        """Why nobody can tell which nodes may be used, where the wishes forbid some; empty when somebody can."""
        return self.unlisted if self.placement.forbids and not self.discovered else ""
