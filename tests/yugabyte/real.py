"""A YugabyteDB that runs elsewhere, with the words of `YugabyteCluster`, so that the same test bodies ask either.

What only a cluster of ours can do (nodes that join, move, or leave the list, other releases, public addresses of its
own, leaders that a test names) is skipped with the reason. A node that dies or hangs is one to a client when the way to
it does: where a test wants that, the nodes are reached through proxies on the client's side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import asyncpg
import pytest

from picopyn.testing import FaultProxy
from picopyn.testing.yugabyte.yugabyte_cluster import State, YugabyteNode
from tests.login import Login, apart

#: Longest wait for one answer of the cluster (seconds).
PATIENCE = 60.0

_LIST = "SELECT * FROM yb_servers()"
_PLACE = "SELECT host(inet_server_addr()) || ':' || inet_server_port()"


class RealCluster:
    """The cluster. Owner: whoever makes it; ends with `close`.

    Args:
        dsn: Connection string, as a user who may create tables and roles, and see everybody's sessions.
        doors: Whether its nodes are reached through proxies, so that they can be killed and frozen.

    Nodes are called `n1`, `n2`, …: first those of the primary cluster, by zone. A node's `host` and `port` are those by
    which it knows itself; `address_of` is what a client dials.
    """

    def __init__(self, dsn: str, *, doors: bool = False) -> None:
        self._login = Login(dsn, 5433)
        self._nodes: dict[str, YugabyteNode] = {}
        self._listed: dict[str, tuple[str, int]] = {}
        self._reached: dict[str, tuple[str, int]] = {}
        self._doors: dict[str, FaultProxy] = {}
        self._states: dict[str, State] = {}
        apart(self._look())
        if doors:
            self._build()

    async def _look(self) -> None:
        connection = await asyncpg.connect(self._login.at(self._login.hosts), timeout=PATIENCE)
        try:
            rows = await connection.fetch(_LIST, timeout=PATIENCE)
        finally:
            await connection.close()
        rows.sort(key=lambda row: (row["node_type"] != "primary", _zone(row), row["host"], row["port"]))
        for number, row in enumerate(rows, 1):
            name = f"n{number}"
            self._listed[name] = row["host"], row["port"]
            self._reached[name], place = await self._reach(row)
            host, _, port = place.rpartition(":")
            self._nodes[name] = YugabyteNode(
                name, host, int(port), _zone(row), row["node_type"], row["public_ip"] or "", row.get("uuid", "")
            )
            self._states[name] = "running"

    async def _reach(self, row: Mapping[str, Any]) -> tuple[tuple[str, int], str]:
        """By which of its addresses a node is reached from here, and what it calls itself."""
        for host in filter(None, (row["host"], row["public_ip"])):
            try:
                connection = await asyncpg.connect(self._login.at([(host, row["port"])]), timeout=10)
            except (OSError, TimeoutError):
                continue
            try:
                return (host, row["port"]), await connection.fetchval(_PLACE, timeout=PATIENCE)
            finally:
                await connection.close()
        raise OSError(f"{row['host']}:{row['port']} is listed, and cannot be reached from here")

    def _build(self) -> None:
        first, second = os.urandom(2)
        network = f"127.{1 + first % 254}.{second}"
        for number, (name, (host, port)) in enumerate(self._reached.items(), 1):
            door = FaultProxy(host, port, listen=f"{network}.{number}", own_port=port).start()
            self._doors[name] = door

    def close(self) -> None:
        """End the proxies."""
        for door in self._doors.values():
            door.close()

    # what there is

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(self._nodes)

    def node(self, name: str) -> YugabyteNode:
        """What a node says about itself."""
        return self._nodes[name]

    @property
    def dsn(self) -> str:
        """URI with every node."""
        return self.dsn_of(*self._nodes)

    def dsn_of(self, *names: str) -> str:
        """URI with the named nodes, in that order."""
        return self._login.at(self.address_of(name) for name in names)

    def address_of(self, name: str) -> tuple[str, int]:
        """What a client dials."""
        door = self._doors.get(name)
        return self._reached[name] if door is None else (door.host, door.port)

    @property
    def options(self) -> dict[str, Any]:
        """What a pool has to be told beside the connection string: the way through the proxies."""
        if not self._doors:
            return {}
        known: dict[tuple[str, int], tuple[str, int]] = {}
        for name, node in self._nodes.items():
            for host in (self._listed[name][0], node.public_ip):
                known[host, self._listed[name][1]] = self.address_of(name)
        return {"address_map": lambda host, port: known.get((host, port), (host, port))}

    def serves(self, dsn: str) -> bool:
        """Whether a connection string leads through its proxies."""
        return any(f"{door.host}:{door.port}" in dsn for door in self._doors.values())

    def has_shape(self, zones: Sequence[str], read_replicas: Sequence[str] = ()) -> bool:
        """Whether its nodes lie like those of such an embedded cluster, whatever their zones are called."""
        nodes = self._nodes.values()
        primaries = [node.zone for node in nodes if node.node_type == "primary"]
        others = [node.zone for node in nodes if node.node_type != "primary"]
        return len(primaries) == len(zones) and _pattern([*primaries, *others]) == _pattern([*zones, *read_replicas])

    def states(self) -> dict[str, State]:
        """By node: `"running"`, `"frozen"` or `"down"`."""
        return dict(self._states)

    def sessions(self, application: str) -> dict[str, int]:
        """Sessions of one `application_name` by node, as each counts its own."""
        text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
        return {name: int(rows[0][0]) for name, rows in self._everywhere(text, application).items()}

    def places(self) -> dict[str, str]:
        """What a node calls itself → its name."""
        return {f"{node.host}:{node.port}": name for name, node in self._nodes.items()}

    def listed(self) -> dict[str, str]:
        """By what the list of servers calls a node → its name."""
        return {f"{host}:{port}": name for name, (host, port) in self._listed.items()}

    # faults

    def kill(self, *names: str) -> None:
        """Nodes are gone, as far as a client can tell."""
        for name in names:
            door = self._door(name)
            door.let_pass()
            door.refuse()
            door.cut()
            self._states[name] = "down"

    def restart(self, *names: str) -> None:
        """They are back."""
        for name in names:
            self._door(name).let_pass()
            self._states[name] = "running"

    def freeze(self, name: str) -> None:
        """A node says nothing more, as far as a client can tell."""
        self._door(name).freeze()
        self._states[name] = "frozen"

    def thaw(self, name: str) -> None:
        """It goes on."""
        self.restart(name)

    def end_sessions(self, name: str, application: str) -> None:
        """End sessions of a node as an administrator would (57P01): those of one `application_name`."""
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        apart(self._ask([name], text, application))

    def _door(self, name: str) -> FaultProxy:
        assert self._doors, "a test that kills or freezes asks for `shared_cluster`"
        return self._doors[name]

    # SQL

    def execute(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run a text past the driver; gives the rows of a SELECT, every value as text."""
        first = next(iter(self._nodes))
        if not sql.lstrip().upper().startswith("SELECT"):
            apart(self._run(sql))
            return []
        [rows] = apart(self._ask([first], sql)).values()
        return [tuple(None if value is None else str(value) for value in row) for row in rows]

    def _everywhere(self, sql: str, *args: Any) -> dict[str, list[Any]]:
        return apart(self._ask(self.nodes, sql, *args))

    async def _ask(self, names: Iterable[str], sql: str, *args: Any) -> dict[str, list[Any]]:
        found = {}
        for name in names:
            connection = await asyncpg.connect(self._login.at([self._reached[name]]), timeout=PATIENCE)
            try:
                found[name] = await connection.fetch(sql, *args, timeout=PATIENCE)
            finally:
                await connection.close()
        return found

    async def _run(self, sql: str) -> None:
        connection = await asyncpg.connect(self._login.at(self._reached.values()), timeout=PATIENCE)
        try:
            await connection.execute(sql, timeout=PATIENCE)
        finally:
            await connection.close()

    # what only a cluster of ours can do

    @property
    def storage_dsn(self) -> NoReturn:
        """URI of a PostgreSQL below it."""
        pytest.skip("a real cluster: there is no plain PostgreSQL below it")

    def shard(self, table: str, **wishes: Any) -> None:
        """A real one has cut the table already."""

    def move(self, name: str, zone: str) -> NoReturn:
        """A node lies elsewhere."""
        pytest.skip(f"a real cluster: {name} does not move to {zone} on demand")


def _zone(row: Mapping[str, Any]) -> str:
    return f"{row['cloud']}.{row['region']}.{row['zone']}"


def _pattern(zones: Sequence[str]) -> list[tuple[int, int]]:
    """Which of them are the same, and lie in the same region; the zones of one group may come in any order."""
    regions = [zone.rpartition(".")[0] for zone in zones]
    return [(zones.index(zone), regions.index(region)) for zone, region in zip(zones, regions, strict=True)]
