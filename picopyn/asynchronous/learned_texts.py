"""What a learner remembers of statement texts, and how it forgets: the same wherever the knowledge comes from.

The learners ([`metadata_service`][picopyn.asynchronous.metadata_service],
[`tablet_learner`][picopyn.asynchronous.tablet_learner]) decide what to ask and whom. This file asks nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from picopyn.asynchronous.asking_rules import AskingRules, CheckSchedule
from picopyn.asynchronous.metadata_desk import Check, Desk
from picopyn.query_metadata import QueryMetadataCache
from picopyn.stats import MetadataStats

#: Calls to let pass before a check is offered again that could not be taken.
_OFFER_AGAIN = 10


class LearnedTexts(ABC):
    """The memory of a learner, which makes its parts, and does what is put down at its desk."""

    _cache: QueryMetadataCache
    _desk: Desk
    _rules: AskingRules
    _schedule: CheckSchedule
    _counts: dict[str, int]
    _now: Callable[[], float]

    @property
    @abstractmethod
    def _can_check(self) -> bool:
        """Whether a check may be put down now."""

    @abstractmethod
    def _ensure_worker(self) -> None:
        """Have somebody at the desk."""

    def check_later(self, query: str, args: Sequence[Any]) -> int:
        """A routed call of this text has these arguments: compare its route with the server's answer, later.

        Returns:
            The how manieth call of the text from now on is to be offered next: the first ones are all checked, then
            samples, and not more than one a second.
        """
        if not self._can_check:
            return _OFFER_AGAIN
        chosen, later = self._schedule.offered(query, self._now())
        if chosen:
            self.check(query, args)
        return later

    def check(self, query: str, args: Sequence[Any]) -> None:
        """The same for a call that is checked out of turn, since something speaks against the route.

        A difference makes the text not keyed after one fresh attempt, and is logged once.
        """
        if self._can_check:
            self._desk.put_check(Check(query, args))
            self._ensure_worker()

    def tell_forgotten(self, listener: Callable[[str | None], None], in_use: Callable[[str], bool]) -> None:
        """Tell somebody of every text whose metadata left or was replaced; None stands for all texts.

        Args:
            listener: Who is told.
            in_use: Whether a text was used since this was asked last: then another one leaves a full cache.
        """
        self._cache.on_forgotten = listener
        self._cache.in_use = in_use

    def evict(self, query: str) -> None:
        """Forget a text, as after a stale-plan error; it may be asked about again at once."""
        self._cache.evict(query)
        self._rules.forgive(query)
        self._schedule.restart(query)
        job = self._desk.find(query)
        if job is not None:
            job.outdated = True

    def forget_all(self) -> None:
        """Forget all texts, those that are being asked about included: the map they lead to is another one."""
        self._desk.outdate()
        self._forget_everything()

    def resize(self, size: int) -> None:
        """Change the size of the cache and the number of discoveries that may be pending; pending ones finish.

        Raises:
            ValueError: Less than 1.
        """
        self._cache.resize(size)

    def stats(self) -> MetadataStats:
        """Counters and state, now."""
        return MetadataStats(**self._counts, pending=self._desk.pending, cached=len(self._cache))

    def _forget_everything(self) -> None:
        """Nothing remembered counts any more; a new connection may have missed DDL."""
        self._cache.clear()
        self._schedule.clear()
        self._rules.lodgers.clear()
