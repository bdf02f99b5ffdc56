"""Compiled routes by statement text: what the hot path looks up.

A route is learned as a value (`StatementRoute`); here it becomes closures that turn arguments into buckets. A compiled
route lives as long as the metadata it was made from and the bucket count it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from picopyn.dialects.base import KeyHash
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.routing.sharding import compile_key, compile_route


class CompiledRoute:
    """Where one text runs, ready for use.

    Attributes:
        route: The learned value; None when nothing is known.
        bucket: Arguments → the one bucket, or None when it cannot be computed; set for `KEYED` and `CONSTANT`.
        buckets: Arguments → set of buckets, or None; set for `KEY_SET`.
        reason: What calls that have a bucket are counted under.
        otherwise: What calls without one are counted under.
        check_in: The how manieth call from now on is offered for a check of the route.
    """

    __slots__ = ("bucket", "buckets", "check_in", "metadata", "otherwise", "reason", "route", "tier")

    def __init__(
        self,
        metadata: PreparedStatementMetadata,
        route: StatementRoute,
        bucket: Callable[[Sequence[Any]], int | None] | None = None,
        buckets: Callable[[Sequence[Any]], frozenset[int] | None] | None = None,
    ) -> None:
        self.metadata = metadata
        self.route = route
        self.tier = route.tier or ""
        self.bucket = bucket
        self.buckets = buckets
        self.reason = "constant" if route.kind is RouteKind.CONSTANT else "keyed"
        self.otherwise = "not_keyed" if bucket is None and buckets is None else "uncomputable"
        self.check_in = 1


class MetadataSource(Protocol):
    """Where learned metadata comes from; the engine only asks."""

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        """What is known of a text; a miss starts learning in the background."""
        ...


class RouteTable:
    """Compiled routes of one pool.

    Args:
        metadata: Source of learned metadata.
        key_hash: The dialect's hash.
        bucket_counts: Bucket count of every known tier, as of now.
    """

    __slots__ = ("_bucket_counts", "_compiled", "_key_hash", "_metadata")

    def __init__(
        self,
        metadata: MetadataSource,
        key_hash: KeyHash,
        bucket_counts: Callable[[], Mapping[str, int]],
    ) -> None:
        self._metadata = metadata
        self._key_hash = key_hash
        self._bucket_counts = bucket_counts
        self._compiled: dict[str, CompiledRoute] = {}

    def get(self, query: str) -> CompiledRoute | None:
        """The compiled route of a text; None while it is not known (then learning has been asked for)."""
        metadata = self._metadata.request_if_missing(query)
        compiled = self._compiled.get(query)
        if compiled is not None and compiled.metadata is metadata:
            return compiled
        if metadata is None or metadata.route is None:
            self._compiled.pop(query, None)
            return None
        return self._compile(query, metadata, metadata.route)

    def _compile(self, query: str, metadata: PreparedStatementMetadata, route: StatementRoute) -> CompiledRoute | None:
        count = self._bucket_counts().get(route.tier or "", 0)
        if route.kind is RouteKind.KEYED and count:
            compiled = CompiledRoute(metadata, route, bucket=compile_key(route.keys[0], self._key_hash, count))
        elif route.kind is RouteKind.CONSTANT and count:
            constant = route.buckets[0]
            compiled = CompiledRoute(metadata, route, bucket=lambda _args: constant)
        elif route.kind is RouteKind.KEY_SET and count:
            compiled = CompiledRoute(metadata, route, buckets=compile_route(route, self._key_hash, count))
        else:
            compiled = CompiledRoute(metadata, route)
        self._compiled[query] = compiled
        self._forget_strangers()
        return compiled

    def _forget_strangers(self) -> None:
        """Keep the table from growing without end: metadata is bounded elsewhere, so old entries are dead ones."""
        if len(self._compiled) > 4096:
            for query in list(self._compiled)[:2048]:
                del self._compiled[query]
