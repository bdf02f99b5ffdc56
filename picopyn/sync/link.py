"""A connection as the engine sees it: its calls look like coroutines, and block instead of suspending."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from picopyn.asynchronous.short_way import SHAPES
from picopyn.engine.runtime import Leftovers
from picopyn.sync.wire import Wire

#: For so long after an answer a connection is not looked at before its next use (seconds). To look is a call into the
#: system, and what ends in that time may as well end a moment later, under the next statement.
JUST_NOW: Final = 0.001


class Link:
    """One connection of a pool of threads.

    Args:
        wire: The connection.

    Attributes:
        wire: The connection.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "abort",
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
        self._answered = 0.0
        self.is_closed: Callable[[], bool] = wire.is_closed
        self.is_idle: Callable[[], bool] = wire.is_idle
        self.is_in_transaction: Callable[[], bool] = wire.is_in_transaction
        self.is_settled: Callable[[], bool] = wire.is_settled
        self.requests: Callable[[], int] = wire.requests
        self.silence: Callable[[], float | None] = wire.silence
        self.terminate: Callable[[], None] = wire.terminate
        self.abort: Callable[[], None] = wire.abort
        self.lend: Callable[[], None] = wire.lend
        self.heed: Callable[[BaseException, str], bool] = wire.heed

    # calls, by the names the engine has for them; a node pool has looked just now whether the connection has ended

    async def ask(self, method: str, query: str, args: tuple[Any, ...], deadline: float | None) -> Any:
        """Send what a pool's method has to send; see the engine's `Link`."""
        return self.ask_now(method, query, args, deadline)

    def ask_now(self, method: str, query: str, args: tuple[Any, ...], deadline: float | None) -> Any:
        """The same, without a coroutine."""
        shape = SHAPES.get(method)
        if shape is None or (not args and method == "execute"):
            return self._ask_rarely(method, query, args, _left(deadline))
        answer = self.wire.request_now(query, args, shape[0], deadline, shape[1])
        self._answered = monotonic()
        return answer

    def _ask_rarely(self, method: str, query: str, args: tuple[Any, ...], timeout: float | None) -> Any:
        if method == "execute":  # without arguments, else it is no rarity
            return self.wire.simple_query(query, timeout)
        return self.wire.run_many(getattr(self.wire, method)(query, *args, timeout=timeout))

    def has_ended(self) -> bool:
        """Whether it has ended since its last answer, as far as the system knows."""
        return monotonic() - self._answered > JUST_NOW and self.is_closed()

    def explained(self, error: Exception) -> Exception:
        """What an error says; see the protocol."""
        return self.wire.explained(error)

    def forget_statements(self) -> None:
        """Prepare every statement again at its next use."""
        self.wire.forget_statements()

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
    return None if deadline is None else max(deadline - monotonic(), 0.001)
