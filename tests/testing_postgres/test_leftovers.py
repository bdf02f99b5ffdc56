"""A PostgreSQL cluster leaves nothing behind, however it or its starter ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from picopyn.testing import PostgresCluster
from tests.testing_postgres.conftest import Place, living_segments, wait_until

_START = """
import sys
from picopyn.testing import PostgresCluster
cluster = PostgresCluster().start()
{then}
print("started", flush=True)
sys.stdin.read()
"""


@contextmanager
def starter(then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that starts a cluster and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", _START.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_a_cluster_that_is_shut_down_leaves_nothing(
    place: Place, frozen: bool, measured: Callable[[str, object], None]
) -> None:
    """Neither directory nor process nor shared memory; a second time does nothing."""
    cluster = PostgresCluster().start()
    segments = place.segments()
    assert len(segments) == 3
    assert place.directories()
    if frozen:
        cluster.freeze("n1")
        cluster.freeze("n2")
    began = time.monotonic()
    cluster.shutdown()
    measured("shut-down (s)", time.monotonic() - began)
    wait_until(place.nothing_left, "something is left")
    assert not segments & living_segments()
    cluster.shutdown()


def test_a_cluster_starts_again_after_it_was_shut_down(place: Place) -> None:
    """Empty, with `n1` as its primary."""
    cluster = PostgresCluster(replicas=1).start()
    cluster.execute("CREATE TABLE t (i INT)")
    cluster.promote("n2")
    cluster.shutdown()
    with cluster.start():
        assert cluster.states() == {"n1": "primary", "n2": "replica"}
        assert cluster.execute("SELECT to_regclass('t')") == [(None,)]
    wait_until(place.nothing_left, "something is left")


def test_a_cluster_that_fails_to_start_leaves_nothing(place: Place) -> None:
    """The error says what was wrong."""
    with pytest.raises(RuntimeError, match="no_such_setting"):
        PostgresCluster(settings={"no_such_setting": "1"}).start()
    wait_until(place.nothing_left, "something is left")


def test_a_cluster_that_nobody_holds_any_more_ends(place: Place) -> None:
    """Without a word to it."""
    cluster = PostgresCluster(replicas=0).start()
    assert place.processes()
    del cluster
    wait_until(place.nothing_left, "something is left")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "then", ["", "cluster.freeze('n1'); cluster.freeze('n2'); cluster.kill('n3')"], ids=["running", "frozen"]
)
def test_a_cluster_ends_with_its_starter(place: Place, end: signal.Signals, then: str) -> None:
    """However that one ends, and whatever it did to the nodes before."""
    with starter(then) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        segments = place.segments()
        assert segments <= living_segments()
        process.send_signal(end)
        process.wait(timeout=20)
        wait_until(place.nothing_left, "something is left")
    assert not segments & living_segments()


@pytest.mark.parametrize(
    "sign", ["pcp-*", "pcp-*/n1/data", "pcp-*/n1/data/postmaster.pid", "pcp-*/n2/data/base", "pcp-*/n3/.s.PGSQL.*"]
)
def test_a_starter_that_is_killed_half_way_leaves_nothing(place: Place, sign: str) -> None:
    """At any moment of the start, also while data are being copied."""
    with PostgresCluster(replicas=0):  # so that the template is there, and the only directory is the starter's
        pass
    before = living_segments()
    with starter() as process:
        wait_until(lambda: any(place.path.glob(sign)), f"no {sign}")
        process.kill()
        wait_until(place.nothing_left, "something is left")
    ours = {number for number in living_segments() - before if _belongs_to_nobody(number)}
    assert not ours


def _belongs_to_nobody(segment: int) -> bool:
    """Whether no process is attached: other tests' servers come and go on this machine."""
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1]) == segment:
            return fields[6] == "0"
    return False
