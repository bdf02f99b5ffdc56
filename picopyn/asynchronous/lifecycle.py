"""The life of a pool: new, opening, open, closed; and what becomes of one that nobody closed.

It decides who waits for whom, how long, and what is dropped. It knows nothing of calls. It holds no reference to the
pool itself, so a pool that is forgotten can be collected, says so once, and leaves no session behind.

Rules of this file:

1. Opening and closing are tasks of their own: who asked may be cancelled without leaving them half done. Whoever is
   cancelled while opening ends the opening; whoever is cancelled while closing has everything dropped.
2. A second `close` waits for the first. Closing during opening ends the opening.
3. `terminate` is safe from any state, any thread and any callback.
4. When `asyncio.run` ends, it cancels every task, a guard of ours included: that is how a pool that was never closed
   learns that its event loop is about to go.
"""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from picopyn.asynchronous import fork
from picopyn.asynchronous.background import unlamented
from picopyn.errors import PoolClosed, UsageError

#: How long calls in flight and goodbyes may take when a pool ends with its event loop (seconds).
LAST_GRACE = 0.25
#: How long an opening that was given up may take to end (seconds).
_LAST_MOMENT = 1.0


#: What a pool says in a child of the process it was opened in.
ELSEWHERE = "the pool was opened in another process, before a fork; make and open one in this process"


class State(Enum):
    """Where in its life a pool is."""

    NEW = "not open yet"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    INHERITED = "inherited from another process"


class Belongings(Protocol):
    """What an open pool has running."""

    async def close(self, deadline: float) -> None:
        """End it politely, until a moment on the loop's clock at most; nothing is left running."""
        ...

    def terminate(self) -> None:
        """Drop it at once."""
        ...

    def abandon(self) -> None:
        """Its event loop is closed: let go of what can still be let go of."""
        ...


