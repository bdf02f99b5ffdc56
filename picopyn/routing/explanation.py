"""What `explain_route` answers: where one call would go, and why. A value for people; it decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from picopyn.routing.plan import Wait
from picopyn.routing.route import RouteKind


@dataclass(frozen=True, slots=True)
class RouteExplanation:
    """Where a call would go now, and why.

    Attributes:
        query: The statement's text.
        kind: What decides; None when nothing is known of the text.
        reason: Why, in the words of the route and of the plan.
        tier: Sharding space of its tables, or None.
        key_parameters: The one-based numbers of the parameters of each key, in the order of the key's columns; 0 stands
            for a literal of the text.
        parameter_types: Type OIDs of the parameters, as the server told them; empty where that is not known.
        buckets: The buckets these arguments lead to; empty when they lead to none in particular.
        owner: Name of the replicaset that owns the bucket, when there is one.
        candidates: `name (host:port)` of the nodes it would try, in order.
        direct: The first candidate would execute it by itself.
        wait: What the call would wait for instead, or None.
        evidence: Bits of evidence behind the route; 0 where the server said it outright.
        map_age: Seconds since the cluster was last looked at.
        map_version: Version of the snapshot.
    """

    query: str
    kind: RouteKind | None
    reason: str
    tier: str | None
    key_parameters: tuple[tuple[int, ...], ...]
    parameter_types: tuple[int, ...]
    buckets: tuple[int, ...]
    owner: str | None
    candidates: tuple[str, ...]
    direct: bool
    wait: Wait | None
    evidence: float
    map_age: float
    map_version: int

    def __str__(self) -> str:
        kind = self.kind.name.lower() if self.kind is not None else "unlearned"
        key = " or ".join(
            "(" + ", ".join(f"${n}" if n else "literal" for n in numbers) + ")" for numbers in self.key_parameters
        )
        buckets = f", buckets {list(self.buckets)}" if self.buckets else ""
        owner = f" of {self.owner}" if self.owner else ""
        where = f"waits: {self.wait.value}" if self.wait is not None else f"→ {', '.join(self.candidates)}"
        return (
            f"{kind}{' ' + key if key else ''}{buckets}{owner} {where} "
            f"[{self.reason}; map version {self.map_version}, {self.map_age:.1f} s old]"
        )
