"""Who leads a PostgreSQL cluster, who follows, and how far behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from picopyn.testing import PostgresCluster, PostgresFailed
from tests.testing_postgres.conftest import connect, insert, rows, until

Measured = Callable[[str, object], None]


def test_a_promoted_replica_leads_and_the_others_follow_it(cluster: PostgresCluster, measured: Measured) -> None:
    """At once: it takes writes, and they arrive."""
    insert(cluster, 1)
    cluster.wait_caught_up()
    cluster.kill("n1")
    began = time.monotonic()
    assert cluster.promote("n2") == "n2"
    measured("promotion, the other replica following (s)", time.monotonic() - began)
    assert cluster.primary == "n2"
    assert cluster.states() == {"n1": "down", "n2": "primary", "n3": "replica"}
    insert(cluster, 2)
    cluster.wait_caught_up()
    assert rows(cluster, "n3") == [1, 2]


def test_the_freshest_replica_is_promoted(cluster: PostgresCluster) -> None:
    """When nobody is named."""
    cluster.stop("n2")
    insert(cluster, 1)
    cluster.wait_caught_up("n3")
    cluster.kill("n1")
    cluster.restart("n2")
    assert cluster.promote() == "n3"
    cluster.wait_caught_up()
    assert rows(cluster, "n2") == [1]


def test_a_replica_that_has_more_than_the_new_primary_is_cloned(cluster: PostgresCluster) -> None:
    """What only it had is lost, as on any cluster that promotes the wrong one."""
    cluster.stop("n2")
    insert(cluster, 1)
    cluster.wait_caught_up("n3")
    cluster.kill("n1")
    cluster.restart("n2")
    cluster.promote("n2")
    insert(cluster, 2)
    cluster.wait_caught_up()
    assert rows(cluster, "n2") == rows(cluster, "n3") == [2]


def test_two_primaries_at_once(cluster: PostgresCluster) -> None:
    """Promotion does not stop the old one; both take writes, on two timelines."""
    cluster.promote("n2")
    assert cluster.states() == {"n1": "primary", "n2": "primary", "n3": "replica"}
    insert(cluster, 1, "n1")
    insert(cluster, 2, "n2")
    cluster.wait_caught_up("n3")
    assert (rows(cluster, "n1"), rows(cluster, "n2"), rows(cluster, "n3")) == ([1], [2], [2])
    timelines = [cluster.execute("SELECT pg_walfile_name(pg_current_wal_lsn())", name)[0][0] for name in ("n1", "n2")]
    assert [int((name or "")[:8], 16) for name in timelines] == [1, 2]


@pytest.mark.parametrize("how", ["running", "stopped", "killed", "frozen"])
def test_an_old_primary_rejoins_as_a_replica(cluster: PostgresCluster, how: str, measured: Measured) -> None:
    """Whatever became of it; what it alone had is gone."""
    if how == "stopped":
        cluster.stop("n1")
    cluster.promote("n2")
    if how != "stopped":
        insert(cluster, 1, "n1")
    if how in ("killed", "frozen"):
        {"killed": cluster.kill, "frozen": cluster.freeze}[how]("n1")
    insert(cluster, 2)
    began = time.monotonic()
    cluster.rejoin("n1")
    measured("rejoin (s)", time.monotonic() - began)
    cluster.wait_caught_up()
    assert cluster.states() == {"n1": "replica", "n2": "primary", "n3": "replica"}
    assert rows(cluster, "n1") == rows(cluster, "n3") == [2]


def test_an_old_primary_that_is_only_started_leads_beside_the_new_one(cluster: PostgresCluster) -> None:
    """The replicas stay with the new one."""
    cluster.kill("n1")
    cluster.promote("n2")
    cluster.restart("n1")
    assert cluster.states() == {"n1": "primary", "n2": "primary", "n3": "replica"}
    insert(cluster, 1, "n1")
    insert(cluster, 2)
    cluster.wait_caught_up()
    assert rows(cluster, "n3") == [2]


def test_a_replica_that_was_down_follows_the_new_primary(cluster: PostgresCluster) -> None:
    """When it is started."""
    cluster.stop("n3")
    cluster.promote("n2")
    insert(cluster, 2)
    cluster.restart("n3")
    cluster.wait_caught_up("n3")
    assert rows(cluster, "n3") == [2]


def test_leadership_goes_round(cluster: PostgresCluster) -> None:
    """Through every node, twice, and no row is lost."""
    order = ["n2", "n3", "n1"] * 2
    for value, name in enumerate(order):
        insert(cluster, value)
        old = cluster.primary
        cluster.stop(old)
        cluster.promote(name)
        cluster.rejoin(old)
    cluster.wait_caught_up()
    assert [rows(cluster, name) for name in cluster.nodes] == [list(range(len(order)))] * 3


async def test_a_connection_to_a_replica_survives_its_promotion(cluster: PostgresCluster) -> None:
    """And may write then."""
    connection = await connect(cluster, "n2")
    assert await connection.fetchval("SELECT pg_is_in_recovery()")
    await asyncio.to_thread(cluster.promote, "n2")
    await connection.execute("INSERT INTO t VALUES (1)")
    await connection.close()


def test_a_paused_replica_shows_nothing_new(cluster: PostgresCluster) -> None:
    """Until it is resumed; it receives all the same."""
    cluster.pause_replay("n2")
    insert(cluster, 1)
    cluster.wait_caught_up("n3")
    with pytest.raises(PostgresFailed, match=r"n2 is \d+ bytes behind after 0\.05 s"):
        cluster.wait_caught_up("n2", timeout=0.05)
    assert (rows(cluster, "n2"), rows(cluster, "n3")) == ([], [1])
    cluster.resume_replay("n2")
    cluster.wait_caught_up("n2")
    assert rows(cluster, "n2") == [1]


def test_a_paused_replica_that_is_promoted_has_all_it_received(cluster: PostgresCluster) -> None:
    """The pause ends with its promotion."""
    cluster.pause_replay("n2")
    insert(cluster, 1)
    cluster.stop("n1")
    cluster.promote("n2")
    assert rows(cluster, "n2") == [1]


def test_a_replica_that_is_held_back_follows_later(cluster: PostgresCluster) -> None:
    """A promotion does not wait for it."""
    cluster.pause_replay("n3")
    insert(cluster, 1)
    cluster.wait_caught_up("n2")
    cluster.stop("n1")
    cluster.promote("n2")
    insert(cluster, 2)
    cluster.resume_replay("n3")
    cluster.wait_caught_up("n3")
    assert rows(cluster, "n3") == [1, 2]


async def test_a_delayed_replica_shows_commits_so_much_later(cluster: PostgresCluster, measured: Measured) -> None:
    """By the clock; 0 makes it show them at once."""
    cluster.delay_replay("n2", 0.3)
    connection = await connect(cluster, "n2")
    insert(cluster, 1)
    committed = time.monotonic()
    cluster.wait_caught_up("n3")
    assert rows(cluster, "n3") == [1]

    async def shown() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM t"))

    await until(shown)
    measured("delay of 0.3 s (s)", time.monotonic() - committed)
    assert time.monotonic() - committed > 0.2
    cluster.delay_replay("n2", 3600)
    insert(cluster, 2)
    cluster.wait_caught_up("n3")
    assert rows(cluster, "n2") == [1]
    cluster.pause_replay("n2")
    cluster.resume_replay("n2")
    cluster.delay_replay("n2", 0)
    cluster.wait_caught_up("n2")
    assert rows(cluster, "n2") == [1, 2]
    await connection.close()
