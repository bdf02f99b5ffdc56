"""A transaction of a connection that blocks."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

import asyncpg

from picopyn.errors import UsageError
from picopyn.sync.wire import Wire

#: How long the rollback of a block that ends with an error may take before the connection is dropped, which rolls back
#: as well (seconds).
ROLLBACK_TIMEOUT: Final = 1.0


class Transaction:
    """A transaction or savepoint: `with`, or `start` and then `commit` or `rollback`.

    A block that ends with an error is rolled back; where that takes longer than a second, the connection is dropped. A
    block in which a statement failed, and the error was caught, does not end as if all were well.

    Args:
        wire: Its connection.
        transaction: asyncpg's transaction.
    """

    __slots__ = ("_in_block", "_transaction", "_wire")

    def __init__(self, wire: Wire, transaction: Any) -> None:
        self._wire = wire
        self._transaction = transaction
        self._in_block = False

    def start(self) -> None:
        """Begin it."""
        self._wire.run(self._transaction.start())
        self._wire.caller.has_failed = False

    def commit(self) -> None:
        """Make it last.

        Raises:
            asyncpg.InFailedSQLTransactionError: A statement in it failed; all of it was rolled back.
        """
        self._not_in_block("commit")
        self._commit()

    def rollback(self) -> None:
        """Undo it."""
        self._not_in_block("rollback")
        self._wire.run(self._transaction.rollback())

    def __enter__(self) -> Transaction:
        if self._in_block:
            raise UsageError("this transaction is already in a `with` block")
        self.start()
        self._in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_block = False
        if error is None:
            self._commit()
        elif not self._wire.is_closed():
            self._roll_back_in_time()

    def _commit(self) -> None:
        """COMMIT of a transaction that has failed would roll back, and say nothing about it."""
        if self._wire.caller.has_failed:
            try:
                self._wire.simple_query("SELECT 1", None)
            except asyncpg.InFailedSQLTransactionError:
                self._wire.run(self._transaction.rollback())
                raise
        self._wire.run(self._transaction.commit())

    def _roll_back_in_time(self) -> None:
        try:
            self._wire.run(self._transaction.rollback(), ROLLBACK_TIMEOUT)
        except Exception:  # the error that ended the block goes on; dropping the connection rolls back
            self._wire.terminate()

    def _not_in_block(self, name: str) -> None:
        if self._in_block:
            raise UsageError(f"{name}() inside of `with`: leave the block, or raise an error to roll back")
