"""One dialogue with a server about one statement text: what is its key?

The text's question (`EXPLAIN <text>`) is prepared once, unnamed, and put with chosen arguments until the
probe is satisfied. This file decides what each outcome of a question means for the dialogue. Which
arguments to try and what the answers prove is `routing.key_probe`'s; how a plan reads is the dialect's;
when to ask and whom is the service's.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from picopyn.asynchronous.question_clock import QuestionClock
from picopyn.asynchronous.service_connection import (
    REQUEST_ERRORS,
    PreparedQuestion,
    ServiceConnection,
    cause,
    costs_the_connection,
    is_access_denied,
)
from picopyn.dialects.base import BucketAnswer, BucketScope, Dialect, StatementNotice
from picopyn.errors import Fault
from picopyn.query_metadata import PreparedStatementMetadata, is_stmt_invalidated_error
from picopyn.routing.key_answers import check, few_buckets
from picopyn.routing.key_probe import KeyProbe
from picopyn.routing.key_values import ValueMaker
from picopyn.routing.route import RouteKind, StatementRoute
from picopyn.routing.sharding import compile_key

_LOG = logging.getLogger("picopyn.asynchronous.metadata_service")

#: Faults after which the same question may well be answered a little later.
_PASSING = frozenset({Fault.OVERLOADED, Fault.STALE_MAP, Fault.NOT_LEADER, Fault.REFUSED})


#: Random keys tried to find one in a wanted bucket.
_MOST_TRIES = 10_000
#: Stands for a plan we cannot read: the statement runs unrouted, unless its notice named the key.
_UNREADABLE = BucketAnswer(BucketScope.UNKNOWN)


class Outcome(Enum):
    """How a dialogue ended."""

    LEARNED = "the server's answers were read"
    NOTHING = "the server accepts the text and says nothing about it"
    REFUSED = "the server refuses the text"
    LATER = "a privilege is missing or the server is busy"
    CHANGED = "the tables changed while we asked"
    TIMED_OUT = "no answer within the deadline"
    LOST = "the connection broke"

    @property
    def costs_the_connection(self) -> bool:
        """Whether the connection must be given up."""
        return self in (Outcome.TIMED_OUT, Outcome.LOST)


@dataclass(frozen=True, slots=True)
class Finding:
    """The end of a dialogue.

    Attributes:
        outcome: How it ended.
        metadata: What was learned; None unless `LEARNED`.
        unreadable: Answers that could not be read.
    """

    outcome: Outcome
    metadata: PreparedStatementMetadata | None = None
    unreadable: int = 0


class BucketDialogue:
    """Asks a server about statement texts, one at a time.

    Args:
        dialect: What to ask, and how to read the answer.
        bucket_counts: Number of buckets by tier, as far as known now.
        clock: When to ask, and for how long.
        rng: Source of the probe's arguments.
    """

    def __init__(
        self,
        dialect: Dialect,
        bucket_counts: Callable[[], Mapping[str, int]],
        clock: QuestionClock,
        rng: random.Random,
    ) -> None:
        self._dialect = dialect
        self._bucket_counts = bucket_counts
        self._clock = clock
        self._rng = rng
        self._heard: StatementNotice | None = None
        self._connection: ServiceConnection | None = None

    def hear(self, text: str) -> None:
        """The notice callback of the connection: keeps the statement notice, drops every other one."""
        notice = self._dialect.parse_notice(text)
        if notice is not None:
            self._heard = notice

    async def learn(self, connection: ServiceConnection, query: str) -> Finding:
        """Learn where a text runs; whatever the server or the connection does is an outcome, not an error."""
        self._connection = connection
        try:
            return await self._learn(connection, query)
        except REQUEST_ERRORS as error:
            outcome = self._outcome_of(error, connection)
            _LOG.debug("asking about a statement: %s (%s)", outcome.value, cause(error))
            return Finding(outcome)

    async def agrees(
        self, connection: ServiceConnection, metadata: PreparedStatementMetadata, args: Sequence[Any]
    ) -> bool | Outcome:
        """Whether a learned route gives the server's answer for these arguments; an outcome if it did not answer."""
        try:
            statement = await self._prepare(connection, metadata.query)
            answer = await self._put(statement, args)
        except REQUEST_ERRORS as error:
            return self._outcome_of(error, connection)
        if answer is None or metadata.route is None:
            return Outcome.NOTHING
        counts = self._bucket_counts()
        return check(metadata.route, args, answer.scope, answer.ranges, self._dialect.key_hash, counts)

    def understands(self, tier: str | None) -> bool:
        """Whether the number of buckets is known, so that an answer about a text of this tier can be understood."""
        counts = self._bucket_counts()
        return bool(counts) and (tier is None or tier in counts)

    def arguments_within(
        self, metadata: PreparedStatementMetadata, wanted: Callable[[str, int], bool]
    ) -> tuple[Any, ...] | None:
        """Random arguments for a keyed text whose bucket is wanted; None when 10 000 tries found none."""
        route = metadata.route
        if route is None:
            return None
        tier = route.tier or ""
        count = self._bucket_counts().get(tier, 0)
        if not any(wanted(tier, bucket) for bucket in range(1, count + 1)):
            return None  # another tier's, perhaps: not worth any try
        key = compile_key(route.keys[0], self._dialect.key_hash, count)
        maker = ValueMaker(metadata.parameter_oids, self._rng)
        for attempt in range(_MOST_TRIES):
            args = maker.arguments(attempt)
            bucket = key(args)
            if bucket is not None and wanted(tier, bucket):
                return tuple(args)
        return None

    async def _learn(self, connection: ServiceConnection, query: str) -> Finding:
        statement = await self._prepare(connection, query)
        notice = self._heard
        known = PreparedStatementMetadata(
            query=query,
            tier=notice.tier if notice is not None else None,
            dk_meta=notice.dk_meta if notice is not None else (),
            parameter_oids=tuple(parameter.oid for parameter in statement.get_parameters()),
        )
        counts = dict(self._bucket_counts())
        if not self.understands(known.tier):
            # Without the number of buckets no answer can be understood: keep the notice, ask later.
            return Finding(Outcome.LEARNED if notice is not None else Outcome.LATER, known)
        return await self._probe(statement, known, counts, told=notice is not None)

    async def _probe(
        self,
        statement: PreparedQuestion,
        known: PreparedStatementMetadata,
        counts: Mapping[str, int],
        told: bool,
    ) -> Finding:
        if not known.parameter_oids:
            return await self._ask_once(statement, known, counts, told)
        probe = KeyProbe(
            known.query,
            known.parameter_oids,
            known.tier,
            known.dk_meta,
            counts,
            self._dialect.key_hash,
            self._rng,
        )
        unreadable = 0
        while (question := probe.next_question()) is not None:
            answer = await self._put_carefully(statement, question, probe)
            if answer is None:
                continue
            if answer is _UNREADABLE:
                unreadable += 1
                if not told:
                    return Finding(Outcome.NOTHING, unreadable=unreadable)
            probe.answer(answer.scope, answer.ranges)
        return Finding(Outcome.LEARNED, _with_route(known, probe.result(), unreadable), unreadable)

    async def _put_carefully(
        self, statement: PreparedQuestion, question: Sequence[Any], probe: KeyProbe
    ) -> BucketAnswer | None:
        """The answer to one question; None when the server refused these values, which the probe is told."""
        try:
            return await self._put(statement, question) or _UNREADABLE
        except REQUEST_ERRORS as error:
            if self._outcome_of(error, self._connection) is not Outcome.REFUSED:
                raise
            probe.refused(type(error).__name__)
            return None

    async def _ask_once(
        self,
        statement: PreparedQuestion,
        known: PreparedStatementMetadata,
        counts: Mapping[str, int],
        told: bool,
    ) -> Finding:
        """A text without parameters has one answer."""
        answer = await self._put(statement, ())
        if answer is None and not told:
            return Finding(Outcome.NOTHING, unreadable=1)
        route = _route_of_constants(answer or _UNREADABLE, known.tier, counts)
        unreadable = int(answer is None)
        return Finding(Outcome.LEARNED, _with_route(known, route, unreadable), unreadable)

    async def _prepare(self, connection: ServiceConnection, query: str) -> PreparedQuestion:
        question = self._dialect.bucket_question(query)
        self._heard = None
        statement = await self._clock.ask(lambda: connection.prepare(question, name=""))
        if self._heard is not None and self._heard.query != question:
            self._heard = None  # a notice about something else
        return statement

    async def _put(self, statement: PreparedQuestion, args: Sequence[Any]) -> BucketAnswer | None:
        rows = await self._clock.ask(lambda: statement.fetch(*args))
        return self._dialect.read_bucket_answer(rows)

    def _outcome_of(self, error: Exception, connection: ServiceConnection | None) -> Outcome:
        if isinstance(error, TimeoutError):
            return Outcome.TIMED_OUT
        if costs_the_connection(error, connection):
            return Outcome.LOST
        if is_access_denied(error):
            return Outcome.LATER
        if is_stmt_invalidated_error(error):
            return Outcome.CHANGED
        fault = self._dialect.fault(getattr(error, "sqlstate", None), str(error))
        return Outcome.LATER if fault in _PASSING else Outcome.REFUSED


