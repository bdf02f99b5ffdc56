"""When a question may be put to the server, and how long it may take.

This file decides about pauses and deadlines. It does not know what is asked.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from picopyn.asynchronous.duty_cycle import DutyCycle
from picopyn.asynchronous.service_connection import stray_cancellations_are_errors

T = TypeVar("T")

#: Share of one server's time that background questions may take.
BACKGROUND_SHARE = 0.1
#: The part of it that a crowd of texts that came only once may take, for hardly one of them will be used again. Less
#: than a hundredth: then the calls that meet a question are too few to move the 99th percentile of the others.
CROWD_SHARE = 0.005
#: Seconds of question time that may be saved up, so that the first texts of a program are learned at once.
SAVED_SECONDS = 0.5
#: Seconds a question may take. Generous: it may queue behind the server's own limit, and slow is not dead.
QUESTION_SECONDS = 5.0
#: The same while a call waits for the answer: then another node is tried sooner.
HURRIED_SECONDS = 2.0
#: Seconds a question counts for that was not answered in time: another node will be asked next.
TIMED_OUT_SECONDS = 1.0


class QuestionClock:
    """Paces questions in the background, and hurries while somebody waits.

    Args:
        now: Clock.
        seconds: Deadline of a question.
        share: Share of the time that background questions may take.
        saved: Seconds of question time that may be saved up.

    Attributes:
        now: The clock itself.
        of_crowd: The questions asked now are about a text of a crowd.
    """

    def __init__(
        self,
        now: Callable[[], float],
        seconds: float = QUESTION_SECONDS,
        share: float = BACKGROUND_SHARE,
        saved: float = SAVED_SECONDS,
    ) -> None:
        self.now = now
        self.of_crowd = False
        self._seconds = seconds
        self._duty = DutyCycle(share, saved)
        self._crowd = DutyCycle(share * CROWD_SHARE / BACKGROUND_SHARE, saved * CROWD_SHARE / BACKGROUND_SHARE)
        self._hurry = asyncio.Event()
        self._deadline: asyncio.Timeout | None = None

    def hurry(self) -> None:
        """Somebody waits: no pauses, and the question under way must be answered soon."""
        self._hurry.set()
        if self._deadline is not None and not self._deadline.expired():
            soonest = asyncio.get_running_loop().time() + self._hurried_seconds
            self._deadline.reschedule(min(soonest, self._deadline.when() or soonest))

    def calm(self) -> None:
        """Nobody waits any more."""
        self._hurry.clear()

    def crowd_delay(self) -> float:
        """Seconds until the next text of a crowd may be asked about; 0 when it may be now."""
        return 0.0 if self._hurry.is_set() else self._crowd.delay(self.now())

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Put a question when its turn has come.

        Raises:
            TimeoutError: It was not answered in time.
            Exception: Whatever the question raised.
        """
        await self._turn()
        begun, hurried, most = self.now(), self._hurry.is_set(), math.inf
        try:
            with stray_cancellations_are_errors():
                async with asyncio.timeout(self._limit()) as self._deadline:
                    return await question()
        except TimeoutError:
            most = TIMED_OUT_SECONDS
            raise
        finally:
            self._deadline = None
            if not hurried:  # what a caller waits for is not background work
                seconds, now = min(most, self.now() - begun), self.now()
                self._duty.spent(seconds, now)
                if self.of_crowd:
                    self._crowd.spent(seconds, now)

    @property
    def _hurried_seconds(self) -> float:
        return min(HURRIED_SECONDS, self._seconds)

    def _limit(self) -> float:
        return self._hurried_seconds if self._hurry.is_set() else self._seconds

    async def _turn(self) -> None:
        while not self._hurry.is_set() and (delay := self._duty.delay(self.now())) > 0:
            try:
                async with asyncio.timeout(delay):
                    await self._hurry.wait()
            except TimeoutError:
                continue
