"""A topology without discovery: the hosts of the connection string are the nodes.

This file decides what is known of such a node, which is nothing but its address: no role, no tier, no replicaset, and
an identity that is computed from the address, so that it is the same in every process and after every start.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import NAMESPACE_URL, uuid5

from picopyn.asynchronous.topology_source import TopologySource
from picopyn.dsn import Endpoint
from picopyn.topology import Event, EventBatch, EventInstance


class StaticTopologySource(TopologySource):
    """Says the same at every refresh, without asking anybody.

    Args:
        endpoints: The hosts with their ports; one that is given twice is one node.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._events: tuple[Event, ...] = tuple(_node(endpoint) for endpoint in dict.fromkeys(endpoints))
        self._sequence = 0
        self._closed = False

    async def refresh(self) -> None:
        """Emit the nodes."""
        if not self._closed:
            self._sequence += 1
            self.emit(EventBatch(self._events, 1, self._sequence, reset=self._sequence == 1))

    async def close(self) -> None:
        """Emit nothing any more."""
        self._closed = True

    def terminate(self) -> None:
        """The same."""
        self._closed = True


def _node(endpoint: Endpoint) -> EventInstance:
    return EventInstance(
        uuid=str(uuid5(NAMESPACE_URL, f"postgresql://{endpoint.address}")),
        name=endpoint.address,
        host=endpoint.host,
        port=endpoint.port or 0,
        online=True,
    )
