"""What every act has at hand, and how long acts take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random

from picopyn.asynchronous import Pool
from picopyn.cli.demo.callers import Books, MixedCaller
from picopyn.cli.demo.ledger import Ledger
from picopyn.cli.demo.screen import Screen
from picopyn.cli.demo.tables import TABLES, Table
from picopyn.cli.demo.threaded import ThreadedPool
from picopyn.testing import Instance, PicodataCluster

#: The tier of every table.
TIER = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take (seconds) and how many take part.

    Attributes:
        auto_offline_timeout: From the loss of an instance until the cluster gives its role to another one.
        topology_update_interval: Between two periodic looks of the driver at the cluster.
        load: Of the first act.
        move: Of the moving of buckets.
        before: From the beginning of an act to its event.
        after: From the end of its event to its end.
        give_up: Longest wait for something promised.
        callers: Callers of the mixed load.
        pause: Between two calls of one caller.
    """

    auto_offline_timeout: float = 3.0
    topology_update_interval: float = 1.0
    load: float = 4.0
    move: float = 2.0
    before: float = 1.5
    after: float = 2.0
    give_up: float = 12.0
    callers: int = 6
    pause: float = 0.01


QUICK = Pace(auto_offline_timeout=1.0, load=1.0, move=0.5, before=0.5, after=1.0)


@dataclass(slots=True)
class Stage:
    """Everything an act works with. Owner: `play`.

    Attributes:
        cluster: What is played on.
        pool: What is shown.
        screen: Where it is shown.
        pace: How long it takes.
        instances: The cluster's instances by name.
        leaders: Replicaset → name of its leader when the demo began.
        ledger: What was acknowledged.
        rng: Source of randomness; the same in every run.
    """

    cluster: PicodataCluster
    pool: Pool | ThreadedPool
    screen: Screen
    pace: Pace
    instances: dict[str, Instance]
    leaders: dict[str, str]
    ledger: Ledger = field(default_factory=Ledger)
    rng: Random = field(default_factory=lambda: Random(2026))
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def books(self, table: Table) -> Books:
        """A table's rows through the pool."""
        return Books(self.pool, self.ledger, table)

    def numbers(self, how_many: int) -> list[int]:
        """Row numbers that nobody else has."""
        return list(islice(self._numbers, how_many))

    def mixed_callers(self, numbers: Sequence[Sequence[int]]) -> list[MixedCaller]:
        """One caller of the mixed load for each of these lots of numbers, taking turns with the tables."""
        return [
            MixedCaller(self.books(TABLES[index % len(TABLES)]), lot, Random(self.rng.random()))
            for index, lot in enumerate(numbers)
        ]
