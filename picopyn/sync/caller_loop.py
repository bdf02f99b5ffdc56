"""An event loop that runs in whoever waits: in the calling thread, and only until what it waits for is there.

asyncpg is written for an event loop. Given this one, its protocol and its connections work over a blocking socket: a
caller that needs an answer waits for the socket itself, and no other thread is involved. It is the loop of exactly one
connection, and is used by one thread at a time; whoever uses the connection sees to that.

There are two ways to run a coroutine. `step` drives a bare coroutine that waits for nothing but one stream; that costs
least. `run` puts it into a task, which everything in asyncio may be used in (`asyncio.timeout`, `shield`,
`wait`); that is for everything that is not called a thousand times a second.

*Source*: Python documentation, "Event Loop" and "Futures"; `asyncio.events._set_running_loop` and
`asyncio.tasks._enter_task` are what the standard library offers to the authors of event loops.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import socket
import threading
import time
from asyncio import events, tasks
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg

from picopyn.asynchronous.background import unlamented
from picopyn.sync.connecting import Attempt, LookUp
from picopyn.sync.duplex_socket import DuplexSocket, is_handlers, wait
from picopyn.sync.stream import Stream

T = TypeVar("T")

_LOG = logging.getLogger("picopyn.sync")


class Later:
    """A call that is to be made soon, or at a moment.

    Attributes:
        moment: When (seconds on the loop's clock); 0: soon.
    """

    __slots__ = ("_arguments", "_call", "_context", "moment")

    def __init__(
        self, call: Callable[..., Any], arguments: tuple[Any, ...], context: contextvars.Context | None, moment: float
    ) -> None:
        self._call: Callable[..., Any] | None = call
        self._arguments = arguments
        self._context = context or contextvars.copy_context()
        self.moment = moment

    def cancel(self) -> None:
        """Do not make it."""
        self._call = None
        self._arguments = ()

    def cancelled(self) -> bool:
        """Whether it is not going to be made."""
        return self._call is None

    def when(self) -> float:
        """When it is to be made (seconds on the loop's clock)."""
        return self.moment

    def run(self) -> None:
        """Make it; what it raises is told, and harms nobody else."""
        if self._call is None:
            return
        try:
            self._context.run(self._call, *self._arguments)
        except Exception as error:
            _LOG.error("%r failed", self._call, exc_info=error)


class Answer(asyncio.Future[Any]):
    """A future of this loop. Under `step` nobody is called when it is done: whoever waits looks at it himself."""

    __slots__ = ()

    def add_done_callback(self, callback: Callable[..., object], *, context: Any = None) -> None:
        """Have somebody called when it is done; under `step`, only when it is given up."""
        loop: Any = self.get_loop()
        if loop.is_stepping:
            loop.on_given_up = callback
        else:
            super().add_done_callback(callback, context=context)

    def set_exception(self, exception: Any) -> None:
        """It has failed. When nobody waits for it any more, that is no news: its connection is gone as well."""
        super().set_exception(exception)
        self.exception()


class CallerLoop:
    """The loop; see above. It has those methods of `asyncio.AbstractEventLoop` that its one connection needs.

    Attributes:
        create_future: Makes a future of this loop.
        get_debug: False, always.
        in_use: Held by whoever uses the loop and its connection. It is looked at first and then taken by `with`, which
            no interruption can fall into; who is late by a hair waits.
        is_ending: Its connection has ended, which another thread may just be finding out: who calls waits, and is told.
        has_failed: A call has raised an error since this was set to False.
        on_interruption: Called when a call was interrupted: nobody knows what is still to be read.
        was_interrupted: A call was interrupted (`KeyboardInterrupt`), and its connection dropped.
        is_stepping: A coroutine is being driven by `step`.
        on_given_up: To be called when what it waits for is given up.
    """

    get_debug = staticmethod(bool)
    time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._ready: deque[Later] = deque()
        self._timers: list[Later] = []
        self._streams: list[Stream] = []
        self._attempts: list[Attempt] = []
        # Called for every request, so this is no function of ours; nor are those above.
        self.create_future: Callable[[], asyncio.Future[Any]] = functools.partial(Answer, loop=_any(self))
        self.in_use = threading.Lock()
        self.is_ending = False
        self.has_failed = False
        self.on_interruption: Callable[[], object] = int
        self.was_interrupted = False
        self.is_stepping = False
        self.on_given_up: Callable[[Any], object] | None = None

    # running

    def step(self, coroutine: Coroutine[Any, Any, T], stream: Stream, deadline: float | None) -> T:
        """Run a coroutine that waits for nothing but answers from one stream.

        A coroutine that is not finished at the deadline sees its wait cancelled, as if its task were.

        Args:
            coroutine: What to run. It may use nothing of asyncio that needs a task.
            stream: Where its answers come from.
            deadline: Until when they may come (seconds on the loop's clock), or None.

        Raises:
            TimeoutError: The deadline came first.
            asyncpg.InterfaceError: The loop is in use.
        """
        future: Any = None
        in_time = True
        if self.in_use.locked() and not self.is_ending:
            raise _busy(coroutine)
        with self.in_use:
            self.is_stepping = True
            try:
                while True:
                    future = coroutine.send(None)
                    in_time = stream.exchange(future, deadline)
                    if not in_time:
                        raise TimeoutError
            except StopIteration as finished:
                result: T = finished.value
                return result
            except Exception as error:
                self.has_failed = True
                self._end_step(coroutine, future)
                if in_time and _is_foreign(error, future):
                    self.on_interruption()
                raise
            except BaseException:
                self._end_step(coroutine, future)
                self.on_interruption()
                raise
            finally:
                self.is_stepping = False
                if self._ready:
                    self.run_ready()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in a task, whatever of asyncio it uses.

        When it is interrupted (`KeyboardInterrupt`), the task is ended without waiting for anything.

        Raises:
            asyncpg.InterfaceError: The loop is in use.
        """
        if self.in_use.locked() and not self.is_ending:
            raise _busy(coroutine)
        with self.in_use:
            try:
                result: T = self._in_front(self._run, coroutine)
                return result
            except Exception:
                self.has_failed = True
                raise
            except BaseException:
                self.on_interruption()
                raise

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task: asyncio.Task[T] = tasks.Task(coroutine, loop=_any(self))
        try:
            while True:
                self._run_ready()
                if task.done():
                    return task.result()
                self._wait()
        except BaseException:
            interrupted = not task.done()
            self._end(task)
            if interrupted:
                self.on_interruption()
            raise

    def run_ready(self) -> None:
        """Make the calls that are to be made soon. Nothing is waited for."""
        if self._ready:
            self._in_front(self._run_ready)

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            ready.popleft().run()

    def _in_front(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call something while this is the thread's running loop, in front of one that may be running already.

        No context manager does this: one that is interrupted while it begins would end when it is collected.
        """
        outer = events._get_running_loop()
        outer_task = None if outer is None else asyncio.current_task()
        try:
            if outer is not None and outer_task is not None:
                tasks._leave_task(outer, outer_task)
            events._set_running_loop(_any(self))
            return call(*args)
        finally:
            events._set_running_loop(outer)
            if outer is not None and outer_task is not None:
                tasks._enter_task(outer, outer_task)

    def _wait(self) -> None:
        """Wait for a socket or a timer; send meanwhile what is to be sent."""
        for stream in list(self._streams):
            if stream.flush():
                stream.permit()
        if self._ready:
            return
        left = self._time_left()
        waiting: list[Stream | Attempt] = [*self._streams, *self._attempts]
        by_descriptor = {each.fileno(): each for each in waiting if each.awaited()}
        if not by_descriptor and left is None:
            raise RuntimeError("there is nothing to wait for")
        awaited = {descriptor: each.awaited() for descriptor, each in by_descriptor.items()}
        for descriptor, happened in wait(awaited, left).items():
            by_descriptor[descriptor].react(happened)
        self._fire()

    def _fire(self) -> None:
        """Let the timers run that are due."""
        now = time.monotonic()
        due = [timer for timer in self._timers if timer.moment <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer.moment > now]
            self._ready.extend(sorted(due, key=Later.when))

    def _time_left(self) -> float | None:
        """Seconds until the first timer is due; None without one."""
        self._timers = [timer for timer in self._timers if not timer.cancelled()]
        if not self._timers:
            return None
        return max(0.0, min(timer.moment for timer in self._timers) - time.monotonic())

    def _end_step(self, coroutine: Coroutine[Any, Any, Any], future: Any) -> None:
        """A coroutine has failed, or is not waited for any more: then it sees its wait cancelled."""
        if future is None:
            coroutine.close()
        elif future.cancel():
            if self.on_given_up is not None:
                self.on_given_up(future)
            with suppress(asyncio.CancelledError):
                coroutine.send(None)

    def _end(self, task: asyncio.Task[Any]) -> None:
        """End an interrupted task: it may clean up, but not wait."""
        task.cancel()
        with suppress(BaseException):
            self._run_ready()
        if task.done() and not task.cancelled():
            task.exception()
        unlamented(task)

    # what streams, asyncio and asyncpg ask of a loop

    def forget(self, stream: Stream) -> None:
        """It is closed: nothing is awaited there any more."""
        if stream in self._streams:
            self._streams.remove(stream)

    def is_closed(self) -> bool:
        """Never: there is nothing to close."""
        return False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Later:
        """Have a call made in the next turn."""
        later = Later(callback, args, context, 0.0)
        self._ready.append(later)
        return later

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Later:
        """Have a call made so many seconds from now, or when somebody waits next after that."""
        return self.call_at(time.monotonic() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Later:
        """Have a call made at a moment, or when somebody waits next after that."""
        later = Later(callback, args, context, when)
        self._timers.append(later)
        return later

    def create_task(self, coroutine: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        """Start a task."""
        return tasks.Task(coroutine, loop=_any(self), **options)

    def run_in_executor(self, _: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function here and now: blocking is what this loop is for."""
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Asyncio or asyncpg has something to complain about; not so about what an interrupted call has left."""
        _LOG.log(
            logging.DEBUG if self.was_interrupted else logging.ERROR,
            "%s",
            context.get("message"),
            exc_info=context.get("exception"),
        )

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int, **_: Any) -> tuple[Stream, Any]:
        """Connect to the first address of a host that can be reached."""
        failed: OSError | None = None
        for family, kind, number, _name, address in await self._look_up(host, port):
            try:
                return await self._connected(factory, DuplexSocket(family, kind, number), address)
            except OSError as error:
                failed = error
        raise failed or OSError(f"{host} has no address")

    async def create_unix_connection(self, factory: Callable[[], Any], path: str, **_: Any) -> tuple[Stream, Any]:
        """Connect to a Unix socket."""
        return await self._connected(factory, DuplexSocket(socket.AF_UNIX, socket.SOCK_STREAM), path)

    async def start_tls(self, stream: Stream, protocol: Any, context: Any, *, server_hostname: str, **_: Any) -> Stream:
        """Shake hands; from then on the stream is encrypted."""
        stream.set_protocol(protocol)
        agreed = self.create_future()
        stream.encrypt(context, server_hostname, agreed)
        await agreed
        return stream

    async def _connected(self, factory: Callable[[], Any], sock: DuplexSocket, address: Any) -> tuple[Stream, Any]:
        attempt = Attempt(sock, self.create_future())
        self._attempts.append(attempt)
        try:
            with suppress(BlockingIOError):
                sock.connect(address)
            await attempt.connected
        except BaseException:
            sock.close()
            raise
        finally:
            self._attempts.remove(attempt)
        protocol = factory()
        stream = Stream(sock, protocol, self)
        self._streams.append(stream)
        protocol.connection_made(stream)
        return stream, protocol

    async def _look_up(self, host: str, port: int) -> list[Any]:
        """The addresses of a host. Looking them up cannot be interrupted, so another thread does it."""
        asking = LookUp(host, port)
        left = self._time_left()
        if not asking.finished.wait(None if left is None else min(left, threading.TIMEOUT_MAX)):
            await self.create_future()  # the timer that is due now ends this
        if asking.error is not None:
            raise asking.error
        return asking.found


def _is_foreign(error: Exception, future: Any) -> bool:
    """Whether an error came from neither asyncpg nor the system nor the answer: a signal's handler raised it.

    Args:
        error: The error.
        future: What the call waited for, if it had come so far.
    """
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        return False
    if isinstance(error, OSError) and not is_handlers(error):
        return False
    return future is None or not future.done() or future.cancelled() or future.exception() is not error


def _busy(coroutine: Coroutine[Any, Any, Any]) -> asyncpg.InterfaceError:
    coroutine.close()
    return asyncpg.InterfaceError("cannot perform operation: another operation is in progress")


def _any(loop: CallerLoop) -> Any:
    """For arguments whose type in the standard library promises more than is used."""
    return loop
