"""`connect` on a primary with a replica: a role is kept while connecting, and what would do nothing is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from picopyn import asynchronous, sync
from picopyn.errors import ConfigError, NoNodeAvailable
from picopyn.staleness import StalenessPolicy
from picopyn.testing import PostgresCluster
from tests.threads import FACADES

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)

IN_RECOVERY = "SELECT pg_is_in_recovery()"


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresCluster]:
    """A primary n1 and a replica n2; tests leave them as they are."""
    with PostgresCluster(replicas=1) as cluster:
        yield cluster


async def is_replica(facade: str, dsn: str, **options: Any) -> bool:
    """Whether a connection leads to a replica; it is closed."""

    def blocking() -> bool:
        opened = sync.connect(dsn, **options)
        try:
            return bool(opened.fetchval(IN_RECOVERY))
        finally:
            opened.close()

    if facade == "sync":
        return await asyncio.to_thread(blocking)
    connection = await asynchronous.connect(dsn, **options)
    try:
        return bool(await connection.fetchval(IN_RECOVERY))
    finally:
        await connection.close()


async def test_the_first_host_with_the_role_is_taken(pair: PostgresCluster, facade: str) -> None:
    """In whichever order they are written, whether the dialect is known beforehand or not."""
    for hosts in (("n1", "n2"), ("n2", "n1")):
        dsn = pair.dsn_of(*hosts)
        for role, replica in (("leader", False), ("prefer_leader", False), ("replica", True), ("prefer_replica", True)):
            assert await is_replica(facade, dsn, role=role) is replica
        assert await is_replica(facade, dsn, dialect="postgres", role="replica") is True
        assert await is_replica(facade, f"{dsn}?target_session_attrs=read-write") is False
        assert await is_replica(facade, f"{dsn}?target_session_attrs=prefer-standby") is True
        assert await is_replica(facade, dsn) is await is_replica(facade, dsn, role="any") is (hosts[0] == "n2")


async def test_a_wish_is_given_up_and_a_demand_is_refused(pair: PostgresCluster, facade: str) -> None:
    """The error names each host."""
    primary, replica = pair.dsn_of("n1"), pair.dsn_of("n2")
    assert await is_replica(facade, primary, role="prefer_replica") is False
    assert await is_replica(facade, replica, role="prefer_leader") is True
    for dsn, role in ((primary, "replica"), (replica, "leader")):
        with pytest.raises(NoNodeAvailable, match=f"role='{role}'") as told:
            await is_replica(facade, dsn, role=role)
        assert list(told.value.reasons.values()) == ["has another role"]


async def test_what_can_do_nothing_is_refused(facade: str) -> None:
    """All at once, before anything is opened; sizes and times of pools may stand in a string that serves both."""
    with pytest.raises(ConfigError) as told:
        await is_replica(
            facade,
            "postgresql://h?max_size=5&fallback_master=true",
            after_connect=print,
            on_event=print,
            reset=print,
        )
    assert [problem.partition(" ")[0] for problem in told.value.problems] == [
        "after_connect",
        "reset",
        "on_event",
        "fallback_master",
    ]
    with pytest.raises(ConfigError, match="staleness is for pools"):
        await is_replica(facade, "postgresql://h,g", staleness=StalenessPolicy(max_lag=1))
