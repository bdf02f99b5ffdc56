"""Rows on their way to a server that takes no more for now: asyncpg waits there until it may write on.

It waits for an event that its transport sets. Nothing sets it when the connection ends, and a caller who is cancelled
there waits for the answer to what was never sent in full: both would be for ever. And where a COPY writes to a
connection that is gone, asyncpg stumbles over the missing transport, and forgets the answer it was promised. So the
event gets another one in its place, which ends with the connection, and the two calls of asyncpg's protocol that wait
for it get somebody who looks what ended them.

It leans on asyncpg's internals (`writing_allowed`, `bind_execute_many`, `copy_in` and `_on_waiter_completed` of the
protocol, which are looked up at each call), guarded by `tests/postgres/test_sending.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from weakref import WeakMethod, ref

from asyncpg.exceptions import ConnectionDoesNotExistError

#: The calls of the protocol that wait until they may write on.
_WAITING: Final = ("bind_execute_many", "copy_in")


class Sending:
    """Whether one connection may write on.

    Args:
        protocol: asyncpg's protocol, whose hand-shake is done.
        drop: A method of the connection that drops it although a statement may be running.

    Attributes:
        set: The transport takes more.
        clear: It takes no more for now.
    """

    __slots__ = ("_cancels", "_drop", "_event", "_lost", "_protocol", "_task", "clear", "set")

    def __init__(self, protocol: Any, drop: Callable[[], None]) -> None:
        self._event = asyncio.Event()
        self.set, self.clear = self._event.set, self._event.clear
        self._lost = False
        self._drop = WeakMethod(drop)
        self._protocol = ref(protocol)  # nothing here keeps anything alive
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        self.set()
        protocol.writing_allowed = self
        for name in _WAITING:
            setattr(protocol, name, partial(self._watched, getattr(type(protocol), name)))

    def end(self) -> None:
        """The connection is gone."""
        self._lost = True
        self.set()

    async def wait(self) -> None:
        """Wait until it may write on.

        Raises:
            ConnectionDoesNotExistError: The connection has ended.
        """
        try:
            if not self._lost:
                await self._event.wait()
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self._let_go)
            raise
        if self._lost:
            raise ConnectionDoesNotExistError("the connection was closed while rows were sent")

    async def _watched(self, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        protocol: Any = self._protocol()
        task: Any = asyncio.current_task()
        protocol._on_waiter_completed = partial(_answered, protocol._on_waiter_completed)
        self._task, self._cancels = task, task.cancelling()
        try:
            return await call(protocol, *args, **options)
        except Exception as error:
            if self._is_cancelled():
                raise asyncio.CancelledError from error
            if self._lost and isinstance(error, AttributeError):
                raise ConnectionDoesNotExistError("the connection was closed while rows were sent") from error
            raise
        finally:
            self._task = None
            del protocol._on_waiter_completed

    def _let_go(self) -> None:
        """A wait was cancelled; if asyncpg goes on with the call all the same, only the end of its connection helps."""
        drop = self._drop()
        if drop is not None and self._is_cancelled():
            drop()

    def _is_cancelled(self) -> bool:
        """Whether the call was cancelled since it began; a time limit of asyncpg's own is none any more."""
        return self._task is not None and self._task.cancelling() > self._cancels


def _answered(completed: Callable[[asyncio.Future[Any]], None], answer: asyncio.Future[Any]) -> None:
    """An answer is there; asyncio need not complain when nobody takes it."""
    if not answer.cancelled():
        answer.exception()
    completed(answer)
