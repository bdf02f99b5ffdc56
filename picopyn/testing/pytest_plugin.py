"""Fixtures for pytest: embedded clusters by shape.

Decides how long a cluster lives. Under pytest-xdist every worker has clusters of its own (half a second
each).

A test that leaves a cluster as it found it shares one (`picopyn_cluster`, `picopyn_cluster_factory`); a test
that kills, freezes, moves or expels takes a fresh one (`picopyn_fresh_cluster`). What is done to a PostgreSQL
cluster changes it for good, so each of those serves one test (`picopyn_postgres_cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from picopyn.testing.picodata.picodata_cluster import PicodataCluster
    from picopyn.testing.postgres_cluster import PostgresCluster
    from picopyn.testing.yugabyte.yugabyte_cluster import YugabyteCluster

    Factory = Callable[..., PicodataCluster]
    PostgresFactory = Callable[..., PostgresCluster]
    YugabyteFactory = Callable[..., YugabyteCluster]


@pytest.fixture(scope="session")
def picopyn_cluster_factory() -> Iterator[Factory]:
    """A function from `PicodataCluster` settings to a running cluster, one for each set of settings."""
    from picopyn.testing.picodata.picodata_cluster import PicodataCluster

    running: dict[str, PicodataCluster] = {}

    def ask(**settings: Any) -> PicodataCluster:
        key = repr(sorted(settings.items()))
        if key not in running:
            running[key] = PicodataCluster(**settings).start()
        return running[key]

    yield ask
    for cluster in running.values():
        cluster.shutdown()


@pytest.fixture(scope="session")
def picopyn_cluster(picopyn_cluster_factory: Factory) -> PicodataCluster:
    """A shared cluster of two replicasets with two instances each."""
    return picopyn_cluster_factory()


@pytest.fixture
def picopyn_fresh_cluster() -> Iterator[Factory]:
    """A function from settings of `PicodataCluster` to a running cluster of this test alone."""
    from picopyn.testing.picodata.picodata_cluster import PicodataCluster

    running: list[PicodataCluster] = []

    def ask(**settings: Any) -> PicodataCluster:
        running.append(PicodataCluster(**settings).start())
        return running[-1]

    yield ask
    for cluster in running:
        cluster.shutdown()


@pytest.fixture
def picopyn_postgres_cluster() -> Iterator[PostgresFactory]:
    """A function from settings of `PostgresCluster` to a running cluster of this test alone."""
    from picopyn.testing.postgres_cluster import PostgresCluster

    running: list[PostgresCluster] = []

    def ask(**settings: Any) -> PostgresCluster:
        running.append(PostgresCluster(**settings).start())
        return running[-1]

    yield ask
    for cluster in running:
        cluster.shutdown()


@pytest.fixture
def picopyn_yugabyte_cluster() -> Iterator[YugabyteFactory]:
    """A function from settings of `YugabyteCluster` to a running cluster of this test alone."""
    from picopyn.testing.yugabyte.yugabyte_cluster import YugabyteCluster

    running: list[YugabyteCluster] = []

    def ask(*zones: Any, **settings: Any) -> YugabyteCluster:
        running.append(YugabyteCluster(*zones, **settings).start())
        return running[-1]

    yield ask
    for cluster in running:
        cluster.shutdown()
