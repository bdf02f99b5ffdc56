"""A primary and its standbys as they are: those that the environment names, or embedded ones."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from picopyn.testing import PostgresCluster
from tests.login import Login, with_words
from tests.postgres.conftest import OpenPool
from tests.postgres.real import RealServer
from tests.threads import FACADES

both = pytest.mark.parametrize("facade", FACADES, indirect=True)

WHERE = "SELECT pg_is_in_recovery()"
LONG = 60.0


@pytest.fixture(scope="module")
def group(real_servers: tuple[list[RealServer], list[RealServer]]) -> Iterator[tuple[str, int]]:
    """A connection string that names one primary and standbys of it, and how many those are."""
    primaries, standbys = real_servers
    if not primaries:
        with PostgresCluster(replicas=1) as servers:
            yield servers.dsn_of("n2", "n1"), 1
    elif len(primaries) > 1 or not standbys:
        pytest.skip("real servers: they are no primary with standbys")
    else:
        yield Login(primaries[0].dsn).at(each.address for each in (*standbys, *primaries)), len(standbys)


@both
async def test_calls_go_where_their_role_says(group: tuple[str, int], open_pool: OpenPool) -> None:
    """The primary takes what names no role; a replica is told from it, and how far it is behind."""
    dsn, count = group
    pool = await open_pool(dsn, refresh_delay=0.1)
    await pool.ready(1, count, LONG)
    for role, in_recovery in ((None, False), ("leader", False), ("replica", True), ("prefer_replica", True)):
        assert {await pool.fetchval(WHERE, role=role) for _ in range(5)} == {in_recovery}, role
    async with pool.acquire_master() as connection:
        assert not await connection.fetchval(WHERE)
    async with pool.acquire_replica() as connection:
        assert await connection.fetchval(WHERE)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await pool.execute("CREATE TABLE picopyn_nowhere (id int)", role="replica")


@both
async def test_words_of_libpq_mean_what_they_mean_there(group: tuple[str, int], open_pool: OpenPool) -> None:
    """`target_session_attrs` of the connection string."""
    dsn, _ = group
    for word, in_recovery in (("read-write", False), ("primary", False), ("standby", True), ("prefer-standby", True)):
        pool = await open_pool(with_words(dsn, f"target_session_attrs={word}"), acquire_timeout=LONG, refresh_delay=0.1)
        assert await pool.fetchval(WHERE) is in_recovery, word
