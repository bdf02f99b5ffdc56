"""Where a call would go, told to people: made from the same plan that a call would use."""

from __future__ import annotations

from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.request import Request
from picopyn.engine.route_table import CompiledRoute
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.explanation import RouteExplanation


def explain(
    request: Request, metadata: PreparedStatementMetadata | None, executor: Executor, cluster: Cluster
) -> RouteExplanation:
    """Explain where a call would go now.

    Args:
        request: The call.
        metadata: What is known of its text.
        executor: Makes the plan.
        cluster: The cluster it is made for.
    """
    plan = executor.plan(request)
    compiled = request.route
    snapshot = cluster.snapshot
    route = metadata.route if metadata is not None else None
    tier = metadata.tier if metadata is not None else None
    buckets = _buckets(request, compiled)
    owners = {snapshot.owner(tier or "", bucket) for bucket in buckets}
    owner = snapshot.replicaset(next(iter(owners)) or "") if len(owners) == 1 else None
    return RouteExplanation(
        query=request.query,
        kind=route.kind if route is not None else None,
        reason=f"{route.reason}; {plan.reason}" if route is not None and route.reason else plan.reason,
        tier=tier,
        key_parameters=tuple(
            tuple(0 if part.literal is not None else part.parameter + 1 for part in key)
            for key in (route.keys if route else ())
        ),
        parameter_types=metadata.parameter_oids if metadata is not None else (),
        buckets=buckets,
        owner=owner.name if owner is not None else None,
        candidates=tuple(f"{c.node.name} ({c.node.address})" for c in plan.candidates),
        direct=plan.direct,
        wait=plan.wait,
        evidence=route.evidence if route is not None else 0.0,
        map_age=snapshot.age(cluster.runtime.now()),
        map_version=snapshot.version,
    )


def _buckets(request: Request, compiled: CompiledRoute | None) -> tuple[int, ...]:
    if compiled is None:
        return ()
    if compiled.limit:
        bucket = compiled.bucket(request.args)
        return () if bucket is None else (bucket,)
    if compiled.buckets is not None:
        return tuple(sorted(compiled.buckets(request.args) or ()))
    return ()
