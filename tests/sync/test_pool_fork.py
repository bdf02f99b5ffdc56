"""A process that forks with an open pool (gunicorn with `preload`, multiprocessing), and how a process ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from picopyn.errors import UsageError
from picopyn.sync import Pool
from picopyn.testing import FaultProxy, PostgresServer
from tests.sync.test_fork import in_child


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_after_pool(server: PostgresServer, full_size: bool) -> None:
    """Children are refused by the inherited pool and use their own; the parent's sessions are not touched."""
    with Pool(server.dsn, dialect="postgres", ssl="disable", min_size=2, max_size=2) as pool:
        held = pool.acquire().take()
        ended = threading.Event()
        wrong: list[int] = []

        def parent(number: int) -> None:
            while not ended.is_set():
                number += 2
                if pool.fetchval("SELECT $1::int", number) != number:
                    wrong.append(number)

        def child() -> None:
            with pytest.raises(UsageError, match="make and open one in this process"):
                pool.fetchval("SELECT 1")
            with pytest.raises(UsageError, match="make and open one in this process"):
                pool.acquire().take()
            with pytest.raises(UsageError, match="before a fork; open a pool in this one"):
                held.fetchval("SELECT 1")
            with pytest.raises(UsageError, match="before a fork"):
                held.release()
            pool.close()
            pool.terminate()
            with Pool(server.dsn, dialect="postgres", ssl="disable", min_size=0, max_size=1) as own:
                assert own.fetchval("SELECT $1::int", os.getpid()) == os.getpid()
            gc.collect()

        threads = [threading.Thread(target=parent, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(1000 if full_size else 50):
            assert in_child(child) == 0
        ended.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert held.fetchval("SELECT 5") == 5
        held.release()
        assert pool.stats().closes.get("broken", 0) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_forgets_what_it_inherited(server: PostgresServer) -> None:
    """Collecting the pool and a held connection there says nothing, to nobody."""
    kept = [Pool(server.dsn, dialect="postgres", ssl="disable").open()]
    held = [kept[0].acquire().take()]
    pid = held[0].get_server_pid()

    def child() -> None:
        held.clear()
        kept.clear()
        gc.collect()

    assert in_child(child) == 0
    assert held[0].fetchval("SELECT pg_backend_pid()") == pid
    held[0].release()
    kept[0].close()


def run(text: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A program of its own, with every warning shown."""
    command = [sys.executable, "-W", "always", "-c", text, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


OPENED = """
import gc, sys
from picopyn.sync import Pool
pool = Pool(sys.argv[1], dialect="postgres", ssl="disable", min_size=2).open()
assert pool.fetchval("SELECT 1") == 1
"""


def test_a_forgotten_pool_says_so_once(server: PostgresServer) -> None:
    """One warning, no threads, no other word."""
    ending = """
import threading
del pool
gc.collect()
for thread in threading.enumerate():
    if thread.name.startswith("picopyn"):
        thread.join(10)
        assert not thread.is_alive(), thread
gc.collect()
"""
    done = run(OPENED + ending, server.dsn)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning") == 1, done.stderr
    assert "was never closed: use `with`, or `pool.close()`" in done.stderr


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "held = pool.acquire().take()"])
def test_the_end_of_the_process_with_a_pool_that_is_open(end: str, server: PostgresServer) -> None:
    """It ends, and says nothing but that."""
    done = run(OPENED + end, server.dsn)
    assert done.returncode == (3 if "3" in end else 0)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Fatal" not in done.stderr, done.stderr


def test_the_end_of_the_process_does_not_wait_for_a_frozen_server(
    server: PostgresServer, proxy: Callable[..., FaultProxy]
) -> None:
    """Threads that hang with it hold up nobody."""
    front = proxy()
    frozen = """
print("open", flush=True)
import threading
sys.stdin.readline()
for _ in range(4):
    threading.Thread(target=lambda: pool.fetchval("SELECT 1"), daemon=True).start()
sys.stdin.readline()
"""
    dsn = f"postgresql://postgres@127.0.0.1:{front.port}/postgres"
    with subprocess.Popen(
        [sys.executable, "-c", OPENED + frozen, dsn],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        front.freeze()
        _, told = program.communicate("go\nend\n", timeout=30)
    assert program.returncode == 0
    assert "Traceback" not in told, told
    assert "Fatal" not in told, told
