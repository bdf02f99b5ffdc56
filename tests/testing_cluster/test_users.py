"""Who may log in and read what, and how a bare user finds the leader (facts, sections 3 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import asyncpg
import pytest

from picopyn.testing import ClusterError, PicodataCluster, UserShape
from tests.testing_cluster.conftest import Connect

Factory = Callable[..., PicodataCluster]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PicodataCluster]:
    """Two replicasets of one instance, a table, and two users who may nothing yet."""
    users = (UserShape("app", "Secret-123"), UserShape("scr", "Secret-456", "scram-sha256"))
    with PicodataCluster(replicasets=2, replication=1, users=users) as cluster:
        cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY, v TEXT)")
        yield cluster


@pytest.mark.parametrize("user", ["app", "scr"])
async def test_a_bare_user_reads_instances_addresses_and_the_bucket_map_only(
    cluster: PicodataCluster, connect: Connect, user: str
) -> None:
    """With MD5 and with SCRAM."""
    connection = await connect(cluster, "default_1_1", user)
    assert await connection.fetchval("SELECT count(*) FROM _pico_instance") == 2
    assert await connection.fetchval("SELECT count(*) FROM _pico_peer_address") == 6
    assert await connection.fetchval("SELECT _pico_bucket('default')")
    assert await connection.fetchval("SELECT pico_instance_name(pico_instance_uuid())") == "default_1_1"
    for table in ("_pico_replicaset", "_pico_tier", "_pico_table", "_pico_bucket"):
        with pytest.raises(asyncpg.PostgresError, match=f"Read access to space '{table}' is denied for user"):
            await connection.fetch(f"SELECT * FROM {table}")


async def test_rights_are_granted_and_taken_table_by_table(cluster: PicodataCluster, connect: Connect) -> None:
    """UPDATE and DELETE report Read first; EXPLAIN needs what the statement needs."""
    connection = await connect(cluster, "default_1_1", "app")
    for action, statement in (
        ("Read", "SELECT * FROM o WHERE id = 1"),
        ("Write", "INSERT INTO o VALUES (1, 'a')"),
        ("Read", "UPDATE o SET v = 'b' WHERE id = 1"),
        ("Read", "DELETE FROM o WHERE id = 1"),
        ("Read", "EXPLAIN SELECT * FROM o WHERE id = 1"),
    ):
        with pytest.raises(asyncpg.PostgresError, match=f"{action} access to space 'o' is denied for user 'app'"):
            await connection.fetch(statement)
    cluster.execute("GRANT READ ON TABLE o TO app")
    cluster.execute("GRANT WRITE ON TABLE o TO app")
    assert await connection.execute("INSERT INTO o VALUES (100, 'a')") == "INSERT 0 1"
    assert await connection.execute("DELETE FROM o WHERE id = 100") == "DELETE 1"
    cluster.execute("REVOKE WRITE ON TABLE o FROM app")
    with pytest.raises(asyncpg.PostgresError, match="Write access to space 'o' is denied"):
        await connection.execute("INSERT INTO o VALUES (100, 'a')")
    cluster.execute("REVOKE READ ON TABLE o FROM app")


async def test_an_owner_has_every_right_and_denial_beats_it(cluster: PicodataCluster, connect: Connect) -> None:
    """`deny` is for tests of degraded discovery: it also takes public rights."""
    cluster.execute("GRANT CREATE TABLE TO app")
    connection = await connect(cluster, "default_1_1", "app")
    await connection.execute("CREATE TABLE mine (id INT NOT NULL PRIMARY KEY)")
    assert await connection.execute("INSERT INTO mine VALUES (1)") == "INSERT 0 1"
    cluster.deny("app", "_pico_instance")
    with pytest.raises(asyncpg.PostgresError, match="Read access to space '_pico_instance' is denied"):
        await connection.fetch("SELECT name FROM _pico_instance")
    cluster.allow("app", "_pico_instance")
    assert len(await connection.fetch("SELECT name FROM _pico_instance")) == 2
    await connection.execute("DROP TABLE mine")


async def test_four_wrong_passwords_block_a_user_at_that_instance_until_unblocked(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """The text stays the same; the other instance still lets the user in."""
    cluster.create_user("blocked", "Right-1234")
    instance = cluster.instances["default_1_1"]
    for _ in range(4):
        with pytest.raises(asyncpg.InvalidPasswordError, match="authentication failed for user 'blocked'"):
            await asyncpg.connect(
                host=instance.host,
                port=instance.port,
                user="blocked",
                password="wrong",
                database="d",
                ssl=False,
            )
    with pytest.raises(asyncpg.InvalidPasswordError, match="authentication failed for user 'blocked'"):
        await connect(cluster, "default_1_1", "blocked")
    assert await (await connect(cluster, "default_2_1", "blocked")).fetchval("SELECT 1") == 1
    cluster.execute("ALTER USER blocked WITH LOGIN")
    assert await (await connect(cluster, "default_1_1", "blocked")).fetchval("SELECT 1") == 1


async def test_a_success_forgets_the_failures_before_it(cluster: PicodataCluster, connect: Connect) -> None:
    """Only failures in a row count."""
    cluster.create_user("clumsy", "Right-1234", auth="scram-sha256")
    instance = cluster.instances["default_1_1"]
    for _ in range(3):
        for _ in range(3):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(
                    host=instance.host,
                    port=instance.port,
                    user="clumsy",
                    password="no",
                    database="d",
                    ssl=False,
                )
        await connect(cluster, "default_1_1", "clumsy")


async def test_the_one_opcode_connection_tells_the_leader_from_the_others(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """A keyed SELECT fails plainly where the key's leader is, wrapped elsewhere; constants run."""
    cluster.execute("GRANT READ ON TABLE o TO scr")
    for key in range(1, 5):
        owner = cluster.leaders()[cluster.owner_of("default", cluster.bucket_of("o", key))]
        for at in cluster.instances:
            connection = await connect(cluster, at, "scr", options="sql_vdbe_opcode_max=1")
            with pytest.raises(asyncpg.PostgresError, match="max executed vdbe opcodes") as refused:
                await connection.fetch("SELECT * FROM o WHERE id = $1", key)
            assert ("Error on replicaset" in str(refused.value)) == (at != owner)
    assert await connection.fetchval("SELECT 1") == 1


