"""What was seen of the death of a leader, and whether what was promised about it is true. No I/O but the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from picopyn.cli.demo.promises import Promise, no_failure
from picopyn.cli.demo.tally import Tally


@dataclass(slots=True)
class Killing:
    """One death.

    Attributes:
        victim: Name of the leader that dies.
        replicaset: Its replicaset.
        others: Mixed load on the buckets of all other replicasets.
        reads: Reads of the dead leader's buckets with `prefer_leader`.
        writes: Writes of the dead leader's buckets.
        plain: The client without routing; reads the same buckets as `others`.
        began: When the act began.
        killed: When the leader died.
        demoted: When the cluster had given its role to another instance.
    """

    victim: str
    replicaset: str
    others: Tally = field(default_factory=Tally)
    reads: Tally = field(default_factory=Tally)
    writes: Tally = field(default_factory=Tally)
    plain: Tally = field(default_factory=Tally)
    began: float = field(default_factory=time.monotonic)
    killed: float | None = None
    demoted: float | None = None

    @property
    def recovered(self) -> float | None:
        """When the first write of the dead leader's buckets succeeded that began after the death."""
        return None if self.killed is None else self.writes.first_end(self.killed)

    @property
    def read_again(self) -> float | None:
        """When the first such read succeeded."""
        return None if self.killed is None else self.reads.first_end(self.killed)

    def phases(self) -> list[tuple[float, float]]:
        """Before, without leader, afterwards: begin and end of those that have begun."""
        begun = [moment for moment in (self.began, self.killed, self.demoted) if moment is not None]
        return list(zip(begun, [*begun[1:], time.monotonic()], strict=True))

    def outage(self) -> tuple[float, float]:
        """From the death to the new leader; until now while there is none."""
        return self.killed or time.monotonic(), self.demoted or time.monotonic()

    def went_on(self, tally: Tally) -> bool:
        """Whether calls ended well all through the outage: never silent for half of it."""
        begin, end = self.outage()
        return tally.count(begin, end) > 0 and tally.longest_silence(begin, end) < (end - begin) / 2


def promises(killing: Killing) -> list[Promise]:
    """What the act promised."""
    name = killing.replicaset
    others = no_failure("calls of all other buckets go on", killing.others)
    reads = no_failure(f"reads of {name}: its replica answers", killing.reads)
    writes = no_failure(f"writes of {name}: wait, and come back", killing.writes, unknown_too=True)
    return [
        _during(killing, others, killing.others),
        _during(killing, reads, killing.reads),
        Promise(writes.text, writes.kept and killing.recovered is not None, writes.evidence + _back(killing)),
    ]


def _during(killing: Killing, promise: Promise, tally: Tally) -> Promise:
    """The promise that calls did not fail, and went on in the outage too."""
    begin, end = killing.outage()
    evidence = f"{promise.evidence}; {tally.count(begin, end)} in the outage, slowest {duration(tally.slowest(begin))}"
    return Promise(promise.text, promise.kept and killing.went_on(tally), evidence)


def _back(killing: Killing) -> str:
    if killing.recovered is None or killing.killed is None:
        return "; not back"
    return f"; back {killing.recovered - killing.killed:.2f} s after the kill"


def duration(seconds: float) -> str:
    """A time as people say it."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
