"""A connection on loan to a thread: asyncpg's surface until it is given back, a clear refusal afterwards.

It decides nothing about pools and servers; what an error means, and what becomes of the connection, the engine's
[`Loan`][picopyn.engine.loan.Loan] knows.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from picopyn.engine.loan import Loan
from picopyn.errors import UsageError
from picopyn.sync.connection import Connection
from picopyn.sync.guarding import Lent
from picopyn.sync.transaction import Transaction
from picopyn.topology import Node

#: Methods that make something which asks for itself.
_MAKE: Final = frozenset({"cursor", "transaction"})
#: Methods that send nothing, and need an open connection.
_NEED_OPEN: Final = frozenset({"get_settings", "get_server_pid"})
#: Methods that send nothing at all.
_LOOK: Final = frozenset({"is_closed", "is_in_transaction", "get_server_version", "get_reset_query"}) | {
    f"{verb}_{what}" for verb in ("add", "remove") for what in ("log_listener", "termination_listener", "query_logger")
} | {"query_logger"}  # fmt: skip
#: Methods whose first argument is a statement that they execute.
_EXECUTE: Final = frozenset({"execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "copy_from_query"})
#: Methods that change something without a statement of the caller's.
_CHANGE: Final = frozenset({"copy_to_table", "copy_records_to_table"})


class AcquiredConnection:
    """A connection that belongs to one borrower until it is released.

    It has every method of [`Connection`][picopyn.sync.Connection], with the same arguments and results. What differs:

    - After `release` everything raises `UsageError`.
    - It serves one call at a time. A second one, of another thread, is refused before anything is sent.
    - A `timeout=` must be above 0; anything else is a `ValueError`, and nothing is sent.
    - A lost connection is a `ConnectionLost`, a call that ran into its `timeout=` a `CallTimeout`; where the statement
      may have taken effect, both are an `OutcomeUnknown` too.
    - Errors of the server are asyncpg's own, with a note that names the node.
    - `transaction()` and `cursor()` are refused where the server has no transactions (Picodata).

    What runs here is not routed, and never sent twice.
    """

    __slots__ = ("__weakref__", "_connection", "_guard", "_later", "_loan", "_origin", "_pool", "_wire")

    def __init__(
        self,
        loan: Loan,
        pool: object,
        later: Callable[[Callable[[], object]], None],
        origin: traceback.StackSummary | None = None,
    ) -> None:
        link: Any = loan.link
        self._later = later
        self._wire = link.wire
        self._guard = Lent(loan, self._wire)
        self._connection = Connection(self._wire, self._guard)
        self._pool = pool
        self._origin = origin
        self._loan = loan  # last: from now on a finaliser gives it back
        self._wire.show_as(self)

    def __repr__(self) -> str:
        state = "released" if self._loan.released else "held"
        return f"<AcquiredConnection to {self.node.name} ({self.node.address}), {state}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._connection, name)
        return method if name in _MAKE else self._guarded(name, method)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError("a connection on loan can be neither copied nor sent to another process; acquire one there")

    def __del__(self) -> None:
        """This may be any thread, in the middle of anything: nothing is locked here."""
        loan: Loan | None = getattr(self, "_loan", None)
        if loan is None or loan.back or self._wire.inherited:
            return
        silent = loan.released or self._wire.was_closed()
        text = f"{self!r} was never given back to its pool"
        self._later(loan.forget)
        if silent:
            return
        if self._origin is None:
            where = "; with debug=True this tells where it was acquired"
        else:
            where = "; it was acquired here:\n" + "".join(self._origin.format()).rstrip()
        warnings.warn(text + where, ResourceWarning, source=self, stacklevel=2)  # last: it may be made an error

    @property
    def node(self) -> Node:
        """The node it leads to."""
        return self._loan.pool.node

    def is_released(self) -> bool:
        """Whether it was given back."""
        return self._loan.released

    def belongs_to(self, pool: object) -> bool:
        """Whether it was acquired from this pool."""
        return self._pool is pool

    def release(self) -> None:
        """Give the connection back. A call of another thread that still runs on it is not disturbed.

        Raises:
            UsageError: It was given back before, or this is another process.
        """
        self._guard.check()
        self._loan.release()

    def close(self, *, timeout: float | None = None) -> None:
        """Close the connection instead of giving it back for others; it has to be released all the same.

        Args:
            timeout: Limit for the goodbye (seconds).
        """
        with self._guard.use("close", timeout=timeout):
            self._loan.leave()
            self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        """Drop the connection at once; it has to be released all the same."""
        self._guard.leave()
        self._connection.terminate()

    def _guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        guard = self._guard

        def call(*args: Any, **kwargs: Any) -> Any:
            query = "" if name in _CHANGE else None
            if name in _EXECUTE and args:
                query = args[0]
            with guard.use(name, query, timeout=kwargs.get("timeout")):
                return method(*args, **kwargs)

        def look(*args: Any, **kwargs: Any) -> Any:
            guard.check()
            if name in _NEED_OPEN:
                guard.alive(name)
            return method(*args, **kwargs)

        return look if name in _LOOK or name in _NEED_OPEN else call


class Acquiring:
    """The result of `Pool.acquire`: use it with `with`, or `take()` the connection.

    Args:
        take: Takes the connection.
        check: Refuses where the pool cannot be used.
    """

    __slots__ = ("_acquired", "_check", "_take")

    def __init__(self, take: Callable[[], AcquiredConnection], check: Callable[[], None]) -> None:
        self._take = take
        self._check = check
        self._acquired: AcquiredConnection | None = None

    def take(self) -> AcquiredConnection:
        """Take the connection; it has to be given back with `Pool.release`."""
        self._check()
        return self._take()

    def __enter__(self) -> AcquiredConnection:
        if self._acquired is not None:
            raise UsageError("this acquire() is already in use; call it again for a second connection")
        self._acquired = self.take()
        return self._acquired

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        acquired, self._acquired = self._acquired, None
        if acquired is not None and not acquired.is_released():
            acquired.release()


class PoolTransaction:
    """What `Pool.transaction` gives, for one `with` block.

    Args:
        acquiring: Takes the connection.
        options: Of the transaction.
    """

    __slots__ = ("_acquiring", "_options", "_running")

    def __init__(self, acquiring: Acquiring, options: dict[str, Any]) -> None:
        self._acquiring = acquiring
        self._options = options
        self._running: Transaction | None = None

    def __enter__(self) -> AcquiredConnection:
        if self._running is not None:
            raise UsageError("this transaction() is already in use; call it again for a second one")
        connection = self._acquiring.__enter__()
        try:
            transaction = connection.transaction(**self._options)
            transaction.__enter__()
        except BaseException:
            self._acquiring.__exit__(None, None, None)
            raise
        self._running = transaction
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.__exit__(kind, error, trace)
        finally:
            self._acquiring.__exit__(kind, error, trace)
