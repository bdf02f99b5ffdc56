"""By which of its two addresses a server is dialled.

The cluster is known by private addresses; a client may be outside. The address that answered tells: the first server in
whose row it stands decides for all, once and for ever. Behind a load balancer it stands in no row, and it can only be
guessed. It looks up no name; who calls has done so.

*Source*: `yugabyte-smart-drivers.md` section 3.4 (the rule of the JDBC driver, equal addresses included);
`hasql-eysql.md` B.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from picopyn.dialects.yugabyte.servers import Server
from picopyn.topology.host_text import canonical


@dataclass(frozen=True, slots=True)
class AddressChoice:
    """Which addresses are dialled.

    Attributes:
        public: The public ones, of servers that have one.
        settled: It will not change any more.
    """

    public: bool = False
    settled: bool = False

    def host(self, server: Server) -> str:
        """The host to dial."""
        return (server.public_ip or server.host) if self.public else (server.host or server.public_ip)


def choose(answered_at: str | None, servers: Sequence[Server], addresses: Mapping[str, str | None]) -> AddressChoice:
    """Choose between private and public addresses.

    Args:
        answered_at: The address that the list of servers came from; None when it is not known.
        servers: The list.
        addresses: Name → its address, for every name in the list; None for one that cannot be looked up.
    """

    def place(host: str) -> str | None:
        found = addresses.get(host, host) if host else None
        return found and canonical(found)

    answered_at = answered_at and canonical(answered_at)
    for server in servers:
        private, public = place(server.host), place(server.public_ip)
        if answered_at is not None and private == answered_at:
            return AddressChoice(public=False, settled=True)
        if answered_at is not None and public == answered_at:
            return AddressChoice(public=True, settled=True)
        if private is not None and private == public:
            return AddressChoice(public=False, settled=True)
    return AddressChoice(public=bool(servers) and all(place(server.public_ip) for server in servers))


def names(servers: Iterable[Server]) -> set[str]:
    """Every host that the rows name."""
    return {host for server in servers for host in (server.host, server.public_ip) if host}
