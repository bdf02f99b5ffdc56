"""`Pool.transaction`: a connection that is held for exactly one transaction; and one attempt of `run_transaction`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from picopyn.asynchronous.acquired import AcquiredConnection, Acquiring
from picopyn.asynchronous.borrowed import Transaction
from picopyn.engine.transaction import TransactionRun
from picopyn.errors import UsageError

T = TypeVar("T")


class PoolTransaction:
    """What `Pool.transaction` gives, for one `async with` block.

    Args:
        acquiring: Takes the connection.
        options: Of the transaction.
    """

    __slots__ = ("_acquiring", "_options", "_running")

    def __init__(self, acquiring: Acquiring, options: dict[str, Any]) -> None:
        self._acquiring = acquiring
        self._options = options
        self._running: tuple[AcquiredConnection, Transaction] | None = None

    async def __aenter__(self) -> AcquiredConnection:
        if self._running is not None:
            raise UsageError("this transaction() is already in use; call it again for a second one")
        connection = await self._acquiring
        try:
            transaction = connection.transaction(**self._options)
            await transaction.__aenter__()
        except BaseException:
            connection.release()
            raise
        self._running = connection, transaction
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is None:
            return
        (connection, transaction), self._running = self._running, None
        try:
            await transaction.__aexit__(kind, error, trace)
        finally:
            if not connection.is_released():
                connection.release()


async def attempt(
    run: TransactionRun,
    take: Callable[[], Awaitable[AcquiredConnection]],
    work: Callable[[AcquiredConnection], Awaitable[T]],
    options: dict[str, Any],
) -> T:
    """Make one attempt: take a connection, begin, work, commit.

    Args:
        run: The call that it belongs to.
        take: Takes the connection.
        work: The caller's work.
        options: Of the transaction.
    """
    connection = await take()
    run.loan = connection._loan
    limit = asyncio.timeout_at(run.deadline)
    try:
        async with limit, connection.transaction(**options):
            result = await _work(limit, connection, work)
            if run.resolution is not None:
                run.resolution.note(await connection.fetchrow(run.resolution.question), result)
            return result
    finally:
        run.expired = limit.expired()
        if not connection.is_released():
            connection.release()


async def _work(
    limit: asyncio.Timeout, connection: AcquiredConnection, work: Callable[[AcquiredConnection], Awaitable[T]]
) -> T:
    try:
        doing = work(connection)
        if not inspect.isawaitable(doing):
            kind = type(doing).__name__
            raise TypeError(
                f"run_transaction() takes a coroutine function: work(connection) gave an object of type {kind}"
            )
        return await doing
    except asyncio.CancelledError:
        if limit.expired() and not connection.is_released():
            connection.terminate()  # no time is left for a rollback; dropping the connection rolls back
        raise
