"""A connection that can be lent: what a borrower may change is known, and taken away when he gives it back.

It decides what of a borrower's traces is taken away without asking the server, what a dropped request leaves to be
cancelled, and how a child process lets go. It leans on asyncpg's internals (callbacks, codecs, the current transaction,
requests that are being cancelled), guarded by `test_acquired.py` and `test_sessions.py` in `tests/asynchronous`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from weakref import ReferenceType, ref

from picopyn.asynchronous import fork
from picopyn.asynchronous.short_way import ShortWayConnection
from picopyn.engine.runtime import Leftovers


class LendableConnection(ShortWayConnection):
    """asyncpg's connection, lent and taken back.

    Attributes:
        on_abandoned: Asked, when it is dropped while a request on it is being cancelled, whether to keep it until then;
            who says yes has to call `end`.
        on_aborted: Told when it is dropped although a statement may be running.
        inherited: It belongs to the parent of this process.
    """

    __slots__ = (
        "_at_once",
        "_borrower",
        "_codecs_changed",
        "_kept",
        "_kept_listeners",
        "_leaving",
        "_on_lost",
        "inherited",
        "on_abandoned",
        "on_aborted",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_abandoned: Callable[[LendableConnection], bool] | None = None
        self.on_aborted: Callable[[LendableConnection], None] | None = None
        self._leaving = False
        self.inherited = False
        self._borrower: ReferenceType[Any] | None = None
        self._codecs_changed = False
        self._kept: tuple[set[Any], ...] = ()
        self._kept_listeners: dict[str, set[Any]] = {}
        self._on_lost: Callable[[Any], None] | None = None
        self._at_once: Callable[[Any], None] | None = None
        fork.watch(self)

    # ending

    def tell_when_lost(self, listener: Callable[[Any], None], at_once: Callable[[Any], None] | None = None) -> None:
        """Call somebody with this connection, once, when it is closed by anyone; borrowers cannot take that away.

        Args:
            listener: Called in the next turn of the loop.
            at_once: Called in this turn, from wherever that may be, and also when it is only kept out of sight from now
                on: it must do very little.
        """
        self._on_lost = listener
        self._at_once = at_once

    def terminate(self) -> None:
        """Drop the connection at once. One whose request is being cancelled may be kept out of sight until it is."""
        if self._leaving:
            return
        if self._cancellations and not self._aborted and self.on_abandoned is not None:
            mine: Any = self
            mine._aborted = self._leaving = self.on_abandoned(self)
        if self._leaving:
            self._tell_at_once()
        else:
            super().terminate()

    def abort(self) -> None:
        """Drop it although a statement may be running: the server is told that nobody waits for that any more."""
        if self.on_aborted is not None and not self.is_closed() and not self._cancellations:
            self.on_aborted(self)
        self.terminate()

    def end(self) -> None:
        """Drop it for good, whatever is being cancelled on it."""
        if self._leaving:
            mine: Any = self
            mine._aborted = self._leaving = False
        super().terminate()

    def is_idle(self) -> bool:
        """Whether the next call may use it: it is not closed, and in no transaction."""
        protocol: Any = self._protocol
        return not self._aborted and protocol.is_connected() and not protocol.is_in_transaction()

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open; a connection that is gone has none."""
        protocol: Any = self._protocol
        return protocol is not None and bool(protocol.is_in_transaction())

    def is_settled(self) -> bool:
        """Whether no request is still being cancelled on it: the server has answered, or is gone."""
        protocol: Any = self._protocol
        return protocol is None or not self._cancellations or not protocol.is_connected()

    @property
    def cancel_key(self) -> tuple[int, int] | None:
        """What a CancelRequest for this session has to show (process and secret); None when the server gave none."""
        protocol: Any = self._protocol
        pid: int | None = getattr(protocol, "backend_pid", None)
        return (pid, protocol.backend_secret) if pid else None

    # lending

    def lend(self) -> None:
        """A borrower gets it: note the callbacks it has, so that his can be taken away."""
        self._codecs_changed = False
        self._kept_listeners = {channel: set(calls) for channel, calls in self._listeners.items()}
        self._kept = (set(self._log_listeners), set(self._query_loggers), set(self._termination_listeners))

    def show_as(self, borrower: Any) -> None:
        """Callbacks get this object as their connection, while it is alive and has the connection."""
        self._borrower = ref(borrower)

    def take_back(self) -> Leftovers:
        """The borrower is done: forget his callbacks, refuse his statements, cursors and transactions."""
        self._borrower = None
        self._pool_release_ctr += 1
        if self.is_closed():
            return Leftovers.NOTHING
        mine: Any = self
        kept = self._kept_listeners
        left = mine._listeners.keys() != kept.keys()
        mine._listeners = {name: calls & kept[name] for name, calls in mine._listeners.items() if name in kept}
        for present, before in zip(self._callbacks(), self._kept, strict=False):
            present &= before
        if not self.is_in_transaction():
            mine._top_xact = None
        if self._codecs_changed:
            return Leftovers.CODECS
        return Leftovers.SESSION if left else Leftovers.NOTHING

    def forget_callbacks(self) -> None:
        """Forget every listener but the pool's, as when the connection was new."""
        self._listeners.clear()
        for callbacks in self._callbacks():
            callbacks.clear()

    def _callbacks(self) -> tuple[set[Any], set[Any], set[Any]]:
        return self._log_listeners, self._query_loggers, self._termination_listeners

    def _unwrap(self) -> Any:
        borrower = None if self._borrower is None else self._borrower()
        return self if borrower is None else borrower

    def _tell_at_once(self) -> None:
        at_once, self._at_once = self._at_once, None
        if at_once is not None:
            at_once(self)

    def _call_termination_listeners(self) -> None:
        self._tell_at_once()
        listener, self._on_lost = self._on_lost, None
        if listener is not None and not self._loop.is_closed():
            self._loop.call_soon(listener, self)
        super()._call_termination_listeners()

    async def set_type_codec(self, *args: Any, **kwargs: Any) -> None:
        """See asyncpg; the pool has to know, for the next borrower did not ask for it."""
        self._codecs_changed = True
        await super().set_type_codec(*args, **kwargs)

    async def reset_type_codec(self, *args: Any, **kwargs: Any) -> None:
        """See asyncpg."""
        self._codecs_changed = True
        await super().reset_type_codec(*args, **kwargs)

    async def set_builtin_type_codec(self, *args: Any, **kwargs: Any) -> None:
        """See asyncpg."""
        self._codecs_changed = True
        await super().set_builtin_type_codec(*args, **kwargs)

    # an event loop that is closed

    def abandon(self) -> None:
        """Its event loop is closed: close the socket without it. Calls in flight never end; nobody is there to care."""
        if self.is_closed():
            return
        mine: Any = self
        mine._aborted = True
        transport: Any = self._transport
        with suppress(Exception):
            transport.abort()  # stops reading, and fails at what it would leave to the loop
        carrier = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
        with suppress(Exception):
            carrier._call_connection_lost(None)  # what it left to the loop

    def settle_in(self, set_options: Callable[[Any], None]) -> None:
        """The hand-shake is done: have the socket's options set; without TLS here, none for cancel requests either."""
        transport, mine = self._transport, cast(Any, self)
        if transport is None:
            return
        set_options(transport.get_extra_info("socket"))
        if transport.get_extra_info("ssl_object") is None:
            # asyncpg would ask the server for TLS again, and complains when that is interrupted.
            mine._params = self._params._replace(ssl=None)

    # another process

    def disown(self) -> None:
        """In a child process: this connection is the parent's. Its socket is let go of without a word.

        The descriptor is made to lead nowhere rather than closed: whatever may still touch it here, an event loop that
        shares the parent's epoll object included, then reaches nothing of the parent's.
        """
        self.inherited = True
        socket = self._transport.get_extra_info("socket") if self._transport is not None else None
        mine: Any = self
        mine._aborted = True
        mine._protocol = None
        self._on_lost = self._at_once = None
        self._termination_listeners.clear()
        if socket is not None and socket.fileno() >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, socket.fileno(), inheritable=False)
            os.close(nowhere)
