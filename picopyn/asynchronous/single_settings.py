"""What the settings of a pool mean to one connection without a pool, and which mean nothing and are refused.

Sizes and times of pools may stand in a connection string that serves both, so they are let pass; what a caller wrote
for this connection, and would wait for in vain, is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.errors import ConfigError
from picopyn.placement_settings import ONLY_HERE
from picopyn.role_settings import reads_from_followers
from picopyn.settings import PoolSettings

#: Tells whether a PostgreSQL is a standby.
#:
#: *Source*: PostgreSQL documentation, "Recovery Control Functions"; libpq asks the same for `target_session_attrs`.
IS_REPLICA: Final = "SELECT pg_is_in_recovery()"

_STALENESS: Final = "yb_follower_read_staleness_ms"


def pointless(settings: PoolSettings) -> list[str]:
    """Every problem of settings that can do nothing for one connection."""
    return list(_pointless(settings))


def _pointless(settings: PoolSettings) -> Iterator[str]:
    if settings.after_connect is not None:
        yield "after_connect is for the connections of a pool; do it with the one you get"
    of_pools = {
        "reset": callable(settings.reset),
        "topology_source": settings.topology_source is not None,
        "on_event": settings.on_event is not None,
        "staleness": settings.staleness is not None,
        "fallback_master": settings.fallback_master,
        "master_as_replica_weight": settings.master_as_replica_weight != 0,
        "strict_routing": settings.strict_routing,
        "tablet_leaders": bool(settings.tablet_leaders),
    }
    for name, is_set in of_pools.items():
        if is_set:
            yield f"{name} is for pools, and does nothing for one connection"
    if getattr(settings, _STALENESS) != ONLY_HERE[_STALENESS] and not reads_from_followers(settings):
        yield f"{_STALENESS} is about reads from followers; ask for them with role='replica'"


def purpose_of(settings: PoolSettings, dialect: Dialect) -> Purpose:
    """What the connection is opened for: on a YugabyteDB it may be one that reads from followers."""
    follows = reads_from_followers(settings) and Capability.LISTED_SERVERS in dialect.capabilities
    return Purpose.REPLICA_READ if follows else Purpose.PLAIN


def wants_replica(settings: PoolSettings, dialect: Dialect) -> bool | None:
    """Whether the host has to be a standby, or must not be one; None: it makes no difference.

    Raises:
        ConfigError: A connection to this kind of server has no role.
    """
    if settings.role in (None, "any") or Capability.LISTED_SERVERS in dialect.capabilities:
        return None
    if Capability.SHARDED in dialect.capabilities:
        raise ConfigError(f"role={settings.role!r}: a connection to {dialect.name} has none; a pool sends calls by it")
    return reads_from_followers(settings)


def is_wish(settings: PoolSettings) -> bool:
    """Whether any host will do where none has the role."""
    return settings.role in ("prefer_leader", "prefer_replica")
