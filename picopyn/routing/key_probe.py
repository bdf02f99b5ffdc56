"""Learning a statement's key: the dialogue with a server that names buckets.

`KeyProbe` says which arguments to ask with, takes the answers, and ends in a `StatementRoute`. It may say
"not keyed" freely; it says "keyed" only on evidence. Whoever asks (and on which connection, how often, after
which failures) is not its affair, and no value and no text of the server gets into a reason.

*Source*: key-probe.md rules 1 and 4 to 12; picodata-recorded.md section 3.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from picopyn.routing.key_answers import Scope, agrees, check, few_buckets
from picopyn.routing.key_candidates import Candidates, Explanation
from picopyn.routing.key_corners import Corners
from picopyn.routing.key_literals import literal_readings
from picopyn.routing.key_values import SUPPORTED, ValueMaker, literals
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.routing.sharding import KeyHash, compile_route

if TYPE_CHECKING:
    from random import Random


__all__ = ["ENOUGH_EVIDENCE", "MAX_PARAMETERS", "MAX_QUESTIONS", "KeyProbe", "Question", "Scope", "check"]

#: Questions about one text, at most. *Source*: key-probe.md rule 5 (discovery must stay cheap).
MAX_QUESTIONS: Final = 60

#: More parameters are asked about only when the server named the key itself. *Source*: key-probe.md rule 2.
MAX_PARAMETERS: Final = 64

#: Bits of evidence that make a key. *Source*: key-probe.md rule 8.
ENOUGH_EVIDENCE: Final = 40.0

#: Bits that confirm a key the server has named itself.
ENOUGH_CONFIRMATION: Final = 20.0

_NAMES_BUCKETS: Final = ("EXACT", "AT_MOST")
_MAX_REFUSALS: Final = 4
_CORNERS_KEPT_FREE: Final = 12
_MAX_STALE: Final = 4

#: Arguments of one question, as one passes them to asyncpg.
Question = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Reply:
    """An answer (`scope` and `ranges`), or a refusal (`scope` empty)."""

    scope: str = ""
    ranges: tuple[tuple[int, int], ...] = ()


class _NotKeyed(Exception):  # noqa: N818 - ends the dialogue, never leaves it
    """The text is not keyed, and why."""


_Dialogue = Generator[Question, _Reply, StatementRoute]


class KeyProbe:
    """The dialogue about one statement text.

    Ask `next_question()` until it is None, giving each answer to `answer` or `refused`; then `result()` is
    the route. Not shared between tasks.
    """

    def __init__(
        self,
        sql: str,
        parameter_oids: Sequence[int],
        notice_tier: str | None,
        dk_meta: Sequence[tuple[int, int]],
        bucket_counts: Mapping[str, int],
        key_hash: KeyHash,
        rng: Random,
    ) -> None:
        """Begin a dialogue.

        Args:
            sql: The statement's text; only its literals matter, as values to ask with and as parts of keys.
            parameter_oids: Type OIDs of its parameters, as the server told.
            notice_tier: Tier named by the metadata notice, or None.
            dk_meta: (one-based parameter number, type OID) in key order as the notice named them; else empty.
            bucket_counts: Number of buckets of every tier.
            key_hash: The dialect's hash.
            rng: Source of the random values.
        """
        self._oids = tuple(parameter_oids)
        self._sql = sql
        self._tier = notice_tier
        self._named = tuple(number - 1 for number, _ in dk_meta if 1 <= number <= len(self._oids))
        if len(self._named) < len(dk_meta):
            self._named = ()
        self._bucket_counts = dict(bucket_counts)
        self._hash = key_hash
        self._rng = rng
        self._maker = ValueMaker(self._oids, rng)
        self._asked = 0
        self._route: StatementRoute | None = None
        self._question: Question | None = None
        self._dialogue = self._whole_dialogue()
        self._advance(None)

    def next_question(self) -> Question | None:
        """Arguments to ask with; the same again until they are answered; None when the dialogue has ended."""
        return self._question

    def answer(self, scope: Scope, ranges: Sequence[tuple[int, int]]) -> None:
        """Take the server's answer to the question that stands.

        Args:
            scope: How to read `ranges`.
            ranges: Inclusive (first, last) pairs of buckets.
        """
        self._advance(_Reply(scope.name, tuple(ranges)))

    def refused(self, message: str = "") -> None:
        """The server refused the question that stands (not the text: a text it cannot prepare has no
        dialogue).

        Args:
            message: The server's text; it may contain values and is not kept.
        """
        self._advance(_Reply())

    def result(self) -> StatementRoute:
        """What was learned; not keyed as long as questions stand."""
        if self._route is None:
            return StatementRoute(RouteKind.NOT_KEYED, self._tier, reason="the questions were not finished")
        return self._route

    def check(
        self,
        route: StatementRoute,
        args: Sequence[Any],
        scope: Scope,
        ranges: Sequence[tuple[int, int]],
    ) -> bool:
        """Whether a server's answer for real arguments agrees with a route; see `check`."""
        return check(route, args, scope, ranges, self._hash, self._bucket_counts)

    @property
    def asked(self) -> int:
        """Number of questions answered or refused so far."""
        return self._asked

    # ── the dialogue ────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, reply: _Reply | None) -> None:
        if reply is not None:
            if self._question is None:
                return
            self._asked += 1
        try:
            self._question = next(self._dialogue) if reply is None else self._dialogue.send(reply)
        except StopIteration as end:
            self._question, self._route = None, end.value

    def _whole_dialogue(self) -> _Dialogue:
        try:
            return (yield from self._learn())
        except _NotKeyed as end:
            return StatementRoute(RouteKind.NOT_KEYED, self._tier, reason=str(end))

    def _learn(self) -> _Dialogue:
        self._refuse_what_cannot_be_asked()
        arguments, reply = yield from self._ask_random(0)
        if reply.scope == "ANY":
            return StatementRoute(RouteKind.ANY_NODE, None, reason="the server says that any node will do")
        bucket_count = self._resolve_tier()
        if bucket_count == 1:
            return StatementRoute(RouteKind.CONSTANT, self._tier, buckets=(1,), reason="its tier has one bucket")
        if reply.scope == "UNKNOWN" and self._named:
            return self._as_named()
        readings = literal_readings(self._sql, self._hash)
        candidates = Candidates(self._oids, self._hash, bucket_count, self._named, readings)
        candidates.observe(arguments, self._buckets(reply))
        explanation = yield from self._gather_evidence(candidates)
        route = self._route_of(explanation)
        yield from self._try_corners(route, bucket_count)
        return route

    def _refuse_what_cannot_be_asked(self) -> None:
        if not self._oids:
            raise _NotKeyed("it has no parameters")
        if self._named:
            return
        if len(self._oids) > MAX_PARAMETERS:
            raise _NotKeyed(f"it has more than {MAX_PARAMETERS} parameters")
        unknown = [oid for oid in self._oids if oid not in SUPPORTED]
        if unknown:
            raise _NotKeyed(f"no values can be made for a parameter of type {unknown[0]}")

    def _resolve_tier(self) -> int:
        if self._tier is None:
            tiers = [name for name, count in self._bucket_counts.items() if count > 0]
            if len(tiers) != 1:
                raise _NotKeyed("the server did not name the tier, and there are several")
            self._tier = tiers[0]
        bucket_count = self._bucket_counts.get(self._tier, 0)
        if bucket_count < 1:
            raise _NotKeyed("the number of buckets of its tier is not known")
        return bucket_count

    def _as_named(self) -> StatementRoute:
        """What 25.6 does not name for an INSERT, the notice does, for types with one form."""
        forms = [self._hash.forms(self._oids[position]) for position in self._named]
        if any(len(form) != 1 for form in forms):
            raise _NotKeyed("the server does not show in which form it hashes a part of the key")
        key = self._single_form_key()
        return StatementRoute(RouteKind.KEYED, self._tier, (key,), reason="named by the server")

    def _single_form_key(self) -> tuple[KeyPart, ...]:
        return tuple(
            KeyPart(position, self._oids[position], self._hash.forms(self._oids[position])[0])
            for position in self._named
        )

    def _ask_random(self, stage: int) -> Generator[Question, _Reply, tuple[Question, _Reply]]:
        """One question with random values; refusals make the values more careful."""
        while True:
            self._keep_within_budget()
            arguments = tuple(self._maker.arguments(stage))
            reply = yield arguments
            if reply.scope:
                return arguments, reply
            self._maker.caution += 1
            if self._maker.caution >= _MAX_REFUSALS:
                raise _NotKeyed("the server refused to be asked")

    def _keep_within_budget(self) -> None:
        if self._asked >= MAX_QUESTIONS - _CORNERS_KEPT_FREE:
            raise _NotKeyed(f"{self._asked} questions were not enough evidence")

    def _gather_evidence(self, candidates: Candidates) -> Generator[Question, _Reply, Explanation]:
        """Ask with random values until one explanation has enough evidence."""
        stage, varied, last, stale = 1, False, 0.0, 0
        while True:
            arguments, reply = yield from self._ask_random(stage)
            candidates.observe(arguments, self._buckets(reply))
            stage += 1
            explanation = candidates.explain()
            if explanation is None and not varied:
                varied = True
                yield from self._vary(candidates, stage)
                explanation = candidates.explain()
            if explanation is None:
                raise _NotKeyed("no choice of parameters and literals explains the buckets")
            if explanation.evidence >= self._enough(explanation) and not explanation.undecided:
                return explanation
            stale = stale + 1 if explanation.evidence <= last else 0
            last = explanation.evidence
            if stale > _MAX_STALE or explanation.evidence >= 2 * ENOUGH_EVIDENCE:
                raise _NotKeyed("more questions give no more evidence")

    def _enough(self, explanation: Explanation) -> float:
        named = len(explanation.keys) == 1 and self._positions(explanation) == self._named
        forms = max((len(self._hash.forms(part.oid)) for key in explanation.keys for part in key), default=1)
        return ENOUGH_CONFIRMATION if named and forms == 1 else ENOUGH_EVIDENCE

    @staticmethod
    def _positions(explanation: Explanation) -> tuple[int, ...]:
        return tuple(part.parameter for key in explanation.keys for part in key)

    def _vary(self, candidates: Candidates, stage: int) -> Generator[Question, _Reply, None]:
        """Change one parameter at a time, to see on which of them each bucket depends."""
        if self._asked + len(self._oids) + 1 > MAX_QUESTIONS - _CORNERS_KEPT_FREE:
            raise _NotKeyed("it has too many parameters to find those that matter")
        arguments, reply = yield from self._ask_random(stage)
        buckets = self._buckets(reply)
        candidates.observe(arguments, buckets)
        depends: dict[int, set[int]] = {bucket: set() for bucket in buckets}
        for position, value in enumerate(arguments):
            other = self._maker.other(position, value, stage)
            varied = (*arguments[:position], other, *arguments[position + 1 :])
            reply = yield varied
            if not reply.scope:
                raise _NotKeyed("the server refused to be asked")
            found = self._buckets(reply)
            candidates.observe(varied, found)
            for bucket in buckets - found:
                depends[bucket].add(position)
        candidates.try_dependencies({frozenset(group) for group in depends.values()})

    def _try_corners(self, route: StatementRoute, bucket_count: int) -> Generator[Question, _Reply, None]:
        """Ask the corners; what is never routed (NULL in the key) is not asked, a refusal is no answer."""
        predict = compile_route(route, self._hash, bucket_count)
        key_parameters = {part.parameter for key in route.keys for part in key}
        corners = Corners(self._maker, key_parameters, literals(self._sql), self._rng)
        for arguments in corners.questions(self._corner_limit(route)):
            expected = predict(arguments)
            if expected is None:
                continue
            reply = yield arguments
            if reply.scope and not (reply.scope in _NAMES_BUCKETS and agrees(expected, reply.ranges)):
                raise _NotKeyed("its buckets depend on more than the key")

    def _corner_limit(self, route: StatementRoute) -> int:
        """None for a key the server named: it does so only where no condition can fold."""
        named = len(route.keys) == 1 and tuple(part.parameter for part in route.keys[0]) == self._named
        return 0 if named and not route.buckets else MAX_QUESTIONS - self._asked

    def _route_of(self, explanation: Explanation) -> StatementRoute:
        keys, constants = explanation.keys, tuple(sorted(explanation.constants))
        if len(keys) == 1 and not constants:
            kind, reason = RouteKind.KEYED, "learned from the server"
        elif not keys and len(constants) == 1:
            kind, reason = RouteKind.CONSTANT, "the same bucket for all values"
        else:
            kind, reason = RouteKind.KEY_SET, "a set of keys learned from the server"
        return StatementRoute(kind, self._tier, keys, constants, round(explanation.evidence, 1), reason)

    # ── reading answers ─────────────────────────────────────────────────────────────────────────────────────

    def _buckets(self, reply: _Reply) -> frozenset[int]:
        if reply.scope == "UNKNOWN":
            raise _NotKeyed("the server knows its buckets only while running")
        if reply.scope == "ANY":
            raise _NotKeyed("whether a table takes part depends on the values")
        buckets = few_buckets(reply.ranges, self._bucket_counts)
        if buckets is None:
            raise _NotKeyed("the server asks all or many buckets")
        if not buckets:
            raise _NotKeyed("the server names no bucket")
        return buckets
