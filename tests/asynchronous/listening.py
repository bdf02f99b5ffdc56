"""A tracker over the source that listens, with scripted connections whose server tells what a test wants."""

from __future__ import annotations

import asyncio
from random import Random

from picopyn.asynchronous.topology_tracker import NotifyTopologySource, TopologyTracker
from picopyn.testing.scripted_connection import ScriptedConnection
from tests.asynchronous import notices
from tests.asynchronous.catalog import Cluster
from tests.asynchronous.jump_loop import settle


class Rig:
    """A tracker over the source; each connection tells what a server would before it is ready.

    Args:
        speaking: Whether each connection tells anything, in order; the last one repeats. None: no node can be reached;
            `"refused"`: its server lets in nobody who asks.
        first: Whether there is a connection that was not asked to tell anything.
        interval: How often the timer looks (seconds); None: never.
        told_first: What a connection that tells is told before it is ready, if not everything.
    """

    def __init__(self, *speaking, first=False, interval=None, told_first=None, **options) -> None:
        self.cluster = Cluster()
        self.speaking = list(speaking or [True])
        self.connections: list[ScriptedConnection] = []
        self.attempts = 0
        self.told_first = told_first
        clock = asyncio.get_running_loop().time
        self.source = NotifyTopologySource(
            self.connect, first=self.first if first else None, now=clock, query_timeout=2.0, **options
        )
        self.doubts = 0
        self.source.on_doubt = self.doubted
        self.tracker = TopologyTracker(self.source, interval, now=clock, rng=Random(1))
        self.told = 0

    def first(self):
        """The connection that exists already."""
        self.connections.append(self.cluster.answer(ScriptedConnection()))
        return self.connections[-1]

    def doubted(self):
        """The source wants a refresh soon."""
        self.doubts += 1
        self.tracker.trigger()

    async def connect(self, on_notice):
        """Open the next connection."""
        self.attempts += 1
        speaks = self.speaking.pop(0) if len(self.speaking) > 1 else self.speaking[0]
        if speaks is None:
            return None
        connection = self.cluster.answer(ScriptedConnection(on_notice))
        connection.on_notice = None if speaks == "refused" else on_notice
        connection.endpoint = ("10.0.0.1", len(self.connections))
        self.connections.append(connection)
        if speaks is True:
            connection.speak(*(notices.whole(self.cluster) if self.told_first is None else self.told_first))
        await asyncio.sleep(0)
        return connection

    async def say(self, *texts, connection=-1) -> None:
        """Let a connection say something, and everything that follows from it happen."""
        self.connections[connection].speak(*texts)
        await settle()

    async def start(self) -> Rig:
        """Start tracking, counting what the listener is told."""

        async def listen(topology):
            self.told += 1

        await self.tracker.start(listen)
        return self

    async def refresh(self, times=1, pause=0.0) -> None:
        """Refresh, so many times and so many seconds apart."""
        for _ in range(times):
            await asyncio.sleep(pause)
            await self.tracker.refresh_now()

    @property
    def snapshot(self):
        """What is known."""
        return self.tracker.topology.snapshot

    def leader(self, name="r1"):
        """Name of a replicaset's leader."""
        node = self.snapshot.leader(f"uuid-{name}")
        return None if node is None else node.name

    def owner(self, bucket):
        """Name of the replicaset of a bucket."""
        return self.snapshot.owner("default", bucket).removeprefix("uuid-")

    @property
    def push(self):
        """What is told of listening."""
        return self.tracker.stats().push

    def open_connections(self):
        """Numbers of the connections that are open."""
        return [number for number, connection in enumerate(self.connections) if not connection.is_closed()]
