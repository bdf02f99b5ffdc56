"""Texts as ORMs make them: thousands of different ones, very long, unusual; each runs once, whatever is learned."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest

from picopyn.testing import PicodataCluster
from tests.contract.conftest import OpenPool
from tests.threads import FACADES

Factory = Callable[..., PicodataCluster]

pytestmark = pytest.mark.parametrize("facade", FACADES, indirect=True)


@pytest.mark.timeout(900)
async def test_thousands_of_texts_leave_a_used_one_alone(
    picopyn_cluster_factory: Factory, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Each runs once with its result; discovery never lags by more than the cache's size; the used text stays keyed.

    What that costs the calls of the used text is measured by `benchmarks.many_texts`.
    """
    cluster = picopyn_cluster_factory()
    table = f"many_{random.getrandbits(32)}"
    cluster.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    size, texts = (1000, 10_000) if full_size else (30, 200)
    pool = await open_pool(cluster.dsn, query_metadata_cache_size=size, acquire_timeout=30)
    await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", 1, 0)
    hot = f"SELECT id FROM {table} WHERE id = $1"
    assert (await pool.explain_route(hot, 1)).direct
    began = time.perf_counter()
    for number in range(texts):
        if full_size:  # they come in a minute, not as fast as the machine can
            await asyncio.sleep(began + number * 60 / texts - time.perf_counter())
        text = f"UPDATE {table} SET v = v + 1 WHERE id = $1 AND v >= -{number}"
        assert await pool.execute(text, 1) == "UPDATE 1"
        assert await pool.fetchval(hot, 1) == 1
        if number % 20 == 0:
            known = pool.stats().metadata
            assert known.pending <= size
            assert known.cached <= size
    measured("seconds", time.perf_counter() - began)
    assert await pool.fetchval(f"SELECT v FROM {table} WHERE id = 1") == texts
    stats = pool.stats()
    assert stats.texts[hot].direct >= 0.9 * texts  # all, unless its connection had to be renewed
    assert len(stats.texts) <= size + 1
    cluster.execute(f"DROP TABLE {table}")


async def test_long_and_unusual_texts_run_once(
    picopyn_cluster_factory: Factory, open_pool: OpenPool, full_size: bool
) -> None:
    """A megabyte (here less) in a literal, thousands of parameters, names beyond the basic plane: one effect each."""
    cluster = picopyn_cluster_factory()
    number = random.getrandbits(32)
    table = f'"表🙂e\u0301 {number}"'
    cluster.execute(f'CREATE TABLE {table} ("ключ" INT PRIMARY KEY, v TEXT)')
    pool = await open_pool(cluster.dsn, acquire_timeout=30)
    long = "ab" * (500_000 if full_size else 50_000)
    assert await pool.execute(f"INSERT INTO {table} VALUES ($1, '{long}')", 1, timeout=60) == "INSERT 0 1"
    assert await pool.fetchval(f'SELECT v FROM {table} WHERE "ключ" = $1', 1, timeout=60) == long
    rows = [(key, f"v{key}") for key in range(2, 1002)]
    marks = ", ".join(f"(${2 * n + 1}, ${2 * n + 2})" for n in range(len(rows)))
    args = [value for row in rows for value in row]
    assert await pool.execute(f"INSERT INTO {table} VALUES {marks}", *args, timeout=60) == "INSERT 0 1000"
    assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 1001
    select = f'SELECT v AS "\u202eимя" FROM {table} WHERE "ключ" = $1 AND v <> \'\u0000🙂\''.replace("\u0000", "")
    assert (await pool.explain_route(select, 7)).direct
    assert await pool.fetchval(select, 7) == "v7"
    stats = pool.stats()
    assert all(len(text) <= 32_768 for text in stats.texts)
    assert sum(stats.texts[""].calls.values()) >= 1
    cluster.execute(f"DROP TABLE {table}")
