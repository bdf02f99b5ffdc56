"""The embedded Picodata cluster as a field: two replicasets of two instances, and those that are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from picopyn.cli.chaos.field import COUNTERS, PATIENCE, REGISTERS
from picopyn.cli.chaos.fronts import Fronts
from picopyn.cli.chaos.history import Stored
from picopyn.cli.chaos.schedule import LINK, PICODATA, Act, Menu, Step
from picopyn.testing import PicodataCluster

_TIER = "default"
_BUCKETS = 3000
_TABLES = {
    "chaos_rows": "id INT PRIMARY KEY",
    "chaos_counters": "id INT PRIMARY KEY, n INT",
    "chaos_registers": "id INT PRIMARY KEY, n INT",
}
_ALL = "OPTION (SQL_MOTION_ROW_MAX = 0)"


@dataclass(slots=True)
class _Added:
    """An instance that was added.

    Attributes:
        name: Its name.
        replicaset: Where it belongs.
        alone: Whether that is a replicaset of its own.
        given: Ranges of buckets that went there.
    """

    name: str
    replicaset: str
    alone: bool
    given: list[tuple[int, int]] = field(default_factory=list)


class PicodataField:
    """Owner: the run.

    Args:
        auto_offline_timeout: Seconds until the cluster gives a lost leader's role to another instance.
    """

    def __init__(self, auto_offline_timeout: float = 1.0) -> None:
        self._cluster = PicodataCluster(replicasets=2, replication=2, auto_offline_timeout=auto_offline_timeout).start()
        try:
            instances = self._cluster.instances
            self._first = {name: instance.replicaset for name, instance in instances.items()}
            self._fronts = Fronts({name: (found.host, found.port) for name, found in instances.items()})
            self._prepare()
        except BaseException:
            self._cluster.shutdown()
            raise
        self._troubled: dict[int, tuple[str, Act]] = {}
        self._added: list[_Added] = []

    def _prepare(self) -> None:
        for table, columns in _TABLES.items():
            self._cluster.execute(f"CREATE TABLE {table} ({columns}) DISTRIBUTED BY (id)")
        for table, size in (("chaos_counters", COUNTERS), ("chaos_registers", REGISTERS)):
            values = ", ".join(f"({number}, 0)" for number in range(size))
            self._cluster.execute(f"INSERT INTO {table} VALUES {values}")
        self._cluster.set_view_lag(0.2)

    @property
    def menu(self) -> Menu:
        """What can happen here."""
        return PICODATA

    @property
    def dsn(self) -> str:
        """Connection string for the driver: the proxies."""
        return f"postgresql://admin:{quote(self._cluster.password(), safe='')}@{self._fronts.hosts}/picodata"

    @property
    def options(self) -> Mapping[str, Any]:
        """Further settings of the pool."""
        return {"address_map": self._fronts.dialled, "topology_update_interval": 1.0, "acquire_timeout": PATIENCE}

    def take(self, step: Step) -> str:
        """Take a step of a schedule; returns who was meant, in words."""
        if step.act is Act.MEND:
            return self._mend(step)
        if step.act is Act.MOVE:
            return self._move(step)
        if step.act is Act.GROW:
            return self._grow(step)
        if step.act is Act.SHRINK:
            return self._shrink()
        name = self._whom(step)
        self._troubled[step.number] = (name, step.act)
        if step.act in LINK or step.act is Act.CUT:
            self._fronts.disturb(name, step.act)
        else:
            _DONE[step.act](self._cluster, name)
        return name

    def _whom(self, step: Step) -> str:
        """The leader of a group, or a member that does not lead (for a switch, always); never one that was added."""
        replicaset = f"{_TIER}_{step.group + 1}"
        leader = self._cluster.leaders()[replicaset]
        leads = step.leader and step.act is not Act.SWITCH
        members = [name for name, home in self._first.items() if home == replicaset]
        return next((name for name in members if (name == leader) is leads), members[0])

    def _mend(self, step: Step) -> str:
        name, act = self._troubled.pop(step.number)
        if act in LINK:
            self._fronts.free(name, act)
        elif act is Act.FREEZE:
            self._cluster.thaw(name)
        else:
            self._cluster.restart(name)
        return name

    def _move(self, step: Step) -> str:
        replicasets = [*dict.fromkeys(self._first.values()), *(new.replicaset for new in self._added if new.alone)]
        target = replicasets[int(step.luck * len(replicasets))]
        first = 1 + int(step.luck * 7919) % _BUCKETS
        last = min(_BUCKETS, first + _BUCKETS // 4)
        for new in self._added:
            if new.replicaset == target:
                new.given.append((first, last))
        self._cluster.move_buckets(_TIER, first, last, target, duration=0.5 if step.luck < 0.5 else 0.0, steps=5)
        return f"{first} to {last} go to {target}"

    def _grow(self, step: Step) -> str:
        alone = step.luck < 0.5
        name = self._cluster.add_instance(None if alone else f"{_TIER}_{step.group + 1}")
        self._added.append(_Added(name, self._cluster.instances[name].replicaset, alone))
        if alone:
            self._cluster.move_buckets(_TIER, 1000, 1999, self._added[-1].replicaset)
            self._added[-1].given.append((1000, 1999))
        return name

    def _shrink(self) -> str:
        self._cluster.wait_views()
        gone = self._added.pop()
        if gone.alone:
            for first, last in gone.given:
                self._cluster.move_buckets(_TIER, first, last, f"{_TIER}_1")
            self._cluster.wait_views()
        self._cluster.expel(gone.name)
        return gone.name

    def stored(self) -> Stored:
        """What the cluster holds, asked without the driver."""
        rows = self._cluster.execute(f"SELECT id FROM chaos_rows {_ALL}")
        counters = self._cluster.execute(f"SELECT id, n FROM chaos_counters {_ALL}")
        registers = self._cluster.execute(f"SELECT id, n FROM chaos_registers {_ALL}")
        return Stored(
            Counter(row[0] for row in rows),
            {row[0]: row[1] for row in counters},
            {row[0]: row[1] for row in registers},
        )

    def close(self) -> None:
        """End the cluster."""
        self._fronts.close()
        self._cluster.shutdown()


_DONE: Mapping[Act, Callable[[PicodataCluster, str], object]] = {
    Act.KILL: PicodataCluster.kill,
    Act.STOP: PicodataCluster.stop,
    Act.FREEZE: PicodataCluster.freeze,
    Act.SWITCH: PicodataCluster.promote,
}
