"""Which node pools should exist: the difference between those that do and what a snapshot says.

It opens and closes nothing, and knows no health: an unreachable node that the cluster lists stays a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from picopyn.topology import Node


@dataclass(frozen=True, slots=True)
class Membership:
    """What to do so that the node pools fit a snapshot.

    Attributes:
        join: Nodes that need a pool.
        leave: Uuids of nodes whose pools are to be drained and closed.
        move: Nodes known under another address now; their pool is replaced.
    """

    join: tuple[Node, ...] = ()
    leave: tuple[str, ...] = ()
    move: tuple[Node, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.join or self.leave or self.move)


def reconcile(pooled: Mapping[str, tuple[str, int]], nodes: Iterable[Node]) -> Membership:
    """Compare the pools that exist with the nodes of a snapshot.

    Args:
        pooled: Address (host, port) under which each pooled node is known, by node uuid.
        nodes: The nodes of the snapshot that can be connected to.

    Returns:
        What to do.
    """
    wanted = {node.uuid: node for node in nodes}
    return Membership(
        join=tuple(node for uuid, node in wanted.items() if uuid not in pooled),
        leave=tuple(uuid for uuid in pooled if uuid not in wanted),
        move=tuple(
            node for uuid, node in wanted.items() if pooled.get(uuid, (node.host, node.port)) != (node.host, node.port)
        ),
    )
