"""A process that forks with an open pool (gunicorn with `preload`, multiprocessing), and how a process ends."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from picopyn import asynchronous
from picopyn.errors import UsageError
from picopyn.sync import Pool
from picopyn.testing import FaultProxy, PostgresServer
from tests.sync.test_fork import in_child


def every_call(pool: Pool) -> list[Callable[[], object]]:
    """Everything that needs an open pool."""
    return [
        pool.open,
        lambda: pool.execute("SELECT 1"),
        lambda: pool.fetch("SELECT 1"),
        lambda: pool.fetchrow("SELECT 1"),
        lambda: pool.fetchval("SELECT 1"),
        lambda: pool.executemany("SELECT $1::int", [(1,)]),
        lambda: pool.acquire().take(),
        lambda: pool.acquire_master().take(),
        lambda: pool.acquire_replica().take(),
        lambda: pool.transaction().__enter__(),
        lambda: pool.run_transaction(lambda _: None),
        lambda: pool.explain_route("SELECT 1"),
        lambda: pool.ready(1, 0),
        lambda: pool.wait_masters_ready(1),
        lambda: pool.update_topology_interval(2.0),
        pool.wait_ready,
        pool.refresh_topology,
        pool.expire_connections,
    ]


@pytest.mark.parametrize("pool_class", [Pool, asynchronous.Pool], ids=["sync", "asynchronous"])
def test_a_pool_cannot_be_sent_to_another_process(pool_class: Any) -> None:
    """Where a process is made anew, its arguments are pickled: a clear refusal instead of a word about locks."""
    with pytest.raises(UsageError, match="make and open one there"):
        pickle.dumps(pool_class("postgresql://u@h/"))
    with pytest.raises(UsageError, match="neither copied"):
        copy.copy(pool_class("postgresql://u@h/"))


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_after_pool(server: PostgresServer, full_size: bool) -> None:
    """Children are refused by the inherited pool and use their own; the parent's sessions are not touched."""
    with Pool(server.dsn, dialect="postgres", ssl="disable", min_size=2, max_size=2) as pool:
        held = pool.acquire().take()
        ended = threading.Event()
        wrong: list[int] = []

        def parent(mine: int) -> None:
            while not ended.is_set():
                mine += 2
                if pool.fetchval("SELECT $1::int", mine) != mine:
                    wrong.append(mine)

        def child(thorough: bool) -> None:
            for call in every_call(pool) if thorough else [lambda: pool.fetchval("SELECT 1")]:
                with pytest.raises(UsageError, match=r"make and open one in this process: `with Pool\(…\) as pool`"):
                    call()
            with pytest.raises(UsageError, match="before a fork; open a pool in this one"):
                held.fetchval("SELECT 1")
            with pytest.raises(UsageError, match="before a fork"):
                held.release()
            pool.close()
            pool.terminate()
            with Pool(server.dsn, dialect="postgres", ssl="disable", min_size=0, max_size=1) as own:
                assert own.fetchval("SELECT $1::int", os.getpid()) == os.getpid()
            if thorough:
                gc.collect()

        threads = [threading.Thread(target=parent, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1000 if full_size else 50):
            assert in_child(partial(child, number % 10 == 0)) == 0
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


DEVELOPMENT = ("-X", "dev", "-W", "always")
STRICT = ("-X", "dev", "-W", "error")


def run(text: str, *args: object, options: tuple[str, ...] = DEVELOPMENT) -> subprocess.CompletedProcess[str]:
    """A program of its own."""
    command = [sys.executable, *options, "-c", text, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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


HELD = "held = pool.acquire().take()"


@pytest.mark.parametrize(
    ("end", "options"),
    [
        ("", ()),
        (HELD, ()),
        ("raise SystemExit(3)", DEVELOPMENT),
        (HELD, DEVELOPMENT),
        ("", STRICT),
        ("del pool; gc.collect()", STRICT),
    ],
)
def test_the_end_of_the_process_with_a_pool_that_is_open(
    end: str, options: tuple[str, ...], server: PostgresServer
) -> None:
    """It ends, and says nothing; to developers, what was left open."""
    done = run(OPENED + end, server.dsn, options=options)
    assert done.returncode == (3 if "3" in end else 0)
    warnings = [line for line in done.stderr.splitlines() if "ResourceWarning: " in line]
    assert len(warnings) == (0 if not options else 2 if "held" in end else 1), done.stderr
    if options != STRICT:
        assert done.stderr.splitlines() == warnings
    assert done.stderr.count("Exception ignored in") == (len(warnings) if options == STRICT else 0), done.stderr
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
