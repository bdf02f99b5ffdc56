"""`PostgresCluster`: a real PostgreSQL primary and its streaming replicas on this machine, as a synchronous object.

Decides who follows whom. How a node lives and dies is the node's affair, and what is stored in it nobody's here.

All nodes begin as copies of one data directory that never ran, which is as good as a backup of a stopped server: so
nothing has to be cloned at the start, and all of them start at once. Replication runs through the nodes' Unix sockets:
a port could belong to somebody else's cluster tomorrow, and clusters from one template take each other for their own.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from picopyn.testing.postgres_binaries import PostgresBinaries, PostgresFailed, find_postgres
from picopyn.testing.postgres_node import PostgresNode
from picopyn.testing.postgres_process import Workplace
from picopyn.testing.postgres_session import Row

_OLDEST = 13
_POLL = 0.005
_SETTINGS = {
    "max_worker_processes": "8",  # a replica must not have less than its data's first server had
    "full_page_writes": "on",  # SIGKILL may end a write between two halves of a page
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that SIGKILL leaves nothing in /dev/shm
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "50ms",
    "wal_sender_timeout": "10s",
    "wal_receiver_timeout": "10s",
}
_NOT_LESS_ON_REPLICAS = {
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
}
"""*Source*: PostgreSQL documentation, section "Hot Standby", "Administrator's Overview"."""


class PostgresCluster:
    """A primary and its streaming replicas. Owner: whoever starts it; ends with `with`, `shutdown`, the interpreter, or
    its starter's death. Calls must not overlap; each blocks its thread, so use `asyncio.to_thread` under a loop.

    Args:
        replicas: How many beside the primary.
        synchronous: How many of them a commit waits for; 0: none, and what the primary acknowledged last may be lost
            with it.
        settings: Lines for the configuration of every node, name to value.
        binaries: Which PostgreSQL, 13 or newer; found when left out.

    Nodes are called `n1`, `n2`, …; `n1` is the primary at first. Everybody on this machine may log in as `postgres`, a
    superuser. Linux only.

    Every call that names a node raises `PostgresFailed` when there is none of that name, and when the order makes no
    sense to it as it is (down, frozen, no replica).
    """

    def __init__(
        self,
        *,
        replicas: int = 2,
        synchronous: int = 0,
        settings: Mapping[str, str] | None = None,
        binaries: PostgresBinaries | None = None,
    ) -> None:
        if replicas < 0 or not 0 <= synchronous <= replicas:
            raise ValueError(f"replicas must be at least 0, and synchronous from 0 to {replicas}")
        self._names = [f"n{number}" for number in range(1, replicas + 2)]
        self._settings = _SETTINGS | dict(settings or {})
        if synchronous:
            self._settings["synchronous_standby_names"] = f"ANY {synchronous} ({', '.join(self._names)})"
        self._clone_at_start = bool(_NOT_LESS_ON_REPLICAS & set(settings or {}))
        self._binaries = binaries
        self._nodes: dict[str, PostgresNode] = {}
        self._primary = self._names[0]
        self._finalizer: weakref.finalize[..., Any] | None = None

    # life

    def start(self) -> PostgresCluster:
        """Start all nodes; returns when every replica streams from the primary.

        Raises:
            PostgresNotFound: There are no binaries.
            PostgresFailed: They are too old, or a node did not start; the message holds the end of its log.
        """
        if self._nodes:
            return self
        binaries = self._binaries or find_postgres()
        if binaries.major < _OLDEST:
            raise PostgresFailed(f"PostgreSQL {_OLDEST} or newer is needed, found {binaries.version}")
        place = Workplace(binaries)
        self._finalizer = weakref.finalize(self, place.close)
        self._primary = self._names[0]
        try:
            self._nodes = {name: PostgresNode(name, place, self._settings) for name in self._names}
            self._start_all()
        except BaseException:
            self.shutdown()
            raise
        return self

    def _start_all(self) -> None:
        primary, *replicas = self._nodes.values()
        primary.copy_template()
        primary.launch()
        for node in replicas:
            if self._clone_at_start:
                primary.await_ready()
                node.clone(primary)
            else:
                node.copy_template()
            node.become_replica()
            node.configure(primary_conninfo=_conninfo(node, primary))
            node.launch()
        for node in self._nodes.values():
            node.await_ready()
        for node in replicas:
            self._await_streaming(node)

    def shutdown(self) -> None:
        """End all nodes at once and remove what they stored; does nothing when the cluster is not running."""
        if self._finalizer is not None:
            self._finalizer()
        self._nodes = {}

    def __enter__(self) -> PostgresCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # addresses

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(self._names)

    @property
    def primary(self) -> str:
        """Name of the node the replicas follow: the first one, then the one promoted last. It may be down."""
        return self._primary

    @property
    def dsn(self) -> str:
        """URI with every node."""
        return self.dsn_of(*self._names)

    def dsn_of(self, *names: str) -> str:
        """URI with the named nodes, in that order."""
        hosts = ",".join("{}:{}".format(*self.address_of(name)) for name in names)
        return f"postgresql://postgres@{hosts}/postgres"

    def address_of(self, name: str) -> tuple[str, int]:
        """Host and port of a node; they stay its own while it is down."""
        node = self._node(name)
        return node.host, node.port

    def states(self) -> dict[str, str]:
        """By node: `"primary"`, `"replica"`, `"frozen"` or `"down"`; there may be several primaries, or none."""
        return {name: self._state(node) for name, node in self._nodes.items()}

    @staticmethod
    def _state(node: PostgresNode) -> str:
        if node.state != "running":
            return node.state
        try:
            return "replica" if node.ask("SELECT pg_is_in_recovery()") == [("t",)] else "primary"
        except OSError:  # it ended meanwhile, and not by an order of ours
            return "down"

    # faults

    def kill(self, name: str) -> None:
        """End all processes of a node with SIGKILL: its connections are reset, its address refuses."""
        self._node(name).running(frozen=True).kill()

    def stop(self, name: str, *, timeout: float = 30.0) -> None:
        """End a node in an orderly way: clients are told (57P01), a primary's replicas get everything.

        Raises:
            PostgresFailed: It has not ended within `timeout` seconds.
        """
        self._node(name).running().stop(timeout)

    def restart(self, name: str) -> None:
        """Start a node that is down, on its old address and data; returns when it accepts connections.

        A replica follows the present primary. An old primary is a primary again, beside the new one if there is one:
        see `rejoin`.
        """
        node = self._node(name)
        if node.state != "down":
            raise PostgresFailed(f"{name} is not down")
        node.launch()
        node.await_ready()

    def freeze(self, name: str) -> None:
        """Stop all processes of a node with SIGSTOP: it accepts connections and says nothing."""
        self._node(name).running().freeze()

    def thaw(self, name: str) -> None:
        """Let a frozen node go on."""
        run = self._node(name).running(frozen=True)
        if not run.frozen:
            raise PostgresFailed(f"{name} is not frozen")
        run.thaw()

    def read_only(self, name: str, on: bool) -> None:
        """Let transactions of a node be read-only by default (`default_transaction_read_only`), or no longer.

        Holds for every transaction that begins after this call, in open sessions too.
        """
        self._node(name).configure(default_transaction_read_only="on" if on else "off")

    # roles

    def promote(self, name: str | None = None) -> str:
        """Make a replica a primary, without stopping the old one; returns when it is one and the others follow it.

        Running replicas that already have what it has not are cloned from it. One that is frozen, paused or delayed is
        told and not waited for; should it have more than the new primary, it needs `rejoin`.

        Args:
            name: Which; None: the running replica that has received most.

        Returns:
            Its name.
        """
        node = self._replica(name) if name is not None else self._freshest()
        node.running()
        others = [other for other in self._nodes.values() if other is not node and other.is_replica]
        for other in others:
            other.configure(primary_conninfo=_conninfo(other, node))
        followers = [other for other in others if other.state == "running" and self._replays(other)]
        elsewhere = f"SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE sender_host <> '{node.directory}')"
        for follower in followers:  # now, or a living old primary would give it what the new one will never have
            self._await(follower, elsewhere, 10.0, "SELECT 'does not leave the old primary'")
        node.ask("SELECT pg_promote(false)")
        self._await(node, "SELECT NOT pg_is_in_recovery()", 30.0, "SELECT 'does not become primary'")
        self._primary = node.name
        for follower in followers:
            if self._has_left(follower, node):
                self.rejoin(follower.name)
        return node.name

    def rejoin(self, name: str) -> None:
        """Let a node follow the present primary, whatever it was before; returns when it streams.

        It is stopped if it runs, loses its data, and is cloned from the primary.
        """
        node, primary = self._node(name), self._node(self._primary)
        if node is primary:
            raise PostgresFailed(f"{name} is the primary")
        primary.running()
        if node.state == "running":
            self.stop(name)
        elif node.state == "frozen":
            self.kill(name)
        node.clone(primary)
        node.become_replica()
        node.configure(primary_conninfo=_conninfo(node, primary))
        node.launch()
        node.await_ready()
        self._await_streaming(node)

    # lag

    def pause_replay(self, name: str) -> None:
        """Let a replica receive and not replay: reads there see nothing new. Ends with `resume_replay`, with its
        promotion, and when it stops.
        """
        node = self._replica(name)
        node.ask("SELECT pg_wal_replay_pause()")
        paused = "pg_get_wal_replay_pause_state() = 'paused'" if self._major >= 14 else "pg_is_wal_replay_paused()"
        delayed = "current_setting('recovery_min_apply_delay') <> '0'"
        self._await(node, f"SELECT {paused} OR {delayed}", 10.0, "SELECT 'does not pause'")

    def resume_replay(self, name: str) -> None:
        """Let a paused replica go on; `wait_caught_up` waits until it is up to date."""
        self._replica(name).ask("SELECT pg_wal_replay_resume()")

    def delay_replay(self, name: str, seconds: float) -> None:
        """Let a replica show every commit so much later than it was made, up to milliseconds exactly; 0: no more."""
        self._replica(name).configure(recovery_min_apply_delay=f"{round(seconds * 1000)}ms")

    def wait_caught_up(self, *names: str, timeout: float = 10.0) -> None:
        """Return when replicas, the named ones or all that run, show everything the primary has committed by now.

        Raises:
            PostgresFailed: One does not within `timeout` seconds; the message says how far it is behind.
        """
        [(end,)] = self._node(self._primary).ask("SELECT pg_current_wal_flush_lsn()")
        behind = f"pg_wal_lsn_diff('{end}', pg_last_wal_replay_lsn())"
        for name in names or [name for name in self._names if self._follows(name)]:
            node = self._replica(name)
            self._await(node, f"SELECT {behind} <= 0", timeout, f"SELECT 'is ' || {behind} || ' bytes behind'")

    # SQL

    def execute(self, sql: str, name: str | None = None) -> list[Row]:
        """Run a text at a node, or at the primary; gives the rows, every value as text.

        Raises:
            PostgresFailed: The server refused it; the message begins with the SQLSTATE.
        """
        return self._node(name or self._primary).ask(sql)

    # inside

    @property
    def _major(self) -> int:
        return next(iter(self._nodes.values())).major

    def _node(self, name: str) -> PostgresNode:
        if not self._nodes:
            raise PostgresFailed("the cluster is not running")
        if name not in self._nodes:
            raise PostgresFailed(f"there is no node {name!r}; there are {', '.join(self._names)}")
        return self._nodes[name]

    def _replica(self, name: str) -> PostgresNode:
        node = self._node(name)
        if not node.is_replica:
            raise PostgresFailed(f"{name} is no replica")
        return node

    def _follows(self, name: str) -> bool:
        node = self._node(name)
        return node.is_replica and node.state == "running"

    def _freshest(self) -> PostgresNode:
        received = "SELECT pg_wal_lsn_diff(greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()), '0/0')"
        running = [self._nodes[name] for name in self._names if self._follows(name)]
        if not running:
            raise PostgresFailed("there is no running replica")
        return max(running, key=lambda node: int(node.ask(received)[0][0] or 0))

    @staticmethod
    def _replays(node: PostgresNode) -> bool:
        held = "SELECT pg_is_wal_replay_paused() OR current_setting('recovery_min_apply_delay') <> '0'"
        return node.ask(held) == [("f",)]

    @staticmethod
    def _has_left(node: PostgresNode, primary: PostgresNode) -> bool:
        """Whether a replica replayed what the new primary never had; waits until it follows if not."""
        timeline, fork = primary.timeline()
        follows = _streams_from(primary, timeline)
        deadline = time.monotonic() + 10.0
        with node.session() as session:
            while time.monotonic() < deadline:
                [(streams, left)] = session.rows(f"SELECT {follows}, pg_last_wal_replay_lsn() > '{fork}'")
                if "t" in (streams, left):
                    return streams == "f"
                time.sleep(_POLL)
        return True

    def _await_streaming(self, node: PostgresNode) -> None:
        primary = self._nodes[self._primary]
        streams = _streams_from(primary, primary.timeline()[0])
        self._await(node, f"SELECT {streams}", 30.0, f"SELECT 'does not stream from {primary.name}'")

    @staticmethod
    def _await(node: PostgresNode, condition: str, timeout: float, complaint: str) -> None:
        """Ask until it is true; the complaint is a query for what the node fails to do."""
        deadline = time.monotonic() + timeout
        with node.session() as session:
            while session.rows(condition) != [("t",)]:
                if time.monotonic() > deadline:
                    raise PostgresFailed(f"{node.name} {session.rows(complaint)[0][0]} after {timeout:g} s")
                time.sleep(_POLL)


def _conninfo(node: PostgresNode, primary: PostgresNode) -> str:
    """What a replica is told about whom to follow. *Source*: PostgreSQL documentation, `primary_conninfo`."""
    return f"host='{primary.directory}' port={primary.port} user=postgres application_name={node.name}"


def _streams_from(primary: PostgresNode, timeline: int) -> str:
    return (
        "EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming' "
        f"AND sender_host = '{primary.directory}' AND received_tli >= {timeline})"
    )
