"""What went wrong in comparable drivers, class *meta*: each scenario of public bug reports, as far as it applies.

Names are those of the scenario list. Picodata has no transactions and no pooler in front of it: what the scenarios say
about statements inside a transaction and about swapped sessions does not apply.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.observe import ConnectionClosed, Event
from picopyn.testing import FaultProxy, ScriptedServer
from picopyn.testing.scripted_server import Invalidating
from tests.contract.conftest import OpenPool
from tests.contract.one_node import OneNode
from tests.contract.tap import Tap
from tests.contract.target import Capability, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster


async def _everywhere(pool: Pool, text: str, keys: range, tasks: int = 10) -> list[object]:
    """Run a text for all keys, in so many tasks at once, so that every connection prepares it."""
    numbers, rows = iter(keys), list[object]()

    async def work() -> None:
        for number in numbers:
            rows.append(await pool.fetchrow(text, number))

    await asyncio.gather(*(work() for _ in range(tasks)))
    return rows


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("change", ["add a column", "drop and create again"])
async def test_meta_plan_invalidated(
    target: Target, open_pool: OpenPool, measured: Callable[[str, object], None], change: str
) -> None:
    """A statement cached on every connection outlives a schema change: no error, and rows of the new shape."""
    table = target.new_name("changing")
    await target.execute(f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, v INT)")
    target.adopt_tables([table])
    pool = await open_pool(target.dsn, min_size=5, max_size=10)
    await pool.wait_ready()
    insert, select = f"INSERT INTO {table} (id, v) VALUES ($1, 1)", f"SELECT * FROM {table} WHERE id = $1"
    for number in range(40):
        await pool.execute(insert, number)
    assert all(len(row) == 2 for row in await _everywhere(pool, select, range(40)))  # type: ignore[arg-type]
    if change == "add a column":
        await target.execute(f"ALTER TABLE {table} ADD COLUMN w TEXT")
    else:
        await target.execute(
            f"DROP TABLE {table}", f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, v INT, w TEXT)"
        )
        for number in range(40):
            await target.execute(f"INSERT INTO {table} (id, v) VALUES ({number}, 1)")
    for _ in range(3):
        rows = await _everywhere(pool, select, range(40))
        assert all(list(row.keys()) == ["id", "v", "w"] for row in rows)  # type: ignore[attr-defined]
    measured("statements prepared again", pool.stats().retries.get("STALE_PLAN", 0))
    assert pool.stats().retries.get("STALE_PLAN", 0) <= pool.stats().connects


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_plan_invalidated_with_another_key(target: Target, open_pool: OpenPool) -> None:
    """A table that is created again with another sharding key: the route of a cached text follows."""
    table = target.new_name("rekeyed")
    await target.execute(
        f"CREATE TABLE {table} (a INT NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b)) DISTRIBUTED BY (a)"
    )
    target.adopt_tables([table])
    pool = await open_pool(target.dsn)
    await pool.wait_ready()
    select = f"SELECT v FROM {table} WHERE a = $1 AND b = $2"
    assert (await pool.explain_route(select, 1, 2)).key_parameters == ((1,),)
    await asyncio.gather(*(pool.fetchrow(select, n, n) for n in range(40)))
    await target.execute(
        f"DROP TABLE {table}",
        f"CREATE TABLE {table} (a INT NOT NULL, b INT NOT NULL, v INT, PRIMARY KEY (a, b)) DISTRIBUTED BY (b)",
        f"INSERT INTO {table} VALUES (1, 2, 3)",
    )
    assert await pool.fetchval(select, 1, 2) == 3

    async def follows() -> bool:
        # On all connections: one that has not prepared the text before is told nothing by the server.
        assert set(await asyncio.gather(*(pool.fetchval(select, 1, 2) for _ in range(20)))) == {3}
        return (await pool.explain_route(select, 1, 2)).key_parameters == ((2,),)

    await target.until(follows, "the new key is learned")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_named_statements_behind_pooler(pool_class: Any, target: Target) -> None:
    """With the statement cache off, nothing is prepared under a name: by calls, discovery, learning, or questions."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    names: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        taps = {m.endpoint: await stack.enter_async_context(Tap(*m.endpoint, names)) for m in await target.members()}
        dsns = [target.dsn]
        if Capability.SECOND_USER in target.can:
            dsns.append(await stack.enter_async_context(target.bare_user(table)))
        for number, dsn in enumerate(dsns):
            pool = pool_class(
                dsn,
                statement_cache_size=0,
                topology_update_interval=1.0,
                address_map=lambda host, port: taps[host, port].endpoint,
            )
            async with pool:
                await _mixed_calls(pool, table, first=1000 * number)
                await pool.refresh_topology()
    assert names.pop("") > 100
    assert not names, "statements were prepared under a name"


