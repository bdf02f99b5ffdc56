"""Nodes of a YugabyteDB that a test names by number, and connections that a planner places on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from picopyn.placement_settings import balance_mode
from picopyn.routing.balance import UNCONNECTED
from picopyn.routing.health import Health
from picopyn.routing.placement import PRIMARY, READ_REPLICA, Placement
from picopyn.routing.placement_plan import PlacementPlanner
from picopyn.routing.plan import Plan, Role
from picopyn.routing.server_table import ServerTable
from picopyn.topology import EventInstance, Topology
from picopyn.topology_keys import read_topology_keys


def placement(mode: bool | str = True, keys: str | None = None, only_keys: bool = False) -> Placement:
    """What settings ask for; the keys must be sound."""
    found, problems = read_topology_keys(keys)
    wanted = balance_mode(mode)
    assert not problems
    assert wanted is not None
    return Placement(wanted, found, only_keys)


class Fleet:
    """Nodes `1`, `2`, …; connections stay where they were placed until their node is stopped.

    Args:
        zones: Where each node lies.
        replicas: Numbers of those that hold read replicas only.
        seeds: Numbers of the nodes behind the connection string; above the number of zones: an address of no node.
        seed: Of the randomness.
    """

    def __init__(
        self, zones: Sequence[str], *, replicas: Iterable[int] = (), seeds: Sequence[int] = (1,), seed: int = 1
    ) -> None:
        self.zones = list(zones)
        self.replicas = set(replicas)
        self.seeds = list(seeds)
        self.health = Health()
        self.counts: Counter[int] = Counter()
        self.unconnected: set[int] = set()
        self.rng = Random(seed)

    def add(self, zone: str) -> int:
        """A node joins; gives its number."""
        self.zones.append(zone)
        return len(self.zones)

    def stop(self, *numbers: int) -> None:
        """Nodes go down, and their connections with them."""
        for number in numbers:
            self.health.unreachable(str(number), "refused", 0.0)
            self.counts[number] = 0

    def start(self, *numbers: int) -> None:
        """They are back."""
        for number in numbers:
            self.health.answered(str(number))

    def close_all(self) -> None:
        """Every connection is closed."""
        self.counts.clear()

    def planner(self, wanted: Placement, *, discovered: bool = True) -> PlacementPlanner:
        """The planner of the nodes as they are now."""
        topology, table = Topology(), ServerTable(wanted)
        extra = [seed for seed in self.seeds if seed > len(self.zones)]
        topology.apply([*map(self._event, range(1, len(self.zones) + 1)), *map(self._seed, extra)], reset=True)
        table.seeds, table.discovered = tuple(map(str, self.seeds)), discovered
        return PlacementPlanner(topology.snapshot, self.health, self._load, self.rng, table)

    def place(self, wanted: Placement, count: int = 12, *, anew: bool = True) -> dict[int, int] | str:
        """Place connections; gives how many each node has then, or why there is none.

        Args:
            wanted: Where.
            count: How many.
            anew: Close all that are open first.
        """
        if anew:
            self.close_all()
        planner = self.planner(wanted)
        for _ in range(count):
            plan = planner.for_host(Role.LEADER)
            if plan.wait is not None:
                return plan.wait.name
            self.counts[int(plan.candidates[0].node.uuid)] += 1
        return {number: held for number, held in sorted(self.counts.items()) if held}

    def plan(self, wanted: Placement) -> Plan:
        """One plan."""
        return self.planner(wanted).for_host(Role.LEADER)

    def _load(self, uuid: str) -> int:
        return UNCONNECTED if int(uuid) in self.unconnected else self.counts[int(uuid)]

    def _event(self, number: int) -> EventInstance:
        cloud, region, zone = self.zones[number - 1].split(".")
        return EventInstance(
            uuid=str(number),
            name=f"n{number}",
            tier=READ_REPLICA if number in self.replicas else PRIMARY,
            host=f"10.0.0.{number}",
            port=5433,
            online=True,
            failure_domain={"cloud": cloud, "region": region, "zone": zone},
        )

    def _seed(self, number: int) -> EventInstance:
        return EventInstance(uuid=str(number), name=f"seed{number}", host=f"10.0.1.{number}", port=5433, online=True)
