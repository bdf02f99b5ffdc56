"""Looks at the cluster that are taken because calls need them, while no timer takes any.

With `topology_update_interval=None` the tracker has no loop that could be woken. A call that met an outdated leader, or
waits for one, still needs a newer look: here one is taken for all that asked meanwhile, and again only while it is
needed. This file decides when; how is the tracker's.
"""

from __future__ import annotations

import asyncio
import math

from picopyn.asynchronous.topology_tracker import FIRST_RETRY, MIN_BACKGROUND_GAP, TopologyTracker
from picopyn.engine.cluster import Cluster
from picopyn.engine.runtime import Job

#: Longest pause after looks that failed, while calls wait for one (seconds).
LONGEST_RETRY = 1.0


class LooksOnDemand:
    """Takes looks that were asked for, at most one per 0.2 s. Owned by a control plane.

    Args:
        tracker: Takes them.
    """

    def __init__(self, tracker: TopologyTracker) -> None:
        self._tracker = tracker
        self._wanted = 0
        self._earliest = -math.inf
        self._job: Job | None = None

    def ask(self, cluster: Cluster) -> int:
        """Ask for a look.

        Args:
            cluster: Whose calls need it; the look ends with its jobs.

        Returns:
            The number of the first look that begins after this.
        """
        self._wanted = self._tracker.next_look
        if self._job is None or self._job.done():
            self._job = cluster.jobs.spawn(self._look(cluster), "picopyn look")
        return self._wanted

    async def _look(self, cluster: Cluster) -> None:
        """Look until a look has succeeded that began after the last request; a failed one again while calls wait."""
        now, pause = asyncio.get_running_loop().time, FIRST_RETRY
        while self._tracker.last_look < self._wanted and not cluster.jobs.closed:
            await asyncio.sleep(max(0.0, self._earliest - now()))
            self._earliest = now() + MIN_BACKGROUND_GAP
            await self._tracker.refresh_now()
            if self._tracker.failure is not None:
                if not cluster.changes.waiting:
                    return
                self._earliest, pause = now() + pause, min(2 * pause, LONGEST_RETRY)
