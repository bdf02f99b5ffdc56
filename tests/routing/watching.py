"""A cluster as a watcher sees it: nodes that talk, are silent, answer or refuse, looked at on a clock of our own.

It plays the part of the engine's probes over the pure rooms: it looks, asks, and hands over what the nodes say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from picopyn.routing.health import Health, NodeState
from picopyn.routing.watch import IDLE_TICK, Sight, Watch


@dataclass
class Weather:
    """What nodes do from now on.

    Attributes:
        busy: Nodes with calls in flight.
        heard: Nodes that send bytes.
        answers: Seconds a node takes for an answer; those not named do not answer.
        refuses: Nodes that refuse connections.
        turns: Looks an answer takes at least, for a client that is late.
        eager: Calls wait.
        look_every: Seconds that really pass between two looks; None for the watch's own pace.
    """

    busy: Iterable[str] = ()
    heard: Iterable[str] = ()
    answers: Mapping[str, float] = field(default_factory=dict)
    refuses: Iterable[str] = ()
    turns: int = 1
    eager: bool = False
    look_every: float | None = None


class Watching:
    """Nodes under watch, from second 0 on."""

    def __init__(self, nodes: Iterable[str], openings: Mapping[str, float] | None = None) -> None:
        self.nodes = list(nodes)
        self.now = 0.0
        self.health = Health()
        self.watch = Watch(self.health, 0.0, Random(1))
        self.asked: list[tuple[float, str]] = []
        self.changes: list[tuple[float, str, str]] = []
        self.hung: list[tuple[float, str]] = []
        self._open: list[tuple[float, int, str]] = []
        self._looks = 0
        self._pace = IDLE_TICK
        for uuid, seconds in (openings or {}).items():
            self.watch.opened(uuid, seconds)

    def broke(self, uuid: str) -> None:
        """A connection broke."""
        if self.watch.broke(uuid, "a connection broke", self.now):
            self._note(uuid)
            if self.watch.is_due(uuid, self.now, eager=False):
                self._ask(uuid)

    def let_pass(self, until: float, weather: Weather) -> None:
        """Let time pass, looking at the nodes all the while."""
        while self.now < until - 1e-9:
            self.look(weather)

    def look(self, weather: Weather) -> None:
        """Let one interval pass, and look."""
        self.now = round(self.now + (self._pace if weather.look_every is None else weather.look_every), 6)
        self._looks += 1
        self._deliver(weather)
        sights = {uuid: self._sight(uuid, weather) for uuid in self.nodes}
        found = self.watch.look(self.now, self._pace, sights, eager=weather.eager)
        self.changes += [(self.now, change.uuid, change.new.value) for change in found.changes]
        self.hung += [(self.now, uuid) for uuid in found.hung]
        for uuid in found.ask:
            self._ask(uuid)
        self._pace = self.watch.pace(sights)

    def states(self) -> dict[str, str]:
        """State of every node."""
        return {uuid: self.health.of(uuid).state.value for uuid in self.nodes}

    def down(self) -> set[str]:
        """Nodes that are DOWN."""
        return {uuid for uuid in self.nodes if self.health.of(uuid).state is NodeState.DOWN}

    def questions(self, uuid: str) -> list[float]:
        """When a node was asked."""
        return [when for when, asked in self.asked if asked == uuid]

    def begin_anew(self) -> None:
        """Forget what was asked and found so far, but not what is thought of the nodes."""
        for record in (self.asked, self.changes, self.hung):
            record.clear()

    def _ask(self, uuid: str) -> None:
        self.watch.asked(uuid, self.now)
        self.asked.append((self.now, uuid))
        self._open.append((self.now, self._looks, uuid))

    def _deliver(self, weather: Weather) -> None:
        for question in list(self._open):
            asked_at, look, uuid = question
            if uuid in weather.refuses:
                self._open.remove(question)
                if self.watch.refused(uuid, "connection refused", self.now):
                    self._note(uuid)
            elif self._is_answered(uuid, self._looks - look, self.now - asked_at, weather):
                self._open = [other for other in self._open if other[2] != uuid]
                if self.watch.answered(uuid):
                    self._note(uuid)

    def _is_answered(self, uuid: str, looks: int, seconds: float, weather: Weather) -> bool:
        return uuid in weather.answers and looks >= weather.turns and seconds >= weather.answers[uuid] - 1e-9

    def _sight(self, uuid: str, weather: Weather) -> Sight:
        if uuid in weather.heard:
            return Sight.HEARD
        return Sight.SILENT if uuid in weather.busy else Sight.QUIET

    def _note(self, uuid: str) -> None:
        self.changes.append((self.now, uuid, self.health.of(uuid).state.value))
