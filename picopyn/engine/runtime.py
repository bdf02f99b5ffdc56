"""What the engine needs from the world: time, waiting, background jobs, and connections.

The engine is written once against these protocols. Under asyncio its waits suspend; under threads they block. It names
no event loop, no thread and no driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol, TypeVar

from picopyn.dialects.base import Purpose
from picopyn.errors import Fault
from picopyn.topology import Node

T = TypeVar("T")


def status_of(answer: Any) -> str:
    """The server's status in what `ask` gave for an `execute`."""
    return answer if isinstance(answer, str) else str(answer[1].decode())


class Leftovers(Enum):
    """What a borrower left behind in a connection, as far as this side knows."""

    NOTHING = "nothing that is known here"
    SESSION = "something that clearing the session removes"
    CODECS = "other type codecs; only a new connection has the right ones"


class Link(Protocol):
    """A driver's connection to one node, as the engine sees it.

    Besides what is asked of it here, it passes arguments and results through.
    """

    def ask(self, method: str, query: str, args: Sequence[Any], deadline: float | None) -> Awaitable[Any]:
        """Send what a pool's method has to send.

        Args:
            method: `fetch`, `fetchrow`, `execute`, `executemany` or `executemany_freshly`.
            query: Statement text.
            args: Its arguments; of the last two, what the connection's method of that name takes.
            deadline: Until when, on the runtime's clock, or None. Where the runtime has an alarm, the connection is
                dropped then, and this need not end by itself.

        Returns:
            The driver's answer: of `fetch` and `fetchrow` a list of rows, which of `fetchrow` has one at most; of
            `execute` the status, or what [`status_of`][picopyn.engine.runtime.status_of] finds it in.
        """
        ...

    def explained(self, error: Exception) -> Exception:
        """An error as its driver should have raised it: itself, mostly."""
        ...

    def heed(self, error: BaseException, query: str) -> bool:
        """A call failed: forget what the error says is outdated, or may be.

        Args:
            error: How it failed.
            query: The text of its statement.

        Returns:
            Whether that is the statement as it was prepared, and nothing was done.
        """
        ...

    def is_closed(self) -> bool:
        """Whether the connection is known to be unusable; looks only at what the socket already said."""
        ...

    def is_idle(self) -> bool:
        """Whether the next call may use it: it is not closed, and in no transaction."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether the server's last answer left a transaction open."""
        ...

    def terminate(self) -> None:
        """Drop the connection at once; a call in flight on it ends with an error."""
        ...

    def abort(self) -> None:
        """The same, and the server is told, where that is possible, that nobody waits for its answer any more."""
        ...

    def requests(self) -> int:
        """How many requests were made on it so far; a further one means that the one before has ended."""
        ...

    def silence(self) -> float | None:
        """Seconds since the last byte came from the server, as the kernel knows; None where it does not tell."""
        ...

    def forget_statements(self) -> None:
        """Prepare every statement again at its next use."""
        ...

    def is_settled(self) -> bool:
        """Whether no request is still being cancelled on it."""
        ...

    def lend(self) -> None:
        """A borrower gets it: note what it has, so that what he adds can be taken away."""
        ...

    def take_back(self) -> Leftovers:
        """The borrower is done: forget his callbacks, refuse his statements and cursors."""
        ...


class BlockingLink(Link, Protocol):
    """A connection of a runtime whose callers are threads."""

    def ask_now(self, method: str, query: str, args: Sequence[Any], deadline: float | None) -> Any:
        """What `ask` does, in the calling thread; the answer itself."""
        ...

    def has_ended(self) -> bool:
        """Whether it has ended since its last answer; just after that, it need not be looked."""
        ...


class Waiter(Protocol[T]):
    """One waiting party. Exactly one of `wake`, `fail`, the deadline and `abandon` decides."""

    def wake(self, value: T) -> bool:
        """Hand it its value; False when something else was first."""
        ...

    def fail(self, error: BaseException) -> bool:
        """Make its wait raise; False when something else was first."""
        ...

    def abandon(self) -> T | None:
        """The waiting party leaves; a value that already arrived is returned so that it is not lost."""
        ...

    async def wait(self, deadline: float | None) -> T:
        """Wait for the value.

        Raises:
            TimeoutError: The deadline (on the runtime's clock) came first.
        """
        ...


class Alarm(Protocol):
    """Rings at the first of many deadlines.

    Attributes:
        rings_at: When it rings, on the runtime's clock; a deadline that comes before has to be told. Infinity: it is
            not set; minus infinity: no deadline need be told.
    """

    rings_at: float

    def ring_at(self, moment: float) -> None:
        """Set it anew; infinity: it does not ring."""
        ...


class Job(Protocol):
    """A background job; it has a name and an owner that ends it."""

    def cancel(self) -> Any:
        """Ask it to end."""
        ...

    def done(self) -> bool:
        """Whether it has ended."""
        ...


class Runtime(Protocol):
    """The world of one pool.

    Attributes:
        look_every: How often idle connections have to be looked at (seconds), where nobody tells that one has broken.
        parallel: Whether callers come between each other's steps: they are threads.
    """

    look_every: float
    parallel: bool

    def now(self) -> float:
        """Seconds on a monotonic clock; deadlines are on this clock."""
        ...

    def lock(self) -> AbstractContextManager[Any]:
        """A new lock that guards decisions; nothing is awaited inside."""
        ...

    def waiter(self) -> Waiter[Any]:
        """A new waiter of the calling party."""
        ...

    def alarm(self, look: Callable[[float], float]) -> Alarm:
        """A new alarm for the deadlines of calls that are with a server.

        Args:
            look: Called when it rings, with the moment; ends what has to end by then, and gives the next moment.

        Returns:
            The alarm; one that never rings where callers look at the clock themselves.
        """
        ...

    def post(self, step: Callable[[], object]) -> None:
        """Take a step where the state of the cluster lives: at once where calls live there too, else soon.

        Node pools are taken from and given back to by every caller, under their locks. Everything else in the engine
        that changes is changed there, so it needs no locks: snapshots, reachability, jobs, openings, the common limit.
        """
        ...

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> Job:
        """Start a background job, in an empty context; only from where the state of the cluster lives."""
        ...

    def beside(self, work: Coroutine[Any, Any, None], name: str) -> Job:
        """Run a part of a caller's own work beside him, in an empty context: a task, or a thread. From anywhere."""
        ...

    async def settle(self, jobs: Iterable[Job], deadline: float) -> None:
        """Wait until the jobs have ended, at most until the deadline; never raises for what happened in them."""
        ...

    async def open_link(
        self, node: Node, purpose: Purpose, on_lost: Callable[[Any], None], at_once: Callable[[Any], None] | None = None
    ) -> Link:
        """Open a connection within the configured connect timeout.

        Args:
            node: Where to.
            purpose: What for; decides the start-up options.
            on_lost: Called with the link, once, where the state of the cluster lives, when it is closed by anyone.
            at_once: The same in that very moment, where callers come between no steps; else, and by default, never.
        """
        ...

    async def restore_link(self, link: Link, deadline: float) -> bool:
        """Clear the state of a session, so that it is as good as new; never raises for what happened in it.

        Returns:
            False when the connection must not be used again.
        """
        ...

    async def close_link(self, link: Link, deadline: float) -> None:
        """Close politely within the deadline, else drop."""
        ...

    def fault(self, error: BaseException) -> Fault | None:
        """What an error of the connection itself means; None when the server or the caller's arguments speak."""
        ...
