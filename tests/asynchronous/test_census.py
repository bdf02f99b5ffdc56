"""What a process keeps of the clusters that it connects to without a pool."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from picopyn.asynchronous import census as census_module
from picopyn.asynchronous.census import MOST_KEPT, Census, census_of
from picopyn.routing.host_roles import Host


def hosts(number: int) -> list[Host]:
    return [Host.at(f"h{number}", 5433, f"h{number}:5433")]


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this process knows stays out of it."""
    monkeypatch.setattr(census_module, "_CENSUSES", {})


def test_clusters_that_nothing_is_open_to_are_forgotten_the_oldest_first() -> None:
    """So that a process that talks to ever new clusters does not grow; what is asked for again is new."""
    with census_of(hosts(0), "universe").pending("n1"):
        first = census_of(hosts(0))
        for number in range(1, 3 * MOST_KEPT):
            census_of(hosts(number))
            census_of(hosts(1))
        assert len(census_module._CENSUSES) == MOST_KEPT
        assert census_of(hosts(0)) is first is census_of([], "universe")
        assert set(map(id, census_module._CENSUSES.values())) >= {id(census_of(hosts(1))), id(census_of(hosts(number)))}
    for number in range(3 * MOST_KEPT, 5 * MOST_KEPT):
        census_of(hosts(number))
    assert first not in census_module._CENSUSES.values()


class Open:
    """A connection."""

    def __init__(self) -> None:
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed


def test_a_cluster_is_idle_when_nothing_is_open_nor_being_opened() -> None:
    """Whoever closed it, or forgot it; how long a node is left out is forgotten by itself."""
    census, connection = Census(), Open()
    assert census.is_idle
    with census.pending("a"):
        assert not census.is_idle
    census.opened("a", connection)
    assert not census.is_idle
    connection.closed = True
    assert census.is_idle
    census.failed("b", 10.0)
    assert (census.left_out(9.0), census.left_out(11.0), census.left_out(9.0)) == (["b"], [], [])


def test_38_counts_of_ten_threads_end_at_nothing() -> None:
    """Whatever they do at the same time."""
    census, together = Census(), threading.Barrier(10)

    def work() -> None:
        together.wait()
        for number in range(1000):
            with census.pending("a"):
                if number % 10 == 0:
                    census.opened("a", Open())
                assert census.load("a") >= 1

    with ThreadPoolExecutor(10) as pool:
        for done in [pool.submit(work) for _ in range(10)]:
            done.result()
    gc.collect()
    assert census.load("a") == 0
    assert census.is_idle
