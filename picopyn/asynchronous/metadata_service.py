"""What the server knows about statement texts, learned in the background.

[`QueryMetadataService`][picopyn.asynchronous.metadata_service.QueryMetadataService] keeps one connection
and one cache for the whole pool: what a statement's key is depends on its text and the schema, not on who
asks. This file decides which texts are asked about, in which order, what is remembered, and when a
learned route is checked. What one dialogue with the server looks like is `bucket_dialogue`'s, how fast
questions follow each other `question_clock`'s.

Not public API: the driver builds and owns this object.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any

from picopyn.asynchronous.asking_rules import (
    FIRST_BACK_OFF,
    LONGEST_TEXT,
    REFUSED_BACK_OFF,
    AskingRules,
    CheckSchedule,
    may_have_parameters,
)
from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.bucket_dialogue import BucketDialogue, Finding, Outcome
from picopyn.asynchronous.learned_texts import LearnedTexts
from picopyn.asynchronous.metadata_desk import Check, Desk, Job
from picopyn.asynchronous.metadata_link import MetadataConnect, MetadataLink
from picopyn.asynchronous.question_clock import QuestionClock
from picopyn.asynchronous.service_connection import ServiceConnection, cause
from picopyn.dialects.base import Dialect
from picopyn.query_metadata import PreparedStatementMetadata, QueryMetadataCache
from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.stats import MetadataStats

_LOG = logging.getLogger(__name__)

#: Texts remembered as not to be asked about, whatever the size of the cache.
_FEWEST_REMEMBERED = 1000


#: Texts without parameters get one place of so many in the cache.
_SHARE_OF_LODGERS = 4

_COUNTERS = tuple(name for name in MetadataStats.__dataclass_fields__ if name not in ("pending", "cached"))


class _Phase(Enum):
    OPEN = "takes requests"
    CLOSING = "finishes what is pending"
    CLOSED = "answers None"


class QueryMetadataService(LearnedTexts):
    """Learns what the server knows about statement texts.

    Used on one event loop; not thread-safe. The constructor does no I/O.

    Args:
        connect: Opens the dedicated connection with the notice callback wired in, or returns None. Which
            node to ask is its choice; best one that is nobody's leader.
        cache_size: Number of texts remembered, and of discoveries that may be pending.
        dialect: What to ask and how to read it.
        bucket_counts: Number of buckets by tier as known now; while it is empty, only the notices are kept.
        now: Clock.
        rng: Source of the values questions are asked with.
        clock: Pauses and deadlines of questions; the default holds background questions to a tenth of the
            time.
        on_learned: Told of every text whose route was learned.

    Raises:
        ValueError: `cache_size` is below 1.
    """

    def __init__(
        self,
        connect: MetadataConnect,
        cache_size: int,
        *,
        dialect: Dialect,
        bucket_counts: Callable[[], Mapping[str, int]],
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        clock: QuestionClock | None = None,
        on_learned: Callable[[PreparedStatementMetadata], None] | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._dialect = dialect
        self._cache = QueryMetadataCache(cache_size)
        self._clock = clock or QuestionClock(now)
        self._dialogue = BucketDialogue(dialect, bucket_counts, self._clock, rng)
        self._link = MetadataLink(connect, self._dialogue.hear, self._forget_everything, now)
        self._desk = Desk()
        self._rules = AskingRules(max(cache_size, _FEWEST_REMEMBERED), lodgers=cache_size // _SHARE_OF_LODGERS)
        self._schedule = CheckSchedule(rng, max(cache_size, _FEWEST_REMEMBERED))
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._on_learned = on_learned
        self._phase = _Phase.OPEN
        self._worker: asyncio.Task[None] | None = None

    # Requests

    async def start(self) -> None:
        """Open the connection; that nothing can be reached is a warning, not a failure."""
        await self._link.get()

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        """What is known about a text; a miss asks in the background and answers None, so the statement runs now.

        One discovery per text at a time. Texts the server gives nothing for, very long ones, and those that must not
        be asked about now are not asked about; texts without parameters not before they come a second time; nothing
        while `cache_size` discoveries are pending.
        """
        found = self._cache.get(query)
        if found is not None:
            self._counts["hits"] += 1
            if not self._can_be_completed(found):
                return found
        else:
            self._counts["misses"] += 1
        if self._phase is _Phase.OPEN and self._may_ask(query) and self._link.worth_trying:
            self._begin(query)
        return found

    async def get_query_metadata(self, query: str) -> PreparedStatementMetadata | None:
        """What is known about a text, learned now if need be; others' pending questions do not delay it for long.

        Args:
            query: The text; it may be one without parameters (its bucket may be constant, or any node may do).

        Returns:
            None when the server gives nothing for it, must not be asked now, or no node answers; and
            after `close`.
        """
        found = self._cache.get(query)
        if found is not None and not self._can_be_completed(found):
            self._counts["hits"] += 1
            return found
        if self._phase is not _Phase.OPEN or not self._may_ask(query, waiting=True):
            return found
        self._counts["misses"] += 1
        job = self._desk.open(query, urgent=True)
        self._clock.hurry()
        self._ensure_worker()
        await asyncio.wait({job.answer})  # not awaited itself: a cancelled caller must not cancel the others' answer
        return job.answer.result()

    def _now(self) -> float:
        return self._clock.now()

    @property
    def _can_check(self) -> bool:
        return self._phase is _Phase.OPEN and self._desk.takes_checks and self._link.connected

    def keyed_select(self, owns: Callable[[str, int], bool]) -> tuple[str, tuple[Any, ...]] | None:
        """A learned SELECT, and arguments whose key lies in a bucket that somebody owns.

        Args:
            owns: Whether a bucket of a tier is one of those wanted.

        Returns:
            Text and arguments; None when no keyed SELECT is known, or 10 000 random keys lie elsewhere.
        """
        for query in reversed(tuple(self._cache)):
            metadata = self._cache.get(query)
            if metadata is not None and _is_keyed(metadata) and self._dialect.is_read(query):
                args = self._dialogue.arguments_within(metadata, owns)
                if args is not None:
                    return query, args
        return None

    # The connection

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be gone."""
        return self._link.connected

    # Ending

    async def close(self) -> None:
        """Finish the pending discoveries, then close; no new ones begin.

        A node that falls silent meanwhile ends it: the connection is not opened again, what is left is
        answered None.
        """
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.CLOSING
            self._clock.hurry()
            self._desk.news.set()
        try:
            if self._worker is not None:
                await asyncio.wait({self._worker})
            self._end()
            await self._link.close()
        except asyncio.CancelledError:
            self.terminate()
            raise

    async def stop(self) -> None:
        """Cancel the pending discoveries, then close."""
        self._phase = _Phase.CLOSED
        if self._worker is not None:
            self._worker.cancel()
        await self.close()

    def terminate(self) -> None:
        """Drop everything at once."""
        if self._worker is not None:
            self._worker.cancel()
        self._end()
        self._link.terminate()

    def _end(self) -> None:
        self._phase = _Phase.CLOSED
        self._desk.give_up()
        self._forget_everything()

    # The worker

    def _begin(self, query: str) -> None:
        job, again = self._desk.find(query), self._rules.comes_again(query)
        if job is not None:
            self._desk.prefer(job)
        elif self._desk.pending < self._cache.size or (again and self._desk.make_room()):
            job = self._desk.open(query)
            if again:
                self._desk.prefer(job)
        else:
            self._counts["skipped"] += 1
            _LOG.debug("%d discoveries are pending, another text is left for later", self._desk.pending)
            return
        self._ensure_worker()

    def _ensure_worker(self) -> None:
        if self._phase is _Phase.OPEN and (self._worker is None or self._worker.done()):
            worker = asyncio.create_task(self._work(), name="picopyn.metadata", context=contextvars.Context())
            self._worker = unlamented(worker)
            self._worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """Whatever ended a worker early, nobody may wait for its answers for ever."""
        if worker.cancelled() or worker.exception() is not None:
            self._desk.give_up()

    async def _work(self) -> None:
        while (task := await self._next()) is not None:
            self._clock.of_crowd = self._desk.is_of_a_crowd(task)
            try:
                if isinstance(task, Check):
                    await self._check(task)
                else:
                    await self._serve(task)
            except Exception as error:
                _LOG.warning("learning about a statement failed: %s", cause(error))
                self._lose_connection()
                self._rules.put_off(task.query, REFUSED_BACK_OFF, self._now())
            finally:
                if isinstance(task, Job):
                    self._desk.settle(task, self._cache.get(task.query))
                if not self._desk.hurried and self._phase is _Phase.OPEN:
                    self._clock.calm()

    async def _next(self) -> Job | Check | None:
        """What to do next. A crowd waits for its turn here, where everything else passes it."""
        while True:
            delay = self._clock.crowd_delay()
            task = self._desk.next(crowd=not delay)
            if task is not None or not delay or not self._desk.pending:
                return task
            self._desk.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._desk.news.wait()

    async def _serve(self, job: Job) -> None:
        """One discovery; a second try if the tables changed, or the node was silent while somebody waits."""
        for _ in range(2):
            connection = await self._link.get()
            if connection is None:
                self._desk.give_up()  # nobody answers: that goes for everybody who waits
                return
            finding = await self._dialogue.learn(connection, job.query)
            self._settle(job, finding)
            silent = finding.outcome is Outcome.TIMED_OUT and job.urgent
            if not silent and finding.outcome is not Outcome.CHANGED:
                return

    def _settle(self, job: Job, finding: Finding) -> None:
        """Remember what a dialogue ended with."""
        if finding.outcome.costs_the_connection:
            self._lose_connection()
        if self._phase is _Phase.CLOSED:
            return
        learned: PreparedStatementMetadata | None = None
        self._counts["unreadable"] += finding.unreadable
        self._note(job.query, finding.outcome)
        if finding.metadata is not None and finding.metadata.route is not None:
            self._counts["learned" if _can_be_wrong(finding.metadata) else "not_keyed"] += 1
            learned = finding.metadata
        if job.outdated:
            self._desk.settle(job, finding.metadata)
        elif finding.metadata is not None:
            self._remember(finding.metadata)
        elif finding.outcome is Outcome.NOTHING:
            self._cache.set_no_metadata(job.query)
        if learned is not None and self._on_learned is not None:
            self._on_learned(learned)

    def _remember(self, metadata: PreparedStatementMetadata) -> None:
        if not metadata.parameter_oids:
            leaving = self._rules.lodgers.admit(metadata.query)
            if leaving is not None:
                self._cache.evict(leaving)
        self._cache.set(metadata.query, metadata)

    def _lose_connection(self) -> None:
        if self._phase is _Phase.OPEN:
            self._link.give_up()
        else:
            self._link.terminate()

    def _note(self, query: str, outcome: Outcome) -> None:
        """Remember whether, and when, a text may be asked about again."""
        now = self._now()
        if outcome is Outcome.LEARNED:
            self._rules.learned(query)
        elif outcome is Outcome.REFUSED:
            self._counts["refused"] += 1
            self._rules.put_off(query, REFUSED_BACK_OFF, now)
        elif outcome in (Outcome.LATER, Outcome.CHANGED):
            self._rules.put_off(query, FIRST_BACK_OFF, now)
        elif outcome is Outcome.TIMED_OUT:
            self._counts["lost"] += 1
            self._rules.timed_out(query)
        elif outcome is Outcome.LOST:
            self._counts["lost"] += 1
            self._rules.never_again(query)

    async def _check(self, check: Check) -> None:
        metadata = self._cache.get(check.query)
        if metadata is None or not _can_be_wrong(metadata) or not self._link.connected:
            return  # not worth opening a connection for
        connection = await self._link.get()
        if connection is None or await self._agrees(connection, metadata, check):
            return
        self._counts["differences"] += 1
        await self._learn_afresh(connection, metadata, check)

    async def _agrees(self, connection: ServiceConnection, metadata: PreparedStatementMetadata, check: Check) -> bool:
        """Whether the server's answer does not speak against a route; no answer does not either."""
        answer = await self._dialogue.agrees(connection, metadata, check.args)
        if isinstance(answer, bool):
            self._counts["checks"] += 1
            return answer
        if answer.costs_the_connection:
            self._lose_connection()
            # The server has planned this text before, so it is not what felled it: later, not never.
            self._note(check.query, Outcome.LATER)
        return True

    async def _learn_afresh(
        self, connection: ServiceConnection, wrong: PreparedStatementMetadata, check: Check
    ) -> None:
        """The one fresh attempt after a difference, which new DDL may explain."""
        self._cache.evict(check.query)
        if self._desk.find(check.query) is not None:
            return  # somebody asks about it already
        job = self._desk.claim(check.query)
        try:
            finding = await self._dialogue.learn(connection, check.query)
            fresh = finding.metadata
            if fresh is not None and _can_be_wrong(fresh) and not await self._agrees(connection, fresh, check):
                _LOG.warning("a learned route differs from the server's answer, the text is not routed by key")
                finding = replace(finding, metadata=_not_keyed(wrong))
            self._settle(job, finding)
            self._schedule.restart(check.query)
        finally:
            self._desk.settle(job, self._cache.get(check.query))

    # Small decisions

    def _may_ask(self, query: str, waiting: bool = False) -> bool:
        if len(query) > LONGEST_TEXT or self._cache.is_known_without_metadata(query):
            return False
        if not self._rules.may_ask(query, self._now()):
            return False
        if not (waiting or may_have_parameters(query) or self._rules.comes_again(query)):
            return False
        if self._dialect.can_be_asked(query):
            return True
        self._rules.never_again(query)  # so that a long text is read once, not at every call
        return False

    def _can_be_completed(self, metadata: PreparedStatementMetadata) -> bool:
        """Whether a text of which only the notice is kept can be understood now."""
        return metadata.route is None and self._dialogue.understands(metadata.tier)


def _is_keyed(metadata: PreparedStatementMetadata) -> bool:
    return metadata.route is not None and metadata.route.kind is RouteKind.KEYED


def _can_be_wrong(metadata: PreparedStatementMetadata) -> bool:
    return metadata.route is not None and metadata.route.kind is not RouteKind.NOT_KEYED


def _not_keyed(metadata: PreparedStatementMetadata) -> PreparedStatementMetadata:
    reason = "the server's answer for a call differed from what was learned"
    return replace(metadata, route=StatementRoute(RouteKind.NOT_KEYED, metadata.tier, reason=reason))
