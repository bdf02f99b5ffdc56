"""A connection as the engine sees it: its calls look like coroutines, and block instead of suspending."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from picopyn.asynchronous.short_way import SHAPES
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
        "heed",
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
        self.heed: Callable[[BaseException, str], bool] = wire.heed

    # calls, by the names the engine has for them; a node pool has just looked whether the connection is closed

    async def ask(self, method: str, query: str, args: tuple[Any, ...], deadline: float | None) -> Any:
        """Send what a pool's method has to send; see the engine's `Link`."""
        return self.ask_now(method, query, args, deadline)

    def ask_now(self, method: str, query: str, args: tuple[Any, ...], deadline: float | None) -> Any:
        """The same, without a coroutine."""
        if method not in SHAPES:
            return self.wire.run_many(getattr(self.wire, method)(query, *args, timeout=_left(deadline)))
        if not args and method == "execute":
            return self.wire.simple_query(query, _left(deadline))
        limit, with_status = SHAPES[method]
        return self.wire.request_now(query, args, limit, deadline, with_status)

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


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.001)
