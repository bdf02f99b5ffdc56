"""Reads the catalogue of a Picodata cluster over one connection, as far as the user may read it.

This file decides the order of the queries, which failure is fatal, and what stands in for what cannot be read. It does
not open or close connections, and it does not know what the events are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from picopyn.asynchronous.service_connection import (
    ServiceConnection,
    cause,
    costs_the_connection,
    is_access_denied,
)
from picopyn.dialects.picodata import discovery
from picopyn.errors import NoNodeAvailable
from picopyn.topology import Event, EventBuckets, EventInstance, EventReplicaset, EventTier

_LOG = logging.getLogger("picopyn.asynchronous.topology_tracker")

#: The first version with `_pico_bucket()`. *Source:* picodata CHANGELOG, 25.5.1.
_FIRST_WITH_BUCKETS = (25, 5, 1)

AddressMap = Callable[[str, int], tuple[str, int]]


class CatalogReader:
    """One reader per source; it remembers what must outlive a poll or a connection.

    Args:
        address_map: Turns an advertised (host, port) into the one to dial.
        query_timeout: Seconds for each answer.

    Attributes:
        connection_lost: After `read`: the connection broke or fell silent after the indispensable part was read.
        leaders_hidden: After `read`: the user may not read who leads.
    """

    def __init__(self, address_map: AddressMap | None, query_timeout: float) -> None:
        self.connection_lost = False
        self.leaders_hidden = False
        self._address_map = address_map
        self._query_timeout = query_timeout
        self._tiers: dict[str, EventTier] | None = None
        self._maps: dict[str, EventBuckets] = {}
        self._warned: set[str] = set()

    def begin_connection(self) -> None:
        """A new connection: tiers are read again; the last maps stay for tiers whose buckets cannot be read now."""
        self._tiers = None

    async def read(self, connection: ServiceConnection) -> tuple[Event, ...]:
        """Everything that can be read: replicasets, instances, tiers, then the buckets of each tier.

        Raises:
            NoNodeAvailable: The node names no instance at all.
            Exception: Replicasets or instances could not be read.
        """
        self.connection_lost = False
        stored = await self._replicasets(connection)
        instances = await self._instances(connection)
        replicasets = discovery.replicasets_of(instances) if stored is None else stored
        tiers = await self._read_tiers(connection, instances, replicasets)
        maps = [await self._buckets(connection, tier, instances) for tier in tiers if tier.bucket_count != 0]
        return (*replicasets, *instances, *tiers, *(each for each in maps if each is not None))

    async def _replicasets(self, connection: ServiceConnection) -> Sequence[EventReplicaset] | None:
        try:
            rows = await self._ask(connection, discovery.REPLICASETS)
        except Exception as error:
            if costs_the_connection(error, connection) or not is_access_denied(error):
                raise
            self._warn_of_privilege("_pico_replicaset", "leaders are found by asking, as far as possible")
            self.leaders_hidden = True
            return None
        self._recovered("_pico_replicaset")
        self.leaders_hidden = False
        return discovery.read_replicasets(rows)

    async def _instances(self, connection: ServiceConnection) -> Sequence[EventInstance]:
        try:
            rows = await self._ask(connection, discovery.INSTANCES)
        except Exception as error:
            if is_access_denied(error):
                self._warn_of_privilege("_pico_instance and _pico_peer_address", "there is no topology")
            raise
        instances = discovery.read_instances(rows, self._address_map)
        if not instances:
            raise NoNodeAvailable("the node that was asked for the topology names no instance")
        return instances

    async def _read_tiers(
        self,
        connection: ServiceConnection,
        instances: Sequence[EventInstance],
        replicasets: Sequence[EventReplicaset],
    ) -> list[EventTier]:
        named = {event.tier: EventTier(event.tier) for event in (*instances, *replicasets) if event.tier}
        if self._tiers is None or not named.keys() <= self._tiers.keys():
            self._tiers = await self._fetch_tiers(connection) or self._tiers
        return list((named | (self._tiers or {})).values())

    async def _fetch_tiers(self, connection: ServiceConnection) -> dict[str, EventTier] | None:
        try:
            rows = await self._ask(connection, discovery.TIERS)
        except Exception as error:
            if costs_the_connection(error, connection):
                self.connection_lost = True
            elif is_access_denied(error):
                self._warn_of_privilege("_pico_tier", "bucket counts are derived from the maps")
            else:
                self._warn("tiers", "tiers could not be read, to be tried again: %s", cause(error))
            return None
        self._recovered("_pico_tier", "tiers")
        return {event.name: event for event in discovery.read_tiers(rows)}

    async def _buckets(
        self, connection: ServiceConnection, tier: EventTier, instances: Sequence[EventInstance]
    ) -> EventBuckets | None:
        """The tier's map as it is now, or as it was last read."""
        if not self.connection_lost:
            try:
                rows = await self._ask(connection, discovery.BUCKETS, tier.name)
                self._maps[tier.name] = discovery.read_buckets(tier.name, rows)
                self._recovered(f"buckets of {tier.name}")
            except Exception as error:
                self.connection_lost = costs_the_connection(error, connection)
                self._warn_of_buckets(tier.name, instances, error)
        return self._maps.get(tier.name)

    async def _ask(self, connection: ServiceConnection, sql: str, *args: Any) -> Sequence[Any]:
        if self.connection_lost:
            raise ConnectionError("the connection broke during this poll")
        async with asyncio.timeout(self._query_timeout):
            return await connection.fetch(sql, *args)

    def _warn_of_privilege(self, table: str, consequence: str) -> None:
        self._warn(
            table,
            "the database user may not read %s: %s; an administrator can change that with: %s",
            table,
            consequence,
            "; ".join(f"GRANT READ ON TABLE {each} TO <user>" for each in table.split(" and ")),
        )

    def _warn_of_buckets(self, tier: str, instances: Sequence[EventInstance], error: Exception) -> None:
        versions = [version for each in instances if (version := _version(each.version))]
        if versions and max(versions) < _FIRST_WITH_BUCKETS:
            self._warn(
                "version", "this Picodata has no _pico_bucket() (25.5.1 and later): keys cannot be routed"
            )
        else:
            text = "the buckets of tier %s could not be read now; its last map stays: %s"
            self._warn(f"buckets of {tier}", text, tier, cause(error))

    def _warn(self, what: str, text: str, *args: Any) -> None:
        """Warn once, until it works again."""
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        _LOG.log(level, text, *args)

    def _recovered(self, *what: str) -> None:
        for each in self._warned.intersection(what):
            self._warned.discard(each)
            _LOG.info("%s can be read again", each)


def _version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version such as `25.5.1-12-gabc`."""
    numbers: list[int] = []
    for part in text.split("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