async def test_row_limits_come_from_the_text_then_the_connection_then_the_system(
    cluster: PicodataCluster, connect: Connect
) -> None:
    """Zero lifts the limit."""
    cluster.execute("CREATE TABLE many (id INT NOT NULL PRIMARY KEY)")
    cluster.execute(f"INSERT INTO many VALUES {', '.join(f'({n})' for n in range(40))}")
    few = await connect(cluster, "default_1_1", options="sql_motion_row_max=10")
    with pytest.raises(asyncpg.PostgresError, match=r"Exceeded maximum number of rows \(10\) in virtual table"):
        await few.fetch("SELECT * FROM many")
    assert len(await few.fetch("SELECT * FROM many OPTION (SQL_MOTION_ROW_MAX = 0)")) == 40
    assert len(await (await connect(cluster, "default_1_1")).fetch("SELECT * FROM many")) == 40
    cluster.execute("ALTER SYSTEM SET sql_motion_row_max = 30")
    with pytest.raises(asyncpg.PostgresError, match=r"number of rows \(30\) in virtual table: 31"):
        await (await connect(cluster, "default_1_1")).fetch("SELECT * FROM many")
    cluster.execute("ALTER SYSTEM SET sql_motion_row_max = 5000")


def test_a_refused_text_keeps_its_sqlstate(cluster: PicodataCluster) -> None:
    """`execute` says what the server said."""
    with pytest.raises(ClusterError, match="table o already exists") as refused:
        cluster.execute("CREATE TABLE o (id INT NOT NULL PRIMARY KEY)")
    assert refused.value.sqlstate == "XX000"
