"""The life of a pool of threads: new, opening, open, closed; and what becomes of one that nobody closed.

It decides who may open and close when, and what is left in a child process. It knows nothing of calls, and does not
refer to the pool itself.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from picopyn.asynchronous import fork
from picopyn.asynchronous.household import Household
from picopyn.asynchronous.lifecycle import ELSEWHERE, State
from picopyn.errors import PoolClosed, UsageError
from picopyn.sync.control_thread import ControlThread
from picopyn.sync.workers import Workers


class Lifecycle:
    """The state of one pool.

    Args:
        name: The pool, for messages.

    Attributes:
        state: Where in its life it is.
        is_open: It is open: one look tells whether a call may go ahead.
        household: What it has running; set as soon as something does.
    """

    def __init__(self, name: str) -> None:
        self.state = State.NEW
        self.is_open = False
        self.household: Household | None = None
        self._name = name
        self._guard = threading.RLock()
        self._closing = threading.Lock()
        self._control: ControlThread | None = None
        self._workers: Workers | None = None
        fork.watch(self)

    def check_open(self) -> None:
        """Refuse calls before the opening and after the end.

        Raises:
            PoolClosed: It is closed.
            UsageError: It is not open yet, or this is another process.
        """
        if self.state is State.CLOSED:
            raise PoolClosed("the pool is closed")
        self._check_process()
        if self.state is not State.OPEN:
            raise UsageError("the pool is not open yet: use `with pool` or `pool.open()`")

    def open(self, connect: Callable[[ControlThread, Workers], None]) -> None:
        """Open; see `Pool.open`."""
        with self._guard:
            if self.state is State.OPEN:
                return
            if self.state is State.CLOSED:
                raise PoolClosed("the pool was closed; make a new one")
            self._check_process()
            if self.state is State.OPENING:
                raise UsageError("open() is running already")
            self.state = State.OPENING
            self._control = ControlThread(f"picopyn {self._name}")
            self._workers = Workers("picopyn worker", self._control.loop)
        try:
            connect(self._control, self._workers)
        except BaseException:
            self._drop()
            with self._guard:
                if self.state is State.CLOSED:
                    raise PoolClosed("the pool was closed while it was being opened") from None
                self.state = State.NEW
            raise
        with self._guard:
            if self.state is State.OPENING:
                self.state, self.is_open = State.OPEN, True
                return
        self._drop()
        raise PoolClosed("the pool was closed while it was being opened")

    def close(self, grace: float) -> None:
        """Close; see `Pool.close`."""
        if self._control is not None:
            self._control.check_elsewhere()
        with self._guard:
            was, self.is_open = self.state, False
            if was is State.INHERITED:
                return
            self.state = State.CLOSED
        with self._closing:  # a second close waits for the first
            control, household = self._control, self.household
            if control is None or household is None:
                self._drop()
                return
            try:
                control.run(partial(_closing, household, grace))
            except PoolClosed:
                pass  # somebody has terminated it meanwhile
            finally:
                self._drop()

    def terminate(self) -> None:
        """Drop everything at once; see `Pool.terminate`."""
        with self._guard:
            if self.state is State.INHERITED:
                return
            self.state, self.is_open = State.CLOSED, False
        self._drop()

    def forgotten(self) -> None:
        """Nobody has the pool any more, and it was never closed: say so, and have everything dropped.

        This may be any thread, in the middle of anything: nothing is locked here, and nothing awaited.
        """
        if self.state not in (State.OPENING, State.OPEN):
            return
        self.state, self.is_open = State.CLOSED, False
        if self._control is not None:
            self._control.later(partial(_end, self._control, self._workers, self.household))
        text = f"{self._name} was never closed: use `with`, or `pool.close()`"
        warnings.warn(text, ResourceWarning, stacklevel=3)

    def disown(self) -> None:
        """In a child process: the pool stays the parent's and refuses here. Its threads are not here."""
        if self.state in (State.OPENING, State.OPEN):
            self.state, self.is_open = State.INHERITED, False
        self._control = self._workers = self.household = None
        self._guard, self._closing = threading.RLock(), threading.Lock()

    def _check_process(self) -> None:
        if self.state is State.INHERITED:
            raise UsageError(f"{ELSEWHERE}: `with Pool(…) as pool`")

    def _drop(self) -> None:
        with self._guard:
            control, self._control = self._control, None
            workers, self._workers = self._workers, None
            household, self.household = self.household, None
        if control is None:
            return
        if household is not None:
            with suppress(PoolClosed):
                control.call(household.terminate)
        if workers is not None:
            workers.end()
        control.stop()


def _end(control: ControlThread, workers: Workers | None, household: Household | None) -> None:
    """On the control thread itself: drop everything, and end."""
    try:
        if household is not None:
            household.terminate()
        if workers is not None:
            workers.end()
    finally:
        control.stop()


async def _closing(household: Household, grace: float) -> None:
    await household.close(asyncio.get_running_loop().time() + grace)
