"""Connections to one node, of one kind: taking, giving back, opening, losing.

Decisions are made by `Slots` under the lock; opening, waking and closing happen outside of it. A connection whose state
is not known to be idle is dropped, never kept. Opening is always a background job: a caller waits for *a* connection,
not for the one being opened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from picopyn.dialects.base import Purpose
from picopyn.engine.runtime import Job, Link, Waiter
from picopyn.engine.terms import GOODBYE, SHORT_GOODBYE, Terms
from picopyn.observe import CloseReason
from picopyn.routing.slots import Slots
from picopyn.topology import Node

#: First and longest pause before a connection is tried again only to be kept warm (seconds); it doubles in between.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
#: The same, at most, while calls wait.
EAGER_PAUSE = 1.0
JITTER = 0.2


class NodeUnreachable(Exception):  # noqa: N818 - never leaves the engine
    """A waiter is told that its node cannot be connected to; the cause is the error of the attempt."""


class HookFailed(Exception):  # noqa: N818 - never leaves the engine
    """The caller's own hook failed on a new connection: that says nothing about the node; the cause is its error."""


class QueueFull(Exception):  # noqa: N818 - never leaves the engine
    """As many calls as may wait for this node wait already."""


class NodePool:
    """Connections of one purpose to one node.

    Taking an idle one and giving it back is what every call does, so that is not guarded here: on an event loop nobody
    comes in between. Threads have a [`SharedNodePool`][picopyn.engine.shared_node_pool.SharedNodePool].

    Args:
        terms: What it has in common with the pools of other nodes.
        node: Where the connections lead.
        purpose: What they are for.

    Attributes:
        try_take: Takes an idle connection if there is one, on somebody's behalf; never waits.
        settle: Gives a connection back that is idle; False: nothing was done, and `pass_on` has to do it.
        slots: Its accounts.
        retired: It takes no more connections; the node has left, or the pool closes.
        failure: Why the last attempt to open a connection failed; None when it did not. `HookFailed` for a hook.
        retry_at: Before this moment an attempt that failed is not made again by itself.
    """

    __slots__ = (
        "_failures",
        "_lock",
        "_openings",
        "_terms",
        "failure",
        "node",
        "purpose",
        "retired",
        "retry_at",
        "settle",
        "slots",
        "try_take",
    )

    def __init__(self, terms: Terms, node: Node, purpose: Purpose) -> None:
        self.node = node
        self.purpose = purpose
        self.slots: Slots[Link, Waiter[Link]] = Slots(terms.settings.max_size)
        self.try_take: Callable[[object], Link | None] = self.slots.take
        self.settle: Callable[[Link], bool] = self.slots.settle
        self.retired = False
        self.failure: BaseException | None = None
        self.retry_at = 0.0
        self._failures = 0
        self._openings: list[Job] = []
        self._terms = terms
        self._lock = terms.runtime.lock()

    @property
    def trouble(self) -> str:
        """Why the last connection could not be opened; empty when it could."""
        return "" if self.failure is None else _reason(self.failure)

    @property
    def cause(self) -> BaseException | None:
        """The same as an error for callers: of a hook, its own."""
        return self.failure.__cause__ if isinstance(self.failure, HookFailed) else self.failure

    @property
    def state(self) -> str:
        """What its connections do, in words."""
        slots = self.slots
        full = slots.size >= slots.max_size
        doing = f"{'all ' if full else ''}{slots.size} in use" if slots.size else "none is open"
        opening = f", {slots.opening} being opened" if slots.opening else ""
        limit = ", max_total is reached" if self._terms.budget.is_hungry(self) else ""
        waiting = f", {len(slots.waiters)} calls wait" if slots.waiters else ""
        trouble = f", the last attempt failed: {self.trouble}" if self.failure is not None else ""
        return f"{doing}{opening}{waiting}{limit}{trouble}"

    async def take(self, deadline: float | None, owner: object = None, place: Waiter[Link] | None = None) -> Link:
        """Take a connection: an idle one, or the next that becomes free or is opened, in the order of asking.

        Args:
            deadline: Until when to wait, on the runtime's clock; None: no limit.
            owner: On whose behalf.
            place: His place in the queue, if he has one.

        Raises:
            NodeUnreachable: No connection could be made, and there is none that could become free.
            QueueFull: Too many wait already.
            HookFailed: One was made, but the caller's own hook failed on it.
            TimeoutError: The deadline passed.
        """
        while True:
            waiter = place or self.queue(owner)
            try:
                taken: Link = await waiter.wait(deadline)
            except BaseException:
                self._abandon(waiter)
                raise
            if not taken.is_closed():
                return taken
            self.drop(taken, "broken")  # it ended on its way to the one who has waited for it
            place = None

    def queue(self, owner: object) -> Waiter[Link]:
        """Take a place in the queue, which may be one at its end already; never waits. `take` waits there."""
        waiter = self._terms.runtime.waiter()
        try:
            with self._lock:
                link = self._take_or_queue(waiter, owner)
                may_grow = link is None and self.slots.has_room
        except (NodeUnreachable, QueueFull) as error:
            waiter.fail(error)
            return waiter
        if link is not None:
            waiter.wake(link)
        elif may_grow or self._terms.budget.is_hungry(self):
            self._grow_soon()
        return waiter

    def give(self, link: Link) -> None:
        """Give a connection back after use: it goes to the first waiter, or becomes idle, or leaves."""
        settle = self.settle
        if not link.is_idle():
            self._give_unfit(link)
        elif not settle(link):
            self.pass_on(link)

    def pass_on(self, link: Link) -> None:
        """Give a connection back that somebody waits for, or that has to leave; see `settle`."""
        if self.slots.condemned:
            self._give_unfit(link)
            return
        with self._lock:
            waiter = self.slots.give(link)
        if waiter is not None:
            self._hand_over(waiter, link)

    def drop(self, link: Link, reason: CloseReason) -> None:
        """Give back a connection that must not be used again: it is closed at once."""
        with self._lock:
            if link.is_closed():
                self.slots.lost(link)
            else:
                self.slots.part(link, reason)
        link.terminate()
        self._grow_soon()

    def interrupt(self, link: Link, owner: object) -> None:
        """Somebody's time is over: drop the connection that he holds, whatever runs on it, if he still holds it."""
        with self._lock:
            holds = self.slots.held.get(link) is owner and self.slots.part(link, "timeout")
        if holds:
            link.abort()

    def forfeit(self, owner: object) -> list[Link]:
        """Somebody was interrupted in the middle of what he did: finish it, so that nobody waits for him.

        Returns:
            The connections that he held; nobody knows in which state, so they are dropped.
        """
        with self._lock:
            held, sent, gone = self.slots.forfeit(owner)
        for waiter in gone:
            waiter.fail(TimeoutError())  # somebody else may be waiting there for him
        for waiter, link in sent.items():
            if not waiter.wake(link) and waiter.abandon() is not link:
                self.give(link)
        for link in held:
            self.drop(link, "state_unknown")
        return held

    def was_closed(self, link: Link, reason: CloseReason) -> None:
        """Somebody on this side has just closed a connection: remember why, before it is told that it is gone."""
        with self._lock:
            self.slots.part(link, reason)

    def expect_close(self, link: Link, reason: CloseReason) -> None:
        """Somebody on this side is about to close a connection: remember why."""
        with self._lock:
            if not link.is_closed():
                self.slots.part(link, reason)

    def warm(self, size: int) -> None:
        """Start opening connections in the background until `size` are alive, unless that failed just now."""
        if not self.retired and self._terms.runtime.now() >= self.retry_at:
            self._start_opening(self._terms.reserve(self, size))

    def grow(self) -> None:
        """Start opening what waiters need."""
        if self.retired:
            self._terms.budget.grant(self, 0)
        elif self.slots.waiters or self._terms.budget.is_hungry(self):
            self._start_opening(self._terms.reserve(self))
            self._terms.ask_around(self)

    def refuse_waiters(self, error: BaseException, *, full: bool = False) -> None:
        """Tell those who wait that no connection will come, unless some connection is still alive.

        Whoever waits for a connection whose hook failed is told that.

        Args:
            error: Why none was opened.
            full: The server has no room for more: whom another node can serve as well is not left to wait for what is
                in use here.
        """
        with self._lock:
            if not (self.slots.size or self.slots.opening):
                waiters = self.slots.drain_waiters()
            else:
                waiters = self.slots.send_on(_is_served_elsewhere) if full else []
        for waiter in waiters:
            waiter.fail(error if isinstance(error, HookFailed) else _unreachable(error))

    def desert(self, error: BaseException) -> None:
        """The node is down: those who wait are sent on, idle connections are dropped, those in use leave after it.

        Connections being opened are given up: they might hang for long after the node is well again.
        """
        self.failure = error
        with self._lock:
            waiters, idle = self.slots.drain_waiters(), self.slots.expire_all("terminated")
        for job in self._openings:
            job.cancel()
        for waiter in waiters:
            waiter.fail(_unreachable(error))
        for link in idle:
            link.terminate()

    # going

    def expire(self, now: float) -> None:
        """Part with connections whose life has ended; those in use leave when they are given back."""
        with self._lock:
            idle = self.slots.expire(now, "lifetime")
        self.say_goodbye(idle)

    def discard_broken(self) -> None:
        """Find out which idle connections have ended; who is told of it, is told as always."""
        with self._lock:
            for link in self.slots.idle:
                if link.is_closed():
                    self.slots.lost(link)

    def expire_all(self) -> None:
        """The same for all connections, whatever their age."""
        with self._lock:
            idle = self.slots.expire_all("lifetime")
        self.say_goodbye(idle)

    def expire_unused(self, now: float, longest: float) -> None:
        """Part with connections that nobody has used for so long, as far as looks like this one have seen it."""
        with self._lock:
            idle = self.slots.expire_unused(now - longest, "idle")
            self.slots.cool(now)
        self.say_goodbye(idle)

    def give_up_one(self) -> None:
        """Part with an idle connection because another pool needs its place more, or use has moved to other nodes."""
        with self._lock:
            spare = self.slots.spare("excess")
        if spare is not None:
            self.say_goodbye([spare], SHORT_GOODBYE)

    def owe_one(self) -> None:
        """Part with the connection that is given back next, if its place is still needed then."""
        with self._lock:
            self.slots.owe("excess")

    def retire(self, reason: CloseReason) -> list[Link]:
        """The node has left, or the pool closes: refuse waiters, take no more connections.

        Returns:
            The idle connections, for the caller to close. Held ones leave when they are given back.
        """
        with self._lock:
            self.retired = True
            waiters, idle = self.slots.drain_waiters(), self.slots.expire_all(reason)
        for waiter in waiters:
            waiter.fail(NodeUnreachable("the node has left the cluster"))
        return idle

    def terminate_all(self, reason: CloseReason) -> None:
        """Drop every connection, in use or being closed."""
        for link in [*self.slots.held, *self.slots.leaving]:
            with self._lock:
                in_use = self.slots.part(link, reason)
            if in_use:
                link.abort()
            else:
                link.terminate()

    # inside

    def _give_unfit(self, link: Link) -> None:
        """Give back what must not be used again, or may have to leave."""
        if link.is_idle():
            self._terms.runtime.post(partial(self._give_or_part, link))
        else:
            self.drop(link, "broken" if link.is_closed() else "state_unknown")

    def _give_or_part(self, link: Link) -> None:
        if self._must_leave(link):
            self.say_goodbye([link])
            self.grow()
            return
        with self._lock:
            waiter = self.slots.give(link)
        self._hand_over(waiter, link)

    def _grow_soon(self) -> None:
        """The same as `grow`, from where callers are."""
        if self.slots.wanted or self._terms.budget.is_hungry(self):
            self._terms.runtime.post(self.grow)

    def _take_or_queue(self, waiter: Waiter[Link], owner: object) -> Link | None:
        """An idle connection, or else a place in the queue; called with the lock held."""
        slots = self.slots
        if self.retired:
            raise NodeUnreachable("the node has left the cluster")
        link = self._sound(slots.take(owner), owner)
        if link is None:
            limit = self._terms.settings.max_waiting
            if limit and len(slots.waiters) >= limit:
                raise QueueFull
            slots.wait(waiter, owner)
        return link

    def _sound(self, link: Link | None, owner: object) -> Link | None:
        """A connection just taken, or the next one whose socket has not ended; called with the lock held."""
        while link is not None and link.is_closed():
            self.slots.lost(link)
            link = self.slots.take(owner)
        return link

    def _must_leave(self, link: Link) -> bool:
        with self._lock:
            if not self._terms.budget.needs_more:
                self.slots.release_debt()
            reason = self.slots.verdict(link)
            if reason == "excess":
                self._terms.budget.gave_up(self)
            leaves = reason is not None and self.slots.part(link, reason)
            if leaves and self._terms.budget.needs_more:  # one was owed for several nodes that have nothing
                self.slots.owe("excess")
            return leaves

    def say_goodbye(self, links: list[Link], patience: float = GOODBYE) -> None:
        """Say goodbye in the background to connections that are leaving."""
        runtime, jobs = self._terms.runtime, self._terms.jobs
        for link in links:
            if jobs.closed:
                link.terminate()
            else:
                jobs.spawn(runtime.close_link(link, runtime.now() + patience), f"picopyn close {self._name}")

    def _hand_over(self, waiter: Waiter[Link] | None, link: Link) -> None:
        """Wake the waiter that a connection belongs to; if it has left meanwhile, the next one, or nobody."""
        while waiter is not None:
            woken = waiter.wake(link)
            self.slots.arrived(waiter)
            if woken:
                return
            with self._lock:
                waiter = self.slots.give(link)

    def _abandon(self, waiter: Waiter[Link]) -> None:
        with self._lock:
            queued = self.slots.leave(waiter)
        link = waiter.abandon()
        if link is not None and not queued:
            self.give(link)

    @property
    def _name(self) -> str:
        return self.node.name or self.node.address

    def _start_opening(self, count: int) -> None:
        for _ in range(count):
            job = self._terms.jobs.spawn(self._open(), f"picopyn open {self._name}")
            self._openings = [known for known in (*self._openings, job) if known is not None and not known.done()]

    async def _open(self) -> None:
        runtime, generation = self._terms.runtime, self._terms.generation
        began = runtime.now()
        try:
            link = await runtime.open_link(self.node, self.purpose, self._link_closed, self.slots.ended)
        except Exception as error:
            self._not_opened(error, runtime.now() - began)
            return
        except BaseException:
            with self._lock:
                self.slots.open_failed()
            self._terms.listener.opening_given_up(self)
            raise
        self._opened(link, runtime.now() - began, generation)

    def _not_opened(self, error: Exception, seconds: float) -> None:
        with self._lock:
            self.slots.open_failed()
        self.failure = error
        self._failures += 1
        pause = back_off(self._failures, self._terms.rng)
        self.retry_at = self._terms.runtime.now() + (min(pause, EAGER_PAUSE) if self.slots.waiters else pause)
        self._terms.listener.open_failed(self, error, seconds)
        self._terms.ask_again()

    def _opened(self, link: Link, seconds: float, generation: int) -> None:
        """A connection is there. One that was begun before all were declared outdated is as old as they are."""
        self.failure, self._failures, self.retry_at = None, 0, 0.0
        waiter, useless = None, "node_gone" if self.retired else "lifetime"
        useful = not self.retired and generation == self._terms.generation
        with self._lock:
            if useful:
                waiter = self.slots.opened(link, self._terms.end_of_life())
            else:
                self.slots.opened_in_vain(link, useless)
        self._terms.listener.link_opened(self, link, seconds)
        if not useful:
            self.say_goodbye([link])
        self._hand_over(waiter, link)
        self.grow()
        self._terms.ask_again()

    def _link_closed(self, link: Any) -> None:
        with self._lock:
            reason: Any = self.slots.gone(link) or "broken"
        self._terms.ask_again()
        self.grow()
        self._terms.listener.link_closed(self, link, reason)
        if self.retired and not self.slots.occupied:
            self._terms.budget.forget(self)


def back_off(failures: int, rng: Random) -> float:
    """Seconds before a connection is tried again only to be kept warm, after so many failures in a row."""
    pause = min(FIRST_PAUSE * 2.0 ** min(failures, 10), LONGEST_PAUSE)
    return pause * (1 + JITTER * (2 * rng.random() - 1))


def _is_served_elsewhere(owner: object) -> bool:
    return bool(getattr(owner, "elsewhere", False))


def _reason(error: BaseException) -> str:
    """What went wrong, in words; of a hook, what the hook says."""
    cause = (error.__cause__ if isinstance(error, HookFailed) else None) or error
    return str(cause) or type(cause).__name__


def _unreachable(error: BaseException) -> NodeUnreachable:
    told = NodeUnreachable(_reason(error))
    told.__cause__ = error
    return told
