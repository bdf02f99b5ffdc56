"""The one background thread of a pool: an event loop on which everything lives that is not a call.

The tracker, the metadata service, the probes and the changes of the cluster's state are the asynchronous ones; they run
here. A caller never waits for what happens here, except when the pool is opened, closed or asked about itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ControlThread:
    """The thread. It ends with `stop`, or with the process.

    Args:
        name: What it is called.

    Attributes:
        loop: Its event loop.
        ident: Its number; 0 before it runs.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.ident = 0
        self._runs = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._runs.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for it; who is interrupted has it cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            if not future.done():
                future.cancel()
                with suppress(BaseException):
                    future.result(1.0)
            raise

    def post(self, step: Callable[[], object]) -> None:
        """Take a step there: at once for who is there already, else soon; never, once it has ended."""
        if threading.get_ident() == self.ident:
            step()
        else:
            self.later(step)

    def later(self, step: Callable[[], object]) -> None:
        """Take a step there, soon; nothing is locked here, so a finaliser may ask for it."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(step)

    def call(self, step: Callable[[], T]) -> T:
        """Take a step there, and wait for its result."""
        if threading.get_ident() == self.ident:
            return step()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.loop.call_soon_threadsafe(partial(_answer, done, step))
        return done.result()

    def alarm(self, seconds: float, step: Callable[[], None]) -> Callable[[], None]:
        """Take a step there after so many seconds, unless what this gives is called before. From another thread."""
        timers: list[asyncio.TimerHandle] = []
        self.post(lambda: timers.append(self.loop.call_later(seconds, step)))
        return lambda: self.post(lambda: timers.pop().cancel())

    def stop(self) -> None:
        """End it; from another thread, wait until it has ended."""
        self.post(self.loop.stop)
        if threading.get_ident() != self.ident:
            self._thread.join(1.0)

    def _run(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._runs.set)
        try:
            self.loop.run_forever()
        finally:
            self._end()

    def _end(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=0.5))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _answer(done: concurrent.futures.Future[T], step: Callable[[], T]) -> None:
    try:
        done.set_result(step())
    except BaseException as error:
        done.set_exception(error)
