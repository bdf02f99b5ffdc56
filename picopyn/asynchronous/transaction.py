"""`Pool.transaction`: a connection that is held for exactly one transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from picopyn.asynchronous.acquired import AcquiredConnection, Acquiring
from picopyn.asynchronous.borrowed import Transaction
from picopyn.errors import UsageError


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
