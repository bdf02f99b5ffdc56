"""The published picopyn 3.2.0, on a plain PostgreSQL with tables that look like Picodata's.

It always sends a start-up option that PostgreSQL refuses. Here that option is made part of the text of another one,
which PostgreSQL knows how to take. Routed: INSERT only, which is what it routes; its knowledge of the statement is
put into its cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clients import PATIENCE, Opened, Target

from picopyn.asynchronous import Pool
from picopyn.query_metadata import PreparedStatementMetadata


@asynccontextmanager
async def pool(target: Target, *, routed: bool) -> AsyncIterator[Opened]:
    options: dict[str, Any] = {
        "max_size": target.size,
        "topology_update_interval": 60.0 if routed else None,
        "query_metadata_cache_size": 100 if routed else None,
        "routing_acquire_timeout": PATIENCE if routed else 0.0,
        "server_settings": {"options": "-c published.options=x"},
    }
    opened = Pool(target.dsn, **options)
    opened._default_acquire_timeout_sec = PATIENCE
    await opened.open()
    try:
        if routed:
            known = PreparedStatementMetadata(target.query, "default", [(1, 20)])
            opened._query_metadata_service._cache.set(known)
        note = "own waiting limit of 0 s for the owner's connection raised" if routed else "no topology, no metadata"
        yield Opened([target.bind(opened)], note=note, counted=lambda: _counted(opened))
    finally:
        opened.terminate()


def _counted(opened: Any) -> dict[str, int]:
    counters = opened._counters
    return {"keyed": counters.routing_hits, "attempts": counters.routing_attempts}
