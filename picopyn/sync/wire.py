"""asyncpg's connection over a blocking socket: everything of asyncpg's inside that `picopyn.sync` leans on.

Its coroutines are asyncpg's own, run to their end in the calling thread by a `CallerLoop`. Only what a call does whose
statement is prepared is written anew, without a task and without asyncpg's timers: look it up, bind, wait, decode.

One thread at a time may use it; a second one gets the error that asyncpg has for this. `terminate` may come from any
thread: whoever waits for the server then sees the end of the connection.

What is leaned on: `tests/sync/test_contract.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, Final, TypeVar, cast
from weakref import ReferenceType, ref

from asyncpg import DataError, exceptions
from asyncpg.protocol import NO_TIMEOUT

from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.connection import Connection, NamelessConnection
from picopyn.asynchronous.outdated_types import give_up, is_refusal
from picopyn.asynchronous.short_way import OUTDATED
from picopyn.engine.interruptions import is_interruption
from picopyn.errors import UsageError
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.cancel_request import CancelRequest
from picopyn.sync.copying import Sink
from picopyn.sync.duplex_socket import ESTABLISHED, is_handlers
from picopyn.sync.stream import Stream

T = TypeVar("T")

#: How often it is looked whether the server was told (seconds).
_GLANCE: Final = 0.005


class Wire(Connection):
    """A connection whose methods are called through `run`, and whose prepared statements through `request`.

    Attributes:
        caller: Runs its coroutines.
        stream: Its socket.
    """

    __slots__ = ("_has_limit", "_state", "_telling", "_word", "caller", "stream")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stream: Stream = self._transport
        self.caller = cast(CallerLoop, self.stream.owner)
        self.caller.on_interruption = partial(_drop_interrupted, ref(self))
        self._state = self.stream.state
        self._has_limit = self._config.command_timeout is not None
        self._telling: CancelRequest | None = None
        self._word: asyncio.Future[None] | None = None

    def watch_sending(self) -> None:
        """Nothing to do: its stream grants the permission to write, and who runs the coroutine ends it."""

    # using it

    def run(self, coroutine: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """Run one of its coroutines to the end.

        Args:
            coroutine: What to run.
            limit: How long it may take (seconds), or None.

        Raises:
            TimeoutError: It took longer.
            asyncpg.InterfaceError: Another thread, or a call further up, is using the connection.
        """
        self.is_closed()  # if it has ended, all the rest is read before
        try:
            return self.caller.run(coroutine if limit is None else _limited(coroutine, limit))
        finally:
            if self._telling is not None:
                self._forget_told(self._telling)

    def run_within(
        self, timeout: float | None, call: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kw: Any
    ) -> T:
        """Run a call whose own limit asyncpg does not look at while it waits for permission to write.

        Args:
            timeout: The limit (seconds), or None: what the connection has.
            call: A method of this connection.
            *args: Its arguments.
            **kw: The same.
        """
        return self.run(call(*args, timeout=NO_TIMEOUT, **kw), self._limit_of(timeout))

    def run_many(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one that sends rows; see `_watched`."""
        return self.run(_watched(coroutine, self.stream))

    def copy_out(
        self, call: Callable[..., Coroutine[Any, Any, str]], *args: Any, output: Any, timeout: float | None, **kw: Any
    ) -> str:
        """Run one of its two ways to copy out.

        Args:
            call: A method of this connection.
            *args: Its arguments.
            output: Where to.
            timeout: Limit (seconds), or None: what the connection has.
            **kw: Arguments as well.
        """
        seconds = self._limit_of(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        status, cause = "", None
        sink = Sink(output, self._tell)
        try:
            status = self.run(call(*args, output=sink, timeout=timeout, **kw))
        except Exception as error:
            cause = error
        finally:
            sink.close()
        if sink.failure is not None:
            self._see_copy_off(deadline)
            raise sink.failure from cause
        if cause is not None:
            raise cause
        return status

    def _see_copy_off(self, deadline: float | None) -> None:
        """A COPY was given up: whoever uses the connection next must not be hit by the request to end it."""
        if self._telling is None or self.was_closed():
            return
        rest = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        try:
            arrived = self.run(self._told(), rest)
        except TimeoutError:
            arrived = False
        if not arrived:
            self._drop_quietly()

    def request(
        self,
        query: str,
        args: tuple[Any, ...],
        limit: int,
        timeout: float | None,
        *,
        record_class: Any = None,
        with_status: bool = False,
    ) -> Any:
        """Run one statement with parameters.

        Args:
            query: Its text.
            args: Its arguments.
            limit: How many rows at most; 0: all.
            timeout: For all of it (seconds), or None: what the connection has.
            record_class: What rows are made of, or None: what the connection has.
            with_status: Whether the status is wanted as well.

        Returns:
            The rows, or with the status: rows, status, and whether these are all rows.
        """
        deadline = None
        if type(timeout) is float and timeout > 0:
            deadline = time.monotonic() + timeout
        elif timeout is not None or self._has_limit:
            deadline = self._deadline(timeout)
        if self.is_closed():
            return self._request_anew(query, args, limit, deadline, record_class, with_status)
        return self.request_now(query, args, limit, deadline, with_status, record_class)

    def request_now(
        self,
        query: str,
        args: tuple[Any, ...],
        limit: int,
        deadline: float | None,
        with_status: bool = False,
        record_class: Any = None,
    ) -> Any:
        """The same for who knows that it was open a moment ago: to look is a call into the system, which adds up.

        Until a moment on the monotonic clock, or None: what the connection has.
        """
        protocol: Any = self._protocol
        if deadline is None and self._has_limit:
            deadline = self._deadline(None)
        key = query, record_class or self._row_class, False  # as in `ShortWayConnection.ask`
        find, touch = self._find, self._touch
        entry = find(key)
        if entry is None or protocol is None or self._telling or self._query_loggers:
            return self._request_anew(query, args, limit, deadline, record_class, with_status)
        touch(key)
        statement = entry._statement
        coroutine = protocol.bind_execute(statement, args, "", limit, with_status, NO_TIMEOUT)
        try:
            return self.caller.step(coroutine, self.stream, deadline)
        except OUTDATED as error:
            self.run(self._renew(error))
        except DataError as error:
            if not is_refusal(error) or not give_up(self, statement):
                raise
        return self._request_anew(query, args, limit, deadline, record_class, with_status)

    def _request_anew(
        self,
        query: str,
        args: tuple[Any, ...],
        limit: int,
        deadline: float | None,
        record_class: Any,
        with_status: bool,
    ) -> Any:
        """Several requests, perhaps, of which asyncpg would give each all of the time.

        While one is being cancelled it is asyncpg that has to give up: it then drops the connection.
        """
        rest = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        request = self._request(query, args, limit, rest, record_class, with_status)
        return self.run(request, None if self._telling is not None else rest)

    def _bind_execute(self, statement: Any, args: tuple[Any, ...], limit: int, timeout: float | None) -> Any:
        protocol: Any = self._protocol
        if self._telling is not None or protocol is None:
            return self.run(self._bind_execute_in_a_task(statement, args, limit, timeout))
        coroutine = protocol.bind_execute(statement, args, "", limit, True, NO_TIMEOUT)
        return self.caller.step(coroutine, self.stream, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float | None:
        """The end of a call that has so many seconds, or what the connection has."""
        seconds = self._limit_of(timeout)
        return None if seconds is None else time.monotonic() + seconds

    def simple_query(self, query: str, timeout: float | None) -> str:
        """Run statements without parameters; the status of the last one."""
        protocol: Any = self._protocol
        plain = timeout is None and not self._has_limit and not self._query_loggers and not self._may_wait_for_sync()
        if plain and self._telling is None and not self.is_closed():
            status: str = self.caller.step(protocol.query(query, None), self.stream, None)
            return status
        return str(self.run(self.execute(query, timeout=timeout)))

    def run_prepared(self, prepared: Any, args: tuple[Any, ...], limit: int, timeout: float | None) -> list[Any]:
        """Run a statement that the caller has prepared himself; its rows."""
        prepared._check_conn_validity("fetch")
        try:
            rows: list[Any]
            rows, prepared._last_status, _ = self._bind_execute(prepared._state, args, limit, timeout)
            return rows
        except exceptions.OutdatedSchemaCacheError:
            self.run(self.reload_schema_state())
            prepared._state.mark_closed()
            raise

    def rows(self, iterator: Any) -> Iterator[Any]:
        """The rows of one of asyncpg's cursors, fetched as many at a time as it was told."""
        while True:
            iterator._check_conn_validity("__anext__")
            while iterator._buffer:
                yield iterator._buffer.popleft()
            try:
                row = self.run(iterator.__anext__())
            except StopAsyncIteration:
                return
            yield row

    async def wait_for_word(self, seconds: float | None) -> bool:
        """Wait until the server says something unasked; whether it has, within so many seconds.

        Raises:
            asyncpg.InterfaceError: The connection is closed, or was meanwhile.
        """
        self._check_open()
        self._word = word = self.caller.create_future()
        try:
            async with asyncio.timeout(seconds):
                await word
        except TimeoutError as error:
            if is_interruption(error):
                raise
            return False
        finally:
            self._word = None
        self._check_open()
        return True

    def _check_open(self) -> None:
        """Refuse a call on a connection that is closed."""
        if self.inherited:
            raise UsageError("this connection belongs to the parent of this process; open one of your own here")
        super()._check_open()

    async def _request(
        self, query: str, args: tuple[Any, ...], limit: int, timeout: Any, record_class: Any, with_status: bool
    ) -> Any:
        self._check_open()
        return await self._execute(query, args, limit, timeout, return_status=with_status, record_class=record_class)

    async def _bind_execute_in_a_task(self, statement: Any, args: Any, limit: int, timeout: Any) -> Any:
        self._check_open()
        protocol: Any = self._protocol
        return await protocol.bind_execute(statement, args, "", limit, True, timeout)

    # its end

    def is_closed(self) -> bool:
        """Whether it is known to be unusable; that the server has closed it is seen without asking."""
        state = self._state  # a function that is no method costs less by a name of its own
        try:
            if state() == ESTABLISHED:  # not so of what was closed here
                return bool(self._aborted)
        except OSError as error:
            if is_handlers(error):
                raise
        if self.was_closed():
            return True
        if not self.caller.in_use.locked():
            self.caller.is_ending = True
            with self.caller.in_use:
                self.stream.read_what_is_there()
                self.caller.run_ready()
        return True

    def is_settled(self) -> bool:
        """Whether no request to end a statement may still be on its way to the server."""
        return (self._telling is None or self.was_closed()) and super().is_settled()

    def was_closed(self) -> bool:
        """Whether that was seen already; nothing is looked at, so a finaliser may ask."""
        protocol: Any = self._protocol
        return bool(self._aborted or protocol is None or not protocol.is_connected())

    def terminate(self) -> None:
        """Drop it at once, from any thread. A call that another thread has under way on it ends with an error."""
        if self.caller.in_use.locked():
            mine: Any = self
            mine._aborted = True
            self.stream.cut()
        else:
            self.caller.is_ending = True
            with self.caller.in_use:
                self._drop_quietly()

    def abort(self) -> None:
        """Drop it although a statement may be running: the server is told that nobody waits for that any more."""
        if not self.is_closed():
            self._tell()
        self.terminate()

    def _drop(self) -> None:
        """A call was interrupted: nobody knows what is still to be read."""
        self.caller.was_interrupted = True
        self._tell()
        self._drop_quietly()

    def _drop_quietly(self) -> None:
        super().terminate()
        self.stream.abort()
        self.caller.run_ready()

    # requests that are being cancelled

    def _cancel_current_command(self, waiter: Any, cancel_waiter: Any = None) -> None:
        """A request is given up by asyncpg. Whoever uses the connection next waits for both."""
        self._tell()
        unlamented(self.caller.create_task(self._see_told(waiter)))

    def _tell(self) -> None:
        key = self.cancel_key
        if key is not None and self._telling is None:
            self._telling = CancelRequest(self._addr, self._params, key, self._loop)

    async def _see_told(self, waiter: Any) -> None:
        """A request was given up: the server has to know before it gets another one."""
        if not await self._told():
            self._drop_quietly()
        if not waiter.done():
            waiter.set_result(None)

    async def _told(self) -> bool:
        """Wait until the server knows, or cannot be told; whether it knows."""
        telling = self._telling
        while telling is not None and not telling.has_ended():  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(_GLANCE)
        return telling is not None and telling.arrived

    def _forget_told(self, telling: CancelRequest) -> None:
        protocol: Any = self._protocol
        if telling.has_ended() and protocol is not None and not protocol._is_cancelling():
            self._telling = None

    # what the server says unasked

    def _process_log_message(self, fields: dict[str, str], last_query: str | None) -> None:
        try:
            super()._process_log_message(fields, last_query)
            self._heard()
        except BaseException as error:  # asyncpg keeps it for the answer to a request, which may not come
            self._keep(error)
            raise

    def _process_notification(self, pid: int, channel: str, payload: str) -> None:
        try:
            super()._process_notification(pid, channel, payload)
            self._heard()
        except BaseException as error:
            self._keep(error)
            raise

    def _cleanup(self) -> None:
        super()._cleanup()
        self._heard()

    def _keep(self, error: BaseException) -> None:
        if isinstance(error, Exception) and is_interruption(error):
            self.caller.note(error)

    def _heard(self) -> None:
        if self._word is not None and not self._word.done():
            self._word.set_result(None)


class NamelessWire(NamelessConnection, Wire):
    """The same for poolers that give every transaction another connection."""

    __slots__ = ()


def _drop_interrupted(interrupted: ReferenceType[Wire]) -> None:
    wire = interrupted()
    if wire is not None:
        wire._drop()


async def _watched(coroutine: Coroutine[Any, Any, T], stream: Stream) -> T:
    """Run a call of asyncpg's that sends rows; when it waits for the answer, it must have sent all of its request.

    Where asyncpg sends rows it swallows whatever is no `Exception`, and would wait for an answer that never comes. What
    is lost there is told as what it nearly always is.

    Raises:
        KeyboardInterrupt: It has swallowed an interruption.
    """
    result: T = await _Watched(coroutine, stream)
    return result


class _Watched:
    """The same as something to wait for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], stream: Stream) -> None:
        self._coroutine = coroutine
        self._stream = stream

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine: Any = self._coroutine
        send: Callable[[None], Any] = coroutine.send
        given: BaseException | None = None
        while True:
            awaited: Any = None
            try:
                awaited = send(None) if given is None else coroutine.throw(given)
            except StopIteration as finished:
                return finished.value
            except BaseException as error:
                if coroutine.cr_frame is None:
                    raise
                given = error  # it has fallen between the two
                continue
            swallowed, given, is_lost = given, None, False
            try:
                # Those of its futures that asyncpg itself looks at are answers to requests.
                is_lost = awaited is not None and awaited.is_awaited() and not self._stream.has_whole_request()
                yield None if is_lost else awaited  # if it was noted, it comes now
            except GeneratorExit:
                raise
            except BaseException as error:
                given = error
            if awaited is not None and is_lost and not awaited.done():
                awaited.set_exception(swallowed or given or KeyboardInterrupt("asyncpg was interrupted, and went on"))
                given = None


async def _limited(coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await coroutine
