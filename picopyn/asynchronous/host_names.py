"""Which hosts there are: those of the connection string, with one host for every address of a name that has several.

A name with one address stays a name: whoever dials it looks it up anew. A name with several stands for as many servers
(a headless service, a round-robin record), each of which has its own role. An IPv4 and an IPv6 address of one name are
taken for the same server. The name is kept for what goes by names: certificates, password files.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence

from picopyn.dsn import Endpoint
from picopyn.routing.host_roles import Host

#: Gives the addresses of a name; raises `OSError` where there are none.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
#: An address has to be missing so many times in a row before its host is given up.
MISSED = 2


class HostNames:
    """The hosts behind the endpoints of a connection string. Owned by a topology source.

    Args:
        endpoints: The endpoints, with their ports.
        names: Receives the name under which an address was found.
        resolve: Looks a name up; None: as the system does.

    Attributes:
        hosts: The hosts as last looked up; before the first look-up every endpoint is one.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        names: MutableMapping[tuple[str, int], str],
        resolve: Resolve | None = None,
    ) -> None:
        self._endpoints = tuple(dict.fromkeys(endpoints))
        self._names = names
        self._resolve = resolve or _look_up
        self._found: dict[Endpoint, tuple[str, ...]] = {}
        self._missed: dict[tuple[Endpoint, str], int] = {}
        self.hosts: tuple[Host, ...] = self._all()

    @property
    def change(self) -> bool:
        """Whether there is a name among the endpoints, so that looking it up may tell something new."""
        return any(_is_name(endpoint.host) for endpoint in self._endpoints)

    async def look_up(self) -> bool:
        """Look all names up; one that cannot be looked up keeps its addresses.

        Returns:
            Whether the hosts are others now.
        """
        for endpoint in self._endpoints:
            if _is_name(endpoint.host):
                await self._look_up(endpoint)
        before, self.hosts = self.hosts, self._all()
        return self.hosts != before

    async def _look_up(self, endpoint: Endpoint) -> None:
        try:
            found = _one_family(await self._resolve(endpoint.host, endpoint.port or 0))
        except OSError:
            return
        known = self._found.get(endpoint, ())
        kept = [address for address in known if address in found or not self._is_gone(endpoint, address)]
        for address in found:
            self._missed.pop((endpoint, address), None)
        self._found[endpoint] = (*kept, *(address for address in sorted(found) if address not in kept))

    def _is_gone(self, endpoint: Endpoint, address: str) -> bool:
        missed = self._missed[endpoint, address] = self._missed.get((endpoint, address), 0) + 1
        return missed >= MISSED

    def _all(self) -> tuple[Host, ...]:
        hosts: dict[str, Host] = {}
        for endpoint in self._endpoints:
            addresses = self._found.get(endpoint, ())
            places = [endpoint]
            if len(addresses) > 1:
                places = [Endpoint(address, endpoint.port) for address in addresses]
                self._names.update({(address, endpoint.port or 0): endpoint.host for address in addresses})
            for place in places:
                hosts.setdefault(place.address, Host.at(place.host, place.port or 0, place.address))
        return tuple(hosts.values())


async def addresses_behind(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, those of one family; none for what is no name, or cannot be looked up."""
    if not _is_name(host):
        return ()
    try:
        return _one_family(await _look_up(host, port))
    except OSError:  # who dials it is told
        return ()


def _is_name(host: str) -> bool:
    if host.startswith("/"):
        return False
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    return False


def _one_family(addresses: Iterable[str]) -> list[str]:
    """The addresses of the family that has more of them; of IPv4 if both have as many."""
    unique = list(dict.fromkeys(addresses))
    new = [address for address in unique if ":" in address]
    old = [address for address in unique if ":" not in address]
    return new if len(new) > len(old) else old


async def _look_up(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
