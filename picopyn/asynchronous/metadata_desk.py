"""What the metadata service has been asked and has not answered yet.

This file decides in which order texts are asked about and how many may wait. It does not ask.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from picopyn.query_metadata import PreparedStatementMetadata

#: So many texts that wait are a crowd. A text that is in use comes again, and then it is none of them.
CROWD = 50
#: Argument sets that may wait to be checked; more are not checked.
MOST_WAITING_CHECKS = 32


@dataclass(eq=False, slots=True)
class Job:
    """One text to learn about.

    Attributes:
        query: The text.
        answer: Done when it is settled; None when there is nothing to tell.
        urgent: Whether somebody waits for it.
        again: Whether it came again while it waited here.
        outdated: The text was evicted meanwhile: what is learned must not be kept.
    """

    query: str
    answer: asyncio.Future[PreparedStatementMetadata | None]
    urgent: bool = False
    again: bool = False
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One real call whose route is to be compared with the server's answer.

    Attributes:
        query: The text.
        args: The call's arguments; never in a log.
    """

    query: str
    args: Sequence[Any] = field(repr=False)


class Desk:
    """Jobs by text, at most one each; urgent ones first, then what came again, then the others and checks in turn.

    Attributes:
        news: Set when something has come that may be done before what waits.
    """

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._urgent: deque[Job] = deque()
        self._again: deque[Job] = deque()
        self._background: deque[Job] = deque()
        self._checks: deque[Check] = deque()
        self._check_is_next = False

    @property
    def pending(self) -> int:
        """Texts that are not settled, the one under way included."""
        return len(self._jobs)

    @property
    def hurried(self) -> bool:
        """Whether somebody waits for any of them."""
        return any(job.urgent for job in self._jobs.values())

    @property
    def takes_checks(self) -> bool:
        """Whether another check may be put down."""
        return len(self._checks) < MOST_WAITING_CHECKS

    def is_of_a_crowd(self, task: Job | Check) -> bool:
        """Whether this is a text that came only once, and so many wait that hardly one of them will come again."""
        return isinstance(task, Job) and not (task.urgent or task.again) and len(self._jobs) >= CROWD

    def find(self, query: str) -> Job | None:
        """The unsettled job of a text."""
        return self._jobs.get(query)

    def open(self, query: str, urgent: bool = False) -> Job:
        """The job of a text: the one there is, or a new one; somebody waiting makes it urgent."""
        job = self._jobs.get(query)
        if job is None:
            job = self._jobs[query] = Job(query, asyncio.get_running_loop().create_future(), urgent)
            (self._urgent if urgent else self._background).append(job)
            self.news.set()
        elif urgent and not job.urgent:
            job.urgent = True
            self._urgent.append(job)  # it also stays in the other queue, where it will be found settled
            self.news.set()
        return job

    def prefer(self, job: Job) -> None:
        """A text came again while it waits: it is worth more than those that came once."""
        if not job.again and not job.urgent:
            job.again = True
            self._again.append(job)  # it also stays in the other queue, where it will be found settled
            self.news.set()

    def make_room(self) -> bool:
        """Give up the oldest text that came only once; False when there is none."""
        while self._background:
            job = self._background.popleft()
            if not (job.answer.done() or job.urgent or job.again):
                self.settle(job, None)
                return True
        return False

    def claim(self, query: str) -> Job:
        """A job that is under way at once and in no queue."""
        job = self._jobs[query] = Job(query, asyncio.get_running_loop().create_future())
        return job

    def put_check(self, check: Check) -> None:
        """Put down a check."""
        self._checks.append(check)
        self.news.set()

    def next(self, *, crowd: bool = True) -> Job | Check | None:
        """What to do next; a job stays pending until it is settled.

        Args:
            crowd: Whether it may be a text of a crowd; checks are done before those that may not be asked about yet.
        """
        job = _unsettled(self._urgent) or _unsettled(self._again)
        if job is not None:
            return job
        if not (self._check_is_next and self._checks) and (crowd or len(self._jobs) < CROWD):
            job = _unsettled(self._background)
            if job is not None:
                self._check_is_next = True
                return job
        self._check_is_next = False
        return self._checks.popleft() if self._checks else None

    def settle(self, job: Job, metadata: PreparedStatementMetadata | None) -> None:
        """Answer whoever waits for a job."""
        if self._jobs.get(job.query) is job:
            del self._jobs[job.query]
        if not job.answer.done():
            job.answer.set_result(metadata)

    def outdate(self) -> None:
        """What is being asked now counts for nothing any more, except for those who wait for it."""
        for job in self._jobs.values():
            job.outdated = True

    def give_up(self) -> None:
        """Answer everybody with None, and forget the checks."""
        for job in list(self._jobs.values()):
            self.settle(job, None)
        self._checks.clear()


def _unsettled(queue: deque[Job]) -> Job | None:
    """Take the first job out that nobody has settled, which may happen while it lies in several queues."""
    while queue:
        job = queue.popleft()
        if not job.answer.done():
            return job
    return None
