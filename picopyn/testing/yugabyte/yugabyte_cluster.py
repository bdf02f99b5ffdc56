"""`YugabyteCluster`: the nodes of a YugabyteDB on this machine, as a synchronous object.

Decides which nodes there are, where they lie, and what they say about each other. Their rows lie in one real
PostgreSQL, so that whoever asks any node sees the same, as at the original; what makes a node is an address of its own
in 127.0.0.0/8 that can be killed and frozen alone. What the SQL objects look like is decided in `catalog`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

from picopyn.testing.fault_proxy import FaultProxy
from picopyn.testing.postgres_binaries import PostgresBinaries, PostgresFailed, find_postgres
from picopyn.testing.postgres_node import PostgresNode
from picopyn.testing.postgres_process import Workplace
from picopyn.testing.postgres_session import Row
from picopyn.testing.yugabyte.catalog import SERVER_COLUMNS, TABLES, literal, objects
from picopyn.testing.yugabyte.greeting import Greeting
from picopyn.testing.yugabyte.own_settings import OwnSettings

#: What servers of a release with so many columns of `yb_servers()` call themselves.
_VERSIONS = {8: "11.2-YB-2.14.17.0-b0", 9: "11.2-YB-2.20.9.0-b0", 10: "15.12-YB-2025.2.0.0-b0"}
_HASHES = 65536

NodeType = Literal["primary", "read_replica"]
State = Literal["running", "frozen", "down"]
Public = Literal["none", "same", "own", "only"]


@dataclass(frozen=True, slots=True)
class YugabyteNode:
    """What one node says about itself.

    Attributes:
        name: Name, for tests.
        host: Its private address.
        port: The port it listens on.
        zone: Where it lies: `cloud.region.zone`.
        node_type: `"primary"` or `"read_replica"`.
        public_ip: Its public address; empty when it has none.
        uuid: Its identity.
    """

    name: str
    host: str
    port: int
    zone: str
    node_type: NodeType = "primary"
    public_ip: str = ""
    uuid: str = ""


class YugabyteCluster:
    """Nodes of a YugabyteDB. Owner: whoever starts it; ends with `with`, `shutdown`, or the interpreter. Calls must not
    overlap; each blocks its thread, so use `asyncio.to_thread` under a loop.

    Args:
        zones: Where each node of the primary cluster lies, as `cloud.region.zone`.
        read_replicas: The same for nodes that only hold read replicas.
        columns: How many columns `yb_servers()` has: 8, 9 (with `uuid`) or 10 (with `universe_uuid`).
        tablets: Form of `yb_tablet_metadata`: `"old"`, `"new"`, or None for a release without it.
        public: Which public addresses nodes have: `"none"`, the `"same"` as their private ones, `"own"` ones, or own
            ones `"only"`: then a client cannot reach the private ones.
        port: The port of every node.
        binaries: Which PostgreSQL; found when left out.

    Nodes are called `n1`, `n2`, … in the order of the zones. Everybody on this machine may log in as `postgres`, a
    superuser. Linux only.

    A node that was killed stays listed, as at the original, where the master takes about a minute to declare it dead;
    `unlist` is that moment. What every session of a node does costs nothing while it is frozen, but a statement that
    was on its way to the storage is executed. Every call that names a node raises `PostgresFailed` when there is none.

    Nothing is ever read from a follower, for all nodes share one storage. Whether a statement would be is said by
    `SELECT picopyn_cluster.follower_read()`: how old its data would be (milliseconds), NULL if it reads from leaders.
    """

    def __init__(
        self,
        zones: Sequence[str] = ("cloud1.region1.zone1", "cloud1.region1.zone2", "cloud1.region1.zone3"),
        *,
        read_replicas: Sequence[str] = (),
        columns: int = 10,
        tablets: Literal["old", "new"] | None = "new",
        public: Public = "none",
        port: int = 5433,
        binaries: PostgresBinaries | None = None,
    ) -> None:
        if not zones or columns not in SERVER_COLUMNS:
            raise ValueError(f"there must be a zone, and columns must be one of {SERVER_COLUMNS}")
        self.universe_uuid = str(uuid.uuid4())
        self._layout: dict[NodeType, Sequence[str]] = {"primary": tuple(zones), "read_replica": tuple(read_replicas)}
        self._shape = columns, tablets
        self._public = public
        self._port = port
        self._binaries = binaries
        self._storage: PostgresNode | None = None
        self._nodes: dict[str, YugabyteNode] = {}
        self._doors: dict[str, list[FaultProxy]] = {}
        self._states: dict[str, State] = {}
        self._finalizer: weakref.finalize[..., Any] | None = None

    # life

    def start(self) -> YugabyteCluster:
        """Start all nodes.

        Raises:
            PostgresNotFound: There are no binaries.
            PostgresFailed: The storage did not start; the message holds the end of its log.
        """
        if self._nodes:
            return self
        place = Workplace(self._binaries or find_postgres())
        self._finalizer = weakref.finalize(self, _end, place, self._doors)
        try:
            self._storage = _storage(place)
            self._ask(TABLES + objects(self._port, *self._shape))
            network = _network()
            for kind, listed in self._layout.items():
                for zone in listed:
                    self._add(zone, kind, network)
        except BaseException:
            self.shutdown()
            raise
        return self

    def shutdown(self) -> None:
        """End all nodes at once and remove what they stored; does nothing when the cluster is not running."""
        if self._finalizer is not None:
            self._finalizer()
        self._nodes, self._states, self._storage = {}, {}, None

    def __enter__(self) -> YugabyteCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # what there is

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(self._nodes)

    def node(self, name: str) -> YugabyteNode:
        """What a node says about itself."""
        if name not in self._nodes:
            raise PostgresFailed(f"there is no node {name!r}; there are {', '.join(self._nodes) or 'none'}")
        return self._nodes[name]

    @property
    def dsn(self) -> str:
        """URI with every node."""
        return self.dsn_of(*self._nodes)

    def dsn_of(self, *names: str, public: bool = False) -> str:
        """URI with the named nodes, in that order, by their public addresses if so wanted."""
        hosts = ",".join("{}:{}".format(*self.address_of(name, public=public)) for name in names)
        return f"postgresql://postgres@{hosts}/postgres"

    def address_of(self, name: str, *, public: bool = False) -> tuple[str, int]:
        """Host and port of a node; they stay its own while it is down."""
        node = self.node(name)
        return (node.public_ip if public else node.host), node.port

    @property
    def storage_dsn(self) -> str:
        """URI of the PostgreSQL that holds the rows: a plain one, without nodes."""
        return f"postgresql://postgres@127.0.0.1:{self._running().port}/postgres"

    def states(self) -> dict[str, State]:
        """By node: `"running"`, `"frozen"` or `"down"`."""
        return dict(self._states)

    def sessions(self, application: str | None = None) -> dict[str, int]:
        """Sessions of clients by node, as the server counts them; of one `application_name` only, if it is given."""
        wanted = "" if application is None else f" AND application_name = {literal(application)}"
        rows = self._ask(
            "SELECT s.name, count(a.pid)::text FROM picopyn_cluster.servers s LEFT JOIN pg_stat_activity a "
            f"ON a.client_addr = s.address{wanted} GROUP BY s.name"
        )
        found = {name: int(count or 0) for name, count in rows}
        return {name: found.get(name, 0) for name in self._nodes}

    # faults

    def kill(self, *names: str) -> None:
        """End nodes at once: their connections are reset, their addresses refuse. They stay listed, see `unlist`."""
        for name in names:
            self.node(name)
            self._each(name, FaultProxy.let_pass)
            self._each(name, FaultProxy.refuse)
            self._each(name, FaultProxy.cut)
            self._states[name] = "down"

    def restart(self, *names: str) -> None:
        """Start nodes that are down, on their old addresses; they are listed again."""
        for name in names:
            if self._states.get(name) != "down":
                raise PostgresFailed(f"{self.node(name).name} is not down")
            self._each(name, FaultProxy.let_pass)
            self._states[name] = "running"
        self._list(names, listed=True)

    def freeze(self, name: str) -> None:
        """Let a node stand still: it accepts connections and says nothing."""
        if self._states.get(name) != "running":
            raise PostgresFailed(f"{self.node(name).name} does not run")
        self._each(name, FaultProxy.freeze)
        self._states[name] = "frozen"

    def thaw(self, name: str) -> None:
        """Let a frozen node go on; what was held back arrives."""
        if self._states.get(name) != "frozen":
            raise PostgresFailed(f"{self.node(name).name} is not frozen")
        self._each(name, FaultProxy.let_pass)
        self._states[name] = "running"

    def end_sessions(self, name: str, application: str | None = None) -> None:
        """End every session of a node as an administrator would (57P01), or those of one `application_name`; the node
        runs on.
        """
        chosen = f"client_addr = {literal(self.node(name).host)}"
        chosen += "" if application is None else f" AND application_name = {literal(application)}"
        self._ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {chosen}")

    # what the nodes say about each other

    def unlist(self, *names: str) -> None:
        """The master declares nodes dead, or they leave: `yb_servers()` does not name them any more."""
        self._list(names, listed=False)

    def add(self, zone: str, node_type: NodeType = "primary") -> str:
        """A node joins; gives its name."""
        network = next(iter(self._nodes.values())).host.rpartition(".")[0]
        return self._add(zone, node_type, network).name

    def move(self, name: str, zone: str) -> None:
        """A node lies in another zone from now on."""
        self._nodes[name] = moved = replace(self.node(name), zone=zone)
        self._describe(moved)

    def deny(self, user: str, what: Literal["yb_servers"] = "yb_servers") -> None:
        """Take from every user the right to ask for the servers (42501), but for `postgres`; makes `user` if needed."""
        with contextlib.suppress(PostgresFailed):
            self._ask(f"CREATE ROLE {user} LOGIN")
        self._ask(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{what}() FROM PUBLIC")

    # tablets

    def shard(
        self,
        table: str,
        *,
        tablets: int = 3,
        hash_columns: int = 1,
        database: str = "postgres",
        replication: int | None = None,
    ) -> None:
        """Split a table (or index) that exists into tablets, with leaders on the nodes of the primary cluster in turn.

        Args:
            table: Its name, as SQL.
            tablets: How many.
            hash_columns: How many columns of its key are hashed.
            database: The database it is in.
            replication: How many nodes of the primary cluster hold a copy: the leader and those after it; None: all.
        """
        holders = [node for node in self._nodes.values() if node.node_type == "primary"]
        [(oid, name)] = self._ask(f"SELECT oid::text, relname FROM pg_class WHERE oid = {literal(table)}::regclass")
        edges = [number * _HASHES // tablets for number in range(tablets + 1)]
        copies = min(replication or len(holders), len(holders))
        for number in range(tablets):
            values = f"{literal(uuid.uuid4().hex)}, {oid}, {literal(database)}, {literal(name)}"
            holding = [literal(_address(holders[(number + copy) % len(holders)])) for copy in range(copies)]
            span = f"{edges[number]}, {edges[number + 1]}, {holding[0]}, ARRAY[{', '.join(holding)}]"
            self._ask(f"INSERT INTO picopyn_cluster.tablets VALUES ({values}, {span})")
        self._ask(f"INSERT INTO picopyn_cluster.hash_tables VALUES ({oid}, {hash_columns})")

    def lead(self, name: str | None, *, instead_of: str | None = None) -> None:
        """Make a node the leader of every tablet, or of those that another one leads; None: they have none."""
        new = literal("" if name is None else _address(self.node(name)))
        where = "" if instead_of is None else f" WHERE leader = {literal(_address(self.node(instead_of)))}"
        self._ask(f"UPDATE picopyn_cluster.tablets SET leader = {new}{where}")

    # SQL

    def execute(self, sql: str) -> list[Row]:
        """Run a text as the superuser, whatever the state of the nodes; gives the rows, every value as text.

        Raises:
            PostgresFailed: The server refused it; the message begins with the SQLSTATE.
        """
        return self._ask(sql)

    # inside

    def _ask(self, sql: str) -> list[Row]:
        return self._running().ask(sql)

    def _running(self) -> PostgresNode:
        if self._storage is None:
            raise PostgresFailed("the cluster is not running")
        return self._storage

    def _add(self, zone: str, kind: NodeType, network: str) -> YugabyteNode:
        number = len(self._nodes) + 1
        host = f"{network}.{number}"
        public = {"none": "", "same": host, "own": f"{network}.{100 + number}", "only": f"{network}.{100 + number}"}
        node = YugabyteNode(f"n{number}", host, self._port, zone, kind, public[self._public], uuid.uuid4().hex)
        reached = {host, node.public_ip} - {""} - ({host} if self._public == "only" else set())
        doors = self._doors[node.name] = []
        for address in sorted(reached):
            doors.append(self._door(address, host).start())
        self._nodes[node.name] = node
        self._states[node.name] = "running"
        self._describe(node)
        return node

    def _door(self, address: str, host: str) -> FaultProxy:
        storage, version = self._running(), _VERSIONS[self._shape[0]]

        def reword() -> tuple[OwnSettings, Greeting]:
            return OwnSettings(), Greeting(version)

        return FaultProxy(storage.host, storage.port, listen=address, own_port=self._port, origin=host, reword=reword)

    def _describe(self, node: YugabyteNode) -> None:
        cloud, region, zone = node.zone.split(".")
        texts = (node.node_type, cloud, region, zone, node.public_ip, node.uuid, self.universe_uuid)
        values = f"{literal(node.name)}, {literal(node.host)}, {node.port}, {', '.join(map(literal, texts))}"
        self._ask(
            f"DELETE FROM picopyn_cluster.servers WHERE name = {literal(node.name)}; "
            f"INSERT INTO picopyn_cluster.servers VALUES ({values}, true, {literal(node.host)})"
        )

    def _list(self, names: Iterable[str], *, listed: bool) -> None:
        chosen = ", ".join(literal(self.node(name).name) for name in names)
        self._ask(f"UPDATE picopyn_cluster.servers SET listed = {listed} WHERE name IN ({chosen})")

    def _each(self, name: str, action: Any) -> None:
        for door in self._doors[name]:
            action(door)


def _address(node: YugabyteNode) -> str:
    return f"{node.host}:{node.port}"


def _network() -> str:
    """The first three numbers of addresses that no other cluster on this machine is likely to use."""
    first, second = os.urandom(2)
    return f"127.{1 + first % 254}.{second}"


def _storage(place: Workplace) -> PostgresNode:
    """A PostgreSQL that lets everybody on this machine in, whatever address he comes from."""
    rules = place.directory / "rules"
    rules.write_text("local all all trust\nhost all all 127.0.0.0/8 trust\n")
    rules.chmod(0o644)
    settings = {"hba_file": str(rules), "allow_system_table_mods": "on", "max_connections": "500"}
    node = PostgresNode("storage", place, settings)
    node.copy_template()
    node.launch()
    node.await_ready()
    return node


def _end(place: Workplace, doors: dict[str, list[FaultProxy]]) -> None:
    for each in [door for listed in doors.values() for door in listed]:
        each.close()
    doors.clear()
    place.close()
