"""The one background thread of a pool: an event loop on which everything lives that is not a call.

The tracker, the metadata service, the probes and the changes of the cluster's state are the asynchronous ones; they run
here. A caller never waits for what happens here, except when the pool is opened, closed or asked about itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from picopyn.engine.interruptions import is_interruption
from picopyn.errors import PoolClosed, UsageError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_ENDED = "the pool was closed meanwhile"


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
        if isinstance(self.loop, asyncio.SelectorEventLoop):
            self.loop._write_to_self = partial(_wake, self.loop)  # type: ignore[attr-defined]
        self.ident = 0
        self._awaited: set[concurrent.futures.Future[Any]] = set()
        self._runs = threading.Event()
        self._has_to_end = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._runs.wait()

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and wait for it; who is interrupted has it cancelled.

        Args:
            make: Makes the coroutine. It is called there, so an interruption leaves none behind that was never begun.

        Raises:
            PoolClosed: The thread has ended, or ended meanwhile.
            UsageError: It is this very thread; it would wait for itself.
            Exception: What the coroutine raised.
        """
        self.check_elsewhere()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self.loop.call_soon_threadsafe(self._begin, make, done)
        except RuntimeError:  # the loop is closed
            raise PoolClosed(_ENDED) from None
        try:
            return self._result(done)
        except BaseException:
            done.cancel()
            raise

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], done: concurrent.futures.Future[T]) -> None:
        if done.cancelled():
            return
        task = self.loop.create_task(make())
        task.add_done_callback(partial(_tell, done))
        done.add_done_callback(lambda _: self.later(task.cancel))

    def check_elsewhere(self) -> None:
        """Refuse to wait for this thread on itself.

        Raises:
            UsageError: It is this one.
        """
        if threading.get_ident() == self.ident:
            raise UsageError("on_event runs on the pool's own thread, which cannot wait for itself: use another thread")

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
        """Take a step there, and wait for its result.

        Raises:
            PoolClosed: The thread has ended, or ended meanwhile.
            Exception: What the step raised.
        """
        if threading.get_ident() == self.ident:
            return step()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self.loop.call_soon_threadsafe(partial(_answer, done, step))
        except RuntimeError:  # the loop is closed
            raise PoolClosed(_ENDED) from None
        return self._result(done)

    def alarm(self, seconds: float, step: Callable[[], None]) -> Callable[[], None]:
        """Take a step there after so many seconds, unless what this gives is called before. From another thread."""
        timers: list[asyncio.TimerHandle] = []
        self.post(lambda: timers.append(self.loop.call_later(seconds, step)))
        return lambda: self.post(lambda: timers.pop().cancel())

    def stop(self) -> None:
        """End it; from another thread, wait until it has ended."""
        self._has_to_end = True
        self.post(self.loop.stop)
        if threading.get_ident() != self.ident:
            self._thread.join(1.0)

    def _result(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for something that happens there. What the end of the thread overtakes is cancelled by it."""
        try:
            self._awaited.add(future)
            if self.loop.is_closed():
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise PoolClosed(_ENDED) from None
        finally:
            self._awaited.discard(future)

    def _run(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._runs.set)
        try:
            self._run_until_stopped()
        finally:
            self._end()

    def _run_until_stopped(self) -> None:
        """An `on_event` that raises `SystemExit` or `KeyboardInterrupt` here ends neither the process nor the pool."""
        while True:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                _LOG.error("%r on the pool's own thread; the pool goes on", error, exc_info=error)
                if self._has_to_end:
                    return
            else:
                return

    def _end(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=0.5))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        for future in list(self._awaited):
            future.cancel()


def _wake(loop: Any) -> None:
    """What asyncio does, which also keeps to itself what a signal's handler raises meanwhile in the calling thread."""
    socket = loop._csock
    try:
        if socket is not None:
            socket.send(b"\0")
    except OSError as error:
        if is_interruption(error):
            raise


def _tell(done: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    """What became of a coroutine, for who waits for it, if he still does."""
    if task.cancelled():
        done.cancel()
        return
    error = task.exception()
    if not done.set_running_or_notify_cancel():
        return
    if error is None:
        done.set_result(task.result())
    else:
        done.set_exception(error)


def _answer(done: concurrent.futures.Future[T], step: Callable[[], T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(step())
    except BaseException as error:
        done.set_exception(error)
