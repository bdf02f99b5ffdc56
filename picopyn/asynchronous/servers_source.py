"""The servers of a YugabyteDB, as they list each other: asked in the background, over one connection of its own.

Decides what a refresh reads and what each failure means. Which address of a server is dialled is decided in
`dialects.yugabyte.addresses`, which servers are wanted in `routing.placement`.

- The list is asked for at each refresh; the server asks the leader of its masters, which may take long, so the question
  has a deadline. A node that was killed stays in the list for about a minute: who does not answer is not known here.
- An empty list changes nothing. A list of another cluster is refused: two clusters never mix.
- A server without the function is no YugabyteDB: it is said once, and the hosts of the connection string are the nodes
  from then on.
- Until a list was read, the hosts of the connection string are the nodes. Where some nodes must not be used, none is
  until then: see `routing.placement`.
- Without balancing nothing is ever asked, and no connection is opened.

*Source*: `yugabyte-smart-drivers.md` sections 1 and 3; `hasql-eysql.md` B.4.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from picopyn.asynchronous.host_names import HostNames
from picopyn.asynchronous.service_connection import ServiceConnection, is_access_denied
from picopyn.asynchronous.topology_source import QUERY_TIMEOUT, ConnectedSource
from picopyn.dialects.yugabyte.addresses import names
from picopyn.dialects.yugabyte.listing import AddressBook, AddressMap, seed
from picopyn.dialects.yugabyte.servers import NO_SUCH_FUNCTION, SERVERS, Server, read_servers
from picopyn.errors import NoNodeAvailable
from picopyn.placement_settings import BalanceMode
from picopyn.routing.host_roles import Host
from picopyn.routing.server_table import ServerTable
from picopyn.topology import EventInstance, Node
from picopyn.topology.host_text import canonical

_LOG = logging.getLogger(__name__)

#: Opens the connection, or returns None when no node can be reached.
Connect = Callable[[], Awaitable[Any]]
#: Gives the address of a name, or None.
Resolve = Callable[[str], Awaitable[str | None]]


class ServersSource(ConnectedSource):
    """Reads `yb_servers()` and emits one batch per refresh.

    Args:
        connect: Opens the connection, or returns None when no node can be reached.
        names: The hosts of the connection string.
        table: Where the seeds are told to planners; the source owns it.
        address_map: Turns a (host, port) of the list into the one to dial.
        resolve: Looks up a name; None: as the system does.
        query_timeout: Seconds the server has for its answer.
    """

    def __init__(
        self,
        connect: Connect,
        names: HostNames,
        table: ServerTable,
        *,
        address_map: AddressMap | None = None,
        resolve: Resolve | None = None,
        query_timeout: float = QUERY_TIMEOUT,
    ) -> None:
        super().__init__(connect)
        self.table = table
        self._names = names
        self._book = AddressBook(address_map)
        self._resolve = resolve or look_up
        self._query_timeout = query_timeout
        self._asks = table.placement.mode is not BalanceMode.OFF
        self._universe = ""
        self._warned: set[str] = set()
        self._foreign: set[tuple[str, int]] = set()

    @property
    def _hosts(self) -> list[Host]:
        """The hosts of the connection string, but for those that lead to another cluster."""
        return [host for host in self._names.hosts if (canonical(host.host), host.port) not in self._foreign]

    async def refresh(self) -> None:
        """Read the list and emit it.

        Raises:
            NoNodeAvailable: No node could be reached, or another cluster answered; nothing new is known.
            Exception: The list could not be read.
        """
        await self._look_up_seeds()
        if not self._asks:
            self._emit_hosts()
            return
        try:
            await self._ask()
        except BaseException:
            if not self.table.discovered and self._before is None:
                self._emit_hosts()
            raise

    async def _look_up_seeds(self) -> None:
        if self._names.change:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._query_timeout):
                    await self._names.look_up()

    async def _ask(self) -> None:
        connection = await self._current_connection()
        try:
            async with asyncio.timeout(self._query_timeout):
                rows = await connection.fetch(SERVERS)
                servers = read_servers([dict(row) for row in rows])
                self._check_universe(servers, connection)
                hosts = [*names(servers), *(host.host for host in self._hosts)]
                self._book.addresses = await look_up_all(hosts, self._resolve)
        except asyncpg.PostgresError as error:
            if not self._is_answer(error, connection):
                self._give_up()
                raise
            self._emit_hosts()
        except BaseException:
            self._give_up()
            raise
        else:
            if servers:
                self._take(servers, peer_of(connection))

    def _is_answer(self, error: asyncpg.PostgresError, connection: ServiceConnection) -> bool:
        """Whether a refusal means that there is no list for us; that is told once."""
        if connection.is_closed():
            return False
        if getattr(error, "sqlstate", None) == NO_SUCH_FUNCTION:
            self._asks = False
            self._unlisted("no yb_servers() here", logging.INFO)
            self._give_up()
            return True
        if is_access_denied(error):
            self._unlisted("we may not ask for yb_servers()", logging.WARNING)
            return not self.table.discovered
        return False

    def _unlisted(self, why: str, level: int) -> None:
        self.table.unlisted = why
        used = "no node may be used" if self.table.unknown else "the hosts are used in their order"
        self._warn(why, level, f"{why}: {used}")

    def _check_universe(self, servers: Sequence[Server], connection: Any) -> None:
        """Refuse the list of another cluster, and never use the host that it came from."""
        universes = {server.universe for server in servers if server.universe}
        if self._universe and universes and self._universe not in universes:
            other = ", ".join(sorted(universes))
            host, port = getattr(connection, "endpoint", ("", 0))
            self._foreign.add((canonical(host), port))
            self._warn(other, logging.WARNING, f"a node of another cluster ({other}) answered, and is not used")
            raise NoNodeAvailable(f"the answer came from another cluster ({other}) than {self._universe}")
        self._universe = self._universe or next(iter(sorted(universes)), "")

    def _take(self, servers: Sequence[Server], answered_at: str | None) -> None:
        was_public = self._book.choice.public
        listing = self._book.list(servers, self._hosts, answered_at)
        if self._book.choice.public and not was_public:
            _LOG.info("servers are reached by their public addresses")
        self.table.seeds = listing.seeds
        self.table.discovered, self.table.unlisted = True, ""
        self._warn_of_keys(listing.servers)
        for remark in listing.remarks:
            self._warn(remark, logging.WARNING, remark)
        self._emit_poll((*listing.servers, *listing.extra))

    def _emit_hosts(self) -> None:
        hosts = self._hosts
        self.table.seeds = tuple(host.uuid for host in hosts)
        self._epoch = self._epoch or 1
        self._emit_poll(tuple(map(seed, hosts)))

    def _warn_of_keys(self, events: Iterable[EventInstance]) -> None:
        nodes = [Node(event.uuid, failure_domain=event.failure_domain) for event in events]
        for key in self.table.placement.unmatched(nodes):
            self._warn(f"key {key}", logging.WARNING, f"no server lies in {key} of topology_keys")

    def _warn(self, kind: str, level: int, text: str) -> None:
        """Tell people once."""
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.log(level, "%s", text)


def peer_of(connection: Any) -> str | None:
    """The address a connection leads to."""
    ask = getattr(connection, "peer", None)
    return ask() if ask is not None else None


def is_address(host: str) -> bool:
    """Whether a host need not be looked up."""
    if host.startswith("/"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def look_up_all(hosts: Iterable[str], resolve: Resolve) -> dict[str, str | None]:
    """Name → address, for those hosts that are names."""
    unknown = sorted({host for host in hosts if not is_address(host)})
    return dict(zip(unknown, await asyncio.gather(*map(resolve, unknown)), strict=True))


async def look_up(host: str) -> str | None:
    """The first IPv4 address of a name, else its first IPv6 address, as Java has it; None without any."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return first_address(found)


def first_address(found: Iterable[Any]) -> str | None:
    """Of what `getaddrinfo` gives, the first IPv4 address, else the first."""
    return next((str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0] != socket.AF_INET)), None)
