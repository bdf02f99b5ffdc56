"""The settings about roles of nodes: which words there are, what they need, and which of them contradict each other.

A part of [`settings`][picopyn.settings]; it knows no server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from picopyn.staleness import StalenessPolicy

if TYPE_CHECKING:
    from picopyn.settings import PoolSettings

#: Words of `role=`.
ROLES: Final = ("leader", "prefer_leader", "replica", "prefer_replica", "any")

#: `target_session_attrs` → the role it asks for; an explicit `role` wins. `any` leaves it open, like nothing.
SESSION_ROLES: Final[Mapping[str, str | None]] = {
    "any": None,
    "read-write": "leader",
    "primary": "leader",
    "read-only": "replica",
    "standby": "replica",
    "prefer-standby": "prefer_replica",
}

#: Words of `balancer_policy=`.
BALANCERS: Final = ("greedy", "round_robin", "random_weighted", "two_choices")


def role_problems(role: Any) -> list[str]:
    """What is wrong with the role of a pool or of a call; empty when nothing is."""
    if role is None or (isinstance(role, str) and role in ROLES):
        return []
    return [f"role must be one of {', '.join(ROLES)}, or None, not {role!r}"]


def reads_from_followers(settings: PoolSettings) -> bool:
    """Whether calls that name no role need not be answered by leaders, and shall not be where there are copies."""
    return settings.role in ("replica", "prefer_replica")


def watches_hosts(settings: PoolSettings) -> bool:
    """Whether the roles of hosts matter to a pool of plain PostgreSQL servers, so that it has to watch them."""
    if settings.topology_source is not None:
        return False
    if settings.role in (None, "any"):
        return settings.staleness is not None or (settings.role is None and len(settings.endpoints) > 1)
    return True


def host_problems(settings: PoolSettings) -> list[str]:
    """Every problem of the settings about hosts with roles."""
    wrong = list(_wrong_values(settings))
    return wrong or list(_contradictions(settings))


def _wrong_values(settings: PoolSettings) -> Iterator[str]:
    for name in ("refresh_delay", "refresh_timeout"):
        if not (_is_number(getattr(settings, name)) and getattr(settings, name) > 0):
            yield f"{name} must be a number of seconds above 0, not {getattr(settings, name)!r}"
    if not isinstance(settings.fallback_master, bool):
        yield f"fallback_master must be a bool, not {settings.fallback_master!r}"
    weight = settings.master_as_replica_weight
    if not (_is_number(weight) and 0 <= weight <= 1):
        yield f"master_as_replica_weight must be a number from 0 to 1, not {weight!r}"
    policy = settings.balancer_policy
    if isinstance(policy, type) or not (callable(policy) or (isinstance(policy, str) and policy in BALANCERS)):
        yield f"balancer_policy must be one of {', '.join(BALANCERS)}, or a function, not {policy!r}"
    if not isinstance(settings.staleness, StalenessPolicy | None):
        yield f"staleness must be a StalenessPolicy, or None, not {settings.staleness!r}"


def _contradictions(settings: PoolSettings) -> Iterator[str]:
    role, limits = settings.role, about_replicas(settings)
    if settings.dialect == "picodata":
        yield from (f"{name} is for plain PostgreSQL, not for Picodata" for name in limits)
        return
    if settings.topology_source is not None:
        yield from (f"{name} needs hosts that the pool watches itself, without topology_source" for name in limits)
        return
    if settings.staleness is not None and role == "leader":
        yield "staleness limits replicas, but role='leader' never asks one"
    if settings.staleness is not None and role is None and len(settings.endpoints) == 1:
        yield "staleness limits replicas, but there is one host and no role: name more hosts, or a role"
    if settings.balancer_policy != "greedy" and role == "any" and settings.staleness is None:
        yield "balancer_policy chooses among hosts whose roles are known, but role='any' watches none: leave role out"
    if settings.fallback_master and role not in (None, "replica", "prefer_replica"):
        yield f"fallback_master is about calls for a replica, but role={role!r} asks for none"
    if settings.master_as_replica_weight and role not in (None, "replica", "prefer_replica"):
        yield f"master_as_replica_weight is about calls for a replica, but role={role!r} asks for none"


def about_replicas(settings: PoolSettings) -> list[str]:
    """Names of the settings that mean something only where hosts are a primary and its replicas."""
    asked = {
        "staleness": settings.staleness is not None,
        "fallback_master": settings.fallback_master,
        "master_as_replica_weight": settings.master_as_replica_weight > 0,
        "balancer_policy": settings.balancer_policy != "greedy",
    }
    return [name for name, is_asked in asked.items() if is_asked]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
