"""Service connections: from what is known of the cluster to one connection, to whichever node is awake.

The control plane (topology, statement metadata, leader questions) asks here for connections; they belong to whoever
asked and are not part of the node pools. A node that hangs delays nobody: candidates are asked in parallel for a first
word, and only one that answers is sent credentials.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.transport import Address, Dialer, awake
from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.errors import AuthenticationFailed, Fault, NoNodeAvailable
from picopyn.routing.host_roles import Host
from picopyn.topology import Node, TopologySnapshot
from picopyn.topology.host_text import same_place

T = TypeVar("T")
#: Connects to one address.
Dial = Callable[[Address], Awaitable[Connection]]

_LOG = logging.getLogger("picopyn.asynchronous.reach")


class Reach:
    """Finds a node that answers and connects to it. Owned by a pool.

    Args:
        dialer: Opens connections.
        dialect: Tells what a refusal means.
        seeds: Addresses of the connection string.
        connect_timeout: Limit for one address (seconds).
        known: The cluster as last seen.
        rng: Source of randomness for the order.
        introduced: A connection that exists already; it goes to the first who has a use for it.
    """

    def __init__(
        self,
        dialer: Dialer,
        dialect: Dialect,
        seeds: Sequence[Address],
        connect_timeout: float,
        known: Callable[[], TopologySnapshot],
        rng: Random,
        introduced: Connection | None = None,
    ) -> None:
        self._dialer = dialer
        self._dialect = dialect
        self._seeds = tuple(seeds)
        self._connect_timeout = connect_timeout
        self._known = known
        self._rng = rng
        self._introduced = introduced

    async def introduce(self, purpose: Purpose, groups: Sequence[Sequence[Address]]) -> Connection:
        """Make the first connection of a pool.

        Args:
            purpose: What it is going to be used for.
            groups: Where to; a group is tried a little later than the one before it.

        Raises:
            AuthenticationFailed: A node refused the credentials; no other one was asked.
            NoNodeAvailable: No address answered; it lists the reason of each.
        """
        shuffled = [self._shuffled(group) for group in groups]
        return await self._connect(shuffled, partial(self._dialer.dial, purpose=purpose))

    def plain(self, address: Address) -> Connection | None:
        """The connection that exists already, if it leads there; for servers whose connections serve every purpose."""
        introduced, sharded = self._introduced, Capability.SHARDED in self._dialect.capabilities
        if introduced is None or sharded or not self._leads(introduced, address):
            return None
        self._introduced = None
        return None if introduced.is_closed() else introduced

    def _leads(self, connection: Connection, address: Address) -> bool:
        """Whether a connection leads to an address, which may be a name."""
        endpoint = connection.endpoint
        return same_place(endpoint, address) or (self._dialer.names.get(endpoint), endpoint[1]) == address

    async def topology(self) -> Connection | None:
        """A connection to read the topology with, or None when no node can be reached."""
        return self.first() or await self._quietly(Purpose.TOPOLOGY, self._by_leadership(leaders_last=False))

    def first(self) -> Connection | None:
        """The connection that exists already, if it still lives, for reading the topology; to whoever asks first."""
        introduced, self._introduced = self._introduced, None
        return None if introduced is None or introduced.is_closed() else introduced

    async def topology_news(self, on_notice: Callable[[str], None]) -> Connection | None:
        """A connection to read the topology with, whose server is asked to tell what changes; or None.

        One that does not let in who asks is connected to without asking: that connection's `on_notice` is None.
        """

        async def dial(address: Address) -> Connection:
            try:
                return await self._dialer.dial(address, Purpose.TOPOLOGY_NEWS, on_notice)
            except TimeoutError:
                raise
            except Exception as error:
                _LOG.debug("not let in when asking for news: %s", self._reason(error, address))
            return await self._dialer.dial(address, Purpose.TOPOLOGY)

        return await self._quietly(Purpose.TOPOLOGY_NEWS, self._by_leadership(leaders_last=False), dial)

    async def metadata(self, on_notice: Callable[[str], None]) -> Connection | None:
        """A connection to ask about statements with, to a node that leads nobody if there is one; or None."""
        dial = partial(self._dialer.dial, purpose=Purpose.METADATA, on_notice=on_notice)
        return await self._quietly(Purpose.METADATA, self._by_leadership(leaders_last=True), dial)

    async def to(self, node: Node) -> Connection | None:
        """A connection to ask one node whether it leads; or None when it cannot be reached."""
        return await self._quietly(Purpose.LEADER_QUESTION, [[(node.host, node.port)]])

    @property
    def names(self) -> dict[Address, str]:
        """The name under which an address was found; for whoever looks names up to fill."""
        return self._dialer.names

    async def host(self, host: Host) -> Connection:
        """A connection to ask one host about its role; raises when it cannot be made."""
        return await self._dialer.dial((host.host, host.port), Purpose.TOPOLOGY)

    def terminate(self) -> None:
        """Drop what was not fetched."""
        introduced, self._introduced = self._introduced, None
        if introduced is not None:
            introduced.terminate()

    def _by_leadership(self, *, leaders_last: bool) -> list[list[Address]]:
        snapshot = self._known()
        nodes = self._shuffled(snapshot.nodes())
        leaders = set(snapshot.nodes(role="leader")) if leaders_last else set()
        followers = [(node.host, node.port) for node in nodes if node not in leaders]
        leading = [(node.host, node.port) for node in nodes if node in leaders]
        return [followers, leading, self._shuffled(self._seeds)]

    def _shuffled(self, places: Iterable[T]) -> list[T]:
        """In an order of this process's own: the first to answer is taken, and often that is the first to be asked."""
        shuffled = list(places)
        self._rng.shuffle(shuffled)
        return shuffled

    async def _quietly(
        self, purpose: Purpose, groups: Sequence[Sequence[Address]], dial: Dial | None = None
    ) -> Connection | None:
        try:
            return await self._connect(groups, dial or partial(self._dialer.dial, purpose=purpose))
        except (NoNodeAvailable, AuthenticationFailed) as error:
            _LOG.debug("no connection for %s: %s", purpose.value, error)
            return None

    async def _connect(self, groups: Sequence[Sequence[Address]], dial: Dial) -> Connection:
        failed: dict[Address, str] = {}
        connection: Connection | None = None
        asked = [group for group in groups if group]
        answering = awake(asked, self._connect_timeout, failed, self._dialer.names, self._dialer.knock)
        try:
            connection = await self._first(answering, dial, failed)
        finally:
            await _finish(answering, connection)
        if connection is not None:
            return connection
        reasons = {f"{host}:{port}": reason for (host, port), reason in failed.items()}
        raise NoNodeAvailable("no node can be reached", reasons)

    async def _first(
        self,
        answering: AsyncGenerator[Address, None],
        dial: Dial,
        failed: dict[Address, str],
    ) -> Connection | None:
        async for address in answering:
            try:
                return await dial(address)
            except Exception as error:
                failed[address] = self._reason(error, address)
        return None

    def _reason(self, error: Exception, address: Address) -> str:
        if isinstance(error, AuthenticationFailed):  # it was not asked, and nobody else must be
            raise error
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate is not None and self._dialect.fault(sqlstate, str(error)) is Fault.AUTH:
            raise AuthenticationFailed(f"{address[0]}:{address[1]} refused the credentials: {error}") from error
        return str(error) or f"no answer within {self._connect_timeout:g} s"


async def _finish(answering: AsyncGenerator[Address, None], connection: Connection | None) -> None:
    """End the asking; a connection made meanwhile is not lost when that is cancelled."""
    try:
        await answering.aclose()
    except BaseException:
        if connection is not None:
            connection.terminate()
        raise