def _route_of_constants(answer: BucketAnswer, tier: str | None, bucket_counts: Mapping[str, int]) -> StatementRoute:
    """The route of a text without parameters, whose buckets are always the same."""
    if answer.scope is BucketScope.ANY:
        return StatementRoute(RouteKind.ANY_NODE, None, reason="the server says that any node will do")
    space = tier or (next(iter(bucket_counts)) if len(bucket_counts) == 1 else None)
    if bucket_counts.get(space or "") == 1:
        return StatementRoute(RouteKind.CONSTANT, space, buckets=(1,), reason="its tier has one bucket")
    buckets = few_buckets(answer.ranges, bucket_counts)
    if space is None or not buckets or answer.scope is BucketScope.UNKNOWN:
        return StatementRoute(RouteKind.NOT_KEYED, space, reason="the server names no bucket, or many")
    kind = RouteKind.CONSTANT if len(buckets) == 1 else RouteKind.KEY_SET
    return StatementRoute(kind, space, buckets=tuple(sorted(buckets)), reason="it has no parameters")


def _with_route(known: PreparedStatementMetadata, route: StatementRoute, unreadable: int) -> PreparedStatementMetadata:
    if unreadable and route.kind is RouteKind.NOT_KEYED:
        route = replace(route, reason="the server's plan could not be read")
    return replace(known, tier=known.tier or route.tier, route=route)
