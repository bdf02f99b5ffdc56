"""Ctrl-C during a load of many rows, in the thread that called: it tells what became of them, and the pool goes on."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from picopyn import sync
from picopyn.bulk_report import BulkReport, RowState
from picopyn.sync.workers import Workers
from picopyn.testing import PicodataCluster
from tests.sync.conftest import until
from tests.sync.finger import Finger

#: Rows under way when their connection is dropped may still be executed after somebody has looked.
INSERT = "INSERT INTO interrupted VALUES ($1, $2) ON CONFLICT DO NOTHING"
COUNT = 60
#: Where the finger presses: whatever of a load runs in the calling thread.
ROOMS = ("picopyn/sync/", "picopyn/engine/", "picopyn/routing/slots")


@pytest.fixture
def pool(picopyn_cluster: PicodataCluster) -> Iterator[sync.Pool]:
    """A pool, and a table for it."""
    picopyn_cluster.execute("CREATE TABLE interrupted (id INT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)")
    try:
        with sync.Pool(picopyn_cluster.dsn, acquire_timeout=30) as pool:
            yield pool
    finally:
        picopyn_cluster.execute("DROP TABLE interrupted")


def rows(keys: range) -> list[tuple[int, str]]:
    """The rows of a load."""
    return [(key, "x") for key in keys]


def present(pool: sync.Pool, keys: range) -> set[int]:
    """Which of these are there, once nothing is under way any more on this side."""
    gc.collect()
    until(lambda: not any(node.in_use for node in pool.stats().nodes.values()))
    return {row["id"] for row in pool.fetch("SELECT id FROM interrupted WHERE id >= $1", keys.start)}


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was made, and then not begun
def test_at_any_moment_the_report_is_exact(
    pool: sync.Pool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """What it says is acknowledged is there, and a load that goes on from it leaves every row once."""
    pool.executemany(INSERT, rows(range(COUNT)), chunk_size=10)
    moment, reported, unknown, first = 5, 0, 0, 0
    while True:
        first += COUNT
        keys = range(first, first + COUNT)  # others each time: the server may still execute some of those before
        try:
            with Finger(moment, ROOMS, ("__del__", "forfeit")):
                pool.executemany(INSERT, rows(keys), chunk_size=10)
            break
        except KeyboardInterrupt as error:
            report = BulkReport.of(error)
        there = {key - first for key in present(pool, keys)}
        if report is None:  # before its first row was taken, or after its last one was acknowledged
            assert len(there) in (0, COUNT), moment
            report = BulkReport(INSERT, len(there))
        else:
            reported += 1
        left = report.positions(RowState.UNKNOWN)
        unknown += bool(left)
        for position in range(COUNT):
            exact = report.is_acknowledged(position) == (position in there)
            assert exact or position in left, (moment, report)
        pool.executemany(INSERT, rows(keys), chunk_size=10, resume=report.settled(there.intersection(left)))
        assert present(pool, keys) == set(keys), moment
        moment += 3 if full_size else 97
    assert reported >= 3
    measured("moments, reports, of which with unknown rows", (moment, reported, unknown))


@pytest.mark.cluster
@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_load_keeps_no_connection(raised: type[BaseException], pool: sync.Pool) -> None:
    """Nor does it keep a fetch by keys from going on. What a signal's handler raises is no failure of the load's."""

    def handle(*_: object) -> None:
        raise raised

    former = signal.signal(signal.SIGUSR1, handle)
    with pytest.raises(raised) as told:
        pool.executemany(
            INSERT,
            ((number, "x") for number in range(5000)),
            chunk_size=50,
            progress=lambda _: signal.raise_signal(signal.SIGUSR1),
        )
    signal.signal(signal.SIGUSR1, former)
    assert BulkReport.of(told.value) is not None
    there = present(pool, range(5000))
    assert there
    assert len(pool.fetch_by_keys("SELECT id FROM interrupted WHERE id IN ($1)", there)) == len(there)


def test_an_interruption_while_work_is_handed_over_costs_no_thread() -> None:
    """A thread that was promised work it never got would wait for it, and not end with its pool."""
    loop = asyncio.new_event_loop()
    moment, pressed = 1, True
    while pressed:
        workers = Workers("interrupted worker", loop)
        workers.step(lambda: None)
        until(lambda workers=workers: workers._free == 1)
        try:
            with Finger(moment, ("picopyn/sync/workers",)) as finger:
                workers.step(lambda: None)
        except KeyboardInterrupt:
            moment += 1
        pressed = finger.left <= 0
        workers.end()
    assert moment > 3
    loop.close()
    until(lambda: not any(thread.name.startswith("interrupted worker") for thread in threading.enumerate()))