class Lifecycle:
    """The state of one pool.

    Args:
        name: The pool, for messages.

    Attributes:
        loop: The event loop it was opened in; None before.
        home: That loop while the pool is open, else None: one look tells whether a call may go ahead.
        belongings: What it has running; set as soon as something does.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.home: asyncio.AbstractEventLoop | None = None
        self._state = State.NEW
        self.belongings: Belongings | None = None
        self._name = name
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._guard: asyncio.Task[None] | None = None
        fork.watch(self)

    @property
    def state(self) -> State:
        """Where in its life it is."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.home = self.loop if state is State.OPEN else None

    # checks

    def check_place(self) -> None:
        """Refuse another process and another event loop: sockets and waiting calls belong to where they were made.

        Raises:
            UsageError: This is another one.
        """
        if self.state is State.INHERITED:
            raise UsageError(f"{ELSEWHERE}: `async with Pool(…) as pool`")
        if self.loop is not None and asyncio._get_running_loop() is not self.loop:
            where = "an event loop that is closed" if self.loop.is_closed() else "another event loop"
            raise UsageError(f"the pool was opened in {where}; make and open one in this loop")

    def check_open(self) -> None:
        """Refuse calls before the opening and after the end.

        Raises:
            PoolClosed: It is closed.
            UsageError: It is not open yet, or this is another process or event loop.
        """
        if self.state is State.CLOSED:
            raise PoolClosed("the pool is closed")
        self.check_place()
        if self.state is not State.OPEN:
            raise UsageError("the pool is not open yet: use `async with pool` or `await pool.open()`")

    # opening

    async def open(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Open; see `Pool.open`.

        Args:
            connect: Does it; sets `belongings`.
        """
        if self.state is State.CLOSED:
            raise PoolClosed("the pool was closed; make a new one")
        if self.state is not State.NEW:
            self.check_place()
        if self.state is State.OPENING:
            raise UsageError("open() is running already")
        if self.state is State.NEW:
            self.loop, self.state = asyncio.get_running_loop(), State.OPENING
            await self._open(connect)

    async def _open(self, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._opening = opening = asyncio.create_task(connect(), name="picopyn open pool")
        opened = False
        try:
            await asyncio.wait({opening})
            opened = _succeeded(opening) and self.state is State.OPENING
        except asyncio.CancelledError:
            await self._give_up(opening)
            raise
        finally:
            self._opening = None
            if not opened:  # a caller who is cancelled as the last step succeeds has nobody to give the pool to
                _succeeded(opening)
                self._drop()
                self.state = State.NEW if self.state is State.OPENING else self.state
        if self.state is State.CLOSED:
            raise PoolClosed("the pool was closed while it was being opened")
        opening.result()
        self.state = State.OPEN
        self._guard = self._spawn(self._stand_guard(), "picopyn guard")

    async def _give_up(self, opening: asyncio.Task[None]) -> None:
        opening.cancel()
        await asyncio.wait({opening}, timeout=_LAST_MOMENT)

    # closing

    async def close(self, grace: float) -> None:
        """Close; see `Pool.close`."""
        if self.state is State.INHERITED:
            return
        if self.loop is not None and self.loop.is_closed():
            self.terminate()
            return
        if self.state is not State.NEW:
            self.check_place()
        if self._closing is not None:
            await asyncio.wait({self._closing})
        elif self.state is not State.CLOSED:
            await self._close(grace)
        elif self.belongings is not None:  # terminated: wait until what was dropped has ended
            await self._end(min(grace, LAST_GRACE))

    async def _close(self, grace: float) -> None:
        was, self.state = self.state, State.CLOSED
        if was is State.NEW:
            return
        await self._end(grace, opening=was is State.OPENING)

    async def _end(self, grace: float, *, opening: bool = False) -> None:
        assert self.loop is not None
        end = self._end_opening() if opening else self._end_open(self.loop.time() + grace)
        self._closing = self._spawn(end, "picopyn close pool")
        try:
            await asyncio.wait({self._closing})
        except asyncio.CancelledError:
            self._closing.cancel()
            self._drop()
            raise
        if not self._closing.cancelled():  # terminate() ended it: that is no cancellation of whoever waits here
            self._closing.result()

    async def _end_opening(self) -> None:
        if self._opening is not None:
            await self._give_up(self._opening)
        self._drop()

    async def _end_open(self, deadline: float) -> None:
        assert self.belongings is not None
        try:
            await self.belongings.close(deadline)
        except BaseException:
            self._drop()
            raise
        self._dismiss_guard()
        if self._guard is not None:
            await asyncio.wait({self._guard})

    def terminate(self) -> None:
        """Drop everything at once; see `Pool.terminate`."""
        was = self.state
        if was is State.INHERITED:
            return
        self.state = State.CLOSED
        if was in (State.OPENING, State.OPEN) or self._closing is not None:
            self._in_its_loop(self._terminate)

    def _terminate(self) -> None:
        for task in (self._opening, self._closing):
            if task is not None:
                task.cancel()
        self._drop()

    def _drop(self) -> None:
        self._dismiss_guard()
        if self.belongings is not None:
            self.belongings.terminate()

    # being forgotten

    def forgotten(self) -> None:
        """Nobody has the pool any more, and it was never closed: say so, and drop everything.

        May be called from any thread, like a finaliser.
        """
        if self.state in (State.OPENING, State.OPEN):
            self.state = State.CLOSED
            self._in_its_loop(self._terminate)
            self._complain()

    async def _stand_guard(self) -> None:
        """Wait for the end of the event loop, which lasts until this has ended too."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            if self.state is State.OPEN and self.belongings is not None:  # it is not we who dismiss it
                self.state = State.CLOSED
                await self.belongings.close(loop.time() + LAST_GRACE)
                self._complain()
            raise

    def _complain(self) -> None:
        text = f"{self._name} was never closed: use `async with`, or `await pool.close()`"
        warnings.warn(text, ResourceWarning, stacklevel=3)

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.cancel()

    def disown(self) -> None:
        """In a child process, called by itself right after the fork: the pool stays the parent's and refuses here."""
        if self.state in (State.OPENING, State.OPEN):
            self.state = State.INHERITED

    # the loop

    def _spawn(self, job: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self.loop is not None
        return unlamented(self.loop.create_task(job, name=name, context=contextvars.Context()))

    def _in_its_loop(self, step: Callable[[], None]) -> None:
        """Do something where the pool lives, whether its loop runs here, elsewhere, not now, or never again."""
        loop = self.loop
        if loop is None:
            return
        if loop.is_closed():
            if self.belongings is not None:
                self.belongings.abandon()
        elif asyncio._get_running_loop() is loop or not loop.is_running():
            step()
        else:
            with suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(step)


def _succeeded(task: asyncio.Task[None]) -> bool:
    """Whether it did what it should; its error, if it has one, counts as seen."""
    return task.done() and not task.cancelled() and task.exception() is None
