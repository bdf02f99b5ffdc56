"""Those who call the pool: one call at a time each, on rows that nobody else writes.

This file decides what a caller does next and what goes into the books. It must not know what is killed or moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

from picopyn.asynchronous import Pool
from picopyn.cli.demo.ledger import Ledger, State
from picopyn.cli.demo.tables import Table
from picopyn.cli.demo.tally import Tally, WrongAnswer
from picopyn.cli.demo.threaded import ThreadedPool
from picopyn.errors import OutcomeUnknown


class Caller(Protocol):
    """Somebody who calls until told to stop."""

    async def step(self, tally: Tally) -> None:
        """Make one call and count it; its error goes no further."""
        ...


class Books:
    """One table's rows through the pool, with every outcome in the ledger."""

    def __init__(self, pool: Pool | ThreadedPool, ledger: Ledger, table: Table) -> None:
        self._pool = pool
        self._ledger = ledger
        self._table = table

    async def insert(self, tally: Tally, number: int, state: str) -> bool:
        """Write a new row; False when it is not known to be there afterwards."""
        key = self._table.key(number)
        return await self._write(tally, "INSERT 0 1", number, state, self._table.insert, *key, state)

    async def update(self, tally: Tally, number: int, state: str) -> bool:
        """Change a row; False when it is not known to be changed afterwards."""
        arguments = self._table.update_arguments(self._table.key(number), state)
        return await self._write(tally, "UPDATE 1", number, state, self._table.update, *arguments)

    async def delete(self, tally: Tally, number: int) -> bool:
        """Delete a row; False when it is not known to be gone afterwards."""
        return await self._write(tally, "DELETE 1", number, None, self._table.delete, *self._table.key(number))

    async def read(self, tally: Tally, number: int, role: str | None = None) -> None:
        """Read a row; another state than the books say is a failed call."""
        key = self._table.key(number)
        try:
            with tally.timing():
                state = await self._pool.fetchval(self._table.select, *key, role=role)
                self._check(state in self._ledger.allowed((self._table.name, key)), f"{state!r}")
        except Exception:
            return

    async def _write(self, tally: Tally, status: str, number: int, state: State, text: str, *arguments: Any) -> bool:
        key = (self._table.name, self._table.key(number))
        try:
            with tally.timing():
                answer = await self._pool.execute(text, *arguments)
                self._check(answer == status, answer)
        except OutcomeUnknown:
            self._ledger.unknown(key, state)
            return False
        except Exception:
            return False
        self._ledger.acknowledged(key, state)
        return True

    def _check(self, right: bool, answer: str) -> None:
        if not right:
            raise WrongAnswer(f"{self._table.name}: the books say otherwise than the server: {answer}")


class MixedCaller:
    """INSERT, SELECT, UPDATE and DELETE by key, in random order, on rows of its own.

    Args:
        books: Where it calls.
        numbers: Numbers of its rows; nobody else gets them. A deleted one is used again.
        rng: Source of randomness.
    """

    def __init__(self, books: Books, numbers: Sequence[int], rng: Random) -> None:
        self._books = books
        self._rng = rng
        self._free = list(numbers)
        self._rows: list[int] = []
        self._changes = 0

    async def step(self, tally: Tally) -> None:
        """Make one call."""
        draw = self._rng.random()
        if self._free and (not self._rows or draw < 0.3):
            await self._insert(tally)
        elif not self._rows:
            return
        elif draw < 0.6:
            await self._books.read(tally, self._rng.choice(self._rows))
        elif draw < 0.8 or len(self._rows) < len(self._free):
            await self._update(tally)
        else:
            await self._delete(tally)

    async def _insert(self, tally: Tally) -> None:
        number = self._free.pop(self._rng.randrange(len(self._free)))
        if await self._books.insert(tally, number, "new"):
            self._rows.append(number)

    async def _update(self, tally: Tally) -> None:
        number = self._rng.choice(self._rows)
        self._changes += 1
        if not await self._books.update(tally, number, f"change {self._changes}"):
            self._rows.remove(number)

    async def _delete(self, tally: Tally) -> None:
        number = self._rows.pop(self._rng.randrange(len(self._rows)))
        if await self._books.delete(tally, number):
            self._free.append(number)


class Reader:
    """Reads rows that do not change, in turn, with a role."""

    def __init__(self, books: Books, rows: Sequence[int], role: str) -> None:
        self._books = books
        self._rows = rows
        self._role = role
        self._turn = 0

    async def step(self, tally: Tally) -> None:
        """Make one call."""
        self._turn += 1
        await self._books.read(tally, self._rows[self._turn % len(self._rows)], self._role)


class Writer:
    """Updates rows in turn; a row whose state is unknown is left alone from then on."""

    def __init__(self, books: Books, rows: Sequence[int]) -> None:
        self._books = books
        self._rows = list(rows)
        self._turn = 0

    async def step(self, tally: Tally) -> None:
        """Make one call."""
        if not self._rows:
            return
        self._turn += 1
        number = self._rows[self._turn % len(self._rows)]
        if not await self._books.update(tally, number, f"change {self._turn}"):
            self._rows.remove(number)


@asynccontextmanager
async def calling(callers: Sequence[tuple[Caller, Tally]], pause: float) -> AsyncIterator[None]:
    """Callers at work while the block runs; at its end each finishes its last call.

    Args:
        callers: Who calls, and where it is counted.
        pause: Seconds between two calls of one caller.
    """
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number, (caller, tally) in enumerate(callers):
            group.create_task(_call(caller, tally, pause, stop), name=f"demo caller {number}")
        yield
        stop.set()


async def _call(caller: Caller, tally: Tally, pause: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await caller.step(tally)
        await asyncio.sleep(pause)
