"""The caller says where a call goes: by key, by bucket, by tier, by node. On the cluster's own count."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.errors import NoNodeAvailable, UsageError
from picopyn.routing.sharding import ShardingKey
from tests.contract.conftest import OpenPool
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("facade", FACADES, indirect=True)]


@pytest.fixture
async def table(target: Target) -> str:
    """A table of the default tier, distributed by two of its columns, in another order than they come."""
    return await target.create_table(
        "a INT NOT NULL, b TEXT NOT NULL, v INT, PRIMARY KEY (a, b)", distribution="DISTRIBUTED BY (b, a)"
    )


@pytest.fixture
async def pool(target: Target, open_pool: OpenPool) -> Any:
    pool = await open_pool(target.dsn)
    await pool.wait_ready(timeout=30)
    return pool


def _leader_of(pool: Any, key: ShardingKey, target: Target) -> str:
    snapshot = pool.topology
    bucket = key.locate(PICODATA_KEY_HASH, snapshot.bucket_count(key.tier) or 0)
    leader = snapshot.leader(snapshot.owner(key.tier, bucket))
    assert leader is not None
    return str(leader.name)


async def test_a_key_a_bucket_and_a_node_lead_to_one_place(pool: Any, table: str, target: Target) -> None:
    """A call whose text has no key that can be computed goes to the owner all the same, and is counted as named."""
    factory = await pool.sharding_key_factory(table)
    assert [name for name, _ in factory.columns] == ["b", "a"]
    assert await pool.create_sharding_key_factory(table) == factory
    key = factory.key("x", 1)
    assert key == factory.create_key({"a": 1, "b": "x", "v": 0})
    owner = _leader_of(pool, key, target)
    before = pool.stats().calls["named"]
    text = f"INSERT INTO {table} VALUES ($1 + 0, $2, $3)"
    assert await pool.execute(text, 1, "x", 5, key=key) == "INSERT 0 1"
    where = f"SELECT v FROM {table} WHERE a = $1 + 0 AND b = $2"
    assert await pool.fetchval(where, 1, "x", key=key) == 5
    assert (await pool.fetchrow(where, 1, "x", node=owner))["v"] == 5
    assert [tuple(row) for row in await pool.fetch(where, 1, "x", tier=factory.tier)] == [(5,)]
    assert pool.stats().calls["named"] == before + 4
    explained = await pool.explain_route(where, 1, "x", key=key)
    assert explained.direct
    assert explained.candidates[0].startswith(owner)


async def test_a_connection_leads_to_a_bucket(pool: Any, target: Target) -> None:
    """`acquire` takes the same words; the published driver's names mean them."""
    tier = await target.default_tier()
    leader = pool.topology.leader(pool.topology.owner(tier, 7))
    async with pool.acquire(tier=tier, bucket=7) as held:
        assert held.node == leader
    async with pool.acquire(key=ShardingKey(tier, bucket=7), role="prefer_leader") as held:
        assert held.node == leader
    async with pool.acquire(tier=tier) as held:
        assert held.node in pool.topology.nodes(role="leader", tier=tier)
    async with pool.acquire_by_tier_and_bucket_id(tier, 7) as held:
        assert held.node == leader
    async with pool.acquire_by_sharding_key(ShardingKey(tier, bucket=7), timeout=20) as held:
        assert held.node == leader
    async with pool.acquire_by_instance_uuid(leader.uuid) as held:
        assert held.node == leader
    with pytest.raises(NoNodeAvailable):
        async with pool.acquire_by_instance_uuid("nobody"):
            pass
    for nothing in ("", None):
        with pytest.raises(UsageError):
            pool.acquire_by_instance_uuid(nothing)


