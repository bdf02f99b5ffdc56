"""Threads for what blocks and nobody waits for: opening connections, clearing sessions, saying goodbye.

They are started when needed, used again, and end when nothing was to do for a while. A thread that hangs with its
server holds up nobody: another one is started, and the end of the process waits for none of them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

#: How long a thread waits for more to do (seconds).
PATIENCE: Final = 5.0


class Workers:
    """The threads of one pool.

    Args:
        name: What they are called.
        loop: The event loop from which work is handed over, and to which results come back.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._free = 0
        self._count = 0
        self._has_ended = False

    async def run(self, work: Callable[[], T], forgo: Callable[[T], object]) -> T:
        """Have something done, in an empty context.

        Args:
            work: What to do.
            forgo: Is given the result if nobody wants it any more; cancelled, one does not wait.
        """
        answer: asyncio.Future[T] = self._loop.create_future()

        def do() -> None:
            try:
                result = Context().run(work)
            except BaseException as error:
                self._back(partial(_fail, answer, error))
            else:
                self._back(lambda: _settle(answer, result, forgo), lambda: forgo(result))

        self._hand_over(do)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:  # it came in the same moment
                forgo(answer.result())
            raise

    def step(self, work: Callable[[], object]) -> Step:
        """Have something done that tells by itself when it has ended, in an empty context. From any thread.

        Args:
            work: What to do; what it raises is logged.
        """
        step = Step(work)
        self._hand_over(step.take)
        return step

    def end(self) -> None:
        """Let the threads go that have nothing to do. From now on nobody wants what is still being done."""
        with self._guard:
            self._has_ended = True
            free, self._free = self._free, 0
        for _ in range(free):
            self._work.put(None)

    def _hand_over(self, do: Callable[[], None]) -> None:
        with self._guard:
            start = self._free == 0
            if start:
                self._count += 1
            else:
                self._free -= 1
                self._work.put(do)  # here, so that no interruption comes between the two
        if start:
            threading.Thread(target=self._serve, args=(do,), name=f"{self._name} {self._count}", daemon=True).start()

    def _serve(self, do: Callable[[], None] | None) -> None:
        while do is not None:
            do()
            with self._guard:
                if self._has_ended:
                    return
                self._free += 1
            do = self._next()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=PATIENCE)
        except queue.Empty:
            with self._guard:
                if self._free:  # nobody counts on this thread
                    self._free -= 1
                    return None
            return self._work.get()

    def _back(self, step: Callable[[], object], otherwise: Callable[[], object] | None = None) -> None:
        """Let it be known there, where anybody is left who listens."""
        with self._guard:
            if not self._has_ended:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(step)
                    return
        if otherwise is not None:
            with suppress(Exception):
                otherwise()


class Step:
    """Something that a thread does; nobody can end it but what it waits for.

    Args:
        work: What to do.
    """

    __slots__ = ("_ended", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ended = False

    def take(self) -> None:
        """Do it."""
        try:
            Context().run(self._work)
        except Exception:
            _LOG.exception("a part of a call failed")
        finally:
            self._ended = True

    def cancel(self) -> None:
        """Nothing: a thread cannot be ended from outside."""

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if answer.done():
        return
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        told = RuntimeError(repr(error))  # a future refuses StopIteration, and SystemExit would end the loop
        told.__cause__ = error
        error = told
    answer.set_exception(error)


def _settle(answer: asyncio.Future[Any], result: T, forgo: Callable[[T], object]) -> None:
    if answer.done():
        with suppress(Exception):
            forgo(result)
    else:
        answer.set_result(result)
