"""When to ask a node whether it is alive, and what its silence means.

A node that hangs accepts connections, breaks none and says nothing: only a question with a time limit tells it from one
that is busy with a long statement. Asking costs, so only a node that is silent while calls are in flight there is
asked, and one that is already in doubt. The answer is never waited for by a call.

Rules of this file:

1. Calls in flight and no byte from the node for `SILENCE`: it is asked. It gets `ANSWER_WITHIN` (plus twice what the
   opening of a connection to it takes). A node that answers is asked again later and later, up to `LONGEST_REST` apart,
   as long as it stays silent otherwise: a long statement just runs.
2. A byte on whatever connection counts as an answer.
3. Silence and time limits are counted on a clock that hardly moves while this client itself is late, so a client that
   blocks its own loop blames nobody.
4. A node in doubt is asked at once, and a second time when it leaves that unanswered; then at the pauses of
   [`health`][picopyn.routing.health].

It sends nothing. The engine looks at the nodes at regular intervals, tells what it saw, and does what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from random import Random

from picopyn.routing.health import EAGER_PAUSE, UNANSWERED, Health, NodeState

#: Time between two looks (seconds).
TICK = 0.05
#: The same while no call is in flight, or nodes that are silent have answered; so a hang may be seen that much later.
IDLE_TICK = 0.1
#: How long a node may be silent while calls wait for it before it is asked (seconds).
SILENCE = 0.3
#: What a node has for its answer, on a connection that exists (seconds).
ANSWER_WITHIN = 0.25
#: Longest time between two questions to a node that is silent but answers them (seconds).
LONGEST_REST = 1.0
#: Sums of intervals are not exact (seconds).
_EXACT = 1e-6


class Sight(Enum):
    """What was seen of a node since the last look."""

    QUIET = "no call is in flight there"
    SILENT = "calls are in flight there, and nothing was heard"
    HEARD = "something was heard"


@dataclass(frozen=True, slots=True)
class Change:
    """A node changed its state.

    Attributes:
        uuid: The node.
        old: Its state before.
        new: Its state now.
        reason: Why.
    """

    uuid: str
    old: NodeState
    new: NodeState
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What follows from one look.

    Attributes:
        changes: State changes, in order.
        ask: Nodes to ask now; one that left an earlier question unanswered is asked on a second connection.
        hung: Nodes whose calls in flight are to be ended: they will not be answered.
    """

    changes: tuple[Change, ...] = ()
    ask: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()


class Attention:
    """A clock that hardly moves while its owner is late.

    Someone who looks every 50 ms has looked for 50 ms between two looks. If a second passed instead, he was not there
    for most of it, and does not know who called meanwhile: what exceeds the plan does not count. When that is more than
    the plan itself, the look counts the less the later it is, since whatever needs several turns of our own loop to be
    noticed, an answer for one, needs several such looks.

    Args:
        now: Seconds on the engine's clock.

    Attributes:
        time: Seconds of attention so far.
    """

    __slots__ = ("_last", "time")

    def __init__(self, now: float) -> None:
        self.time = 0.0
        self._last = now

    def look(self, now: float, planned: float) -> None:
        """A look, planned so many seconds after the one before."""
        passed = now - self._last
        self.time += min(passed, planned, 2 * planned * planned / passed if passed else 0.0)
        self._last = now

    def since_look(self, now: float) -> float:
        """Seconds since the last look."""
        return now - self._last


class _Vigil:
    """What is remembered of one node. Times are seconds of attention, unless they are called a moment."""

    __slots__ = ("answer_by", "ask_from", "due_moment", "failed_moment", "opening", "rest", "silent_since")

    def __init__(self) -> None:
        self.silent_since = 0.0
        self.ask_from = 0.0
        self.rest = SILENCE
        self.answer_by: float | None = None
        self.due_moment = 0.0
        self.failed_moment = 0.0
        self.opening = 0.0

    def hear(self, time: float) -> None:
        """It is silent no longer, or nobody waits for it."""
        self.silent_since, self.ask_from, self.rest = time, 0.0, SILENCE

    @property
    def has_answered(self) -> bool:
        """Whether it has answered since it fell silent, and is not being asked again."""
        return self.answer_by is None and self.rest > SILENCE

    @property
    def limit(self) -> float:
        """What the node has for one answer, connecting included; what one look more or less makes is not counted."""
        return ANSWER_WITHIN + max(0.0, 2 * self.opening - TICK)


