"""A transaction of a connection that blocks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import asyncpg

from picopyn.asynchronous.borrowed import ROLLBACK_TIMEOUT
from picopyn.engine import failures
from picopyn.engine.interruptions import is_interruption
from picopyn.errors import UsageError
from picopyn.sync.guarding import Guard
from picopyn.sync.wire import Wire


class Transaction:
    """A transaction or savepoint: `with`, or `start` and then `commit` or `rollback`.

    A block that ends with an error is rolled back; where that takes longer than a second, the connection is dropped. A
    block in which a statement failed, and the error was caught, does not end as if all were well. On a connection from
    a pool, COMMIT and ROLLBACK as statements are refused inside.

    Args:
        wire: Its connection.
        transaction: asyncpg's transaction.
        guard: Is asked before anything is sent.
    """

    __slots__ = ("_guard", "_in_block", "_transaction", "_wire")

    def __init__(self, wire: Wire, transaction: Any, guard: Guard) -> None:
        self._wire = wire
        self._transaction = transaction
        self._guard = guard
        self._in_block = False

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise failures.not_copied("a transaction")

    def start(self) -> None:
        """Begin it."""
        with self._guard.use("start"):
            self._wire.run(self._transaction.start())
            self._guard.begin(nested=self._transaction._nested)

    def commit(self) -> None:
        """Make it last.

        Raises:
            OutcomeUnknown: The connection, on loan from a pool, broke before the server answered.
            asyncpg.InFailedSQLTransactionError: A statement in it failed; all of it was rolled back.
            UsageError: A statement in it has ended it.
        """
        self._not_in_block("commit")
        self._commit()

    def rollback(self) -> None:
        """Undo it."""
        self._not_in_block("rollback")
        self._rollback()

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
        elif not self._guard.is_over and not self._wire.is_closed():
            self._roll_back_in_time()

    def _commit(self) -> None:
        """COMMIT of a transaction that has failed would roll back, and say nothing about it."""
        outermost = not self._transaction._nested
        if outermost and not self._guard.ending():
            self._rollback()  # of nothing; asyncpg forgets it, too
            raise failures.transaction_ended("commit() was not sent: a call before it has ended")
        if self._guard.has_failed:
            with self._guard.use("commit"):
                self._check_alive()
        with self._guard.use("commit", decides=outermost):
            self._wire.run(self._transaction.commit())

    def _check_alive(self) -> None:
        try:
            self._wire.simple_query("SELECT 1", None)
        except asyncpg.InFailedSQLTransactionError:
            self._wire.run(self._transaction.rollback())
            raise

    def _rollback(self, limit: float | None = None) -> None:
        if not self._transaction._nested:
            self._guard.ending()
        with self._guard.use("rollback"):
            self._wire.run(self._transaction.rollback(), limit)

    def _roll_back_in_time(self) -> None:
        try:
            self._rollback(ROLLBACK_TIMEOUT)
        except Exception as error:  # the error that ended the block goes on; dropping the connection rolls back
            if not self._guard.is_over:
                self._guard.leave()
                self._wire.terminate()
            if is_interruption(error):
                raise

    def _not_in_block(self, name: str) -> None:
        if self._in_block:
            raise UsageError(f"{name}() inside of `with`: leave the block, or raise an error to roll back")
