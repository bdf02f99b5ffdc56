"""A connection as the engine sees it: its calls look like coroutines, and block instead of suspending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from picopyn.engine.row_acks import RowAcks
from picopyn.engine.runtime import Leftovers
from picopyn.sync.wire import Wire


class Link:
    """One connection of a pool of threads.

    Args:
        wire: The connection.

    Attributes:
        wire: The connection.
    """

    __slots__ = (
        "__weakref__",
        "abort",
        "forget_statements",
        "is_closed",
        "is_idle",
        "is_in_transaction",
        "is_settled",
        "lend",
        "requests",
        "silence",
        "terminate",
        "wire",
    )

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.is_closed: Callable[[], bool] = wire.is_closed
        self.is_idle: Callable[[], bool] = wire.is_idle
        self.is_in_transaction: Callable[[], bool] = wire.is_in_transaction
        self.is_settled: Callable[[], bool] = wire.is_settled
        self.requests: Callable[[], int] = wire.requests
        self.silence: Callable[[], float | None] = wire.silence
        self.terminate: Callable[[], None] = wire.terminate
        self.abort: Callable[[], None] = wire.abort
        self.forget_statements: Callable[[], None] = wire.forget_statements
        self.lend: Callable[[], None] = wire.lend

    # calls, by the names the engine has for them; a node pool has just looked whether the connection is closed

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """Execute a statement; its status."""
        if not args:
            return self.wire.simple_query(query, timeout)
        return str(self.wire.request_now(query, args, 0, timeout, True)[1].decode())

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """Run a query; all rows."""
        return self.wire.request_now(query, args, 0, timeout)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        """Run a query; its first row, or None."""
        rows = self.wire.request_now(query, args, 1, timeout)
        return rows[0] if rows else None

    async def executemany(self, query: str, rows: Sequence[Any], *, timeout: float | None = None) -> None:
        """Execute a statement once per row of arguments."""
        self.wire.run(self.wire.executemany(query, rows, timeout=timeout))

    async def executemany_freshly(
        self, query: str, rows: Sequence[Any], acks: RowAcks | None = None, *, timeout: float | None = None
    ) -> None:
        """The same with a statement that is prepared for this call and not kept."""
        self.wire.run(self.wire.executemany_freshly(query, rows, acks, timeout=timeout))

    # lending

    def take_back(self) -> Leftovers:
        """The borrower is done; see the protocol."""
        return self.wire.take_back()

    # ending

    def tell_when_lost(self, listener: Callable[[Any], None]) -> None:
        """Call somebody with this link, once, when it is closed by anyone."""
        self.wire.tell_when_lost(lambda _: listener(self))

    def close(self, timeout: float) -> None:
        """Say goodbye within the time, else drop it."""
        try:
            self.wire.run(self.wire.close(timeout=timeout))
        except (OSError, TimeoutError):
            self.wire.terminate()
