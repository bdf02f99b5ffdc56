"""Planned statements, kept by text.

Decides nothing about a statement; remembers what the planner said as long as the schema stays the same.
"""

from __future__ import annotations

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.planner import prepare
from picopyn.testing.picodata.planner.statement import Statement

_MOST = 5000


class Plans:
    """Owner: the server process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = 0
        self._known: dict[tuple[str, tuple[int, ...], str], Statement] = {}

    def prepare(self, text: str, oids: tuple[int, ...], own_tier: str) -> Statement:
        """The plan of a text at an instance of this tier.

        Raises:
            ServerError: The server refuses the text.
        """
        catalog = self._cluster.catalog
        if self._version != catalog.version or len(self._known) > _MOST:
            self._known.clear()
            self._version = catalog.version
        key = (text, oids, own_tier)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = prepare(text, catalog, oids, own_tier)
        return found
