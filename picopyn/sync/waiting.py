"""A thread that waits for its turn: exactly one of waking, failing, the deadline and leaving decides."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from picopyn.engine.interruptions import mark

T = TypeVar("T")


class Interruption(BaseException):
    """Carries what a signal's handler has raised past everybody who would take it for an error of the engine's.

    Args:
        error: What that is.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self._error = error

    def unpack(self) -> Exception:
        """What the handler has raised, with whatever was put on its carrier."""
        error, given = self._error, dict(self.__dict__)
        del given["_error"]
        for note in given.pop("__notes__", ()):
            error.add_note(note)
        error.__dict__.update(given)
        mark(error)
        return error


class ThreadWaiter(Generic[T]):
    """One waiting thread. It may be woken from any thread, also before it begins to wait.

    What decides is entered into a dictionary by the first who comes, which takes one call that nothing can fall into;
    whoever finds his own there rings. Between the two no function is called, so no interruption is looked for.
    """

    __slots__ = ("_bell", "_decided")

    def __init__(self) -> None:
        self._bell = bell = threading.Lock()
        self._decided: dict[None, tuple[T | None, BaseException | None]] = {}
        bell.acquire()

    def wake(self, value: T) -> bool:
        """Hand it its value; False when something else was first."""
        return self._decide((value, None))

    def fail(self, error: BaseException) -> bool:
        """Make its wait raise; False when something else was first."""
        return self._decide((None, error))

    def abandon(self) -> T | None:
        """The waiting party leaves; a value that already arrived is returned so that it is not lost."""
        return None if self._decide((None, TimeoutError())) else self._decided[None][0]

    async def wait(self, deadline: float | None) -> T:
        """Block until the value is there.

        Raises:
            TimeoutError: The deadline came first.
        """
        try:
            if deadline is None:
                self._bell.acquire()
            else:
                left = deadline - time.monotonic()
                if not self._bell.acquire(timeout=left if 0.0 < left < threading.TIMEOUT_MAX else _limited(left)):
                    self._decide((None, TimeoutError()))
        except Exception as raised:  # nothing here raises any
            raise Interruption(raised) from None
        value, error = self._decided[None]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _decide(self, mine: tuple[T | None, BaseException | None]) -> bool:
        decided = self._decided
        try:
            decided.setdefault(None, mine)
        finally:  # also for who is interrupted here
            first = None in decided and decided[None] is mine
            if first:
                self._bell.release()
        return first


def _limited(seconds: float) -> float:
    """What a lock can wait for."""
    return min(max(seconds, 0.0), threading.TIMEOUT_MAX)
