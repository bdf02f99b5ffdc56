"""What is known of the leaders of tablets, beside the snapshot: who leads what, and under which names nodes go there.

Leaders of tablets change without any node coming or going, so they are no part of the topology. The one owner of this
table, who asks the servers, replaces its immutable parts; planners read them at every plan, and tell by identity
whether anything changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from picopyn.topology import Node, TopologySnapshot
from picopyn.topology.host_text import canonical
from picopyn.topology.tablet_map import TabletMap


class LeaderTable:
    """Leaders by hash code. Owned by whoever asks for them.

    Args:
        codes: Number of hash codes.

    Attributes:
        tablets: Who leads what; replaced as a whole.
        names: Uuid of a node by the `host:port` under which the cluster knows it, for nodes that are dialled by another
            address; replaced as a whole.
    """

    __slots__ = ("_codes", "counts", "names", "tablets")

    def __init__(self, codes: int) -> None:
        self._codes = codes
        self.tablets = TabletMap()
        self.names: Mapping[str, str] = MappingProxyType({})
        self.counts: Mapping[str, int] = MappingProxyType({})

    def publish(self, tablets: TabletMap, names: Mapping[str, str]) -> None:
        """Take what the servers said."""
        self.counts = MappingProxyType(dict.fromkeys(tablets.spaces, self._codes))
        self.names = names
        self.tablets = tablets

    def nodes(self, snapshot: TopologySnapshot) -> dict[str, Node]:
        """Every node that can be dialled, by the `host:port` under which the cluster may know it."""
        found = {f"{canonical(node.host)}:{node.port}": node for node in snapshot.nodes()}
        for address, uuid in self.names.items():
            node = snapshot.node(uuid)
            if node is not None:
                found[address] = node
        return {address: node for address, node in found.items() if node.reachable}

    def leaders(self, snapshot: TopologySnapshot) -> list[Node]:
        """The nodes that lead a tablet and can be dialled."""
        nodes = self.nodes(snapshot)
        return [nodes[leader] for leader in self.tablets.leaders if leader in nodes]


#: How long leaders are believed while nothing speaks against them (seconds).
BELIEVED = 60.0
#: First and longest pause between looks while a tablet has no leader that can be reached; it doubles in between.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0


def next_look(rounds: int, *, asked: bool = False) -> float:
    """Seconds until leaders are asked for again.

    Args:
        rounds: Looks in a row that left something open; 0 while all is well.
        asked: The least pause between two looks, however much somebody wants one.
    """
    if asked:
        return FIRST_PAUSE
    return BELIEVED if rounds == 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(rounds - 1, 10))
