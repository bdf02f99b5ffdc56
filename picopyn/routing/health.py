"""What is known about the reachability of each node, and when to look again.

A node is UP; SUSPECT after something at it failed or it left one question unanswered; DOWN after it refused a
connection or left two questions in a row unanswered. It is UP again as soon as it answers. A node that lets its calls
wait is not doubted for that: only the questions of [`watch`][picopyn.routing.watch], asked beside those calls, count.

Silence is weaker evidence than a refusal: it may be our own network or our own process that is sick. So silence alone
never ejects more than a minority of the nodes; and one of two where nothing speaks against the other one.

This file only keeps the states and computes delays; it sends nothing and has no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

#: Pause between probes while calls wait for the node, or while every node is down (seconds).
EAGER_PAUSE = 0.2
#: First and longest pause otherwise; it doubles in between (seconds).
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
JITTER = 0.2
#: Questions a node has to leave unanswered, one after the other, to be DOWN.
UNANSWERED = 2


class NodeState(Enum):
    """Reachability of one node, as far as this client knows."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """State of one node.

    Attributes:
        state: Reachability.
        reason: Why it is not UP; empty when it is.
        failures: Probes that failed in a row.
        since: When the state was entered (seconds on the engine's clock).
        silent: Only its silence speaks against it (DOWN: it refused nothing; SUSPECT: nothing broke either).
        spoke: It is DOWN because the server itself said no; what runs there may well go on.
    """

    state: NodeState
    reason: str = ""
    failures: int = 0
    since: float = 0.0
    silent: bool = False
    spoke: bool = False


_UP = NodeHealth(NodeState.UP)


class Health:
    """States of all nodes, by node uuid. A node nobody has complained about is UP. Owned by the engine's cluster.

    Attributes:
        doubted: Nodes that are not UP; empty is the common case, one look on the hot path. Not to be changed outside.
    """

    __slots__ = ("_lives", "_states", "doubted")

    def __init__(self) -> None:
        self._states: dict[str, NodeHealth] = {}
        self._lives: dict[str, int] = {}
        self.doubted: Mapping[str, NodeHealth] = self._states

    @property
    def all_up(self) -> bool:
        """True when no node is SUSPECT or DOWN."""
        return not self._states

    def of(self, uuid: str) -> NodeHealth:
        """State of one node."""
        return self._states.get(uuid, _UP)

    def is_up(self, uuid: str) -> bool:
        """Whether nothing speaks against the node."""
        return uuid not in self._states

    def is_down(self, uuid: str) -> bool:
        """Whether the node refused the last connection, or does not answer."""
        return self.of(uuid).state is NodeState.DOWN

    def life(self, uuid: str) -> int:
        """How many times the node was found alive after a doubt: what breaks in one life breaks for one reason."""
        return self._lives.get(uuid, 0)

    def broke(self, uuid: str, reason: str, now: float) -> bool:
        """A connection to the node broke, or a call on it timed out.

        Returns:
            True if that is news: the node was UP and is SUSPECT now, so a probe should start at once.
        """
        if uuid in self._states:
            return False
        self._states[uuid] = NodeHealth(NodeState.SUSPECT, reason, 0, now)
        return True

    def unreachable(self, uuid: str, reason: str, now: float, *, spoke: bool = False) -> bool:
        """A connection to the node was refused.

        Args:
            uuid: The node.
            reason: In words.
            now: Seconds on the engine's clock.
            spoke: It was the server that refused, not the network.

        Returns:
            True if the node was not DOWN before.
        """
        known = self.of(uuid)
        news = known.state is not NodeState.DOWN
        since = now if news else known.since
        self._states[uuid] = NodeHealth(NodeState.DOWN, reason, known.failures + 1, since, spoke=spoke)
        return news

    def unanswered(self, uuid: str, reason: str, now: float, nodes: int, asked: int = 0) -> bool:
        """The node did not answer a question in time.

        Args:
            uuid: The node.
            reason: In words.
            now: Seconds on the engine's clock.
            nodes: How many nodes there are; silence ejects a minority of them at most.
            asked: How many others have not answered their own question yet; of two nodes, the other one must have.

        Returns:
            True if the state of the node is another one now.
        """
        known = self.of(uuid)
        failures = known.failures + 1
        if known.state is NodeState.DOWN:
            self._states[uuid] = replace(known, failures=failures)
            return False
        if failures >= UNANSWERED and self._may_eject(uuid, nodes, asked):
            state, silent = NodeState.DOWN, True
        else:
            state, silent = NodeState.SUSPECT, known.silent or known.state is NodeState.UP
        news = state is not known.state
        self._states[uuid] = NodeHealth(state, reason, failures, now if news else known.since, silent)
        return news

    def heard(self, uuid: str) -> bool:
        """A byte came from the node, on whatever connection: it is alive.

        Returns:
            True if that clears it: only its silence spoke against it.
        """
        known = self.of(uuid)
        if known.state is not NodeState.SUSPECT:
            return False
        if known.silent:
            del self._states[uuid]
            return True
        if known.failures:
            self._states[uuid] = NodeHealth(known.state, known.reason, 0, known.since)
        return False

    def answered(self, uuid: str) -> bool:
        """The node answered a question, or a connection to it was made.

        Returns:
            True if the node was not UP before.
        """
        if self._states.pop(uuid, None) is None:
            return False
        self._lives[uuid] = self.life(uuid) + 1
        return True

    def begin_anew(self, uuid: str) -> None:
        """The pauses between the probes of a node that is DOWN begin with the shortest one again."""
        self._states[uuid] = replace(self.of(uuid), failures=0)

    def forget(self, uuid: str) -> None:
        """The node left the cluster."""
        self._states.pop(uuid, None)
        self._lives.pop(uuid, None)

    def pause(self, uuid: str, *, eager: bool, rng: Random) -> float:
        """Seconds to wait before the next probe of a node.

        Args:
            uuid: The node.
            eager: Calls wait for this node, or no node is up.
            rng: Source of the jitter, so that many clients do not probe in step.
        """
        if eager:
            return EAGER_PAUSE
        doublings = min(self.of(uuid).failures, 10)
        pause = min(FIRST_PAUSE * 2.0**doublings, LONGEST_PAUSE)
        return pause * (1 + JITTER * (2 * rng.random() - 1))

    def _may_eject(self, uuid: str, nodes: int, asked: int) -> bool:
        """Whether one more node may be DOWN for its silence alone."""
        others = [known for other, known in self._states.items() if other != uuid]
        if nodes == 2:
            return not (others or asked)
        ejected = sum(known.silent and known.state is NodeState.DOWN for known in others)
        return 2 * (ejected + 1) < nodes
