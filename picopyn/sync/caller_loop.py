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
from picopyn.engine import interruptions
from picopyn.sync.connecting import Attempt, LookUp
from picopyn.sync.duplex_socket import DuplexSocket, is_handlers, wait
from picopyn.sync.stream import Stream

T = TypeVar("T")

_LOG = logging.getLogger("picopyn.sync")


class Later:
    """A call that is to be made soon, or at a moment.

    Attributes:
        cancel: Do not make it. asyncpg calls this while it reads, so it is no function of ours.
        moment: When (seconds on the loop's clock); 0: soon.
    """

    __slots__ = ("_arguments", "_calls", "_context", "cancel", "moment")

    def __init__(
        self, call: Callable[..., Any], arguments: tuple[Any, ...], context: contextvars.Context | None, moment: float
    ) -> None:
        self._calls = [call]
        self.cancel = self._calls.clear
        self._arguments = arguments
        self._context = context or contextvars.copy_context()
        self.moment = moment

    def cancelled(self) -> bool:
        """Whether it is not going to be made."""
        return not self._calls

    def when(self) -> float:
        """When it is to be made (seconds on the loop's clock)."""
        return self.moment

    def run(self) -> None:
        """Make it; what it raises is told, and harms nobody else, but for what a signal's handler raises."""
        if not self._calls:
            return
        call = self._calls[0]
        try:
            self._context.run(call, *self._arguments)
        except Exception as error:
            if interruptions.is_interruption(error):
                raise
            _LOG.error("%r failed", call, exc_info=error)


class Answer(asyncio.Future[Any]):
    """A future of this loop, which looks by itself whether it is done, once in every turn.

    asyncpg gives it its result while it reads, where it would keep to itself what a signal's handler raises. So nothing
    of ours is called there.
    """

    __slots__ = ()

    def add_done_callback(self, callback: Callable[..., object], *, context: Any = None) -> None:
        """Have somebody called when it is done; under `step`, only when it is given up."""
        loop: Any = self.get_loop()
        if loop.is_stepping:
            loop.on_given_up = callback
        else:
            loop.awaited.append((self, Later(callback, (self,), context, 0.0), callback))

    def remove_done_callback(self, callback: Callable[..., object]) -> int:
        """Undo it; how often he would have been called."""
        loop: Any = self.get_loop()
        before = len(loop.awaited)
        loop.awaited = [each for each in loop.awaited if each[0] is not self or each[2] != callback]
        return before - len(loop.awaited)

    def is_awaited(self) -> bool:
        """Whether somebody is to be called."""
        loop: Any = self.get_loop()
        return any(answer is self for answer, *_ in loop.awaited)

    def set_exception(self, exception: Any) -> None:
        """It has failed. When nobody waits for it any more, that is no news: its connection is gone as well."""
        super().set_exception(exception)
        self.exception()


class Permission(Answer):
    """Of the loop, to write on."""

    __slots__ = ()


