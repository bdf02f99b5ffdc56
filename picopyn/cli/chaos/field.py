"""What a chaos run is played on: servers that do what a schedule says, and can be asked without the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from picopyn.cli.chaos.history import Stored
from picopyn.cli.chaos.schedule import Menu, Step

#: How many callers call at once.
CALLERS = 24
#: How many counters and registers there are, numbered from 0. Every caller has registers of its own.
COUNTERS = 16
REGISTERS = 2 * CALLERS
#: Longest time of a call (seconds). Troubles are over much sooner; a machine may be slow.
PATIENCE = 60.0


class Field(Protocol):
    """Servers. Calls block and must not overlap. Owner: who made it."""

    @property
    def menu(self) -> Menu:
        """What can happen here."""
        ...

    @property
    def dsn(self) -> str:
        """Connection string for the driver."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Further settings of the pool."""
        ...

    def take(self, step: Step) -> str:
        """Take a step of a schedule; returns who was meant, in words."""
        ...

    def stored(self) -> Stored:
        """What the servers hold, asked without the driver."""
        ...

    def close(self) -> None:
        """End the servers."""
        ...
