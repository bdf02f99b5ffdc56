"""One node of a `PostgresCluster`: a server that can be stopped, killed and started again on the same port.

Decides where its files are, how its configuration gets into force, and when it counts as running. Must not know other
nodes, nor who leads.

The configuration is a file beside the data directory, so that a clone of another node's data brings none of it. While
the node is down its port stays taken by a socket that does not listen: connecting is refused, and nobody else on this
machine gets the port.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Literal

from picopyn.testing.postgres import configuration
from picopyn.testing.postgres_binaries import PostgresFailed, tail, template
from picopyn.testing.postgres_process import ServerRun, Workplace
from picopyn.testing.postgres_session import Row, Session

State = Literal["running", "frozen", "down"]

_POLL = 0.005
_GENERATION = "picopyn.generation"
_TIMEOUT = 30.0


class PostgresNode:
    """A server with a name and a port. Owner: its cluster.

    Args:
        name: Of the node, also its directory's and what replicas call themselves.
        place: Where it lives.
        settings: Lines for the configuration, name to value.
    """

    def __init__(self, name: str, place: Workplace, settings: dict[str, str]) -> None:
        self.name = name
        self.directory = place.make_directory(name)
        self.host = "127.0.0.1"
        self.port = _take_port(place)
        self._place = place
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self._run: ServerRun | None = None
        self._generation = 0
        self._settings = configuration(place.binaries.major) | {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "unix_socket_permissions": "0777" if place.binaries.identity else "0700",
        }
        self._settings |= settings

    @property
    def major(self) -> int:
        """First number of its PostgreSQL's version."""
        return self._place.binaries.major

    @property
    def state(self) -> State:
        """What its processes do."""
        if self._run is None or self._run.ended:
            return "down"
        return "frozen" if self._run.frozen else "running"

    # data

    def copy_template(self) -> None:
        """Take the data of a server that never ran; all nodes that do belong together."""
        self._place.run("cp", "-r", str(template(self._place.binaries)), str(self._data))

    def clone(self, source: PostgresNode) -> None:
        """Throw our data away and take those of a running node, with what it writes meanwhile.

        Raises:
            PostgresFailed: The copy failed; the message says why.
        """
        if self._run is not None:
            self._run.await_end(timeout=0)  # whoever ended it: nothing of it may be left
        self._place.run("rm", "-rf", str(self._data))
        self._place.run(
            str(self._place.binaries.directory / "pg_basebackup"),
            f"--pgdata={self._data}",
            f"--host={source.directory}",
            f"--port={source.port}",
            "--username=postgres",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
            "--no-manifest",
        )

    def become_replica(self) -> None:
        """From its next start on, it follows somebody."""
        self._place.run("touch", str(self._data / "standby.signal"))

    @property
    def is_replica(self) -> bool:
        """Whether its data are those of a replica."""
        return (self._data / "standby.signal").exists()

    def timeline(self) -> tuple[int, str]:
        """Newest timeline in its data, and the position at which that left the one before (`"0/0"` for the first).

        *Source*: PostgreSQL documentation, section "Timelines"; one line for every ancestor, separated by tabs.
        """
        histories = sorted((self._data / "pg_wal").glob("*.history"))
        if not histories:
            return 1, "0/0"
        ancestors = histories[-1].read_text().split("\n")
        return int(histories[-1].stem, 16), [line for line in ancestors if line][-1].split("\t")[1]

    # life

    def launch(self) -> None:
        """Start it; returns before it answers."""
        self._write_configuration()
        options = ["-c", f"config_file={self.directory / 'node.conf'}"]
        self._run = self._place.launch(self._data, self._log, options)

    def await_ready(self, timeout: float = _TIMEOUT) -> None:
        """Wait until it lets somebody in.

        Raises:
            PostgresFailed: It ended, or did not answer in time; the message holds the end of its log.
        """
        deadline = time.monotonic() + timeout
        while self._run is None or not self._run.ready:
            if self.state == "down":
                raise PostgresFailed(f"{self.name} ended at start: {tail(self._log)}")
            if time.monotonic() > deadline:
                raise PostgresFailed(f"{self.name} did not answer in time: {tail(self._log)}")
            time.sleep(_POLL)

    def running(self, *, frozen: bool = False) -> ServerRun:
        """Its present run.

        Args:
            frozen: Whether a frozen one will do.

        Raises:
            PostgresFailed: It is down, or frozen where that will not do.
        """
        if self._run is None or self.state == "down":
            raise PostgresFailed(f"{self.name} is down")
        if self._run.frozen and not frozen:
            raise PostgresFailed(f"{self.name} is frozen")
        return self._run

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart; returns when they hold for every statement that begins now.

        A node that is down or frozen takes them up when it runs again.

        Raises:
            PostgresFailed: They are not in force in time.
        """
        self._settings |= settings
        self._write_configuration()
        if self.state == "down":
            return
        self.running(frozen=True).reload()
        if self.state == "running":
            self._await_generation(time.monotonic() + _TIMEOUT)

    def session(self) -> Session:
        """A session as the superuser.

        Raises:
            OSError: It broke meanwhile.
            PostgresFailed: The node is down or frozen, or lets nobody in.
        """
        self.running()
        return Session(self._socket_path)

    def ask(self, sql: str) -> list[Row]:
        """Rows of a text, in a session of its own."""
        with self.session() as session:
            return session.rows(sql)

    @property
    def _socket_path(self) -> Path:
        return self.directory / f".s.PGSQL.{self.port}"

    def _write_configuration(self) -> None:
        """In one step, since a server may be reading; the generation tells who has read it."""
        self._generation += 1
        lines = self._settings | {_GENERATION: str(self._generation)}
        new = self.directory / "node.conf.new"
        new.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in lines.items()))
        new.chmod(0o644)
        new.rename(self.directory / "node.conf")

    def _await_generation(self, deadline: float) -> None:
        """The first process reads, tells its children, then lets new ones in: a new session that knows it is proof."""
        while self._known_generation() < self._generation:
            if time.monotonic() > deadline:
                raise PostgresFailed(f"{self.name} did not take up its configuration: {tail(self._log)}")
            time.sleep(_POLL)

    def _known_generation(self) -> int:
        try:
            return int(self.ask(f"SHOW {_GENERATION}")[0][0] or 0)
        except OSError:
            return 0


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _take_port(place: Workplace) -> int:
    """A free port that stays ours: PostgreSQL may bind it beside our socket, others may not."""
    holder = socket.socket()
    place.keep(holder)
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(holder.getsockname()[1])
