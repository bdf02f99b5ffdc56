"""A real PostgreSQL for tests: how one server is started, used and ended.

Decides how a data directory is made (copied from a template that is initialised once per version), and that no
process and no directory outlives the one who asked. Must not know what is stored in the server.

A small shell stands between the caller and the server. It holds the read end of a pipe whose other end only
the caller has: when the caller ends, however it ends, the pipe closes, the shell stops the server and
removes its directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from picopyn.testing.postgres_binaries import (
    PostgresBinaries,
    PostgresFailed,
    environment,
    find_postgres,
    run_program,
    tail,
    template,
)
from picopyn.testing.postgres_session import accepts

_CONFIGURATION = {
    "shared_buffers": "16MB",
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "max_worker_processes": "2",
    "max_logical_replication_workers": "0",
    "logging_collector": "off",
    "max_connections": "200",
}
_WATCHDOG = """
"$@" </dev/null &
server=$!
read -r forever
kill -CONT $server 2>/dev/null
kill -QUIT $server 2>/dev/null
wait $server 2>/dev/null
rm -rf "$PICOPYN_REMOVE"
"""


def configuration(major: int) -> dict[str, str]:
    """Settings of a small server that need not survive the machine, name to value."""
    return _CONFIGURATION | ({"io_method": "sync"} if major >= 18 else {})


class PostgresServer:
    """One PostgreSQL server on a copied data directory, reachable through a Unix socket (and a loopback port
    if asked for).

    Owner of the server process and its directory: whoever calls
    [`start`][picopyn.testing.postgres.PostgresServer.start] calls `stop`; both also happen with `with`, at
    interpreter exit, and when the starting process is killed.

    Args:
        port: `None` for the Unix socket only, 0 for any free port on 127.0.0.1, else that port.
        settings: Lines for the configuration, name to value.
        binaries: Which PostgreSQL; found when left out.

    Anybody on this machine may log in through the port; the Unix socket lies in a directory of mode 0700.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        settings: dict[str, str] | None = None,
        binaries: PostgresBinaries | None = None,
    ) -> None:
        self.port = port
        self._settings = dict(settings or {})
        self._binaries = binaries
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    @property
    def socket_directory(self) -> str:
        """What to give as `host` to connect through the Unix socket.

        Raises:
            PostgresFailed: The server is not started.
        """
        if self._directory is None:
            raise PostgresFailed("the server is not started")
        return str(self._directory)

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """Arguments for `asyncpg.connect` and `psycopg.connect`: `host`, `port`, `user`, `database`-free."""
        return {"host": self.socket_directory, "port": self.port or 5432, "user": "postgres"}

    @property
    def dsn(self) -> str:
        """URI for the loopback port.

        Raises:
            PostgresFailed: The server listens on its Unix socket only.
        """
        if self._directory is None or not self.port:
            raise PostgresFailed("the server is not started with a port")
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self, timeout: float = 30.0) -> PostgresServer:
        """Copy the template, start the server and wait until it accepts connections.

        Raises:
            PostgresNotFound: There are no binaries.
            PostgresFailed: The server ended or did not answer in time; the message holds the end of its log.
        """
        binaries = self._binaries or find_postgres()
        if self.port == 0:
            self.port = _free_port()
        directory = Path(tempfile.mkdtemp(prefix="pcp-"))
        self._directory = directory
        try:
            self._launch(binaries, directory)
            self._wait(directory, time.monotonic() + timeout)
        except BaseException:
            self.stop()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return self

    def _launch(self, binaries: PostgresBinaries, directory: Path) -> None:
        identity = dict(binaries.identity)
        if identity:
            os.chown(directory, identity["user"], identity["group"])
        data = directory / "data"
        run_program(["cp", "-r", str(template(binaries)), str(data)], identity)
        command = [
            str(binaries.directory / "postgres"),
            "-D",
            str(data),
            *self._options(binaries.major, directory),
        ]
        log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "picopyn-postgres", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**environment(), "PICOPYN_REMOVE": str(directory)},
                start_new_session=True,
                user=identity.get("user"),
                group=identity.get("group"),
                extra_groups=identity.get("extra_groups"),
            )
        finally:
            os.close(log)
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)

    def _options(self, major: int, directory: Path) -> list[str]:
        lines = configuration(major) | {
            "unix_socket_directories": str(directory),
            "unix_socket_permissions": "0700" if os.geteuid() != 0 else "0777",
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or 5432),
        }
        return [f"-c{name}={value}" for name, value in (lines | self._settings).items()]

    def _wait(self, directory: Path, deadline: float) -> None:
        path = directory / f".s.PGSQL.{self.port or 5432}"
        pause = 0.002
        while True:
            if accepts(path):
                return
            if not (directory / "log").exists() or self._server_ended(directory):
                raise PostgresFailed(f"postgres ended at start: {tail(directory / 'log')}")
            if time.monotonic() > deadline:
                raise PostgresFailed(f"postgres did not answer in time: {tail(directory / 'log')}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _server_ended(self, directory: Path) -> bool:
        fatal = [line for line in tail(directory / "log").splitlines() if "FATAL" in line]
        return any("starting up" not in line for line in fatal)

    def stop(self) -> None:
        """Stop the server at once and remove its directory; does nothing when it is not started."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None
        self._directory = None

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Start a server for play and print its URI; ends with the input."""
    with PostgresServer(port=0) as server:
        print(server.dsn, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
