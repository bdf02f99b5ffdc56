"""A connection on loan to a thread: asyncpg's surface until it is given back, a clear refusal afterwards.

It decides nothing about pools and servers; what an error means, and what becomes of the connection, the engine's
[`Loan`][picopyn.engine.loan.Loan] knows.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any

from picopyn.dialects.base import Capability
from picopyn.engine.loan import Loan, no_transactions
from picopyn.errors import NotSupported, UsageError
from picopyn.settings import check_timeout
from picopyn.sync.connection import Connection
from picopyn.topology import Node

#: Methods that only look, or only talk to this side.
_SEND_NOTHING = frozenset({"is_closed", "is_in_transaction", "get_settings", "get_server_pid", "get_server_version"})
#: Methods that need transactions.
_ATOMIC = frozenset({"transaction", "cursor"})


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

    __slots__ = ("__weakref__", "_connection", "_loan", "_origin", "_pool")

    def __init__(self, loan: Loan, pool: object, origin: traceback.StackSummary | None = None) -> None:
        link: Any = loan.link
        self._loan = loan
        self._connection = Connection(link.wire)
        self._pool = pool
        self._origin = origin
        link.wire.show_as(self)

    def __repr__(self) -> str:
        state = "released" if self._loan.released else "held"
        return f"<AcquiredConnection to {self.node.name} ({self.node.address}), {state}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._connection, name)
        if not callable(method):
            return method
        if name in _ATOMIC and not self._loan.can(Capability.TRANSACTIONS):
            raise NotSupported(no_transactions(name))
        return self._guarded(name, method)

    def __del__(self) -> None:
        loan: Loan | None = getattr(self, "_loan", None)
        if loan is None or loan.released:
            return
        loan.release()
        where = "" if self._origin is None else "; it was acquired here:\n" + "".join(self._origin.format()).rstrip()
        warnings.warn(f"{self!r} was never given back to its pool{where}", ResourceWarning, source=self, stacklevel=2)

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
            UsageError: It was given back before.
        """
        self._loan.release()

    def close(self, *, timeout: float | None = None) -> None:
        """Close the connection instead of giving it back for others; it has to be released all the same.

        Args:
            timeout: Limit for the goodbye (seconds).
        """
        self._loan.check()
        self._loan.leave()
        self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        """Drop the connection at once; it has to be released all the same."""
        self._loan.check()
        self._loan.leave()
        self._connection.terminate()

    def _guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        loan = self._loan

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in _SEND_NOTHING:
                loan.check()
                return method(*args, **kwargs)
            if kwargs.get("timeout") is not None:
                check_timeout(kwargs["timeout"])
            loan.begin(name, args[0] if args and isinstance(args[0], str) else "")
            try:
                result = method(*args, **kwargs)
            except BaseException as error:
                told = loan.end(error)
                if told is not None:
                    raise told from error
                raise
            loan.end(None)
            return result

        return call


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

    __slots__ = ("_acquiring", "_options", "_transaction")

    def __init__(self, acquiring: Acquiring, options: dict[str, Any]) -> None:
        self._acquiring = acquiring
        self._options = options
        self._transaction: Any = None

    def __enter__(self) -> AcquiredConnection:
        connection = self._acquiring.__enter__()
        try:
            self._transaction = connection.transaction(**self._options)
            self._transaction.__enter__()
        except BaseException:
            self._acquiring.__exit__(None, None, None)
            raise
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._transaction.__exit__(kind, error, trace)
        finally:
            self._acquiring.__exit__(kind, error, trace)
