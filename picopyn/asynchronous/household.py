"""What an open pool has running, and how it ends: the engine, the control plane, the sessions.

It decides the order and the time limits of an ending. Nothing here refers to the pool itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from picopyn.asynchronous.control_plane import ControlPlane
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.sessions import Sessions
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Dialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.journal import Journal

#: How long after the deadline servers may take to hear that nobody waits for their answers any more (seconds).
_LAST_WORDS = 0.06


@dataclass(slots=True, kw_only=True)
class Household:
    """The parts of an open pool; those that do not exist yet are None.

    Attributes:
        dialer: Opens every connection.
        dialect: The kind of server.
        reach: Service connections.
        sessions: Connections for callers.
        control: What is known of the cluster.
        cluster: Node pools.
        executor: Running calls.
        journal: What happened.
    """

    dialer: Dialer
    dialect: Dialect
    reach: Reach | None = None
    sessions: Sessions | None = None
    control: ControlPlane | None = None
    cluster: Cluster | None = None
    executor: Executor | None = None
    journal: Journal | None = None

    async def close(self, deadline: float) -> None:
        """Refuse new calls, wake waiting ones, let running ones finish; at the deadline the rest is dropped."""
        if self.executor is not None:
            self.executor.refuse()
        await asyncio.gather(self._close_cluster(deadline), self._close_control(deadline))
        await self.dialer.stragglers.close()
        if self.sessions is not None:
            await self.sessions.cancel_requests.settle(deadline + _LAST_WORDS)

    def terminate(self) -> None:
        """Drop everything at once."""
        if self.executor is not None:
            self.executor.refuse()
        for part in (self.control, self.cluster, self.reach, self.sessions, self.dialer.stragglers):
            if part is not None:
                part.terminate()

    def lay_down(self) -> None:
        """Drop the connection by which the servers were got to know, if nobody had a use for it."""
        if self.reach is not None:
            self.reach.terminate()

    def abandon(self) -> None:
        """The event loop is closed: close the sockets without it."""
        self.dialer.abandon()

    async def _close_cluster(self, deadline: float) -> None:
        if self.cluster is not None:
            await self.cluster.close(deadline)

    async def _close_control(self, deadline: float) -> None:
        """Say goodbye to the servers that were asked about the cluster; one that hangs has the grace, no more."""
        if self.control is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self.control.close()
        except TimeoutError:
            self.control.terminate()
