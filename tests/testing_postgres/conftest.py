"""Clusters of one test each, rows to look for, and what a cluster could leave behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PostgresCluster


@pytest.fixture
def cluster(picopyn_postgres_cluster: Callable[..., PostgresCluster]) -> PostgresCluster:
    """A primary and two replicas, with a table `t`."""
    return with_table(picopyn_postgres_cluster())


def with_table(cluster: PostgresCluster) -> PostgresCluster:
    """Make the table `t`, everywhere."""
    cluster.execute("CREATE TABLE t (i INT)")
    cluster.wait_caught_up()
    return cluster


def insert(cluster: PostgresCluster, value: int, name: str | None = None) -> None:
    """One row, at the primary or a node."""
    cluster.execute(f"INSERT INTO t VALUES ({value})", name)


def rows(cluster: PostgresCluster, name: str) -> list[int]:
    """What a node shows."""
    return [int(value or 0) for (value,) in cluster.execute("SELECT i FROM t ORDER BY i", name)]


async def connect(cluster: PostgresCluster, name: str, **options: Any) -> Any:
    """A connection to one node, by asyncpg."""
    return await asyncpg.connect(cluster.dsn_of(name), **options)


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something another process brings about; the test's own time limit ends it."""
    while not await met():
        await asyncio.sleep(0.005)


def wait_until(met: Callable[[], bool], otherwise: str, timeout: float = 20.0) -> None:
    """The same without a loop."""
    deadline = time.monotonic() + timeout
    while not met():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)


class Place:
    """A directory for one test's clusters, and all that belongs to them on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def directories(self) -> list[str]:
        """Clusters' directories."""
        return [path.name for path in self.path.glob("pcp-*")]

    def processes(self) -> list[int]:
        """Everything that works there: servers with all their processes, and the shells beside them."""
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [int(entry.name) for entry in entries if self._works_here(entry)]

    def _works_here(self, entry: Path) -> bool:
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            return str(self.path).encode() in told or (entry / "cwd").readlink().is_relative_to(self.path)
        except OSError:
            return False

    def segments(self) -> set[int]:
        """System V shared memory of the servers that run there now."""
        files = [path.read_text().splitlines() for path in self.path.glob("pcp-*/n*/data/postmaster.pid")]
        return {int(lines[6].split()[1]) for lines in files}

    def nothing_left(self) -> bool:
        """Neither directories nor processes."""
        return not self.processes() and not self.directories()


def living_segments() -> set[int]:
    """All System V shared memory of this machine."""
    return {int(line.split()[1]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.fixture(scope="session")
def own_directory() -> Iterator[Path]:
    """A directory with a short path, because Unix sockets will lie in it, and open to the servers' user."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="tp-", dir=memory if os.access(memory, os.W_OK) else None))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def place(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where this test's clusters live, and nothing else."""
    monkeypatch.setenv("TMPDIR", str(own_directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return Place(own_directory)
