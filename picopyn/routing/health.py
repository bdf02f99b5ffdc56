"""What is known about the reachability of each node, and when to look again.

A node is UP, SUSPECT after a connection to it broke, or DOWN after one could not be made. This file only keeps the
states and computes delays; probing is the engine's work (a probe is the opening of a connection that is then used).
Detection of nodes that hang is not here yet: it needs more states than these transitions, not other ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

#: Pause between probes while calls wait for the node, or while every node is down (seconds).
EAGER_PAUSE = 0.2
#: First and longest pause otherwise; it doubles in between (seconds).
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
JITTER = 0.2


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
    """

    state: NodeState
    reason: str = ""
    failures: int = 0
    since: float = 0.0


_UP = NodeHealth(NodeState.UP)


class Health:
    """States of all nodes, by node uuid. A node nobody has complained about is UP. Owned by the engine's cluster."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, NodeHealth] = {}

    @property
    def all_up(self) -> bool:
        """True when no node is SUSPECT or DOWN: the common case, one look on the hot path."""
        return not self._states

    def of(self, uuid: str) -> NodeHealth:
        """State of one node."""
        return self._states.get(uuid, _UP)

    def is_up(self, uuid: str) -> bool:
        """Whether nothing speaks against the node."""
        return uuid not in self._states

    def is_down(self, uuid: str) -> bool:
        """Whether the last attempt to connect to the node failed."""
        return self.of(uuid).state is NodeState.DOWN

    def broke(self, uuid: str, reason: str, now: float) -> bool:
        """A connection to the node broke.

        Returns:
            True if that is news: the node was UP and is SUSPECT now, so a probe should start at once.
        """
        if uuid in self._states:
            return False
        self._states[uuid] = NodeHealth(NodeState.SUSPECT, reason, 0, now)
        return True

    def unreachable(self, uuid: str, reason: str, now: float) -> bool:
        """A connection to the node could not be made.

        Returns:
            True if the node was not DOWN before.
        """
        known = self.of(uuid)
        news = known.state is not NodeState.DOWN
        self._states[uuid] = NodeHealth(NodeState.DOWN, reason, known.failures + 1, now if news else known.since)
        return news

    def answered(self, uuid: str) -> bool:
        """A connection to the node was made.

        Returns:
            True if the node was not UP before.
        """
        return self._states.pop(uuid, None) is not None

    def forget(self, uuid: str) -> None:
        """The node left the cluster."""
        self._states.pop(uuid, None)

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
