"""Reads texts of statements in a thread of its own, at most a tenth of the time.

A parser takes milliseconds, and a thread that runs Python takes its share from everybody else: an application that
makes up a new text for each call must not have half of its processor taken by reading them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from picopyn.asynchronous.duty_cycle import DutyCycle
from picopyn.dialects.yugabyte.statement_key import Statement, read_statement

#: Share of the time, and what may be saved up (seconds): enough for the first import of the parser and some dozens of
#: texts.
SHARE: Final = 0.1
BURST: Final = 1.0
#: Longest pause before a text (seconds): somebody may wait for one that comes after it.
LONGEST_PAUSE: Final = 1.0


class StatementReader:
    """Owned by a learner; one text at a time.

    Args:
        now: Clock.
    """

    __slots__ = ("_duty", "_now", "_thread")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._duty = DutyCycle(SHARE, BURST)
        self._thread: ThreadPoolExecutor | None = None

    async def read(self, query: str, *, urgent: bool) -> Statement | str:
        """What a text says, or why it has no key; somebody who waits for it waits for no pause."""
        if not urgent:
            await asyncio.sleep(min(self._duty.delay(self._now()), LONGEST_PAUSE))
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "picopyn reads statements")
        began = self._now()
        said = await asyncio.get_running_loop().run_in_executor(self._thread, read_statement, query)
        ended = self._now()
        self._duty.spent(ended - began, ended)
        return said

    def close(self) -> None:
        """End the thread; it may still finish a text."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
