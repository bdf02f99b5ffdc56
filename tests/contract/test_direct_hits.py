"""Statements go to the instance that owns their bucket, on the cluster's own count."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.observe import Event, TopologyChanged
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.load import Load
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Kind:
    """A kind of key: its columns in the order of the table, and how a key is made from a number."""

    columns: tuple[tuple[str, str], ...]
    key: Callable[[int, random.Random], tuple[Any, ...]]
    distributed_by: str = ""
    second_tier: bool = False

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]


def _moment(number: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number, microseconds=number * 7)


KINDS = {
    "int": Kind((("id", "INT"),), lambda n, r: (n - 500,)),
    "text": Kind((("k", "TEXT"),), lambda n, r: (f"key {n} é",), second_tier=True),
    "uuid_datetime": Kind(
        (("k", "UUID"), ("at", "DATETIME")), lambda n, r: (uuid.UUID(int=r.getrandbits(128), version=4), _moment(n))
    ),
    "decimal": Kind((("k", "DECIMAL"),), lambda n, r: (Decimal(n).scaleb(-(n % 5)),), second_tier=True),
    "double": Kind((("k", "DOUBLE"),), lambda n, r: (n + 0.5 if n % 3 else float(n),)),
    "composite": Kind(
        (("a", "INT"), ("b", "TEXT"), ("f", "BOOLEAN")),
        lambda n, r: (n, f"b{n % 7}", n % 2 == 0),
        distributed_by="f, b, a",
        second_tier=True,
    ),
}


class Rows:
    """One table of a kind, and its four statements."""

    def __init__(self, table: str, kind: Kind) -> None:
        count = len(kind.names)
        where = " AND ".join(f"{name} = ${number}" for number, name in enumerate(kind.names, 1))
        shifted = " AND ".join(f"{name} = ${number}" for number, name in enumerate(kind.names, 2))
        values = ", ".join(f"${number}" for number in range(1, count + 2))
        self.kind = kind
        self.insert = f"INSERT INTO {table} VALUES ({values})"
        self.select = f"SELECT v FROM {table} WHERE {where}"
        self.update = f"UPDATE {table} SET v = $1 WHERE {shifted}"
        self.delete = f"DELETE FROM {table} WHERE {where}"


async def _create(target: Target) -> list[Rows]:
    default = await target.default_tier()
    other = next((tier for tier in await target.tiers() if tier != default), None)
    found = []
    for name, kind in KINDS.items():
        columns = ", ".join(f"{column} {type_} NOT NULL" for column, type_ in kind.columns)
        key = ", ".join(kind.names)
        distribution = f"DISTRIBUTED BY ({kind.distributed_by or key})"
        if kind.second_tier and other is not None:
            distribution += f' IN TIER "{other}"'
        text = f"{columns}, v INT, PRIMARY KEY ({key})"
        found.append(Rows(await target.create_table(text, distribution=distribution, hint=name), kind))
    return found


async def _warm_up(pool: Pool, tables: list[Rows]) -> None:
    rng = random.Random(1)
    for rows in tables:
        key = rows.kind.key(-7, rng)
        await pool.execute(rows.insert, *key, 0)
        assert await pool.fetchval(rows.select, *key) == 0
        await pool.execute(rows.update, 1, *key)
        await pool.execute(rows.delete, *key)
        for text, args in ((rows.insert, (*key, 0)), (rows.select, key), (rows.update, (1, *key)), (rows.delete, key)):
            explained = await pool.explain_route(text, *args)
            assert explained.direct, explained


async def _insert_and_one_more(pool: Pool, rows: Rows, number: int, rng: random.Random) -> int:
    """Insert, then read, change or delete what was inserted; gives the number of statements."""
    key = rows.kind.key(number, rng)
    assert await pool.execute(rows.insert, *key, number) == "INSERT 0 1"
    match number // len(KINDS) % 3:
        case 0:
            assert await pool.fetchval(rows.select, *key) == number
        case 1:
            assert await pool.execute(rows.update, number + 1, *key) == "UPDATE 1"
        case _:
            assert await pool.execute(rows.delete, *key) == "DELETE 1"
    return 2


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_after_warm_up_statements_of_every_kind_of_key_are_direct(
    target: Target, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """At least 99.9 % of the INSERTs, SELECTs, UPDATEs and DELETEs of six tables in two tiers run at their owner."""
    target.need(Capability.COUNT_DIRECT)
    tables = await _create(target)
    pool = await open_pool(target.dsn, topology_update_interval=None)
    await pool.wait_ready()
    await _warm_up(pool, tables)
    total, sent, rng = 10_000 if full_size else 2_000, 0, random.Random(7)
    numbers = iter(range(total // 2))
    before, began = await target.direct(), time.monotonic()

    async def work() -> None:
        nonlocal sent
        for number in numbers:
            done = await _insert_and_one_more(pool, tables[number % len(tables)], number, rng)
            sent += done

    await asyncio.gather(*(work() for _ in range(8)))
    seconds = time.monotonic() - began
    direct = await target.direct() - before
    measured("statements", sent)
    measured("direct share", direct / sent)
    measured("tiers", len(await target.tiers()))
    measured("statements per second", sent / seconds)
    assert sent == total
    assert 0.999 * total <= direct <= total
    calls = pool.stats().calls
    assert calls["uncomputable"] == calls["no_map"] == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_buckets_move_under_load(
    fresh: Fresh, open_pool: OpenPool, full_size: bool, measured: Callable[[str, object], None]
) -> None:
    """Half the buckets of a replicaset move: no call fails; the first interval after the view is whole is direct."""
    target = fresh(view_lag=0.5)
    target.need(Capability.MOVE_BUCKETS, Capability.COUNT_DIRECT)
    assert isinstance(target, EmbeddedTarget)
    cluster, seen = target.cluster, list[tuple[float, Event]]()
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(
        target.dsn, topology_update_interval=1.0, on_event=lambda event: seen.append((time.monotonic(), event))
    )
    await pool.wait_ready()
    insert, select = f"INSERT INTO {table} VALUES ($1, $2)", f"SELECT v FROM {table} WHERE id = $1"
    await asyncio.gather(pool.explain_route(insert, 1, 1), pool.explain_route(select, 1))

    async def write_and_read(number: int) -> None:
        await pool.execute(insert, number, number)
        assert await pool.fetchval(select, number) == number

    async with Load() as load:
        load.start("write and read", write_and_read, tasks=4)
        cluster.move_buckets("default", 1, 750, "default_2", duration=2.0 if not full_size else 10.0)
        await asyncio.to_thread(cluster.wait_views)
        whole = time.monotonic()
        refreshes = pool.stats().topology.refreshes  # type: ignore[union-attr]
        await load.wait("a refresh after that", lambda: pool.stats().topology.refreshes > refreshes)  # type: ignore[union-attr]
        followed = time.monotonic()
        await asyncio.to_thread(cluster.reset_counters)
        first, interval = time.monotonic(), 1.0
        await load.wait("one interval", lambda: time.monotonic() - first >= interval)
        counters = (await asyncio.to_thread(cluster.counters)).values()
    direct, forwarded = sum(c.direct for c in counters), sum(c.forwarded for c in counters)
    measured("seconds from the whole view to the refresh", followed - whole)
    measured("direct share in the next interval", direct / (direct + forwarded))
    measured("calls", len(load.done))
    assert not load.failures()
    assert direct >= 0.99 * (direct + forwarded)
    assert any(isinstance(event, TopologyChanged) and event.buckets_moved for _, event in seen)
