"""Looking after the nodes of a cluster: one sweep over all of them, and a question where one is needed.

What is asked, and what silence means, is decided by [`watch`][picopyn.routing.watch]; this file looks, asks and tells.
No call pays for it: nothing is done, started or timed per call. A look sees which connections are in use and how many
requests were made on each; only where no request ended since the last look, it asks the kernel when the last byte came.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from picopyn.engine.changes import Changes
from picopyn.engine.jobs import Jobs
from picopyn.engine.node_pool import NodePool
from picopyn.engine.node_probe import NodeProbe, ProbeListener
from picopyn.engine.runtime import Link, Runtime, Waiter
from picopyn.routing.watch import IDLE_TICK, Change, Sight, Watch
from picopyn.topology import Node

#: How often the cluster is looked at while calls in flight may wait for a leader that is away (seconds).
SEARCH_EVERY = 0.4
#: Coarseness of the kernel's clock for the last byte (seconds); what came that soon after a look was seen by it.
_COARSE = 0.01


class ProbesOwner(ProbeListener, Protocol):
    """What the sweep needs of its cluster."""

    def pools_of(self, uuid: str) -> Iterable[NodePool]:
        """The pools of a node."""
        ...

    def all_down(self) -> bool:
        """Whether no node can be reached."""
        ...

    def node_changed(self, change: Change) -> None:
        """A node is in another state now."""
        ...

    def node_hangs(self, uuid: str) -> None:
        """The calls in flight at a node will not be answered."""
        ...

    def search_leaders(self) -> None:
        """Look at the cluster if calls in flight may wait for a leader that is away."""
        ...


class _Seen:
    """The connections of a node that were in use at the last look, and when it was last heard, or had no calls."""

    __slots__ = ("requests", "spoke_at")

    def __init__(self, now: float) -> None:
        self.spoke_at = now
        self.requests: dict[Link, int] = {}


class Probes:
    """One probe per node, and the sweep over them. Owned by a cluster.

    Args:
        runtime: The world.
        jobs: Where the sweep and the questions run.
        watch: Decides; it also holds what is known of the nodes.
        changes: Tells whether calls wait.
        owner: Is told what is found.
        question: What nodes are asked.
    """

    __slots__ = (
        "_changes",
        "_jobs",
        "_looked_at",
        "_owner",
        "_pace",
        "_pause",
        "_probes",
        "_question",
        "_runtime",
        "_search_at",
        "_seen",
        "watch",
    )

    def __init__(
        self, runtime: Runtime, jobs: Jobs, watch: Watch, changes: Changes, owner: ProbesOwner, question: str
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self.watch = watch
        self._changes = changes
        self._owner = owner
        self._question = question
        self._probes: dict[str, NodeProbe] = {}
        self._seen: dict[str, _Seen] = {}
        self._pace = IDLE_TICK
        self._pause: Waiter[None] | None = None
        self._looked_at = self._search_at = runtime.now()

    def join(self, node: Node) -> None:
        """Watch over a node from now on."""
        self._probes[node.uuid] = NodeProbe(self._runtime, self._jobs, node, self._question, self._owner)
        if self._pause is None:
            self._pause = self._runtime.waiter()
            self._looked_at = self._runtime.now()
            self._jobs.spawn(self._sweep(), "picopyn probes")

    def leave(self, uuid: str) -> None:
        """The node has left."""
        self.watch.forget(uuid)
        probe = self._probes.pop(uuid, None)
        self._seen.pop(uuid, None)
        link = probe.end() if probe is not None else None
        if link is not None:
            link.terminate()

    def end(self) -> list[Link]:
        """Ask nobody any more; the connections that were kept are for the caller to close."""
        links = [link for probe in self._probes.values() if (link := probe.end()) is not None]
        self._probes.clear()
        return links

    def doubt(self, node: Node) -> None:
        """Something failed at a node: ask it at once, if that is due, and look at all of them."""
        now = self._runtime.now()
        if node.uuid in self._probes and self.watch.is_due(node.uuid, now, eager=False):
            self._ask(node.uuid, now)
        if self._pause is not None:
            self._pause.wake(None)

    async def _sweep(self) -> None:
        planned = 0.0
        while not self._jobs.closed:
            self._look(planned)
            planned = self._pace
            self._pause = self._runtime.waiter()
            with suppress(TimeoutError):
                await self._pause.wait(self._looked_at + planned)

    def _look(self, planned: float) -> None:
        now = self._runtime.now()
        sights = {uuid: self._sight(uuid, now) for uuid in self._probes}
        eager = bool(self._changes.waiting) or self._owner.all_down()
        findings = self.watch.look(now, planned, sights, eager=eager)
        self._looked_at = now
        for change in findings.changes:
            self._owner.node_changed(change)
        for uuid in findings.hung:
            self._owner.node_hangs(uuid)
        for uuid in findings.ask:
            self._ask(uuid, now)
        self._pace = self.watch.pace(sights)
        self._tidy(now)

    def _ask(self, uuid: str, now: float) -> None:
        self.watch.asked(uuid, now)
        self._probes[uuid].ask()

    def _tidy(self, now: float) -> None:
        for probe in self._probes.values():
            link = probe.rest()
            if link is not None:
                self._jobs.spawn(self._runtime.close_link(link, now + 1.0), "picopyn probe rests")
        if self.watch.doubts and now >= self._search_at:
            self._search_at = now + SEARCH_EVERY
            self._owner.search_leaders()

    def _sight(self, uuid: str, now: float) -> Sight:
        """What was seen of a node since the last look."""
        held = [link for pool in self._owner.pools_of(uuid) for link in tuple(pool.slots.held)]
        if not held:
            self._seen.pop(uuid, None)
            return Sight.QUIET
        seen = self._seen.get(uuid)
        if seen is None:
            seen = self._seen[uuid] = _Seen(now)
        before, seen.requests = seen.requests, {link: link.requests() for link in held}
        heard = any(link.requests() != count and not link.is_closed() for link, count in before.items())
        if heard or (self.watch.is_curious(uuid) and _spoke_after(seen.spoke_at, held, now)):
            seen.spoke_at = now
            return Sight.HEARD
        return Sight.SILENT


def _spoke_after(moment: float, links: Iterable[Link], now: float) -> bool:
    """Whether a byte came on one of the connections after a moment, as far as the kernel tells."""
    ages = (link.silence() for link in links)
    return any(age is not None and now - age > moment + _COARSE for age in ages)
