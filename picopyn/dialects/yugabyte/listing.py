"""From a list of servers to the nodes of a topology, and to the seeds among them.

A seed is a host of the connection string. Where the list has it, under whichever of its names and addresses, it is that
server; else it is a node of its own, of which nothing is known but its address. Names were looked up by who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from picopyn.dialects.yugabyte.addresses import AddressChoice, choose
from picopyn.dialects.yugabyte.servers import Server, is_port
from picopyn.routing.host_roles import Host
from picopyn.topology import EventInstance
from picopyn.topology.host_text import canonical

#: Turns a (host, port) of the list into the one to dial.
AddressMap = Callable[[str, int], tuple[str, int]]
_Remarks = list[str]  # a name that the method `list` does not hide


@dataclass(frozen=True, slots=True)
class Listing:
    """The nodes.

    Attributes:
        servers: Those of the list.
        extra: Seeds that it does not have.
        seeds: Uuids of all seeds, in the order of the connection string.
        remarks: A sentence for each server whose address could not be mapped; the one of the list is dialled.
    """

    servers: tuple[EventInstance, ...]
    extra: tuple[EventInstance, ...]
    seeds: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class AddressBook:
    """Addresses of names, and which address of a server is dialled. Owned by who looks names up.

    Args:
        address_map: Has the last word about what is dialled; None: nobody has.

    Attributes:
        addresses: Name → its address, as last looked up; None: it has none.
        choice: Which addresses are dialled.
    """

    __slots__ = ("_map", "addresses", "choice")

    def __init__(self, address_map: AddressMap | None = None) -> None:
        self._map = address_map
        self.addresses: Mapping[str, str | None] = {}
        self.choice = AddressChoice()

    def list(self, servers: Sequence[Server], hosts: Sequence[Host], answered_at: str | None) -> Listing:
        """The nodes of a list.

        Args:
            servers: The list.
            hosts: The hosts of the connection string, in the order written.
            answered_at: The address that the list came from; None: not known.
        """
        if not self.choice.settled:
            self.choice = choose(answered_at, servers, self.addresses)
        known: dict[tuple[str, int], str] = {}
        events: dict[str, EventInstance] = {}
        remarks = _Remarks()
        for server in servers:
            event = events[server.uuid] = self._event(server, remarks)
            for host, port in ((event.host, event.port), (server.host, server.port), (server.public_ip, server.port)):
                known.update(dict.fromkeys(self._places(host, port), server.uuid))
        found = {host: self._find(host, known) for host in hosts}
        extra = tuple(seed(host) for host, uuid in found.items() if uuid is None)
        seeds = tuple(dict.fromkeys(uuid or host.uuid for host, uuid in found.items()))
        return Listing(tuple(events.values()), extra, seeds, tuple(remarks))

    def _event(self, server: Server, remarks: _Remarks) -> EventInstance:
        host, port = self._mapped(self.choice.host(server), server.port, remarks)
        return EventInstance(
            uuid=server.uuid,
            name=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            tier=server.node_type,
            host=host,
            port=port,
            online=True,
            current_state=server.node_type,
            failure_domain={"cloud": server.cloud, "region": server.region, "zone": server.zone},
        )

    def _mapped(self, host: str, port: int, remarks: _Remarks) -> tuple[str, int]:
        """What is dialled in place of an address; a mistake in the function costs no other server its own."""
        if self._map is None:
            return host, port
        try:
            mapped_host, mapped_port = self._map(host, port)
            if isinstance(mapped_host, str) and mapped_host and is_port(mapped_port):
                return mapped_host, mapped_port
            why = "gave no host and port"
        except Exception as error:
            why = f"raised {type(error).__name__}"
        remarks.append(f"address_map {why} for {host}:{port}, which is dialled as it is")
        return host, port

    def _find(self, host: Host, known: Mapping[tuple[str, int], str]) -> str | None:
        return next((known[place] for place in self._places(host.host, host.port) if place in known), None)

    def _places(self, host: str, port: int) -> Iterable[tuple[str, int]]:
        """Under what a host may be known: its name, and its address."""
        return [(canonical(each), port) for each in (host, self.addresses.get(host)) if each]


def seed(host: Host) -> EventInstance:
    """A host of the connection string as a node."""
    return EventInstance(
        uuid=host.uuid, name=host.name, host=host.host, port=host.port, online=True, current_state="seed"
    )
