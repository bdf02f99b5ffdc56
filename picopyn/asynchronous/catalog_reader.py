"""Reads the catalogue of a Picodata cluster over one connection, as far as the user may read it.

This file decides the order of the queries, which failure is fatal, and what stands in for what cannot be
read. It does not open or close connections, and it does not know what the events are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from picopyn.asynchronous.service_connection import (
    ServiceConnection,
    cause,
    costs_the_connection,
    stray_cancellations_are_errors,
)
from picopyn.dialects.picodata import discovery
from picopyn.dialects.picodata.addresses import AddressMap, is_wildcard, split_address
from picopyn.dialects.picodata.discovery import Denial, InstanceRow
from picopyn.dialects.picodata.versions import BUCKET_FUNCTION, may_be_at_least
from picopyn.errors import NoNodeAvailable
from picopyn.topology import Event, EventBuckets, EventTier

_LOG = logging.getLogger("picopyn.asynchronous.topology_tracker")


class CatalogReader:
    """One reader per source; it remembers what must outlive a poll or a connection.

    Args:
        address_map: Turns an advertised (host, port) into the one to dial.
        query_timeout: Seconds for each answer.

    A connection may have an attribute `endpoint`, the (host, port) that was dialled: its host stands in for an instance
    that advertises `0.0.0.0`.

    Attributes:
        connection_lost: After `read`: the connection broke or fell silent after the indispensable part
            was read.
        leaders_hidden: After `read`: the user may not read who leads.
    """

    def __init__(self, address_map: AddressMap | None, query_timeout: float) -> None:
        self.connection_lost = False
        self.leaders_hidden = False
        self._address_map = address_map
        self._query_timeout = query_timeout
        self._tiers: dict[str, EventTier] | None = None
        self._asked_uuid: str | None = None
        self._maps: dict[str, EventBuckets] = {}
        self._answers: dict[str, tuple[Any, int | None]] = {}
        self._warned: set[str] = set()

    def begin_connection(self) -> None:
        """A new connection: tiers are read again; the last maps stay for tiers that cannot be read now."""
        self._tiers = None
        self._asked_uuid = None

    async def read(self, connection: ServiceConnection) -> tuple[Event, ...]:
        """Everything that can be read: replicasets, instances, tiers, then the buckets of each tier.

        Raises:
            NoNodeAvailable: The node names no instance at all.
            Exception: Replicasets or instances could not be read.
        """
        self.connection_lost = False
        stored = await self._replicaset_rows(connection)
        rows = discovery.read_instances(await self._instance_rows(connection))
        instances = await self._instances(connection, rows)
        if stored is None:
            replicasets = discovery.replicasets_without_leaders(rows)
        else:
            replicasets = discovery.replicaset_events(stored, rows)
        tiers = await self._read_tiers(connection, rows)
        maps = [await self._buckets(connection, tier, rows) for tier in tiers if tier.bucket_count != 0]
        return (*replicasets, *instances, *tiers, *(each for each in maps if each is not None))

    async def _replicaset_rows(self, connection: ServiceConnection) -> Sequence[Any] | None:
        try:
            rows = await self._ask(connection, discovery.REPLICASETS)
        except Exception as error:
            denial = _denial(error, connection)
            if denial is None:
                raise
            self._warn_of_privilege(denial, "leaders are found by asking, as far as possible")
            self.leaders_hidden = True
            return None
        self._recovered("_pico_replicaset")
        self.leaders_hidden = False
        return rows

    async def _instance_rows(self, connection: ServiceConnection) -> Sequence[Any]:
        try:
            return await self._ask(connection, discovery.INSTANCES)
        except Exception as error:
            denial = _denial(error, connection)
            if denial is not None:
                self._warn_of_privilege(denial, "nothing is known about the cluster")
            raise

    async def _instances(self, connection: ServiceConnection, rows: Sequence[InstanceRow]) -> Sequence[Event]:
        host = await self._seen_host(connection, rows)
        reading = discovery.instance_events(
            rows, asked_uuid=self._asked_uuid, seen_host=host, address_map=self._address_map
        )
        for remark in reading.remarks:
            self._warn(remark, "%s", remark)
        if not reading.events:
            raise NoNodeAvailable("the node that was asked for the topology names no instance")
        return reading.events

    async def _seen_host(self, connection: ServiceConnection, rows: Sequence[InstanceRow]) -> str | None:
        """The host we dialled, if some instance advertises an address like 0.0.0.0."""
        host: str = getattr(connection, "endpoint", ("", 0))[0]
        if not host or not any(_says_anywhere(row.address) for row in rows):
            return None
        if self._asked_uuid is None:
            try:
                (answer,) = await self._ask(connection, discovery.ASKED_INSTANCE)
                self._asked_uuid = str(answer[0])
            except Exception as error:
                if costs_the_connection(error, connection):
                    raise
                _LOG.debug("the asked instance did not tell which it is: %s", cause(error))
        return host

    async def _read_tiers(self, connection: ServiceConnection, rows: Sequence[InstanceRow]) -> Sequence[EventTier]:
        """The tiers as the table has them, and those only the instances name."""
        named = {tier.name: tier for tier in discovery.tiers_without_counts(rows)}
        if self._tiers is None or not named.keys() <= self._tiers.keys():
            self._tiers = await self._fetch_tiers(connection) or self._tiers
        return list((named | (self._tiers or {})).values())

    async def _fetch_tiers(self, connection: ServiceConnection) -> dict[str, EventTier] | None:
        try:
            rows = await self._ask(connection, discovery.TIERS)
        except Exception as error:
            denial = _denial(error, connection)
            self.connection_lost = costs_the_connection(error, connection)
            if denial is not None:
                self._warn_of_privilege(denial, "bucket counts are derived from the maps")
            else:
                self._warn("tiers", "the tiers could not be read, to be tried again: %s", cause(error))
            return None
        self._recovered("_pico_tier", "tiers")
        return {event.name: event for event in discovery.tier_events(rows)}

    async def _buckets(
        self, connection: ServiceConnection, tier: EventTier, rows: Sequence[InstanceRow]
    ) -> EventBuckets | None:
        """The tier's map as it is now, or as it was last read."""
        if not self.connection_lost:
            try:
                (answer,) = await self._ask(connection, discovery.BUCKETS, tier.name)
                self._maps[tier.name] = self._map(tier, answer[0])
                self._recovered(f"buckets of tier {tier.name}")
            except Exception as error:
                # A map that makes no sense (ValueError) costs the map only.
                unreadable = isinstance(error, ValueError) and not connection.is_closed()
                self.connection_lost = not unreadable and costs_the_connection(error, connection)
                self._warn_of_buckets(tier, rows, error)
        return self._maps.get(tier.name)

    def _map(self, tier: EventTier, answer: Any) -> EventBuckets:
        """What an answer says; nothing is read again in one that was there before: it may be very long."""
        said, known = (answer, tier.bucket_count), self._maps.get(tier.name)
        if known is not None and self._answers.get(tier.name) == said:
            return known
        event = discovery.bucket_event(tier.name, answer, tier.bucket_count)
        self._answers[tier.name] = said
        return event

    async def _ask(self, connection: ServiceConnection, sql: str, *args: Any) -> Sequence[Any]:
        if self.connection_lost:
            raise ConnectionError("the connection broke during this poll")
        with stray_cancellations_are_errors():
            async with asyncio.timeout(self._query_timeout):
                return await connection.fetch(sql, *args)

    def _warn_of_privilege(self, denial: Denial, consequence: str) -> None:
        text = "the database user may not read %s: %s; an administrator can change that with: %s"
        self._warn(denial.table, text, denial.table, consequence, discovery.grant_hint([denial]))

    def _warn_of_buckets(self, tier: EventTier, rows: Sequence[InstanceRow], error: Exception) -> None:
        if not any(may_be_at_least(row.version, BUCKET_FUNCTION) for row in rows):
            self._warn("version", "keys cannot be routed: _pico_bucket() came with Picodata 25.5.1")
        elif tier.bucket_count is None and discovery.says_no_such_tier(str(error)):
            _LOG.debug("tier %s seems to have no buckets", tier.name)
        else:
            text = "the buckets of tier %s could not be read now; its last map stays: %s"
            self._warn(f"buckets of tier {tier.name}", text, tier.name, cause(error))

    def _warn(self, what: str, text: str, *args: Any) -> None:
        """Warn once, until it works again."""
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        _LOG.log(level, text, *args)

    def _recovered(self, *what: str) -> None:
        for each in self._warned.intersection(what):
            self._warned.discard(each)
            _LOG.info("%s can be read again", each)


def _denial(error: Exception, connection: ServiceConnection) -> Denial | None:
    """What the server says may not be read, if that is what the error says."""
    return None if costs_the_connection(error, connection) else discovery.read_denial(str(error))


def _says_anywhere(address: str) -> bool:
    parts = split_address(address)
    return parts is not None and is_wildcard(parts[0])
