"""The cluster under test as fixtures, pools that are closed at the end, and a guard that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PicodataCluster, TierShape
from tests.contract.target import Capability, EmbeddedTarget, Member, RealTarget, Target
from tests.tidiness import nothing_stays

T = TypeVar("T")

Fresh = Callable[..., Target]
OpenPool = Callable[..., Coroutine[Any, Any, Pool]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that stop instances come last: a real cluster may not be whole afterwards."""
    here = [item for item in items if "tests/contract/" in item.nodeid]
    here.sort(key=lambda item: item.get_closest_marker("stops_instances") is not None)
    places = [number for number, item in enumerate(items) if "tests/contract/" in item.nodeid]
    for place, item in zip(places, here, strict=True):
        items[place] = item


def _apart(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, away from the test's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, step).result()


@pytest.fixture(scope="session")
def real_target() -> RealTarget | None:
    """The cluster that the environment names, once it is ready."""
    dsn = os.environ.get("PICOPYN_TEST_PICODATA_DSN")
    if not dsn:
        return None
    target = RealTarget(dsn, os.environ)
    _apart(target.look())
    _apart(target.settle())
    return target


@pytest.fixture(scope="session")
def shared_target(real_target: RealTarget | None) -> Iterator[Target]:
    """A cluster for all tests that leave it as they found it: two tiers, three replicasets."""
    if real_target is not None:
        yield real_target
        return
    tiers = {"default": TierShape(2, 2, 3000), "storage": TierShape(1, 1, 1000)}
    with PicodataCluster(tiers=tiers) as cluster:
        yield EmbeddedTarget(cluster)


@pytest.fixture
async def target(shared_target: Target) -> AsyncIterator[Target]:
    """The cluster under test; the test's tables are dropped at its end."""
    yield shared_target
    await shared_target.drop_tables()


@pytest.fixture
async def fresh(real_target: RealTarget | None) -> AsyncIterator[Fresh]:
    """A cluster that the test may damage. A real one is repaired at the end, as far as the commands allow."""
    clusters: list[PicodataCluster] = []
    members: list[Member] = []
    if real_target is not None:
        members = await real_target.members()
        if not all(member.online for member in members):
            pytest.skip("an earlier test stopped an instance, and PICOPYN_TEST_PICODATA_START names no command")

    def ask(**shape: Any) -> Target:
        if real_target is not None:
            return real_target
        clusters.append(PicodataCluster(**shape).start())
        return EmbeddedTarget(clusters[-1])

    yield ask
    for cluster in clusters:
        cluster.shutdown()
    if real_target is not None:
        await _repair(real_target, members)


async def _repair(target: RealTarget, members: list[Member]) -> None:
    await target.reset_auto_offline_timeout()
    now = {member.name: member for member in await target.members()}
    for member in members:
        if not now[member.name].online and Capability.RESTART in target.can:
            await target.start(member)
    if all(member.online for member in await target.members()):
        await target.drop_tables()
        await target.settle()


@pytest.fixture
async def open_pool(pool_class: Any) -> AsyncIterator[OpenPool]:
    """A function like `Pool(…)` whose pools are opened, and closed at the end of the test."""
    pools: list[Any] = []

    async def open_it(dsn: str, **options: Any) -> Any:
        pool = pool_class(dsn, **options)
        pools.append(pool)
        await pool.open()
        return pool

    yield open_it
    for pool in pools:
        await pool.close(grace=1)


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    """After every test; see `nothing_stays`."""
    async with nothing_stays():
        yield
