"""Where statements belong on a YugabyteDB, learned in the background: text → key → table → leaders.

It stands where [`QueryMetadataService`][picopyn.asynchronous.metadata_service.QueryMetadataService] stands on Picodata,
and does for texts what that does: one discovery per text, bounded, remembered, compared with the server's word for the
first calls and then for samples. What a text says is read in a thread of its own, for a parser takes milliseconds.

Not public API: the driver builds and owns this object.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace

from picopyn.asynchronous.asking_rules import FIRST_BACK_OFF, AskingRules, CheckSchedule, may_have_parameters
from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.leader_keeper import LeaderKeeper
from picopyn.asynchronous.learned_texts import LearnedTexts
from picopyn.asynchronous.metadata_desk import Check, Desk, Job
from picopyn.asynchronous.metadata_link import MetadataConnect
from picopyn.asynchronous.service_connection import REQUEST_ERRORS, cause
from picopyn.asynchronous.statement_reader import StatementReader
from picopyn.asynchronous.tablet_dialogue import TabletDialogue
from picopyn.dialects.yugabyte.code_question import code_question
from picopyn.dialects.yugabyte.plain_text import LONGEST
from picopyn.dialects.yugabyte.statement_key import bind
from picopyn.query_metadata import PreparedStatementMetadata, QueryMetadataCache
from picopyn.routing.leader_table import LeaderTable
from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.stats import MetadataStats

_LOG = logging.getLogger(__name__)

_COUNTERS = tuple(name for name in MetadataStats.__dataclass_fields__ if name not in ("pending", "cached"))


class TabletLearner(LearnedTexts):
    """Learns which parameters of a statement are its hash key, and keeps the leaders of the tables concerned.

    Used on one event loop; not thread-safe. The constructor does no I/O.

    Args:
        connect: Opens the dedicated connection, or returns None.
        cache_size: Number of texts remembered, and of discoveries that may be pending.
        leaders: Where leaders are published.
        away: Whether a leader, by its address in the cluster, cannot be reached now.
        now: Clock.
        rng: Source of the sampling.
        on_learned: Told of every text that was learned.

    Attributes:
        closed: Nothing is learned any more.
    """

    def __init__(
        self,
        connect: MetadataConnect,
        cache_size: int,
        leaders: LeaderTable,
        away: Callable[[str], bool],
        *,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        on_learned: Callable[[PreparedStatementMetadata], None] | None = None,
    ) -> None:
        self._cache = QueryMetadataCache(cache_size)
        self._desk = Desk()
        self._rules = AskingRules(max(cache_size, 1000))
        self._schedule = CheckSchedule(rng or random.Random(), max(cache_size, 1000))
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._now = now
        self._on_learned = on_learned
        self._dialogue = TabletDialogue(connect, now)
        # Which texts are about a table is not remembered: when one changes, all are learned again.
        self._keeper = LeaderKeeper(self._dialogue, leaders, away, self.forget_all)
        self._worker: asyncio.Task[None] | None = None
        self._reader = StatementReader(now)
        self.closed = False

    # Requests

    async def start(self) -> None:
        """Nothing yet: the first keyed text opens the connection."""

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        """What is known about a text; a miss learns it in the background, and the statement runs now."""
        found = self._cache.get(query)
        if found is not None:
            self._counts["hits"] += 1
            return found
        self._counts["misses"] += 1
        if self._may_ask(query) and self._dialogue.link.worth_trying:
            if self._desk.find(query) is None and self._desk.pending >= self._cache.size:
                self._counts["skipped"] += 1
            else:
                self._desk.open(query)
                self._ensure_worker()
        return None

    async def get_query_metadata(self, query: str) -> PreparedStatementMetadata | None:
        """What is known about a text, learned now if need be; None when no node answers, and after `stop`."""
        found = self._cache.get(query)
        if found is not None or not self._may_ask(query, waiting=True):
            return found
        job = self._desk.open(query, urgent=True)
        self._ensure_worker()
        await asyncio.wait({job.answer})  # not awaited itself: a cancelled caller must not cancel the others' answer
        return job.answer.result()

    @property
    def _can_check(self) -> bool:
        return not self.closed and self._desk.takes_checks and self._dialogue.link.connected

    def keyed_select(self, owns: Callable[[str, int], bool]) -> None:
        """No statement tells here who leads; the servers say it."""

    @property
    def leaders(self) -> LeaderTable:
        """Who leads what."""
        return self._keeper.leaders

    def look_again(self) -> None:
        """Nodes came, went, or are in doubt: leaders may have changed."""
        self._keeper.look_again()

    # Ending

    async def stop(self) -> None:
        """End learning, then close the connection."""
        self._end()
        if self._worker is not None:
            await asyncio.wait({self._worker})
        await self._keeper.ended()
        await self._dialogue.link.close()

    def terminate(self) -> None:
        """Drop everything at once."""
        self._end()
        self._dialogue.link.terminate()

    def _end(self) -> None:
        self.closed = True
        self._keeper.end()
        if self._worker is not None:
            self._worker.cancel()
        self._desk.give_up()
        self._cache.clear()
        self._reader.close()

    # The worker

    def _ensure_worker(self) -> None:
        if not self.closed and (self._worker is None or self._worker.done()):
            worker = asyncio.create_task(self._work(), name="picopyn.tablets", context=contextvars.Context())
            self._worker = unlamented(worker)

    async def _work(self) -> None:
        while (task := self._desk.next()) is not None:
            try:
                if isinstance(task, Check):
                    await self._check(task)
                else:
                    await self._learn(task)
            except Exception as error:
                level = logging.DEBUG if isinstance(error, REQUEST_ERRORS) else logging.WARNING
                _LOG.log(level, "learning about a statement failed: %s", cause(error))
                self._counts["lost"] += 1
                self._rules.put_off(task.query, FIRST_BACK_OFF, self._now())
            finally:
                if isinstance(task, Job):
                    self._desk.settle(task, self._cache.get(task.query))

    async def _learn(self, job: Job) -> None:
        route = await self._route(job)
        if route is None:  # the table may come to be
            self._rules.put_off(job.query, FIRST_BACK_OFF, self._now())
            return
        metadata = PreparedStatementMetadata(job.query, route.tier, (), route=route)
        self._counts["not_keyed" if route.kind is RouteKind.NOT_KEYED else "learned"] += 1
        self._rules.learned(job.query)
        if job.outdated:
            self._desk.settle(job, metadata)
            return
        self._cache.set(job.query, metadata)
        if self._on_learned is not None:
            self._on_learned(metadata)

    async def _route(self, job: Job) -> StatementRoute | None:
        said = await self._reader.read(job.query, urgent=job.urgent)
        if isinstance(said, str):
            return StatementRoute(RouteKind.NOT_KEYED, reason=said)
        facts = await self._keeper.know(said.written)
        if not self._dialogue.lists_tablets:
            return StatementRoute(RouteKind.NOT_KEYED, reason="the server does not list tablets")
        return bind(said, facts) if facts is not None else None

    async def _check(self, check: Check) -> None:
        metadata = self._cache.get(check.query)
        if metadata is None or metadata.route is None:
            return
        question = code_question(metadata.route, check.args)
        if question is None:
            return
        text, args, expected = question
        said = await self._dialogue.code(text, args)
        self._counts["checks"] += said is not None
        if said is None or said == expected or self._cache.get(check.query) is not metadata:
            return
        self._counts["differences"] += 1
        _LOG.warning("the server computes another hash code for a key of %s, the text is not keyed", metadata.tier)
        reason = "the server computes another hash code"
        wrong = StatementRoute(RouteKind.NOT_KEYED, metadata.tier, reason=reason)
        self._cache.set(check.query, replace(metadata, route=wrong))

    # Small decisions

    def _may_ask(self, query: str, *, waiting: bool = False) -> bool:
        """Whether a text may be learned now; one without parameters only when it comes again, for it may never."""
        if self.closed or len(query) > LONGEST:
            return False
        if not (waiting or may_have_parameters(query) or self._rules.comes_again(query)):
            return False
        return self._rules.may_ask(query, self._now())
