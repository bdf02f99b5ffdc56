"""A load of writes with a history, and the check that the servers agree with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import Any

from picopyn.errors import OutcomeUnknown

#: May be run twice; the other one would leave two rows.
REPEATABLE = "INSERT INTO repeatable VALUES ($1) ON CONFLICT DO NOTHING"
ONCE = "INSERT INTO once VALUES ($1)"
TABLES = "CREATE TABLE repeatable (i BIGINT PRIMARY KEY); CREATE TABLE once (i BIGINT)"

#: A call that waits for a new primary waits so long at most (seconds); on a slow machine a promotion takes a while.
PATIENCE = 60.0


class History:
    """Writes numbers, one after the other, from several workers, and notes what became of each.

    Half of the calls are declared repeatable.

    Args:
        pool: Where.
        workers: How many calls at once.
        rate: How many calls a second, all together.
        readers: How many tasks read beside them, wherever a replica or the primary is; these calls are repeatable too.

    Attributes:
        reads: How many reads were answered.
        acknowledged: Numbers by table, each in the order in which the answers came.
        unknown: Numbers of which nobody could tell whether they were written.
        errors: Every other error, with its number.
        moments: When each answer came (seconds on the loop's clock).
    """

    def __init__(self, pool: Any, *, workers: int = 40, rate: float = 2000.0, readers: int = 0) -> None:
        self.reads = 0
        self.acknowledged: dict[str, list[int]] = {ONCE: [], REPEATABLE: []}
        self.unknown: list[int] = []
        self.errors: list[tuple[str, int, BaseException]] = []
        self.moments: list[float] = []
        self._pool = pool
        self._pause = workers / rate
        self._numbers = count()
        self._over = False
        self._tasks = [asyncio.create_task(self._work(), name=f"worker {number}") for number in range(workers)]
        self._tasks += [asyncio.create_task(self._read(), name=f"reader {number}") for number in range(readers)]

    @property
    def answers(self) -> int:
        """How many writes were acknowledged."""
        return len(self.moments)

    async def more(self, answers: int) -> None:
        """Wait until so many more are acknowledged; the test's own limit ends it."""
        wanted = self.answers + answers
        while self.answers < wanted:
            assert not self.errors, _told(self.errors[0])
            await asyncio.sleep(0.005)

    async def more_reads(self, answers: int) -> None:
        """The same with reads."""
        wanted = self.reads + answers
        while self.reads < wanted:
            assert not self.errors, _told(self.errors[0])
            await asyncio.sleep(0.005)

    def first_after(self, moment: float) -> float:
        """When the first answer after a moment came."""
        return next(answer for answer in self.moments if answer > moment)

    async def end(self) -> None:
        """No more calls; returns when the last one has ended."""
        self._over = True
        await asyncio.gather(*self._tasks)

    async def __aenter__(self) -> History:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def check(self) -> None:
        """No call failed but those of which nobody can tell, and no row is lost, doubled, or made up."""
        assert not self.errors, _told(self.errors[0])
        for text, table in ((ONCE, "once"), (REPEATABLE, "repeatable")):
            rows = await self._pool.fetch(f"SELECT i, count(*) FROM {table} GROUP BY i", timeout=PATIENCE)
            stored = Counter({row[0]: row[1] for row in rows})
            known = set(self.acknowledged[text])
            assert len(known) == len(self.acknowledged[text])
            assert not known - stored.keys(), "acknowledged, and lost"
            assert not stored.keys() - known - set(self.unknown), "never acknowledged, and there"
            assert not [number for number, times in stored.items() if times > 1], "there twice"

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._over:
            number = next(self._numbers)
            repeatable = number % 2 == 0
            text = REPEATABLE if repeatable else ONCE
            try:
                await self._pool.execute(text, number, idempotent=repeatable or None, timeout=PATIENCE)
            except OutcomeUnknown as error:
                self.unknown.append(number)
                if repeatable:
                    self.errors.append((text, number, error))
            except Exception as error:
                self.errors.append((text, number, error))
            else:
                self.acknowledged[text].append(number)
                self.moments.append(loop.time())
            due = max(due + self._pause, loop.time() - 1)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _read(self) -> None:
        read = "SELECT $1::bigint"
        while not self._over:
            try:
                got = await self._pool.fetchval(
                    read, self.reads, role="prefer_replica", idempotent=True, timeout=PATIENCE
                )
                assert got is not None
            except Exception as error:
                self.errors.append((read, self.reads, error))
            else:
                self.reads += 1
            await asyncio.sleep(self._pause)


def _told(failure: tuple[str, int, BaseException]) -> str:
    """An error with the attempts that were made."""
    text, number, error = failure
    return "\n".join([f"{text} of {number}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
