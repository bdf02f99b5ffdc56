"""Hosts that a test names by one letter, what they say, and snapshots of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from picopyn.routing.health import Health
from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_plan import HostPlanner, ReadRules
from picopyn.routing.host_roles import Host, events
from picopyn.routing.host_table import HostTable
from picopyn.staleness import StalenessPolicy
from picopyn.topology import Topology, TopologySnapshot

MB = 1 << 20


def host(letter: str) -> Host:
    """The host with this name."""
    return Host(letter, letter, f"{letter}.test", 5432)


def primary(timeline: int | None = 1, written: int | None = 100 * MB, at: float = 0.0) -> HostFacts:
    """A primary that takes writes."""
    return HostFacts(in_recovery=False, read_only=False, timeline=timeline, written=written, observed_at=at)


def standby(replayed: int | None = 100 * MB, age: float | None = 0.0, at: float = 0.0) -> HostFacts:
    """A standby."""
    return HostFacts(
        in_recovery=True,
        read_only=True,
        timeline=1,
        received=replayed,
        replayed=replayed,
        replay_age=age,
        observed_at=at,
    )


def table(policy: StalenessPolicy | None = None, **facts: HostFacts | None) -> HostTable:
    """A table of hosts, each with what it said; None: it has said nothing yet."""
    made = HostTable(policy)
    made.name([host(letter) for letter in facts])
    for letter, said in facts.items():
        if said is not None:
            made.answered(letter, said, 0.001)
    return made


def snapshot(known: HostTable, letters: Sequence[str]) -> TopologySnapshot:
    """What the topology shows of a table."""
    topology = Topology()
    topology.apply(events([host(letter) for letter in letters], known.facts, known.roles), reset=True)
    return topology.snapshot


def planner(
    known: HostTable,
    letters: Sequence[str],
    rules: ReadRules | None = None,
    *,
    down: Sequence[str] = (),
    suspect: Sequence[str] = (),
    loads: dict[str, int] | None = None,
    seed: int = 1,
) -> HostPlanner:
    """A planner of these hosts."""
    health = Health()
    for letter in down:
        health.unreachable(letter, "refused", 0.0)
    for letter in suspect:
        health.broke(letter, "broke", 0.0)
    shown = snapshot(known, letters)
    return HostPlanner(
        shown, health, lambda uuid: (loads or {}).get(uuid, 0), Random(seed), known, rules or ReadRules()
    )
