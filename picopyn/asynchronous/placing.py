"""One connection without a pool: to the node where a pool would take one, counted in this process until it is closed.

The steps are the same whether dialling is awaited or blocks; who dials is an `Opener`. What is known of a cluster is
kept for the process, see [`census`][picopyn.asynchronous.census]: its servers for as long as
`yb_servers_refresh_interval` says.

A role is kept while connecting: on PostgreSQL each host is asked for its own, on YugabyteDB a connection for a replica
reads from followers. Picodata's connections have none: there, what a pool sends decides.

*Source*: `yugabyte-smart-drivers.md` section 3.1; `hasql-eysql.md` B.3 (pool-less use) and B.5.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final, Protocol

import asyncpg

from picopyn.asynchronous.census import Census, census_of
from picopyn.asynchronous.dialect_detection import greeted_dialect, named_dialect
from picopyn.asynchronous.servers_source import peer_of
from picopyn.asynchronous.service_connection import cause
from picopyn.asynchronous.single_settings import IS_REPLICA, is_wish, pointless, purpose_of, wants_replica
from picopyn.asynchronous.topology_source import QUERY_TIMEOUT
from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte.addresses import names
from picopyn.dialects.yugabyte.listing import AddressBook
from picopyn.dialects.yugabyte.servers import NO_SUCH_FUNCTION, SERVERS, read_servers
from picopyn.engine.first_connection import refuse_unknown
from picopyn.errors import ConfigError, Fault, NoNodeAvailable
from picopyn.placement_settings import BalanceMode
from picopyn.routing.health import Health
from picopyn.routing.host_roles import Host
from picopyn.routing.placement import Placement
from picopyn.routing.placement_plan import PlacementPlanner
from picopyn.routing.plan import Role
from picopyn.routing.server_table import ServerTable
from picopyn.settings import PoolSettings
from picopyn.topology import Topology
from picopyn.topology.host_text import canonical

_LOG = logging.getLogger("picopyn.asynchronous.placing")

Address = tuple[str, int]

#: What a server may say to a new connection without anything being wrong with who asks: the next one is tried.
_NEXT: Final = (Fault.REFUSED, Fault.OVERLOADED, Fault.LOST)


class Opener(Protocol):
    """Opens connections; each method is awaited, whether it blocks or suspends."""

    async def dial(self, address: Address, dialect: Dialect, purpose: Purpose) -> Any:
        """Open a connection within the connect timeout."""
        ...

    async def fetch(self, connection: Any, query: str, timeout: float) -> Sequence[Any]:
        """Rows of a query."""
        ...

    async def resolve(self, hosts: Sequence[str]) -> dict[str, str | None]:
        """Name → address, for those hosts that are names."""
        ...

    async def close(self, connection: Any) -> None:
        """Say goodbye; never raises."""
        ...


class Placing:
    """The opening of one connection.

    Args:
        settings: Where it may lead.
        opener: Opens connections.
        rng: Breaks ties.
    """

    def __init__(self, settings: PoolSettings, opener: Opener, rng: Random) -> None:
        problems = pointless(settings)
        if problems:
            raise ConfigError(problems)
        named = named_dialect(settings.dialect)
        self._dialect: Dialect = named or PostgresDialect()
        self._is_named = named is not None
        self._settings = settings
        self._opener = opener
        self._rng = rng
        self._wanted = Placement.of(settings)
        places = [endpoint.with_default_port(self._dialect.default_port) for endpoint in settings.endpoints]
        self._hosts = [Host.at(place.host, place.port or 0, place.address) for place in dict.fromkeys(places)]
        self._reasons: dict[str, str] = {}
        self._last: Exception | None = None
        self._failed_here: set[str] = set()
        self._others: list[tuple[Address, str]] = []
        self._taken: Any = None

    async def connect(self) -> Any:
        """Open it.

        Raises:
            NoNodeAvailable: No node where it may lead could be connected to.
            asyncpg.PostgresError: A server refused what is the caller's affair: his password, his database.
        """
        lists = not self._is_named or Capability.LISTED_SERVERS in self._dialect.capabilities
        if self._wanted.mode is BalanceMode.OFF or not lists:
            return (await self._first())[0]
        census = census_of(self._hosts)
        if time.monotonic() - census.read_at < max(self._settings.yb_servers_refresh_interval, 1):
            placed = await self._placed(census, None)
            if placed is not None:
                return placed
        connection, found = await self._asked(census)
        if found is None:  # no list: one host is as good as another
            if self._wanted.forbids:
                await self._opener.close(connection)
                refuse_unknown("there is no list of servers", self._wanted.words)
            return connection
        placed = await self._placed(found, connection)
        if placed is None:
            raise self._nowhere()
        return placed

    async def _asked(self, census: Census) -> tuple[Any, Census | None]:
        """A connection to the first host that works and says what it knows of the servers, or that it knows none."""
        while True:
            connection, uuid = await self._first(census)
            try:
                return connection, await self._ask(connection)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:  # it fails after all
                self._note(connection.endpoint, error, str(error) or f"no answer within {QUERY_TIMEOUT:g} s")
                self._failed_here.add(uuid)
                await self._opener.close(connection)
            except BaseException:
                await self._opener.close(connection)
                raise

    async def _first(self, census: Census | None = None) -> tuple[Any, str]:
        """To the first host that works, of the connection string, and then of a list that was read before; its uuid."""
        book = AddressBook(self._settings.address_map)
        known = book.list(census.servers, [], census.answered_at).servers if census is not None else ()
        places = [(each.host, each.port, each.uuid) for each in self._hosts]
        places += [(each.host, each.port, each.uuid) for each in known]
        for host, port, uuid in places:
            if f"{host}:{port}" not in self._reasons:
                connection = await self._try((host, port), uuid)
                if connection is not None:
                    return connection, uuid
        for address, uuid in self._others if is_wish(self._settings) else ():
            connection = await self._try(address, uuid, any_role=True)
            if connection is not None:
                return connection, uuid
        role = f" that is right for role={self._settings.role!r}" if self._others else ""
        raise NoNodeAvailable(f"no host can be reached{role}", self._reasons) from self._last

    async def _try(self, address: Address, uuid: str, *, any_role: bool = False) -> Any:
        """Connect to one address; None when the next one is to be tried."""
        try:
            connection = await self._dial(address)
            if any_role or await self._is_wanted(connection):
                return connection
        except (OSError, asyncpg.InterfaceError) as error:
            self._note(address, error, str(error) or f"no answer within {self._settings.connect_timeout:g} s")
        except asyncpg.PostgresError as error:
            if not self._is_its_own(error):
                raise
            self._note(address, error, str(error))
        else:
            self._reasons[f"{address[0]}:{address[1]}"] = "has another role"
            self._others.append((address, uuid))
            return None
        self._failed_here.add(uuid)
        return None

    async def _dial(self, address: Address) -> Any:
        """Connect for what the connection is to do, once it is known what kind of server there is."""
        purpose = purpose_of(self._settings, self._dialect)
        connection = await self._opener.dial(address, self._dialect, purpose)
        if self._is_named:
            return connection
        self._dialect = greeted_dialect(connection) or self._dialect
        wanted = purpose_of(self._settings, self._dialect)
        if wanted is not purpose:
            await self._opener.close(connection)
            connection = await self._opener.dial(address, self._dialect, wanted)
        connection.has_catalog = Capability.CATALOG in self._dialect.capabilities
        return connection

    async def _is_wanted(self, connection: Any) -> bool:
        """Whether the host has the role that is asked for; a connection to another one, or a broken one, is closed."""
        suits = False
        try:
            wanted = wants_replica(self._settings, self._dialect)
            suits = wanted is None or await self._opener.fetch(connection, IS_REPLICA, QUERY_TIMEOUT) == [(wanted,)]
        finally:
            if not suits:
                await self._opener.close(connection)
        return suits

    def _is_its_own(self, error: Exception) -> bool:
        """Whether an error is the server's own affair, so that another one may do."""
        return self._dialect.fault(getattr(error, "sqlstate", None), str(error)) in _NEXT

    def _note(self, address: Address, error: Exception, reason: str) -> None:
        self._reasons[f"{address[0]}:{address[1]}"] = reason
        self._last = error

    async def _ask(self, connection: Any) -> Census | None:
        """Ask for the servers; None where there is no list.

        Raises:
            Exception: The connection hangs or is gone, so it is good for nothing.
        """
        if Capability.LISTED_SERVERS not in self._dialect.capabilities:
            _LOG.info("the server is no YugabyteDB: %s", self._unlisted)
            return None
        try:
            rows = await self._opener.fetch(connection, SERVERS, QUERY_TIMEOUT)
            servers = tuple(read_servers([dict(row) for row in rows]))
        except (asyncpg.PostgresError, KeyError) as error:
            if connection.is_closed() or self._is_its_own(error):
                raise
            plain = getattr(error, "sqlstate", None) == NO_SUCH_FUNCTION
            level = logging.INFO if plain else logging.WARNING
            _LOG.log(level, "no list of servers (%s): %s", cause(error), self._unlisted)
            return None
        if not servers:
            return None
        census = census_of(self._hosts, servers[0].universe)
        census.servers, census.read_at, census.answered_at = servers, time.monotonic(), peer_of(connection)
        return census

    @property
    def _unlisted(self) -> str:
        """What is done where there is no list, for people."""
        return "no node may be used" if self._wanted.forbids else "the first host that works is taken"

    async def _placed(self, census: Census, at_hand: Any) -> Any:
        """Connect where placement says; None when every node that may be used failed."""
        try:
            return await self._choose(census, at_hand)
        finally:
            if at_hand is not None and at_hand is not self._taken:
                await self._opener.close(at_hand)

    async def _choose(self, census: Census, at_hand: Any) -> Any:
        book, hosts = AddressBook(self._settings.address_map), self._hosts
        book.addresses = await self._opener.resolve([*names(census.servers), *(host.host for host in hosts)])
        listing = book.list(census.servers, hosts, census.answered_at)
        topology, table = Topology(), ServerTable(self._wanted)
        topology.apply((*listing.servers, *listing.extra), reset=True)
        table.seeds, table.discovered = listing.seeds, True
        unmatched = self._wanted.unmatched(node for node in topology.snapshot.nodes() if node.tier)
        for remark in (*(f"no server lies in {key} of topology_keys" for key in unmatched), *listing.remarks):
            if census.is_news(remark):
                _LOG.warning("%s", remark)
        tried = {*self._failed_here, *book.list(census.servers, self._failed_hosts, census.answered_at).seeds}
        for uuid in tried:
            census.failed(uuid, self._end_of_absence())
        while True:
            health = Health()
            for uuid in {*tried, *census.left_out(time.monotonic())}:
                health.unreachable(uuid, "failed a short while ago", 0.0)
            plan = PlacementPlanner(topology.snapshot, health, census.load, self._rng, table).for_host(Role.LEADER)
            node = next((c.node for c in plan.candidates if c.node.uuid not in tried), None)
            if node is None:
                return None
            tried.add(node.uuid)
            with census.pending(node.uuid):
                connection = await self._at(node.host, node.port, node.uuid, at_hand)
                if connection is not None:
                    self._taken = connection
                    census.opened(node.uuid, connection)
                    return connection
            census.failed(node.uuid, self._end_of_absence())

    @property
    def _failed_hosts(self) -> list[Host]:
        """Hosts of the connection string that failed in this call, under whatever uuid a list may have them."""
        return [host for host in self._hosts if host.uuid in self._failed_here]

    def _end_of_absence(self) -> float:
        return time.monotonic() + self._settings.failed_host_reconnect_delay_secs

    async def _at(self, host: str, port: int, uuid: str, at_hand: Any) -> Any:
        """The connection at hand, if it leads there; else a new one."""
        if at_hand is not None and _leads(at_hand, host, port) and not at_hand.is_closed():
            return at_hand
        return await self._try((host, port), uuid)

    def _nowhere(self) -> NoNodeAvailable:
        mode = self._wanted.words if self._wanted.forbids else ""
        what = f"no node that {mode} allows can be reached" if mode else "no node can be reached"
        return NoNodeAvailable(what, self._reasons, mode)


def _leads(connection: Any, host: str, port: int) -> bool:
    """Whether a connection leads to an address, by whichever name it was dialled."""
    dialled, own_port = connection.endpoint
    return own_port == port and canonical(host) in (canonical(dialled), canonical(peer_of(connection) or dialled))