class Watch:
    """Watches over nodes. Owned by the engine's probes, which do what it says.

    Args:
        health: The states of the nodes.
        now: Seconds on the engine's clock.
        rng: Source of the jitter of pauses.
        absence: How long a node that is DOWN stays so at least, while another one is not (seconds).
        longest_pause: Longest time between two questions to a node that is DOWN (seconds), beyond what `health` says.
    """

    __slots__ = ("_absence", "_attention", "_longest_pause", "_rng", "_vigils", "health")

    def __init__(
        self, health: Health, now: float, rng: Random, absence: float = 0.0, longest_pause: float = inf
    ) -> None:
        self.health = health
        self._absence = absence
        self._longest_pause = longest_pause
        self._rng = rng
        self._attention = Attention(now)
        self._vigils: dict[str, _Vigil] = {}

    @property
    def doubts(self) -> bool:
        """Whether any node is in doubt."""
        return not self.health.all_up

    def forget(self, uuid: str) -> None:
        """The node left the cluster."""
        self._vigils.pop(uuid, None)
        self.health.forget(uuid)

    def opened(self, uuid: str, seconds: float) -> bool:
        """A connection to the node was made, in so many seconds; True if it was not UP before."""
        vigil = self._vigil(uuid)
        vigil.opening = min(vigil.opening or seconds, seconds)
        vigil.answer_by = None
        vigil.hear(self._attention.time)
        return self.health.answered(uuid)

    def broke(self, uuid: str, reason: str, now: float) -> bool:
        """A connection broke, or a call timed out; True if the node is in doubt because of that and is to be asked."""
        news = self.health.broke(uuid, reason, now)
        if news:
            self._vigil(uuid).due_moment = now
        return news

    def refused(self, uuid: str, reason: str, now: float, *, spoke: bool = False) -> bool:
        """A connection was refused.

        Args:
            uuid: The node.
            reason: In words.
            now: Seconds on the engine's clock.
            spoke: It was the server that refused, not the network.

        Returns:
            True if the node was not DOWN before.
        """
        news = self.health.unreachable(uuid, reason, now, spoke=spoke)
        self._failed(uuid, now)
        return news

    def answered(self, uuid: str, now: float = inf) -> bool:
        """The node answered a question; True if it was not UP before, and is now."""
        vigil = self._vigil(uuid)
        vigil.answer_by = None
        vigil.ask_from = self._attention.time + vigil.rest
        vigil.rest = min(2 * vigil.rest, LONGEST_REST)
        return not self.is_absent(uuid, now) and self.health.answered(uuid)

    def revived(self, now: float) -> None:
        """A node that was DOWN is back: what kept others away may be over too, and they are asked now, and soon again.

        After an outage of everything they would be asked at the longest pauses.
        """
        for uuid, known in self.health.doubted.items():
            if known.state is NodeState.DOWN:
                self.health.begin_anew(uuid)
                self._vigil(uuid).due_moment = now

    def asked(self, uuid: str, now: float) -> None:
        """The node is being asked."""
        vigil = self._vigil(uuid)
        vigil.answer_by = self._attention.time + self._attention.since_look(now) + vigil.limit

    def is_due(self, uuid: str, now: float, *, eager: bool) -> bool:
        """Whether the node is to be asked now."""
        vigil = self._vigil(uuid)
        if vigil.answer_by is not None or self.is_absent(uuid, now):
            return False
        if self.health.is_up(uuid):
            time = self._attention.time
            return time >= max(vigil.silent_since + SILENCE, vigil.ask_from) - _EXACT
        due = min(vigil.due_moment, vigil.failed_moment + EAGER_PAUSE) if eager else vigil.due_moment
        return now >= due

    def is_absent(self, uuid: str, now: float) -> bool:
        """Whether a node is left out whatever it says."""
        known = self.health.of(uuid)
        if not self._absence or known.state is not NodeState.DOWN or now >= known.since + self._absence:
            return False
        return any(not self.health.is_down(other) for other in self._vigils)

    def is_curious(self, uuid: str) -> bool:
        """Whether it matters for the next look, or the one after it, if a byte came from the node."""
        state, vigil = self.health.of(uuid).state, self._vigil(uuid)
        soon = self._attention.time + 2 * IDLE_TICK
        if vigil.answer_by is not None or state is not NodeState.UP:
            return True
        return soon >= max(vigil.silent_since + SILENCE, vigil.ask_from)

    def pace(self, sights: Mapping[str, Sight]) -> float:
        """How soon to look again after these sights (seconds)."""
        if self.doubts or any(self._is_exciting(uuid, sight) for uuid, sight in sights.items()):
            return TICK
        return IDLE_TICK

    def look(self, now: float, planned: float, sights: Mapping[str, Sight], *, eager: bool) -> Findings:
        """One look at all nodes.

        Args:
            now: Seconds on the engine's clock.
            planned: How long after the last look this one was to be (seconds).
            sights: What was seen of every node.
            eager: Calls wait, or no node is up.

        Returns:
            What to do; the nodes to ask are not counted as asked yet.
        """
        self._attention.look(now, planned)
        changes: list[Change] = []
        for uuid, sight in sights.items():
            old = self.health.of(uuid)
            if self._see(uuid, sight, now, len(sights)):
                new = self.health.of(uuid)
                changes.append(Change(uuid, old.state, new.state, new.reason or "something was heard from it"))
        return Findings(
            tuple(changes),
            tuple(uuid for uuid in sights if self.is_due(uuid, now, eager=eager)),
            tuple(uuid for uuid, sight in sights.items() if sight is Sight.SILENT and self._is_hung(uuid)),
        )

    def _see(self, uuid: str, sight: Sight, now: float, nodes: int) -> bool:
        """Take in what was seen of one node; True if its state changed."""
        vigil, time = self._vigil(uuid), self._attention.time
        if sight is not Sight.SILENT:
            vigil.hear(time)
        if sight is Sight.HEARD and self.health.of(uuid).state is not NodeState.DOWN:
            if vigil.answer_by is not None:
                vigil.answer_by = time + vigil.limit
            return self.health.heard(uuid)
        if vigil.answer_by is not None and time >= vigil.answer_by - _EXACT:
            asked = sum(other.answer_by is not None for other in self._vigils.values()) - 1
            news = self.health.unanswered(uuid, _unanswered(vigil), now, nodes, asked)
            self._failed(uuid, now)
            return news
        return False

    def _is_exciting(self, uuid: str, sight: Sight) -> bool:
        """Whether it was heard, or is silent and has not said why; once it has answered, a statement just runs."""
        vigil = self._vigil(uuid)
        return sight is Sight.HEARD or (sight is Sight.SILENT and not vigil.has_answered)

    def _is_hung(self, uuid: str) -> bool:
        """Whether calls that are in flight at a silent node have no hope."""
        known = self.health.of(uuid)
        if known.state is not NodeState.DOWN or known.spoke:
            return False
        return known.silent or self._attention.time - self._vigil(uuid).silent_since >= SILENCE

    def _failed(self, uuid: str, now: float) -> None:
        vigil, known = self._vigil(uuid), self.health.of(uuid)
        vigil.answer_by, vigil.failed_moment = None, now
        again_at_once = known.state is NodeState.SUSPECT and known.failures < UNANSWERED
        pause = 0.0 if again_at_once else self.health.pause(uuid, eager=False, rng=self._rng)
        vigil.due_moment = now + min(pause, self._longest_pause)

    def _vigil(self, uuid: str) -> _Vigil:
        vigil = self._vigils.get(uuid)
        if vigil is None:
            vigil = self._vigils[uuid] = _Vigil()
            vigil.silent_since = self._attention.time
        return vigil


def _unanswered(vigil: _Vigil) -> str:
    return f"it hangs: no answer to a question within {vigil.limit:.2g} s"