async def _mixed_calls(pool: Pool, table: str, first: int) -> None:
    for number in range(first, first + 40):
        await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", number, number)
        assert await pool.fetchval(f"SELECT v FROM {table} WHERE id = $1", number) == number
        assert await pool.fetchval("SELECT 1") == 1
    async with pool.acquire() as connection:
        assert await connection.fetchval(f"SELECT v FROM {table} WHERE id = $1", first) == first
    for number in range(first, first + 40):
        assert await pool.execute(f"DELETE FROM {table} WHERE id = $1", number) == "DELETE 1"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_reprepare_on_invalidation_code(
    open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """1 000 executions on 10 connections, the schema changes every 100: no error, one more Parse per connection."""
    script = Invalidating()
    with ScriptedServer(script) as server:
        pool = await open_pool(server.dsn, topology_source=OneNode(server.host, server.port), min_size=10, max_size=10)
        text, changes = "SELECT changes FROM t WHERE id = $1", itertools.count()
        await pool.fetchrow(text, 1)

        async def ten() -> None:
            for number in range(10):
                assert await pool.fetchval(text, number) == script.changes

        for _ in range(10):
            await asyncio.gather(*(ten() for _ in range(10)))
            script.change()
            next(changes)
        measured("parses of the text", script.parses[text])
        measured("invalidated executions", script.invalidated)
        assert script.parses[text] <= 10 * 10 + 1
        assert pool.stats().retries["STALE_PLAN"] <= 10 * 9


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_reprepare_on_invalidation_code_always(open_pool: OpenPool) -> None:
    """A statement that is invalid however often it is prepared: one more try, then the server's own error."""
    script = Invalidating(always=True)
    with ScriptedServer(script) as server:
        pool = await open_pool(server.dsn, topology_source=OneNode(server.host, server.port), max_size=1)
        text = "SELECT changes FROM t WHERE id = $1"
        with pytest.raises(asyncpg.PostgresError) as caught:
            await pool.fetchrow(text, 1, timeout=10)
        assert caught.value.sqlstate == "42999"
        assert script.parses[text] == 2
        assert pool.stats().retries["STALE_PLAN"] == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_meta_reconnect_starts_with_an_empty_cache(target: Target, open_pool: OpenPool) -> None:
    """A new connection may have missed a schema change: what was learned over the old one is forgotten."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    async with AsyncExitStack() as stack:
        proxies = {m.endpoint: stack.enter_context(FaultProxy(*m.endpoint)) for m in await target.members()}
        events: list[Event] = []
        pool = await open_pool(
            target.dsn,
            address_map=lambda host, port: (proxies[host, port].host, proxies[host, port].port),
            on_event=events.append,
        )
        await pool.wait_ready()
        for text in (f"SELECT v FROM {table} WHERE id = $1", f"DELETE FROM {table} WHERE id = $1"):
            await pool.explain_route(text, 1)
        assert pool.stats().metadata.cached == 2  # type: ignore[union-attr]
        for proxy in proxies.values():
            proxy.cut()

        async def noticed() -> bool:
            broken = [e for e in events if isinstance(e, ConnectionClosed) and e.reason == "broken"]
            return len(broken) >= len(proxies)

        await target.until(noticed, "every connection broke")
        explained = await pool.explain_route(f"INSERT INTO {table} VALUES ($1, 1)", 1)
        assert explained.key_parameters == ((1,),)
        assert pool.stats().metadata.cached == 1  # type: ignore[union-attr]
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_res_dynamic_sql_and_what_is_known_of_texts(target: Target, open_pool: OpenPool) -> None:
    """Many texts that are said a few times each: what is remembered of them never exceeds its size."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn, query_metadata_cache_size=10, statement_cache_size=5)
    await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", 1, 1)
    most = 0
    for number in range(60):
        text = f"SELECT v + {number} FROM {table} WHERE id = $1"
        await pool.explain_route(text, 1)
        assert await pool.fetchval(text, 1) == 1 + number
        metadata = pool.stats().metadata
        assert metadata is not None
        most = max(most, metadata.cached)
    assert most == 10
