"""Connections to one node, of one kind: taking, giving back, opening, losing.

Decisions are made by `Slots` under the lock; opening, waking and closing happen outside of it. A connection whose state
is not known to be idle is dropped, never kept. Opening is always a background job: a caller waits for *a* connection,
not for the one being opened.
"""

from __future__ import annotations

from typing import Any, Protocol

from picopyn.dialects.base import Purpose
from picopyn.engine.jobs import Jobs
from picopyn.engine.runtime import Link, Runtime, Waiter
from picopyn.observe import CloseReason
from picopyn.routing.slots import Slots
from picopyn.topology import Node


class NodeUnreachable(Exception):  # noqa: N818 - never leaves the engine
    """A waiter is told that its node cannot be connected to; the cause is the error of the attempt."""


class HookFailed(Exception):  # noqa: N818 - never leaves the engine
    """The caller's own hook failed on a new connection: that says nothing about the node; the cause is its error."""


class PoolListener(Protocol):
    """Who hears what happens to the connections of a node."""

    def link_opened(self, pool: NodePool, link: Link, seconds: float) -> None:
        """A connection was made."""
        ...

    def open_failed(self, pool: NodePool, error: BaseException, seconds: float) -> None:
        """A connection could not be made."""
        ...

    def link_closed(self, pool: NodePool, link: Link, reason: CloseReason) -> None:
        """A connection ended; `broken` when it was not us who ended it."""
        ...


