"""Who may use a connection that blocks, and what its errors mean.

A connection of one's own is free for everything that its server allows. Of a lent one the engine's
[`Loan`][picopyn.engine.loan.Loan] decides; what was made on it (statements, cursors, transactions) asks it as well.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from picopyn.dialects.base import Capability
from picopyn.engine.loan import Loan, no_transactions
from picopyn.errors import NotSupported, UsageError
from picopyn.sync.wire import Wire

_NOTHING: AbstractContextManager[None] = nullcontext()


class Guard(Protocol):
    """What calls ask before they send anything."""

    @property
    def is_over(self) -> bool:
        """Whether the connection was given back."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether a statement may have failed in the transaction that is open."""
        ...

    def use(
        self, name: str, query: str | None = None, *, decides: bool = False, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """One call, for a `with` statement around it; see `Loan.use`."""
        ...

    def alive(self, name: str) -> None:
        """Refuse what sends nothing but needs an open connection."""
        ...

    def atomic(self, name: str) -> None:
        """Refuse what needs transactions where there are none."""
        ...

    def begin(self, *, nested: bool) -> None:
        """A transaction has begun, or a savepoint."""
        ...

    def ending(self) -> bool:
        """That transaction, no savepoint, is about to be ended; see `Loan.ending`."""
        ...

    def leave(self) -> None:
        """The caller himself is about to close the connection."""
        ...


class Free:
    """The guard of a connection that nobody has lent.

    Args:
        wire: The connection.
    """

    __slots__ = ("_wire",)

    is_over = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def has_failed(self) -> bool:
        """Whether a call has failed since the transaction began."""
        return self._wire.caller.has_failed

    def use(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        """Nobody has to be asked."""
        return _NOTHING

    def alive(self, name: str) -> None:
        """Whether it is open, asyncpg says itself."""

    def atomic(self, name: str) -> None:
        """The server is what its user takes it for."""

    def begin(self, *, nested: bool) -> None:
        """A transaction has begun, or a savepoint."""
        self._wire.caller.has_failed = False

    def ending(self) -> bool:
        """Its user may end it as he likes."""
        return True

    def leave(self) -> None:
        """Nobody has to know."""


class Lent:
    """The guard of a connection on loan.

    Args:
        loan: The loan.
        wire: The connection.
    """

    __slots__ = ("_loan", "_wire")

    def __init__(self, loan: Loan, wire: Wire) -> None:
        self._loan = loan
        self._wire = wire

    @property
    def is_over(self) -> bool:
        """Whether it was given back."""
        return self._loan.released

    @property
    def has_failed(self) -> bool:
        """Whether the server refused a statement inside the transaction that is open."""
        return self._loan.block.erred

    def check(self) -> None:
        """Refuse what comes after the release, and in another process.

        Raises:
            UsageError: It does.
        """
        self._loan.check()
        if self._wire.inherited:
            raise UsageError("this connection was acquired in another process, before a fork; open a pool in this one")

    def use(
        self, name: str, query: str | None = None, *, decides: bool = False, timeout: float | None = None
    ) -> AbstractContextManager[None]:
        """One call, for a `with` statement around it; see `Loan.use`."""
        self.check()
        return self._loan.use(name, query, decides=decides, timeout=timeout)

    def alive(self, name: str) -> None:
        """Refuse what sends nothing but needs an open connection.

        Raises:
            ConnectionLost: It is closed.
        """
        self.check()
        self._loan.check_alive(name)

    def atomic(self, name: str) -> None:
        """Refuse what needs transactions where there are none.

        Raises:
            NotSupported: It does.
        """
        if not self._loan.can(Capability.TRANSACTIONS):
            raise NotSupported(no_transactions(name))
        self.alive(name)

    def begin(self, *, nested: bool) -> None:
        """Nobody else may end it, savepoints apart."""
        if not nested:
            self._loan.began()

    def ending(self) -> bool:
        """See `Loan.ending`."""
        return self._loan.ending()

    def leave(self) -> None:
        """The borrower himself is about to close it."""
        self.check()
        self._loan.leave()
