"""What a learner remembers of statement texts, and how it forgets: the same wherever the knowledge comes from.

The learners ([`metadata_service`][picopyn.asynchronous.metadata_service],
[`tablet_learner`][picopyn.asynchronous.tablet_learner]) decide what to ask and whom. This file asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from picopyn.asynchronous.asking_rules import AskingRules, CheckSchedule
from picopyn.asynchronous.metadata_desk import Desk
from picopyn.query_metadata import QueryMetadataCache
from picopyn.stats import MetadataStats


class LearnedTexts:
    """The memory of a learner, which makes its parts."""

    _cache: QueryMetadataCache
    _desk: Desk
    _rules: AskingRules
    _schedule: CheckSchedule
    _counts: dict[str, int]

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