class NodePool:
    """Connections of one purpose to one node.

    Args:
        runtime: The world.
        node: Where the connections lead.
        purpose: What they are for.
        max_size: Most connections at the same time.
        listener: Who is told of openings, failures and losses.
        jobs: Run the opening of connections, and end it with their owner.

    Attributes:
        trouble: Why the last connection could not be opened; empty when it could.
    """

    __slots__ = (
        "_farewell",
        "_jobs",
        "_leaving",
        "_listener",
        "_lock",
        "_runtime",
        "node",
        "purpose",
        "retired",
        "slots",
        "trouble",
    )

    def __init__(
        self, runtime: Runtime, node: Node, purpose: Purpose, max_size: int, listener: PoolListener, jobs: Jobs
    ) -> None:
        self.node = node
        self.purpose = purpose
        self.slots: Slots[Link, Waiter[Link]] = Slots(max_size)
        self.retired = False
        self.trouble = ""
        self._farewell: CloseReason = "node_gone"
        self._runtime = runtime
        self._listener = listener
        self._jobs = jobs
        self._lock = runtime.lock()
        self._leaving: dict[Link, CloseReason] = {}

    def try_take(self) -> Link | None:
        """Take an idle connection if there is one; never waits."""
        with self._lock:
            link = self.slots.take()
            while link is not None and link.is_closed():
                self.slots.lost(link)
                link = self.slots.take()
            return link

    async def take(self, deadline: float | None) -> Link:
        """Take a connection: an idle one, or the next that becomes free or is opened, in the order of asking.

        Raises:
            NodeUnreachable: No connection could be made, and there is none that could become free.
            TimeoutError: The deadline passed.
        """
        link = self.try_take()
        if link is not None:
            return link
        waiter = self._runtime.waiter()
        with self._lock:
            if self.retired:
                raise NodeUnreachable("the node has left the cluster")
            grow = self.slots.wait(waiter)
        self._start_opening(grow)
        try:
            taken: Link = await waiter.wait(deadline)
            return taken
        except BaseException:
            self._abandon(waiter)
            raise

    def give(self, link: Link) -> None:
        """Give a connection back after use: it goes to the first waiter, or becomes idle, or is dropped."""
        if self.retired:
            self.drop(link, self._farewell)
        elif link.is_closed():
            self.drop(link, "broken")
        elif link.is_in_transaction():
            self.drop(link, "state_unknown")
        else:
            with self._lock:
                waiter = self.slots.give(link)
            if waiter is not None:
                self._hand_over(waiter, link)

    def drop(self, link: Link, reason: CloseReason) -> None:
        """Give back a connection that must not be used again: it is closed at once."""
        if not link.is_closed():
            self._leaving[link] = reason
        self._forget(link)
        link.terminate()

    async def open_one(self) -> bool:
        """Open one connection if there is room for one.

        Returns:
            True when one was opened or none was needed.
        """
        with self._lock:
            if not self.slots.reserve(1):
                return self.slots.size > 0
        return await self._open()

    def warm(self, size: int) -> None:
        """Start opening connections in the background until `size` are alive."""
        with self._lock:
            missing = size - self.slots.size - self.slots.opening
            granted = self.slots.reserve(missing) if missing > 0 and not self.retired else 0
        self._start_opening(granted)

    def refuse_waiters(self, error: BaseException) -> None:
        """Tell those who wait that no connection will come, unless some connection is still alive.

        Whoever waits for a connection whose hook failed gets the hook's own error.
        """
        with self._lock:
            waiters = [] if self.slots.size or self.slots.opening else self.slots.drain_waiters()
        for waiter in waiters:
            waiter.fail(error.__cause__ or error if isinstance(error, HookFailed) else _unreachable(error))

    def retire(self, reason: CloseReason) -> list[Link]:
        """The node has left, or the pool closes: refuse waiters, take no more connections.

        Returns:
            The idle connections, for the caller to close. Held ones are dropped when they are given back.
        """
        with self._lock:
            self.retired, self._farewell = True, reason
            waiters, idle = self.slots.drain_waiters(), self.slots.drain_idle()
            self._leaving.update(dict.fromkeys(idle, reason))
        for waiter in waiters:
            waiter.fail(NodeUnreachable("the node has left the cluster"))
        return idle

    def terminate_held(self, reason: CloseReason) -> None:
        """Drop every connection in use."""
        for link in list(self.slots.held):
            self.drop(link, reason)

    def _hand_over(self, waiter: Waiter[Link] | None, link: Link) -> None:
        """Wake the waiter that a connection belongs to; if it has left meanwhile, the next one, or nobody."""
        while waiter is not None and not waiter.wake(link):
            with self._lock:
                waiter = self.slots.give(link)

    def _abandon(self, waiter: Waiter[Link]) -> None:
        with self._lock:
            queued = self.slots.leave(waiter)
        link = waiter.abandon()
        if link is not None and not queued:
            self.give(link)

    def _start_opening(self, count: int) -> None:
        for _ in range(count):
            self._jobs.spawn(self._open_quietly(), f"picopyn open {self.node.name or self.node.address}")

    async def _open_quietly(self) -> None:
        await self._open()

    async def _open(self) -> bool:
        began = self._runtime.now()
        try:
            link = await self._runtime.open_link(self.node, self.purpose, self._link_closed)
        except Exception as error:
            with self._lock:
                self.slots.open_failed()
            self.trouble = _reason(error)
            self._listener.open_failed(self, error, self._runtime.now() - began)
            return False
        except BaseException:
            with self._lock:
                self.slots.open_failed()
            raise
        self._opened(link, self._runtime.now() - began)
        return True

    def _opened(self, link: Link, seconds: float) -> None:
        self.trouble = ""
        with self._lock:
            waiter = self.slots.opened(link)
        self._listener.link_opened(self, link, seconds)
        if self.retired:
            self.drop(link, self._farewell)
        else:
            self._hand_over(waiter, link)
        with self._lock:
            grow = self.slots.grow()
        self._start_opening(grow)

    def _link_closed(self, link: Any) -> None:
        reason = self._leaving.pop(link, "broken")
        self._forget(link)
        self._listener.link_closed(self, link, reason)

    def _forget(self, link: Link) -> None:
        with self._lock:
            grow = self.slots.lost(link)
            if self.retired:
                self.slots.opening, grow = self.slots.opening - grow, 0
        self._start_opening(grow)


def _reason(error: BaseException) -> str:
    """What went wrong, in words; of a hook, what the hook says."""
    cause = (error.__cause__ if isinstance(error, HookFailed) else None) or error
    return str(cause) or type(cause).__name__


def _unreachable(error: BaseException) -> NodeUnreachable:
    told = NodeUnreachable(_reason(error))
    told.__cause__ = error
    return told
