"""A topology source of one's own on plain PostgreSQL: servers and proxies that come and go when a test says so."""

from __future__ import annotations

from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.topology import EventBatch, EventInstance


class Nodes(TopologySource):
    """Tells of nodes of this machine by their ports; each is named by its port.

    Attributes:
        ports: Those that exist; what changes here is told at the next refresh.
        refreshes: How often it was asked.
    """

    def __init__(self, *ports: int | None) -> None:
        super().__init__()
        self.ports = [port for port in ports if port is not None]
        self.refreshes = 0

    async def refresh(self) -> None:
        self.refreshes += 1
        nodes = [
            EventInstance(uuid=str(port), name=str(port), host="127.0.0.1", port=port, online=True)
            for port in self.ports
        ]
        self.emit(EventBatch(tuple(nodes), 1, self.refreshes, reset=True))

    async def close(self) -> None:
        return

    def terminate(self) -> None:
        return
