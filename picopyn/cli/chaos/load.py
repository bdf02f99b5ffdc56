"""Callers that write and read without a pause worth speaking of, and write down every call.

This file decides what is called. It must not know what happens to the servers, nor what is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Protocol

from picopyn.cli.chaos.field import CALLERS, COUNTERS, PATIENCE, REGISTERS
from picopyn.cli.chaos.history import REPEATABLE, Call, History, Verb
from picopyn.errors import OutcomeUnknown

#: Between two calls of one caller (seconds).
_PAUSE = 0.003

_INSERT = "INSERT INTO chaos_rows VALUES ($1)"
_ADD = "UPDATE chaos_counters SET n = n + 1 WHERE id = $1"
_RAISE = "UPDATE chaos_registers SET n = $1 WHERE id = $2 AND n < $1"
_READS = {
    Verb.READ_COUNTER: "SELECT n FROM chaos_counters WHERE id = $1",
    Verb.READ_REGISTER: "SELECT n FROM chaos_registers WHERE id = $1",
}
#: In the note of an attempt that reached a server and whose connection broke then.
_SENT = ", sent: the connection broke"
#: In the note that says why a call was not sent again.
_HELD_BACK = ": not sent again: "
#: Roles that promise nothing about freshness.
_ELSEWHERE = ("prefer_replica", "any")


class AwaitedPool(Protocol):
    """What is needed of a pool; that of threads comes behind something that awaits it."""

    def execute(
        self, query: str, *args: Any, idempotent: bool | None = ..., timeout: float | None = ...
    ) -> Awaitable[str]:
        """See the pool."""
        ...

    def fetchval(
        self, query: str, *args: Any, role: str | None = ..., idempotent: bool | None = ..., timeout: float | None = ...
    ) -> Awaitable[Any]:
        """See the pool."""
        ...


class Load:
    """Callers at work while the block runs. Use with `async with`; at the end each finishes its last call.

    Args:
        pool: Where they call.
        rng: Decides what is called next.

    Attributes:
        history: All calls.
    """

    def __init__(self, pool: AwaitedPool, rng: Random) -> None:
        self.history = History()
        self._pool = pool
        self._rng = rng
        self._numbers = count(1)
        self._over = False
        self._answers = [0] * CALLERS
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [
            asyncio.create_task(self._work(number), name=f"chaos caller {number}") for number in range(CALLERS)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            for result in ended:
                if isinstance(result, BaseException):
                    raise result

    async def everybody(self, calls: int = 5) -> None:
        """Wait until every caller has ended so many more calls; their own patience ends it at the latest."""
        wanted = [ended + calls for ended in self._answers]
        while any(ended < want for ended, want in zip(self._answers, wanted, strict=True)):
            if any(task.done() for task in self._tasks):
                return
            await asyncio.sleep(0.01)

    async def _work(self, caller: int) -> None:
        while not self._over:
            await self._call(caller)
            self._answers[caller] += 1
            await asyncio.sleep(_PAUSE)

    async def _call(self, caller: int) -> None:
        draw, key = self._rng.random(), self._rng.randrange(COUNTERS)
        if draw < 0.2:
            await self._write(Verb.INSERT, next(self._numbers))
        elif draw < 0.4:
            await self._write(Verb.ADD, key)
        elif draw < 0.6:
            own = range(caller, REGISTERS, CALLERS)
            await self._write(Verb.RAISE, self._rng.choice(own), next(self._numbers))
        elif draw < 0.8:
            await self._read(Verb.READ_COUNTER, key)
        else:
            await self._read(Verb.READ_REGISTER, self._rng.randrange(REGISTERS))

    async def _write(self, verb: Verb, key: int, value: int = 0) -> None:
        call = self.history.begin(verb, key, value)
        if verb is Verb.RAISE:
            sent = self._pool.execute(_RAISE, value, key, idempotent=True, timeout=PATIENCE)
            right = {"UPDATE 1", "UPDATE 0"}  # the second when it runs again
        else:
            sent = self._pool.execute(_INSERT if verb is Verb.INSERT else _ADD, key, timeout=PATIENCE)
            right = {"INSERT 0 1" if verb is Verb.INSERT else "UPDATE 1"}
        answer = await self._told(call, sent)
        if answer in right:
            self.history.done(call)
        elif answer is not None:
            self.history.failed(call, f"wrong answer: {answer!r}")

    async def _read(self, verb: Verb, key: int) -> None:
        role = self._rng.choice(_ELSEWHERE) if self._rng.random() < 0.3 else None
        call = self.history.begin(verb, key, fresh=role is None)
        answer = await self._told(
            call, self._pool.fetchval(_READS[verb], key, role=role, idempotent=True, timeout=PATIENCE)
        )
        if isinstance(answer, int):
            self.history.done(call, answer)
        elif not call.error:
            self.history.failed(call, f"wrong answer: {answer!r}")

    async def _told(self, call: Call, sent: Awaitable[Any]) -> Any:
        """The answer; None when there was an error, which is written down."""
        try:
            return await sent
        except Exception as error:
            told = in_words(error)
            losses = told.count(_SENT)
            if isinstance(error, OutcomeUnknown) or (losses and call.verb in REPEATABLE):
                self.history.unknown(call, told, losses, held_back=_HELD_BACK in told)
            else:
                self.history.failed(call, told)
        return None


def in_words(error: BaseException) -> str:
    """An error with the attempts that were made."""
    return "\n    ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