class CallerLoop:
    """The loop; see above. It has those methods of `asyncio.AbstractEventLoop` that its one connection needs.

    Attributes:
        create_future: Makes a future of this loop.
        get_debug: False, always.
        in_use: Held by whoever uses the loop and its connection. It is looked at first and then taken by `with`, which
            no interruption can fall into; who is late by a hair waits.
        is_ending: Its connection has ended, which another thread may just be finding out: who calls waits, and is told.
        awaited: Its futures with somebody to call when they are done: which one, the call, and whom.
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
        self._sockets: list[Stream | Attempt] = []
        self.awaited: list[tuple[Answer, Later, Callable[..., object]]] = []
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
                    interruptions.mark(error)
                    self.on_interruption()
                elif getattr(error, "severity", None) is None:  # so it is not what the server says
                    self._unveil(error)
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

        When it is interrupted (`KeyboardInterrupt`, or whatever else the handler of a signal raises), the task is ended
        without waiting for anything.

        Raises:
            asyncpg.InterfaceError: The loop is in use.
            BaseException: What has interrupted it, also where asyncpg or asyncio took that for an error of theirs.
        """
        if self.in_use.locked() and not self.is_ending:
            raise _busy(coroutine)
        with self.in_use:
            try:
                result: T = self._in_front(self._run, coroutine)
                return result
            except Exception as error:
                self.has_failed = True
                self._unveil(error)
                raise
            except BaseException:
                self.on_interruption()
                raise

    def note(self, error: BaseException) -> None:
        """Something was interrupted where asyncpg would keep it to itself: who waits gets it in the next turn."""
        self.call_soon(_raise, error)

    def _unveil(self, error: Exception) -> None:
        """A call has failed: where a handler is behind it, the caller gets what that raised."""
        interruption = interruptions.interruption_in(error)
        if interruption is not None:
            self.on_interruption()
            if interruption is not error:
                interruptions.raise_as_it_was(interruption)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task: asyncio.Task[T] = tasks.Task(coroutine, loop=_any(self))
        try:
            while True:
                self._run_ready()
                if task.done():
                    return task.result()
                self._wait()
        except BaseException:
            if not task.done():
                self._end(task)
                self.on_interruption()
                if not task.done():  # its next step was what was interrupted
                    _finish(coroutine)
            raise
        finally:
            tasks._unregister_task(task)  # else a finaliser would, which keeps to itself what a handler raises there

    def run_ready(self) -> None:
        """Make the calls that are to be made soon. Nothing is waited for."""
        if self._ready:
            try:
                self._in_front(self._run_ready)
            except BaseException:
                self.on_interruption()
                raise

    def _run_ready(self) -> None:
        ready = self._ready
        while ready or self._has_answers():
            ready.popleft().run()

    def _has_answers(self) -> bool:
        """Whether answers have come; who awaits them is called soon."""
        done = [later for answer, later, _ in self.awaited if answer.done()]
        if done:
            self.awaited = [each for each in self.awaited if not each[0].done()]
            self._ready.extend(done)
        return bool(done)

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
        for each in list(self._sockets):
            if each.flush():
                each.permit()
        if not self._sockets:  # closed: who writes is told
            self.permit()
        if self._ready or self._has_answers():
            return
        left = self._time_left()
        by_descriptor = {each.fileno(): each for each in self._sockets if each.awaited()}
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
        if stream in self._sockets:
            self._sockets.remove(stream)
        self.permit()

    def ask(self) -> Callable[[], Any]:
        """What asks for permission to write on. It is no function of ours; see `Stream.set_protocol`."""
        return functools.partial(Permission, loop=_any(self))

    def permit(self) -> None:
        """Whoever waits for that may write on."""
        for answer, *_ in self.awaited:
            if isinstance(answer, Permission) and not answer.done():
                answer.set_result(True)

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
        """Start a task. That it was interrupted is told also where nobody waits for it."""
        task = tasks.Task(coroutine, loop=_any(self), **options)
        task.add_done_callback(_tell_of_interruption)
        return task

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
                if interruptions.is_interruption(error):
                    raise
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
        self._sockets.append(attempt)
        try:
            try:
                sock.connect(address)
            except BlockingIOError as error:
                if is_handlers(error):
                    raise
            await attempt.connected
        except BaseException:
            sock.close()
            raise
        finally:
            self._sockets.remove(attempt)
        protocol = factory()
        stream = Stream(sock, protocol, self)
        self._sockets.append(stream)
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


def _tell_of_interruption(task: asyncio.Task[Any]) -> None:
    """A task has ended; what a handler has raised in it goes on from here."""
    error = None if task.cancelled() else task.exception()
    if error is not None and interruptions.is_interruption(error):
        raise error


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Let a coroutine clean up whose task does not go on; nothing that it waited for is there any more.

    It is not left to the garbage collector, which might find asyncpg's part of it first.
    """
    with suppress(BaseException):
        coroutine.throw(asyncio.CancelledError())
        for _ in range(3):
            coroutine.send(None)


def _raise(error: BaseException) -> None:
    raise error


def _busy(coroutine: Coroutine[Any, Any, Any]) -> asyncpg.InterfaceError:
    coroutine.close()
    return asyncpg.InterfaceError("cannot perform operation: another operation is in progress")


def _any(loop: CallerLoop) -> Any:
    """For arguments whose type in the standard library promises more than is used."""
    return loop
