"""Many keys at once, each asked for at its owner; and the rows of one INSERT, each sent to its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from picopyn.errors import BulkError, FetchIncomplete, NotSupported, UsageError
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("facade", FACADES, indirect=True)]


@pytest.fixture
async def pool(target: Target, open_pool: OpenPool) -> Any:
    pool = await open_pool(target.dsn, acquire_timeout=30)
    await pool.wait_ready(timeout=30)
    return pool


async def test_rows_of_many_keys_come_from_their_owners(target: Target, pool: Any) -> None:
    """In pieces of at most 50 keys, in the order of the keys when that is wanted; keys without a row have none."""
    target.need(Capability.COUNT_DIRECT)
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(n, str(n % 3)) for n in range(300)])
    keys = [*range(250, 40, -1), 1000, 100]
    text = f"SELECT * FROM {table} WHERE id IN ($1)"
    before = await target.direct()
    rows = await pool.fetch_by_keys(text, iter(keys), order_by="id")
    assert [row["id"] for row in rows] == list(range(250, 40, -1))
    assert await target.direct() - before in (5, 6)
    rows = await pool.fetch_by_keys(f"SELECT id FROM {table} WHERE id IN ($1) AND v = $2", [(1,), (2,), (4,)], "1")
    assert sorted(row["id"] for row in rows) == [1, 4]
    assert await pool.fetch_by_keys(text, []) == []


async def test_keys_of_several_columns(target: Target, pool: Any) -> None:
    """Their condition is repeated; the key of the table may have another order."""
    table = await target.create_table(
        "a INT NOT NULL, b TEXT NOT NULL, v INT, PRIMARY KEY (a, b)", distribution="DISTRIBUTED BY (b, a)"
    )
    given = [(n, f"b{n % 5}", n) for n in range(80)]
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2, $3)", given)
    keys = [(a, b) for a, b, _ in reversed(given)]
    rows = await pool.fetch_by_keys(f"SELECT * FROM {table} WHERE (a = $1 AND b = $2)", keys, order_by=("a", "b"))
    assert [(row["a"], row["b"]) for row in rows] == keys


async def test_keys_that_were_given_as_texts_keep_their_order(target: Target, pool: Any) -> None:
    """A text does for a UUID; the rows have UUIDs."""
    table = await target.create_table("id UUID PRIMARY KEY, v INT", distribution="DISTRIBUTED BY (id)")
    keys = [UUID(int=number * 7919**9 % 2**127) for number in range(1, 9)]
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(key, n) for n, key in enumerate(keys)])
    given = [str(key) for key in reversed(keys)]
    rows = await pool.fetch_by_keys(f"SELECT * FROM {table} WHERE id IN ($1)", given, order_by="id")
    assert [row["v"] for row in rows] == [*range(7, -1, -1)]


async def test_what_does_not_fit_is_refused(target: Target, pool: Any) -> None:
    """Keys of two widths, a text without a place for the key, other arguments than the text has."""
    text = "SELECT * FROM t WHERE id IN ($1)"
    for query, keys, args, message in (
        (text, [1, (1, 2)], (), "key 1 has 2 values, 1 are expected"),
        (text, [()], (), "key 0 has 0 values"),
        (text, [{}], (), "cannot be compared"),
        (text, "abc", (), "takes keys one after the other, not str"),
        (text, 5, (), "takes keys one after the other, not int"),
        (None, [1], (), "takes the text of a statement, not NoneType"),
        (text, [1], (5,), "0 parameters behind its key, 1 are given"),
        ("SELECT * FROM t WHERE id = $1", [1], (), "need parentheses"),
    ):
        with pytest.raises(UsageError, match=message):
            await pool.fetch_by_keys(query, keys, *args)
    for order, message in ((("id", "v"), "2 columns, a key has 1"), (5, "name of a column, or names, not int")):
        with pytest.raises(UsageError, match=message):
            await pool.fetch_by_keys(text, [1], order_by=order)
    with pytest.raises(asyncpg.PostgresError, match="not found"):
        await pool.fetch_by_keys("SELECT * FROM no_such_table WHERE id IN ($1)", [1, 2])
    with pytest.raises(NotSupported, match="COPY"):
        await pool.copy_records("t", [(1,)])


@pytest.mark.stops_instances
async def test_an_owner_without_a_leader_costs_its_own_keys_only(fresh: Fresh, open_pool: OpenPool) -> None:
    """The error has the rows of the others, and says which keys got no answer."""
    target = fresh(replicasets=2, replication=2, auto_offline_timeout=300.0)
    target.need(Capability.KILL, Capability.OWN_SHAPE)
    assert isinstance(target, EmbeddedTarget)
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    pool = await open_pool(target.dsn, acquire_timeout=20)
    await pool.wait_ready(timeout=30)
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(n, "x") for n in range(60)])
    text = f"SELECT * FROM {table} WHERE id IN ($1)"
    assert len(await pool.fetch_by_keys(text, range(60))) == 60
    victim = next(iter(target.cluster.leaders().values()))
    target.cluster.kill(victim)
    with pytest.raises(FetchIncomplete, match="of 60 keys got no answer") as caught:
        await pool.fetch_by_keys(text, range(60), timeout=3)
    with pytest.raises(FetchIncomplete, match="of 120 keys got no answer") as twice:
        await pool.fetch_by_keys(text, [number // 2 for number in range(120)], timeout=3)
    assert sorted(twice.value.failed) == sorted(2 * p + more for p in caught.value.failed for more in (0, 1))
    found = {row["id"] for row in caught.value.rows}
    assert 0 < len(found) < 60
    assert set(caught.value.failed) == set(range(60)) - found
    rows = await pool.fetch_by_keys(text, range(60), role="prefer_leader", timeout=60)
    assert len(rows) == 60


async def test_rows_of_values_are_split_when_that_was_declared(target: Target, pool: Any) -> None:
    """Each goes to its owner, and takes effect by itself; without the word the statement is forwarded as a whole."""
    target.need(Capability.COUNT_DIRECT)
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    values = ", ".join(f"(${2 * n + 1}, ${2 * n + 2})" for n in range(100))
    args = [value for n in range(100) for value in (n, "x")]
    before = await target.direct()
    status = await pool.execute(f"INSERT INTO {table} VALUES {values}", *args, splittable=True)
    assert status == "INSERT 0 100"
    assert await target.direct() - before == 100
    again = f"INSERT INTO {table} VALUES {values} ON CONFLICT DO NOTHING"
    assert await pool.execute(again, *args, splittable=True) == "INSERT 0 0"
    with pytest.raises(BulkError):
        await pool.execute(f"INSERT INTO {table} VALUES {values}", *args, splittable=True)
    with pytest.raises(UsageError, match="differ in nothing but their parameters"):
        await pool.execute(f"INSERT INTO {table} VALUES ($1, 'a'), ($2, 'b')", 1, 2, splittable=True)
    with pytest.raises(UsageError, match="only an INSERT"):
        await pool.execute(f"DELETE FROM {table} WHERE id = $1", 1, splittable=True)
    two = f"INSERT INTO {table} VALUES ($1, $2), ($3, $4)"
    with pytest.raises(UsageError, match="leave key=, tier=, bucket= and node= out"):
        await pool.execute(two, 500, "a", 501, "b", splittable=True, tier="default")
    with pytest.raises(TypeError, match="unexpected keyword argument 'splitable'"):
        await pool.execute(two, 500, "a", 501, "b", splittable=True, splitable=True)
    with pytest.raises(UsageError, match="names 'nope', which is no column"):
        await pool.fetch_by_keys(f"SELECT id FROM {table} WHERE id IN ($1)", [1], order_by="nope")
