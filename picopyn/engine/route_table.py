"""Compiled routes by statement text: what the hot path looks up.

A route is learned as a value (`StatementRoute`); here it becomes closures that turn arguments into buckets. A compiled
route lives as long as the metadata it was made from: whoever keeps the metadata says when it is gone (`forget`), so the
table is as bounded as the cache behind it; it is emptied when the bucket count of a tier turns out to be another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from picopyn.dialects.base import KeyHash
from picopyn.engine.node_pool import NodePool
from picopyn.engine.tallies import Count, Tallies, Tally
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Plan
from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.routing.sharding import KeyFunction, compile_key, compile_route, no_bucket

#: Bucket → the plan of its calls and the node pool that they take a connection from; None where it is not so easy.
Owners = Sequence[tuple[Plan, NodePool] | None]


class CompiledRoute(Count):
    """Where one text runs, ready for use.

    Attributes:
        route: The learned value; None when nothing is known.
        bucket: Arguments → the one bucket, or None when it cannot be computed; for `KEYED` and `CONSTANT`.
        limit: What `bucket` gives is below this; 0 where it gives nothing.
        buckets: Arguments → set of buckets, or None; set for `KEY_SET`.
        owners: Who owns each bucket; counts while the route is in the table's `express`.
        reason: What calls that have a bucket are counted under.
        calls: Calls that went by its reason.
        check_at: The how manieth of them is offered for a check of the route.
    """

    __slots__ = ("_seen", "bucket", "buckets", "limit", "owners", "route")

    def __init__(
        self,
        route: StatementRoute,
        tally: Tally,
        counts: MutableMapping[str, int],
        bucket: KeyFunction = no_bucket,
        limit: int = 0,
        buckets: Callable[[Sequence[Any]], frozenset[int] | None] | None = None,
    ) -> None:
        super().__init__("constant" if route.kind is RouteKind.CONSTANT else "keyed", tally, counts)
        self.route = route
        self.bucket = bucket
        self.limit = limit
        self.buckets = buckets
        self.owners: Owners = ()
        self.check_at = 1
        self._seen = 0

    @property
    def tier(self) -> str:
        """Where its rows are; empty when that is not known."""
        return self.route.tier or ""

    @property
    def otherwise(self) -> str:
        """What calls without a bucket are counted under."""
        return "not_keyed" if not self.limit and self.buckets is None else "uncomputable"

    def was_called(self) -> bool:
        """Whether there were calls since this was asked last."""
        before, self._seen = self._seen, self.unbooked + sum(self.tally.values())
        return self._seen > before


class MetadataSource(Protocol):
    """Where learned metadata comes from; the engine only asks."""

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        """What is known of a text; a miss starts learning in the background."""
        ...

    def tell_forgotten(self, listener: Callable[[str | None], None], in_use: Callable[[str], bool]) -> None:
        """Tell somebody of every text whose metadata left or was replaced; None stands for all texts."""
        ...


class RouteTable:
    """Compiled routes of one pool.

    Args:
        metadata: Source of learned metadata.
        key_hash: The dialect's hash.
        bucket_counts: Bucket count of every known tier, as of now.
        tallies: Counts the calls of each text.
        counts: Reason → calls of the pool.

    Attributes:
        compiled: What is compiled now, by text; not to be changed outside.
        express: Those among them whose calls may go the short way; see [`Express`][picopyn.engine.express.Express].
        tallies: Counts the calls of each text.
    """

    __slots__ = ("_bucket_counts", "_compiled", "_counts", "_key_hash", "_metadata", "compiled", "express", "tallies")

    def __init__(
        self,
        metadata: MetadataSource,
        key_hash: KeyHash,
        bucket_counts: Callable[[], Mapping[str, int]],
        tallies: Tallies,
        counts: MutableMapping[str, int],
    ) -> None:
        self.tallies = tallies
        self._counts = counts
        self._metadata = metadata
        self._key_hash = key_hash
        self._bucket_counts = bucket_counts
        self._compiled: dict[str, CompiledRoute] = {}
        self.compiled: Mapping[str, CompiledRoute] = self._compiled
        self.express: dict[str, CompiledRoute] = {}
        tallies.held = self._compiled
        metadata.tell_forgotten(self.forget, self.in_use)

    def get(self, query: str) -> CompiledRoute | None:
        """The compiled route of a text; None while it is not known (then learning has been asked for)."""
        compiled = self._compiled.get(query)
        if compiled is not None:
            return compiled
        metadata = self._metadata.request_if_missing(query)
        if metadata is None or metadata.route is None:
            return None
        return self._compile(query, metadata.route)

    def textless(self, reason: str) -> Count:
        """What counts the calls that go the same way whatever their text is."""
        return self.tallies.textless.setdefault(reason, Count(reason, defaultdict(int), self._counts))

    def in_use(self, query: str) -> bool:
        """Whether a text was called since this was asked last."""
        compiled = self._compiled.get(query)
        return compiled is not None and compiled.was_called()

    def forget(self, query: str | None) -> None:
        """The metadata of a text, or of all, left or was replaced."""
        for text in tuple(self._compiled) if query is None else (query,):
            self.express.pop(text, None)
            compiled = self._compiled.pop(text, None)
            if compiled is not None:
                compiled.check_at = 0  # calls that are on their way are booked one by one
                compiled.book()

    def _compile(self, query: str, route: StatementRoute) -> CompiledRoute:
        tally = self.tallies.of(query)
        if route.tier is None or route.kind in (RouteKind.ANY_NODE, RouteKind.NOT_KEYED):
            return self._keep(query, CompiledRoute(route, tally, self._counts))
        count = self._bucket_counts().get(route.tier, 0)
        if not count:  # not known yet: nothing that could be kept
            return CompiledRoute(route, tally, self._counts)
        if route.kind is RouteKind.KEYED:
            key = compile_key(route.keys[0], self._key_hash, count)
            return self._keep(query, CompiledRoute(route, tally, self._counts, key, count + 1))
        if route.kind is RouteKind.CONSTANT:
            constant = route.buckets[0]
            return self._keep(query, CompiledRoute(route, tally, self._counts, lambda _args: constant, constant + 1))
        keys = compile_route(route, self._key_hash, count)
        return self._keep(query, CompiledRoute(route, tally, self._counts, buckets=keys))

    def _keep(self, query: str, compiled: CompiledRoute) -> CompiledRoute:
        self._compiled[query] = compiled
        return compiled
