"""A connection that blocks, as the engine sees it: its calls are coroutines that never suspend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from picopyn.engine.runtime import Leftovers
from picopyn.sync.interrupting import Rows
from picopyn.sync.wire import Wire


class Link:
    """The engine's connection to one node; see `picopyn.engine.runtime.Link`.

    Args:
        wire: What it is made of.

    Attributes:
        wire: The same.
    """

    __slots__ = (
        "__weakref__",
        "abort",
        "forget_statements",
        "is_closed",
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
        self.abort = wire.abort
        self.forget_statements = wire.forget_statements
        self.is_closed = wire.is_closed
        self.is_in_transaction = wire.is_in_transaction
        self.is_settled = wire.is_settled
        self.lend = wire.lend
        self.requests = wire.requests
        self.silence = wire.silence
        self.terminate = wire.terminate

    def take_back(self) -> Leftovers:
        """The borrower is done: forget his callbacks, refuse his statements and cursors."""
        return self.wire.take_back()

    async def fetch(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> list[Any]:
        """All rows."""
        rows: list[Any] = self.wire.request(query, args, 0, timeout, record_class=record_class)
        return rows

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None, record_class: Any = None) -> Any:
        """The first row, or None."""
        rows = self.wire.request(query, args, 1, timeout, record_class=record_class)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *args: Any, column: int | str = 0, timeout: float | None = None) -> Any:
        """One value of the first row, or None."""
        rows = self.wire.request(query, args, 1, timeout)
        return rows[0][column] if rows else None

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """The status of the last statement."""
        if not args:
            return self.wire.simple_query(query, timeout)
        _, status, _ = self.wire.request(query, args, 0, timeout, with_status=True)
        return str(status.decode())

    async def executemany(self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None) -> None:
        """One execution for each row of arguments."""
        with Rows(args) as rows:
            self.wire.run(self.wire.executemany(command, rows, timeout=timeout))

    async def executemany_freshly(self, query: str, rows: Sequence[Any], *, timeout: float | None = None) -> None:
        """The same with a statement that is prepared for this call and not kept."""
        self.wire.run(self.wire.executemany_freshly(query, rows, timeout=timeout))
