"""Ctrl-C during a load of many rows, in the thread that called: nothing is kept, and the pool goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from picopyn import sync
from picopyn.testing import PicodataCluster


def interrupted_rows(count: int) -> Iterator[tuple[int, str]]:
    """Rows, and an interruption where they are made."""
    yield from ((number, "x") for number in range(count))
    raise KeyboardInterrupt


def interrupt(_: object) -> None:
    """An interruption where progress is told."""
    raise KeyboardInterrupt


@pytest.mark.cluster
def test_an_interrupted_load_keeps_no_connection(picopyn_cluster: PicodataCluster) -> None:
    """Whether it comes where rows are made, or while other threads are sending."""
    picopyn_cluster.execute("CREATE TABLE interrupted (id INT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)")
    text = "INSERT INTO interrupted VALUES ($1, $2) ON CONFLICT DO NOTHING"
    try:
        with sync.Pool(picopyn_cluster.dsn, acquire_timeout=30) as pool:
            with pytest.raises(KeyboardInterrupt):
                pool.executemany(text, interrupted_rows(500), chunk_size=50)
            with pytest.raises(KeyboardInterrupt):
                pool.executemany(text, ((n, "x") for n in range(5000)), chunk_size=50, progress=interrupt)
            deadline = time.monotonic() + 30
            while any(node.in_use for node in pool.stats().nodes.values()):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            pool.executemany(text, ((number, "x") for number in range(600)))
            assert pool.fetchval("SELECT count(*) FROM interrupted WHERE id < 600") == 600
            assert len(pool.fetch_by_keys("SELECT id FROM interrupted WHERE id IN ($1)", range(600))) == 600
    finally:
        picopyn_cluster.execute("DROP TABLE interrupted")