async def test_a_key_is_learned_where_the_catalogue_is_closed(
    target: Target, table: str, open_pool: OpenPool, pool: Any
) -> None:
    """A user who may only read the table gets the same keys; one who may not read it gets the server's error."""
    target.need(Capability.SECOND_USER)
    known = await pool.sharding_key_factory(table)
    other = await target.create_table("id INT PRIMARY KEY", distribution="DISTRIBUTED BY (id)")
    async with target.bare_user(table) as dsn:
        bare = await open_pool(dsn)
        learned = await bare.sharding_key_factory(table)
        assert (learned.columns, learned.tier) == (known.columns, known.tier)
        told = await bare.sharding_key_factory("whatever", tier=known.tier, columns={"b": "text", "a": "int"})
        assert told.key("x", 1) == known.key("x", 1)
        with pytest.raises(asyncpg.PostgresError):
            await bare.sharding_key_factory(other)
        await bare.close()


async def test_the_form_of_a_double_is_learned(target: Target, pool: Any) -> None:
    """No catalogue tells how a server hashes doubles; its EXPLAIN does."""
    table = await target.create_table("k DOUBLE PRIMARY KEY, v INT", distribution="DISTRIBUTED BY (k)")
    factory = await pool.sharding_key_factory(table)
    await pool.execute(f"INSERT INTO {table} VALUES ($1, $2)", 1.5, 1, key=factory.key(1.5))
    row = await pool.fetchrow(f"SELECT bucket_id FROM {table}")
    assert factory.key(1.5).locate(PICODATA_KEY_HASH, pool.topology.bucket_count(factory.tier)) == row["bucket_id"]


BAD = [
    ({"key": 42}, UsageError, "takes a ShardingKey, not int"),
    ({"key": ShardingKey("nowhere", (1,))}, UsageError, r"no tier 'nowhere' .* known are 'default' \(3000 buckets\)"),
    (
        {"key": ShardingKey(values=(2**70,))},
        UsageError,
        "value 1 is of type int or out of range; expected is ",
    ),
    (
        {"key": ShardingKey(values=(1, 1.5))},
        UsageError,
        "value 2 is of type double, which is hashed in one of the ways",
    ),
    ({"bucket": 3001, "tier": "default"}, UsageError, "bucket 3001 is out of range: tier 'default' has .* 1 to 3000"),
    ({"bucket": 0}, UsageError, "at least 1"),
    ({"bucket": True}, UsageError, "at least 1"),
    ({"bucket": 5}, UsageError, "which tier"),
    ({"tier": "nowhere"}, UsageError, "no tier 'nowhere'"),
    ({"tier": ""}, UsageError, "empty"),
    ({"tier": 3}, UsageError, "takes a name"),
    ({"node": "nobody"}, NoNodeAvailable, "no node 'nobody'"),
    ({"node": "n", "bucket": 1}, UsageError, "already says"),
    ({"key": ShardingKey(bucket=1), "tier": "default"}, UsageError, "already says"),
    ({"nodes": "n"}, TypeError, "unexpected keyword argument 'nodes'"),
]


async def test_what_names_no_place_is_refused_before_anything_is_sent(pool: Any, target: Target) -> None:
    """The error names what is wrong and what is expected, whichever call it is."""
    if not isinstance(target, EmbeddedTarget):
        pytest.skip("the texts are those of the embedded cluster's tiers")
    before = sum(pool.stats().calls.values())
    for where, error, text in BAD:
        for call in (pool.execute, pool.fetch, pool.fetchrow, pool.fetchval, pool.explain_route):
            with pytest.raises(error) as caught:
                await call("SELECT 1", **where)
            assert re.search(text, str(caught.value)), where
        if error is not TypeError:
            with pytest.raises(error):
                async with pool.acquire(**where):
                    pass
    assert sum(pool.stats().calls.values()) == before


