"""A real gunicorn that preloads: the pool of its master is open when it forks, and each worker has one of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from picopyn.sync import Connection
from picopyn.testing import PostgresServer
from tests.sync.conftest import until

ROOT = Path(__file__).parents[2]

APPLICATION = """
import json
import os
import threading

from picopyn.errors import UsageError
from picopyn.sync import Pool


def opened(name):
    return Pool(os.environ["DSN"], dialect="postgres", ssl="disable", application_name=name, min_size=2).open()


inherited = opened("master")
assert inherited.fetchval("SELECT 1") == 1
held = inherited.acquire().take()
own, guard = [], threading.Lock()


def application(environ, start_response):
    with guard:
        if not own:
            own.append(opened("worker"))
    number = int(environ["PATH_INFO"][1:])
    told = []
    for call in (lambda: inherited.fetchval("SELECT 1"), lambda: held.fetchval("SELECT 1")):
        try:
            told.append(call())
        except UsageError as error:
            told.append(str(error))
    answer = {"worker": os.getpid(), "told": told, "answer": own[0].fetchval("SELECT $1::int", number)}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
"""

CONFIGURATION = """
import os

bind, workers, threads, preload_app, worker_class = "127.0.0.1:0", 2, 4, True, "gthread"
worker_tmp_dir, control_socket_disable = os.environ["PLACE"], True


def worker_exit(server, worker):
    import service
    for pool in service.own:
        pool.close()
"""


class Gunicorn:
    """A master and its workers. Owned by a test."""

    def __init__(self, place: Path, server: PostgresServer) -> None:
        (place / "service.py").write_text(APPLICATION)
        (place / "gunicorn.conf.py").write_text(CONFIGURATION)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-m", "gunicorn", "service:application"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": path, "DSN": server.dsn, "PLACE": str(place)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"Listening at: (http://\S+)", line)
            if found:
                self.address = found[1]
                break
        else:
            pytest.fail("".join(self.said))

    def get(self, number: int) -> Any:
        """One request."""
        with urllib.request.urlopen(f"{self.address}/{number}", timeout=60) as answer:
            return json.load(answer)

    def many(self, first: int) -> set[int]:
        """Many at the same time, each with its own answer; who answered."""
        numbers = range(first, first + 100)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(self.get, numbers))
        assert [answer["answer"] for answer in answers] == list(numbers)
        for answer in answers:
            pool, connection = answer["told"]
            assert "before a fork; make and open one in this process: `with Pool(…) as pool`" in pool
            assert connection.endswith("before a fork; open a pool in this one")
        return {answer["worker"] for answer in answers}

    def stop(self) -> str:
        """Let it end by itself; what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=60)
        return "".join(self.said) + rest


@pytest.fixture
def gunicorn(server: PostgresServer, tmp_path: Path) -> Iterator[Gunicorn]:
    """One that serves requests."""
    pytest.importorskip("gunicorn")
    running = Gunicorn(tmp_path, server)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def test_a_pool_that_was_open_before_the_fork(gunicorn: Gunicorn, admin: Connection) -> None:
    """Workers are told to open their own, and use it; one that ends, and a new one, leave the master's sessions be."""
    sessions = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE application_name = $1"
    of_master = admin.fetchval(sessions, "master")
    assert len(of_master) >= 2
    first: set[int] = set()
    until(lambda: len(first.update(gunicorn.many(0)) or first) == 2)
    os.kill(min(first), signal.SIGTERM)
    until(lambda: gunicorn.many(1000) - first)
    assert set(of_master) <= set(admin.fetchval(sessions, "master"))
    said = gunicorn.stop()
    assert gunicorn.process.returncode == 0, said
    assert "Traceback" not in said, said
    assert "Fatal" not in said, said
    until(lambda: admin.fetchval(sessions, "master") is None and admin.fetchval(sessions, "worker") is None)
