"""How a cluster of real PostgreSQL servers starts, is addressed, and refuses what makes no sense."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from picopyn.testing import PostgresCluster, PostgresFailed
from picopyn.testing.postgres_binaries import ENVIRONMENT_NAME, PostgresBinaries, find_postgres
from tests.testing_postgres.conftest import connect, insert, rows, with_table

Factory = Callable[..., PostgresCluster]
Measured = Callable[[str, object], None]

MAJORS = sorted(path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").is_file())


def test_a_cluster_starts_with_one_primary_and_streaming_replicas(measured: Measured) -> None:
    """And the replicas show what the primary committed."""
    find_postgres()
    began = time.monotonic()
    with PostgresCluster() as cluster:
        measured("three nodes started (s)", time.monotonic() - began)
        assert cluster.start() is cluster
        assert cluster.nodes == ("n1", "n2", "n3")
        assert cluster.primary == "n1"
        assert cluster.states() == {"n1": "primary", "n2": "replica", "n3": "replica"}
        insert(with_table(cluster), 1)
        cluster.wait_caught_up()
        assert rows(cluster, "n2") == rows(cluster, "n3") == [1]
        streams = cluster.execute("SELECT application_name, state FROM pg_stat_replication ORDER BY 1")
        assert streams == [("n2", "streaming"), ("n3", "streaming")]


async def test_the_dsn_has_every_host(cluster: PostgresCluster) -> None:
    """And a driver that looks for roles finds them there."""
    for wanted, name in [("primary", "n1"), ("read-write", "n1")]:
        connection = await asyncpg.connect(cluster.dsn, target_session_attrs=wanted)
        assert await connection.fetchval("SELECT inet_server_port()") == cluster.address_of(name)[1]
        await connection.close()
    standby = await asyncpg.connect(cluster.dsn, target_session_attrs="standby")
    assert await standby.fetchval("SELECT pg_is_in_recovery()")
    await standby.close()


async def test_each_node_has_a_dsn(cluster: PostgresCluster) -> None:
    """With its own address, and several in the order asked for."""
    for name in cluster.nodes:
        connection = await connect(cluster, name)
        assert await connection.fetchval("SELECT pg_is_in_recovery()") == (name != "n1")
        await connection.close()
    hosts = ["{}:{}".format(*cluster.address_of(name)) for name in ("n3", "n1")]
    assert cluster.dsn_of("n3", "n1") == f"postgresql://postgres@{','.join(hosts)}/postgres"


@pytest.mark.parametrize("settings", [{"work_mem": "5MB"}, {"max_connections": "20"}], ids=lambda s: next(iter(s)))
def test_settings_hold_on_every_node(picopyn_postgres_cluster: Factory, settings: dict[str, str]) -> None:
    """Those too of which a replica must not have less than its data's first server had."""
    cluster = picopyn_postgres_cluster(replicas=1, settings=settings)
    ((name, value),) = settings.items()
    assert [cluster.execute(f"SHOW {name}", node) for node in cluster.nodes] == [[(value,)], [(value,)]]


def test_a_setting_may_hold_any_text(picopyn_postgres_cluster: Factory) -> None:
    """Quotes and backslashes included."""
    cluster = picopyn_postgres_cluster(replicas=0, settings={"picopyn.text": r"it's a \n # text"})
    assert cluster.execute("SHOW picopyn.text") == [(r"it's a \n # text",)]


@pytest.mark.parametrize("binaries", MAJORS, ids=lambda path: path.parent.name)
def test_other_major_versions_work(
    picopyn_postgres_cluster: Factory, monkeypatch: pytest.MonkeyPatch, binaries: Path
) -> None:
    """Those of this machine that are new enough: a fail-over there and back."""
    monkeypatch.setenv(ENVIRONMENT_NAME, str(binaries))
    if find_postgres().major < 13:
        pytest.skip("too old")
    cluster = with_table(picopyn_postgres_cluster(replicas=1))
    assert cluster.execute("SHOW server_version_num")[0][0] is not None
    cluster.pause_replay("n2")
    cluster.resume_replay("n2")
    cluster.kill("n1")
    cluster.promote("n2")
    cluster.rejoin("n1")
    insert(cluster, 1)
    cluster.wait_caught_up("n1")
    assert rows(cluster, "n1") == [1]


def test_a_version_that_is_too_old_is_refused() -> None:
    """Before anything is started."""
    old = PostgresBinaries(Path("/nowhere"), "postgres (PostgreSQL) 12.22", ())
    with pytest.raises(PostgresFailed, match=r"13 or newer is needed, found .*12\.22"):
        PostgresCluster(binaries=old).start()


@pytest.mark.parametrize("numbers", [{"replicas": -1}, {"synchronous": 3}, {"synchronous": -1}])
def test_numbers_that_cannot_be_are_refused(numbers: dict[str, int]) -> None:
    """In one message."""
    with pytest.raises(ValueError, match=r"replicas must be at least 0, and synchronous from 0 to"):
        PostgresCluster(**numbers)


def test_a_setting_that_is_none_is_told_with_the_log() -> None:
    """And nothing goes on running."""
    cluster = PostgresCluster(replicas=0, settings={"no_such_setting": "1"})
    with pytest.raises(PostgresFailed, match="no_such_setting"):
        cluster.start()
    with pytest.raises(PostgresFailed, match="the cluster is not running"):
        cluster.address_of("n1")


def test_orders_that_make_no_sense_are_refused(cluster: PostgresCluster) -> None:
    """With the name of the node and what it is."""
    refused = [
        (lambda: cluster.kill("n9"), "there is no node 'n9'; there are n1, n2, n3"),
        (lambda: cluster.promote("n1"), "n1 is no replica"),
        (lambda: cluster.rejoin("n1"), "n1 is the primary"),
        (lambda: cluster.pause_replay("n1"), "n1 is no replica"),
        (lambda: cluster.delay_replay("n1", 1), "n1 is no replica"),
        (lambda: cluster.wait_caught_up("n1"), "n1 is no replica"),
        (lambda: cluster.restart("n2"), "n2 is not down"),
        (lambda: cluster.thaw("n2"), "n2 is not frozen"),
        (lambda: cluster.execute("SELECT nothing"), "^42703: "),
    ]
    for order, message in refused:
        with pytest.raises(PostgresFailed, match=message):
            order()
    cluster.kill("n2")
    for order in (cluster.kill, cluster.stop, cluster.freeze, cluster.thaw, cluster.promote, cluster.pause_replay):
        with pytest.raises(PostgresFailed, match="n2 is down"):
            order("n2")
    cluster.freeze("n3")
    for order in (cluster.freeze, cluster.stop, cluster.promote, cluster.pause_replay):
        with pytest.raises(PostgresFailed, match="n3 is frozen"):
            order("n3")
    with pytest.raises(PostgresFailed, match="there is no running replica"):
        cluster.promote()
    cluster.kill("n1")
    with pytest.raises(PostgresFailed, match="n1 is down"):
        cluster.rejoin("n2")
