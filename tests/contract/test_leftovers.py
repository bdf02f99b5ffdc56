"""Nothing is left behind: no process, no task, no temporary directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PicodataCluster
from tests.contract.target import Target

pytestmark = pytest.mark.cluster

_START_AND_WAIT = """
import sys
from picopyn.testing import PicodataCluster
cluster = PicodataCluster(replication=1).start()
print(cluster.dsn, flush=True)
sys.stdin.read()
"""


def _marked(mark: str) -> set[int]:
    """Processes that inherited a mark in their environment (Linux)."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes() and "Z" not in _state(entry):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name (sockets will stand in it) that other users may enter (servers may run as one)."""
    place = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, place: Path) -> str:
    """A mark for every process that is started from here on, and a place of its own for their temporary files."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("processes are listed on Linux only")
    mark = f"PICOPYN_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return mark


def _cluster_directories(place: Path) -> list[Path]:
    return list(place.glob("pcc-*"))


def test_a_cluster_leaves_no_process_and_no_directory(mark: str, place: Path) -> None:
    """After the `with`, its server and its storage are gone."""
    with PicodataCluster(replication=1) as cluster:
        cluster.execute("CREATE TABLE t (id INT NOT NULL PRIMARY KEY)")
        assert _marked(mark)
        assert _cluster_directories(place)
    _wait_until(lambda: not _marked(mark), "processes are left")
    assert not _cluster_directories(place)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_a_cluster_ends_with_whoever_started_it(mark: str, end: signal.Signals) -> None:
    """However that one ends: asked to, interrupted, or killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.Popen(
        [sys.executable, "-c", _START_AND_WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    assert starter.stdin is not None
    assert starter.stdout is not None
    assert starter.stdout.readline().startswith("postgresql://"), "it did not start"
    assert len(_marked(mark)) > 1
    starter.send_signal(end)
    starter.wait(timeout=20)
    starter.stdin.close()
    starter.stdout.close()
    _wait_until(lambda: not _marked(mark), "processes are left")


async def test_a_pool_in_use_leaves_no_task(target: Target) -> None:
    """Closed at any moment of its first steps, again and again; the guard of this directory looks for complaints."""
    for turns in range(0, 60, 3):
        pool = Pool(target.dsn)
        opening = asyncio.create_task(pool.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        if opening.done():
            await pool.close()
        else:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            pool.terminate()
    async with Pool(target.dsn) as pool:
        calls = [asyncio.create_task(pool.fetchval("SELECT 1")) for _ in range(20)]
        await calls[0]
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("moment", range(0, 40, 4))
async def test_a_pool_terminated_at_any_moment_leaves_no_task(target: Target, moment: int) -> None:
    """With calls on their way, waiting, and just begun."""
    pool = await Pool(target.dsn, max_size=2).open()
    calls = [asyncio.create_task(pool.fetchval("SELECT 1")) for _ in range(20)]
    for _ in range(moment):
        await asyncio.sleep(0)
    pool.terminate()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(outcome == 1 or isinstance(outcome, Exception) for outcome in outcomes)