async def test_a_key_of_another_shape_is_refused_where_it_is_made(pool: Any, table: str) -> None:
    """It names the position, the column and the type."""
    factory = await pool.sharding_key_factory(table)
    with pytest.raises(UsageError, match=r"takes 2 values, not 1: b \(text\), a \(integer\)"):
        factory.key("x")
    with pytest.raises(UsageError, match=r"value 2 \(a\) is of type str or out of range; expected is integer"):
        factory.key("x", "y")
    with pytest.raises(UsageError, match="needs the columns b"):
        factory.create_key({"a": 1})
    with pytest.raises(UsageError, match="no table 'nothing'"):
        await pool.sharding_key_factory("nothing")
    for wrong in ("", None):
        with pytest.raises(UsageError, match="name of a table"):
            await pool.sharding_key_factory(wrong)
    with pytest.raises(UsageError, match="column 'a' of a key cannot be of type 'json'"):
        await pool.sharding_key_factory(table, tier="default", columns={"a": "json"})
    for columns in (["a"], {}, {1: "int"}):
        with pytest.raises(UsageError, match="takes the columns of the key with their types"):
            await pool.sharding_key_factory(table, tier="default", columns=columns)
    with pytest.raises(UsageError, match="tier= takes a name, not list"):
        await pool.sharding_key_factory(table, tier=["default"], columns={"a": "int"})
    with pytest.raises(UsageError, match="on every node"):
        await pool.sharding_key_factory("_pico_table")


#: Columns that form a key, in its order, and how one is made from a number.
GENERATED: dict[str, tuple[str, Callable[[int, random.Random], tuple[Any, ...]]]] = {
    "a INT": ("a", lambda n, r: (r.choice([n, -n, r.getrandbits(63), -r.getrandbits(40)]),)),
    "a TEXT": ("a", lambda n, r: (r.choice(["", "é", "ключ"]) + "x" * (n % 70) + str(n),)),
    "a UUID": ("a", lambda n, r: (uuid.UUID(int=r.getrandbits(128), version=4),)),
    "a DECIMAL": ("a", lambda n, r: (Decimal(r.randint(-(10**12), 10**12)).scaleb(-r.randint(0, 6)),)),
    "a DATETIME": ("a", lambda n, r: (MOMENT + timedelta(seconds=r.randint(0, 10**9), microseconds=n % 3),)),
    "a DOUBLE": ("a", lambda n, r: (r.choice([float(n), n + 0.5, n * 1e30, -n / 7]),)),
    "a INT, b TEXT, c BOOLEAN": ("c, b, a", lambda n, r: (n % 2 == 0, f"b{n % 9}", n)),
    "a UUID, b DATETIME, c INT": (
        "b, a, c",
        lambda n, r: (MOMENT + timedelta(seconds=n), uuid.UUID(int=r.getrandbits(128), version=4), n),
    ),
    "a DECIMAL, b DOUBLE": ("a, b", lambda n, r: (Decimal(n) / 8, n + 0.25)),
}
MOMENT = datetime(2001, 1, 1, tzinfo=UTC)


async def test_the_bucket_of_a_generated_key_is_the_servers_own(pool: Any, target: Target, full_size: bool) -> None:
    """Of every type and of several together: what the driver computes is where the server put the row."""
    rng, count = random.Random(7), (20_000 if full_size else 2_000) // len(GENERATED)
    for columns, (order, make) in GENERATED.items():
        names = [column.split()[0] for column in columns.split(", ")]
        nullable = columns.replace(",", " NOT NULL,") + " NOT NULL"
        table = await target.create_table(
            f"n INT PRIMARY KEY, {nullable}", distribution=f"DISTRIBUTED BY ({order})", hint="generated"
        )
        factory = await pool.sharding_key_factory(table)
        assert [name for name, _ in factory.columns] == order.split(", ")
        keys = [make(number, rng) for number in range(count)]
        by_name = [dict(zip(order.split(", "), key, strict=True)) for key in keys]
        values = ", ".join(f"${number}" for number in range(1, len(names) + 2))
        rows = [(number, *(row[name] for name in names)) for number, row in enumerate(by_name)]
        await pool.executemany(f"INSERT INTO {table} VALUES ({values})", rows)
        found = {row["n"]: row["bucket_id"] for row in await pool.fetch(f"SELECT n, bucket_id FROM {table}")}
        buckets = pool.topology.bucket_count(factory.tier) or 0
        computed = {n: factory.create_key(row).locate(PICODATA_KEY_HASH, buckets) for n, row in enumerate(by_name)}
        assert computed == found
