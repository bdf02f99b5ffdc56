"""Reading what a server says about buckets, and judging a learned route by it.

*Source*: key-probe.md rules 9 and 12; picodata-recorded.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.routing.sharding import KeyHash, compile_route

#: Sets with more buckets are not routed. *Source*: key-probe.md rule 9.
MAX_BUCKETS: Final = 64


class Scope(Protocol):
    """How to read an answer: `picopyn.dialects.base.BucketScope`, by the names of its members."""

    @property
    def name(self) -> str:
        """`"EXACT"`, `"AT_MOST"`, `"ANY"` or `"UNKNOWN"`."""
        ...


def few_buckets(ranges: Sequence[tuple[int, int]], bucket_counts: Mapping[str, int]) -> frozenset[int] | None:
    """The buckets named; None for many, and for all.

    All buckets are `[1-N]`, with N counted by the asked instance's own tier, whatever the table's tier is.

    *Source*: picodata-recorded.md section 4, "Several tiers".
    """
    if len(ranges) == 1 and ranges[0][0] == 1 and ranges[0][1] in bucket_counts.values():
        return None
    if _count(ranges) > MAX_BUCKETS:
        return None
    return _expanded(ranges)


def agrees(expected: frozenset[int], ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether the buckets named are exactly the expected ones."""
    return _count(ranges) == len(expected) and _expanded(ranges) == expected


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _expanded(ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
    return frozenset(bucket for first, last in ranges for bucket in range(first, last + 1))


def check(
    route: StatementRoute,
    args: Sequence[Any],
    scope: Scope,
    ranges: Sequence[tuple[int, int]],
    key_hash: KeyHash,
    bucket_counts: Mapping[str, int],
) -> bool:
    """Whether a server's answer for real arguments agrees with a learned route.

    A route that makes no statement about these arguments agrees with everything; so does a route that the
    server named itself (no evidence of ours) when the server does not name buckets.

    Args:
        route: What was learned.
        args: Arguments of a real call.
        scope: How to read `ranges`.
        ranges: Buckets the server named for the statement with these arguments.
        key_hash: The dialect's hash.
        bucket_counts: Number of buckets of every tier.

    Returns:
        False when the route would have sent the call elsewhere: the text must then be learned afresh, once.

    *Source*: key-probe.md rule 12.
    """
    if route.kind is RouteKind.NOT_KEYED:
        return True
    if route.kind is RouteKind.ANY_NODE or scope.name == "ANY":
        return route.kind is RouteKind.ANY_NODE and scope.name == "ANY"
    bucket_count = bucket_counts.get(route.tier or "", 0)
    if bucket_count == 1:
        return True
    expected = compile_route(route, key_hash, bucket_count)(args)
    if expected is None:
        return True
    if scope.name == "UNKNOWN":
        return route.evidence == 0
    return agrees(expected, ranges)
