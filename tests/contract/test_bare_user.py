"""A user with READ and WRITE on the application's tables only: routed all the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from picopyn.asynchronous import Pool
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.target import Capability, Member, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

COLUMNS = "id INT NOT NULL PRIMARY KEY, v INT"


class Statements:
    """The four statements on one table."""

    def __init__(self, table: str) -> None:
        self.insert = f"INSERT INTO {table} VALUES ($1, $2)"
        self.select = f"SELECT v FROM {table} WHERE id = $1"
        self.update = f"UPDATE {table} SET v = $1 WHERE id = $2"
        self.delete = f"DELETE FROM {table} WHERE id = $1"

    async def all_with(self, pool: Pool, number: int) -> None:
        assert await pool.execute(self.insert, number, 1) == "INSERT 0 1"
        assert await pool.fetchval(self.select, number) == 1
        assert await pool.execute(self.update, 2, number) == "UPDATE 1"
        assert await pool.execute(self.delete, number) == "DELETE 1"


async def leaders_found(target: Target, pool: Pool, tier: str) -> None:
    """Wait until the pool knows every leader of a tier."""

    async def known() -> bool:
        snapshot = pool.topology
        return all(snapshot.leader(found.uuid) is not None for found in snapshot.replicasets(tier))

    await target.until(known, "every leader was found by asking")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_bare_users_statements_are_direct_once_the_leaders_are_found(
    target: Target,
    open_pool: OpenPool,
    measured: Callable[[str, object], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INSERT, SELECT, UPDATE and DELETE reach the leader; what may not be read is logged once, with the GRANT."""
    target.need(Capability.SECOND_USER, Capability.COUNT_DIRECT)
    statements = Statements(table := await target.create_table(COLUMNS))
    async with target.bare_user(table) as dsn:
        with caplog.at_level(logging.WARNING, logger="picopyn"):
            pool = await open_pool(dsn, topology_update_interval=1.0)
            began = time.monotonic()
            await statements.all_with(pool, 0)
            tier = (await pool.explain_route(statements.select, 1)).tier
            assert tier is not None
            await leaders_found(target, pool, tier)
            measured("seconds until the leaders were found", time.monotonic() - began)
            await statements.all_with(pool, 1)
            for args, text in {(1, 1): statements.insert, (2,): statements.select, (3,): statements.delete}.items():
                assert (await pool.explain_route(text, *args)).direct
            assert (await pool.explain_route(statements.update, 1, 2)).direct
            pool.update_topology_interval(3600.0)
            before = await target.direct()
            for number in range(2, 52):
                await statements.all_with(pool, number)
            direct = await target.direct() - before
            measured("direct share", direct / 200)
            assert direct >= 200
        hints = [record.getMessage() for record in caplog.records if "GRANT READ ON TABLE" in record.getMessage()]
        assert len(hints) == len(set(hints))
        assert any("GRANT READ ON TABLE _pico_replicaset" in hint for hint in hints)
        await pool.close()


async def _id_owned_by(pool: Pool, statements: Statements, replicaset: str) -> int:
    for number in range(1000, 2000):
        if (await pool.explain_route(statements.select, number)).owner == replicaset:
            return number
    raise AssertionError(f"no key of {replicaset}")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.stops_instances
async def test_a_bare_user_follows_a_leader_that_dies(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """After a fail-over its statements go to the new leader, directly again."""
    target = fresh(auto_offline_timeout=2.0)
    target.need(Capability.KILL, Capability.SECOND_USER)
    healthy, wounded = await target.two_replicasets_with_replicas()
    statements = Statements(table := await target.create_table(COLUMNS))
    await target.set_auto_offline_timeout(2.0)
    async with target.bare_user(table) as dsn:
        pool = await open_pool(dsn, topology_update_interval=1.0)
        await statements.all_with(pool, 0)
        await leaders_found(target, pool, healthy[0].tier)
        number = await _id_owned_by(pool, statements, wounded[0].replicaset)
        began = time.monotonic()
        await target.kill(wounded[0])
        assert await pool.execute(statements.insert, number, 1, timeout=60, idempotent=True) == "INSERT 0 1"
        measured("seconds from the kill to the first write", time.monotonic() - began)
        await _until_directly_at(target, pool, statements, number, wounded[0].replicaset)
        measured("seconds from the kill until the new leader was found", time.monotonic() - began)
        if Capability.COUNT_DIRECT in target.can:
            before = await target.direct()
            for _ in range(20):
                assert await pool.fetchval(statements.select, number) == 1
            assert await target.direct() - before >= 20
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.full
async def test_a_bare_user_follows_a_planned_switch(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """A switch changes nothing that a bare user may read: the new leader is found when the next question is due."""
    target = fresh()
    target.need(Capability.PROMOTE, Capability.SECOND_USER)
    _, switched = await target.two_replicasets_with_replicas()
    statements = Statements(table := await target.create_table(COLUMNS))
    async with target.bare_user(table) as dsn:
        pool = await open_pool(dsn, topology_update_interval=1.0)
        await statements.all_with(pool, 0)
        await leaders_found(target, pool, switched[0].tier)
        number = await _id_owned_by(pool, statements, switched[0].replicaset)
        began = time.monotonic()
        await target.promote(switched[1])
        await _until_directly_at(target, pool, statements, number, switched[0].replicaset, timeout=60)
        measured("seconds from the switch until the new leader was found", time.monotonic() - began)
        await pool.close()


async def _until_directly_at(
    target: Target, pool: Pool, statements: Statements, number: int, replicaset: str, timeout: float = 30
) -> None:
    leader: Member = (await target.leaders())[replicaset]

    async def there() -> bool:
        explained = await pool.explain_route(statements.select, number)
        return explained.direct and explained.candidates[0].startswith(f"{leader.name} ")

    await target.until(there, f"statements go directly to {leader.name}", timeout)
