"""One instance's process, as far as the outside sees it: its door, its sessions, its running statements, its
counts.

Decides what happens to them when the process freezes, thaws, ends or starts. Must not know roles or rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from picopyn.testing.picodata.door import Door
from picopyn.testing.picodata.laws import Life
from picopyn.testing.picodata.model import Instance, Tally
from picopyn.testing.picodata.session import Session
from picopyn.testing.picodata.slots import Slots


@dataclass(slots=True)
class Fault:
    """An error put in the way of the next statements that execute on sharded tables here."""

    message: str
    sqlstate: str
    times: int


class Host:
    """Owner: the server process. `admit` makes the protocol object for a new connection."""

    def __init__(self, instance: Instance, concurrency: int, admit: Callable[[Host], Session]) -> None:
        self.instance = instance
        self.slots = Slots(concurrency)
        self.tally = Tally()
        self.faults: list[Fault] = []
        self.sessions: set[Session] = set()
        self.running: set[asyncio.Task[Any]] = set()
        self.sent: set[asyncio.Task[Any] | None] = set()
        self.door = Door(instance.address.host, instance.address.port, lambda: admit(self))

    def open(self) -> None:
        """Start to serve."""
        self.door.attend()
        self.instance.address.port = self.door.port
        self.instance.life = Life.ALIVE

    def start_silent(self) -> None:
        """Start, accept connections, say nothing yet."""
        self.door.listen()
        self.instance.life = Life.SILENT

    def freeze(self) -> None:
        """Read nothing, answer nothing; keep every connection."""
        self.instance.life = Life.FROZEN
        self.door.leave()
        for session in list(self.sessions):
            session.hold()

    def thaw(self) -> None:
        """Go on where it stopped."""
        self.instance.life = Life.ALIVE
        self.door.attend()
        for session in list(self.sessions):
            session.release()

    def kill(self) -> None:
        """End at once: connections are reset, what waits is forgotten, what was sent to others stays sent."""
        self.instance.life = Life.DEAD
        self.door.close()
        for session in list(self.sessions):
            session.cut()
        for task in self.running - self.sent:
            task.cancel()
        self.running.clear()
        self.slots = Slots(self.slots.limit)
        self.tally.hanging = 0

    def end(self) -> None:
        """End in an orderly way."""
        self.door.close()
        for session in list(self.sessions):
            session.end()
        self.kill()

    def joined(self, session: Session) -> None:
        """A session began."""
        self.sessions.add(session)
        if self.instance.life is Life.FROZEN:
            session.hold()
        elif self.instance.life is not Life.ALIVE:
            session.cut()
