"""`executemany` on a sharded server: to the owners, in chunks, and an exact report when it stops."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from picopyn import sync
from picopyn.bulk_report import BulkReport, RowState
from picopyn.errors import BulkError, OutcomeUnknown, UsageError
from picopyn.testing import PicodataCluster
from tests.contract.conftest import Fresh, OpenPool
from tests.contract.target import Capability, EmbeddedTarget, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster

both = pytest.mark.parametrize("facade", FACADES, indirect=True)


@pytest.fixture
async def table(target: Target) -> str:
    return await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")


@pytest.fixture
async def pool(target: Target, open_pool: OpenPool) -> Any:
    pool = await open_pool(target.dsn, acquire_timeout=30)
    await pool.wait_ready(timeout=30)
    return pool


async def ids(pool: Any, table: str) -> list[int]:
    """The keys in a table, ascending."""
    return sorted(row["id"] for row in await pool.fetch(f"SELECT id FROM {table}"))


@both
async def test_every_row_goes_to_its_owner(target: Target, pool: Any, table: str) -> None:
    """Also of a text that was never used before; rows come from any iterable, and progress is told."""
    target.need(Capability.COUNT_DIRECT)
    before = await target.direct()
    told: list[int] = []
    rows = ((number, "x") for number in range(600))
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows, chunk_size=50, progress=told.append)
    assert await target.direct() - before == 600
    assert told == sorted(set(told))
    assert told[-1] == 600
    assert await ids(pool, table) == list(range(600))
    await pool.executemany(f"DELETE FROM {table} WHERE id = $1", [(number,) for number in range(0, 600, 2)])
    assert await target.direct() - before == 900
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [])
    assert await ids(pool, table) == list(range(1, 600, 2))


async def test_rows_may_be_awaited(pool: Any, table: str) -> None:
    """An asynchronous iterable is taken a batch at a time."""

    async def rows() -> AsyncIterator[tuple[int, str]]:
        for number in range(300):
            await asyncio.sleep(0)
            yield number, "x"

    text = f"INSERT INTO {table} VALUES ($1, $2)"
    await pool.executemany(text, rows(), chunk_size=40)
    assert await ids(pool, table) == list(range(300))
    closed = []

    async def wrong(what: str) -> AsyncIterator[Any]:
        try:
            for number in range(300, 400):
                yield number, "x"
            if what == "error":
                raise KeyError("secret")
            yield (1,)
            for number in range(400, 500):
                yield number, "x"
        finally:
            await asyncio.sleep(0)
            closed.append(what)

    for what, told in (("width", "row 100 has 1 values"), ("error", "KeyError in the caller's own code")):
        with pytest.raises(BulkError, match=told) as caught:
            await pool.executemany(text, wrong(what), chunk_size=10)
        check(caught.value.report, list(range(300, 400)), [key for key in await ids(pool, table) if key >= 300])
        assert closed.pop() == what
        await pool.execute(f"DELETE FROM {table} WHERE id >= $1", 300)
    assert await ids(pool, table) == list(range(300))


async def test_threads_are_told_where_rows_can_be_awaited(target: Target, table: str) -> None:
    """A pool of threads takes none from an asynchronous iterable."""

    async def rows() -> AsyncIterator[tuple[int, str]]:
        yield 1, "x"

    def load() -> None:
        with sync.Pool(target.dsn) as pool, pytest.raises(UsageError, match="not from an asynchronous one"):
            pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows())  # type: ignore[arg-type]

    await asyncio.to_thread(load)


@both
async def test_a_literal_in_the_key_leads_rows_to_their_owners(target: Target, pool: Any) -> None:
    """A part of the key stands in the text: in a load, and where rows are fetched by many keys."""
    target.need(Capability.COUNT_DIRECT)
    table = await target.create_table("a INT, b TEXT, PRIMARY KEY (a, b)", distribution="DISTRIBUTED BY (b, a)")
    before = await target.direct()
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, 'x')", [(number,) for number in range(100)])
    assert await target.direct() - before == 100
    text = f"SELECT a FROM {table} WHERE b = 'x' AND a IN ($1)"
    before = await target.direct()
    found = await pool.fetch_by_keys(text, range(20), order_by="a")
    assert [row["a"] for row in found] == list(range(20))
    assert await target.direct() - before in (1, 2)  # one statement for each owner


@both
async def test_rows_without_a_computable_owner_are_forwarded(pool: Any, target: Target) -> None:
    """A text without a key that can be computed runs all the same, and so does a row with a value of another type."""
    table = await target.create_table("id INT PRIMARY KEY, v INT", distribution="DISTRIBUTED BY (id)")
    await pool.executemany(f"INSERT INTO {table} VALUES ($1 + 1, $2)", [(number, 0) for number in range(20)])
    assert await ids(pool, table) == list(range(1, 21))
    await pool.executemany(f"UPDATE {table} SET v = $1 WHERE v = $2", [(1, 0), (2, 1)])
    assert {row["v"] for row in await pool.fetch(f"SELECT v FROM {table}")} == {2}


def check(report: BulkReport, given: list[int], present: list[int]) -> None:
    """A report is exact: what is acknowledged is there, what is not is not, but for what it says is unknown."""
    there = set(present)
    unknown = set(report.positions(RowState.UNKNOWN))
    for position, key in enumerate(given):
        if position not in unknown:
            assert report.is_acknowledged(position) == (key in there), (position, report)


@both
async def test_a_row_that_the_server_refuses_is_named(pool: Any, table: str) -> None:
    """Its owner's rows before it stay and those behind it are not executed; the load goes on from its report."""
    text = f"INSERT INTO {table} VALUES ($1, $2)"
    await pool.execute(text, 1000, "in the way, in element #3 of executemany() sequence")  # quoted by the server
    keys = [*range(150), 1000, *range(150, 400)]
    with pytest.raises(BulkError) as caught:
        await pool.executemany(text, ((key, "x") for key in keys), chunk_size=40)
    report = caught.value.report
    assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert re.search(r"stopped at row 150: .*\(XX000\)", str(caught.value))
    assert "in the way" not in str(caught.value)
    (error,) = report.errors
    assert error is caught.value.__cause__
    assert str(error) not in repr(report) + str(report)
    assert f"{type(error).__name__} (XX000)" in repr(report)
    assert report.positions(RowState.FAILED) == (150,)
    assert report.positions(RowState.UNKNOWN) == ()
    present = [key for key in await ids(pool, table) if key != 1000]
    assert report.acknowledged == len(present) > 0
    check(report, [key if key != 1000 else -1 for key in keys], present)
    keys[150] = 2000
    await pool.executemany(text, ((key, "x") for key in keys), chunk_size=40, resume=report)
    assert await ids(pool, table) == [*range(400), 1000, 2000]


@both
async def test_a_row_of_the_wrong_shape_is_refused_before_its_chunk_is_sent(pool: Any, table: str) -> None:
    """Of a wrong width, or no row at all; a value that is no key is found when its chunk is encoded."""
    text = f"INSERT INTO {table} VALUES ($1, $2)"
    good = [(number, "x") for number in range(500)]
    for bad, message in (
        ((1,), "row 400 has 1 values, 2 are expected"),
        ((1, "x", 2), "row 400 has 3 values, 2 are expected"),
        (7, "row 400 is no sequence of values but of type int"),
        ("xy", "row 400 is no sequence of values but of type str"),
        ({"id": 1, "v": "x"}, "row 400 is no sequence of values but of type dict"),
        ({1, 2}, "row 400 is no sequence of values but of type set"),
    ):
        with pytest.raises(BulkError, match=message) as caught:
            await pool.executemany(text, [*good[:400], bad, *good[400:]], chunk_size=30)
        report = caught.value.report
        assert report.positions(RowState.FAILED) == (400,)
        present = await ids(pool, table)
        assert len(present) == report.acknowledged
        assert max(present) < 400
        await pool.execute(f"DELETE FROM {table}")
    with pytest.raises(BulkError, match="row 0 has 1 values, 2 are expected"):
        await pool.executemany(text, [(1,)])
    for nothing in (None, 5, "xy", object()):
        with pytest.raises(UsageError, match="takes rows of arguments one after the other, not"):
            await pool.executemany(text, nothing)
    assert await ids(pool, table) == []
    with pytest.raises(BulkError) as caught:
        await pool.executemany(text, [*good[:100], (1000, 5), *good[100:200]])
    report = caught.value.report
    assert isinstance(caught.value.__cause__, asyncpg.DataError)
    assert report.positions(RowState.FAILED) == (100,)
    check(report, [*range(100), -1, *range(100, 200)], await ids(pool, table))


@both
async def test_a_key_that_cannot_be_sent_is_refused_before_its_chunk_is_sent(target: Target, pool: Any) -> None:
    """Of a wrong type or out of range, in any column of the key: the error tells position and type, and no value."""
    table = await target.create_table("a TEXT, b INT, PRIMARY KEY (a, b)", distribution="DISTRIBUTED BY (a, b)")
    text = f"INSERT INTO {table} (b, a) VALUES ($1, $2)"
    good = [(number, "x") for number in range(500)]
    for bad, message in (
        (("secret", "x"), "row 400 cannot be sent: $1 is of type str or out of range; expected is integer"),
        ((2**63, "x"), "row 400 cannot be sent: $1 is of type int or out of range; expected is integer"),
        ((1, b"secret"), "row 400 cannot be sent: $2 is of type bytes or out of range; expected is text"),
        ((1, 1.5), "row 400 cannot be sent: $2 is of type float or out of range; expected is text"),
    ):
        with pytest.raises(BulkError, match=re.escape(message)) as caught:
            await pool.executemany(text, [*good[:400], bad, *good[400:]], chunk_size=300)
        report = caught.value.report
        assert "secret" not in str(caught.value) + repr(report)
        assert report.positions(RowState.FAILED) == (400,)
        assert report.positions(RowState.NOT_EXECUTED) == (*range(400), *range(401, 501))
        assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0
    odd = [(True, "x"), (2.0, "x"), (Decimal(3), "x"), (4, "ключ"), (5, type("Name", (str,), {})("name"))]
    await pool.executemany(text, [*good[10:20], *odd])
    assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 15


@both
async def test_own_codecs_decide_what_a_key_may_be(target: Target, open_pool: OpenPool, table: str) -> None:
    """Where a hook may have set some, what asyncpg itself would refuse is left to them."""
    pool = await open_pool(target.dsn, acquire_timeout=30, after_connect=spell_numbers)
    rows = [("1", "x"), ("2", "y")]
    await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows)
    assert await pool.fetchval(f"SELECT count(*) FROM {table}") == "2"


def spell_numbers(connection: Any) -> Any:
    """A hook for both facades: integers are texts."""
    return connection.set_type_codec("int8", schema="pg_catalog", encoder=str, decoder=str)


@both
async def test_a_key_of_another_type_than_before_is_loaded(target: Target, pool: Any, table: str) -> None:
    """The table was made anew, and nothing was sent since that would have told."""
    text = f"INSERT INTO {table} VALUES ($1, $2)"
    await pool.executemany(text, [(1, "x")])
    await target.execute(
        f"DROP TABLE {table}", f"CREATE TABLE {table} (id TEXT PRIMARY KEY, v TEXT) DISTRIBUTED BY (id)"
    )
    await pool.executemany(text, [("one", "x"), ("two", "y")])
    assert await ids(pool, table) == ["one", "two"]


@both
async def test_the_callers_own_errors_stop_a_load(pool: Any, table: str) -> None:
    """Raised where rows are made, or where progress is told: the report says how far it came."""
    text = f"INSERT INTO {table} VALUES ($1, $2)"

    def rows() -> Iterator[tuple[int, str]]:
        yield from ((number, "x") for number in range(200))
        raise KeyError("secret")

    with pytest.raises(BulkError, match="KeyError in the caller's own code") as caught:
        await pool.executemany(text, rows(), chunk_size=20)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "secret" not in str(caught.value)
    report = caught.value.report
    assert (report.taken, report.acknowledged) == (200, 200)  # what was made before it is loaded
    assert await ids(pool, table) == list(range(200))

    def progress(done: int) -> None:
        raise RuntimeError(f"{done}")

    with pytest.raises(BulkError, match="RuntimeError in the caller's own code") as caught:
        await pool.executemany(text, ((n, "x") for n in range(1000, 1200)), chunk_size=20, progress=progress)
    check(caught.value.report, list(range(1000, 1200)), await ids(pool, table))


@both
async def test_progress_is_told_to_plain_functions_only(pool: Any, table: str) -> None:
    """What cannot be called, and what would have to be awaited, is refused before a row is taken."""

    async def awaited(done: int) -> None:
        raise AssertionError(done)

    rows = iter([(1, "x")])
    for wrong, said in ((5, "not int"), (awaited, "not a coroutine function")):
        with pytest.raises(UsageError, match=f"progress= takes a plain function of one number, {said}"):
            await pool.executemany(f"INSERT INTO {table} VALUES ($1, $2)", rows, progress=wrong)
    assert len(list(rows)) == 1
    assert await ids(pool, table) == []


def insert_late(table: str) -> str:
    """A load that may be interrupted: what was under way may still be executed after somebody has looked."""
    return f"INSERT INTO {table} VALUES ($1, $2) ON CONFLICT DO NOTHING"


async def goes_on(pool: Any, table: str, keys: list[int], stopped: BaseException) -> BulkReport:
    """The report of an interrupted load is exact, and a load that goes on from it leaves every row once.

    Returns:
        The report.
    """
    report = BulkReport.of(stopped)
    assert report is not None
    async with asyncio.timeout(60):
        while any(node.in_use for node in pool.stats().nodes.values()):
            await asyncio.sleep(0.01)
    there = set(await ids(pool, table)).intersection(keys)
    check(report, keys, list(there))
    settled = report.settled(p for p in report.positions(RowState.UNKNOWN) if keys[p] in there)
    await pool.executemany(insert_late(table), [(key, "x") for key in keys], resume=settled)
    assert there < set(keys) <= set(await ids(pool, table))
    return report


async def within(limit: asyncio.Timeout, work: Coroutine[Any, Any, None]) -> None:
    async with limit:
        await work


async def test_a_cancelled_load_tells_what_became_of_its_rows(pool: Any, table: str) -> None:
    """Every connection is free again, no task is left, and the load can go on; also where rows are awaited."""
    for number, end in enumerate(("cancel", "timeout", "awaited rows")):
        begun, closed = asyncio.Event(), asyncio.Event()
        keys = list(range(number * 500, number * 500 + 500))

        def progress(_: int, begun: asyncio.Event = begun) -> None:
            begun.set()

        async def rows(
            keys: list[int] = keys, begun: asyncio.Event = begun, closed: asyncio.Event = closed
        ) -> AsyncIterator[tuple[int, str]]:
            try:
                for key in keys:
                    yield key, "x"
                    if begun.is_set():
                        await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                closed.set()

        given: Any = rows() if number == 2 else ((key, "x") for key in keys)
        work = pool.executemany(insert_late(table), given, chunk_size=20, progress=progress)
        limit = asyncio.timeout(None)
        load = asyncio.create_task(within(limit, work))
        async with asyncio.timeout(60):
            await begun.wait()
        if end == "timeout":
            limit.reschedule(0)
        else:
            load.cancel()
        with pytest.raises(TimeoutError if end == "timeout" else asyncio.CancelledError) as caught:
            await load
        assert all(node.in_use == 0 for node in pool.stats().nodes.values())
        assert closed.is_set() == (number == 2)
        report = await goes_on(pool, table, keys, caught.value)
        assert 0 < report.acknowledged < len(keys)


@both
async def test_an_interrupted_load_tells_what_became_of_its_rows(pool: Any, table: str) -> None:
    """Wherever Ctrl-C comes: where progress is told, or where rows are made. A generator is closed."""
    closed = []

    def rows(keys: list[int]) -> Iterator[tuple[int, str]]:
        try:
            yield from ((key, "x") for key in keys)
        finally:
            closed.append("progress")

    def interrupted_rows(keys: list[int]) -> Iterator[tuple[int, str]]:
        yield from ((key, "x") for key in keys[:500])
        raise KeyboardInterrupt

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    for number, (given, progress) in enumerate(((rows, interrupt), (interrupted_rows, None))):
        keys = list(range(number * 600, number * 600 + 600))
        with pytest.raises(KeyboardInterrupt) as caught:
            await pool.executemany(insert_late(table), given(keys), chunk_size=20, progress=progress)
        assert closed == ["progress"]
        report = await goes_on(pool, table, keys, caught.value)
        assert report.acknowledged < len(keys)


@both
async def test_the_limit_of_a_load_ends_it_with_an_exact_report(pool: Any, table: str) -> None:
    """Here it passes while rows are made; those that could not be sent in time were not."""
    keys = list(range(200))

    def rows() -> Iterator[tuple[int, str]]:
        end = time.monotonic() + 1.0
        yield from ((key, "x") for key in keys[:100])
        while time.monotonic() < end:
            time.sleep(0.05)
        yield from ((key, "x") for key in keys[100:])

    with pytest.raises(BulkError, match=r"within 1 s") as caught:
        await pool.executemany(insert_late(table), rows(), chunk_size=20, timeout=1)
    report = await goes_on(pool, table, keys, caught.value)
    assert report.positions(RowState.NOT_EXECUTED)
    assert not any(map(report.is_acknowledged, range(100, 200)))


async def load_to_the_end(pool: Any, table: str, keys: list[int], **options: Any) -> int:
    """Load rows; as often as that stops, check the report, look for the unknown ones, and go on from there.

    Returns:
        How many times it stopped.
    """
    text, report = f"INSERT INTO {table} VALUES ($1, $2)", None
    for stops in range(10):
        try:
            await pool.executemany(text, ((key, "x") for key in keys), resume=report, **options)
            return stops
        except BulkError as error:
            stopped = error
        there = await ids(pool, table)
        check(stopped.report, keys, there)
        unknown = stopped.report.positions(RowState.UNKNOWN)
        assert bool(unknown) == isinstance(stopped, OutcomeUnknown)
        if unknown:
            with pytest.raises(UsageError, match="nobody knows"):
                await pool.executemany(text, [], resume=stopped.report)
        report = stopped.report.settled(position for position in unknown if keys[position] in set(there))
    raise AssertionError("it stopped again and again")


@both
async def test_a_cluster_that_changes_in_the_middle_of_a_load_loses_no_row(fresh: Fresh, open_pool: OpenPool) -> None:
    """Another instance joins, and gets buckets: what is sent after the next look goes there."""
    target = fresh(replicasets=2, replication=1)
    target.need(Capability.OWN_SHAPE, Capability.COUNT_DIRECT)
    assert isinstance(target, EmbeddedTarget)
    cluster = target.cluster
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    pool = await open_pool(target.dsn, acquire_timeout=60, topology_update_interval=1.0)
    await pool.wait_ready(timeout=30)
    added: list[str] = []

    def progress(_: int) -> None:
        if not added:
            added.append(cluster.add_instance())
            owner = next(name for name, leader in cluster.leaders().items() if leader in added)
            cluster.move_buckets("default", 1, 2000, owner)
            cluster.wait_views()

    text = f"INSERT INTO {table} VALUES ($1, $2)"
    await pool.executemany(text, [(key, "x") for key in range(600)], chunk_size=20, progress=progress)
    assert await ids(pool, table) == list(range(600))
    await pool.refresh_topology()
    cluster.reset_counters()
    await pool.executemany(text, [(key, "x") for key in range(600, 900)], chunk_size=20)
    counters = cluster.counters()
    assert sum(counted.direct for counted in counters.values()) == 300
    assert counters[added[0]].direct > 0
    assert await ids(pool, table) == list(range(900))


@both
@pytest.mark.stops_instances
async def test_after_the_loss_of_a_leader_the_resumed_load_leaves_every_row_once(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """The report is exact but for the rows that were under way; once somebody has looked, the load goes on."""
    target = fresh(replicasets=2, replication=2, auto_offline_timeout=1.0)
    if not isinstance(target, EmbeddedTarget):
        pytest.skip("on a real cluster a leader that dies may take acknowledged rows with it")
    cluster: PicodataCluster = target.cluster
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    pool = await open_pool(target.dsn, acquire_timeout=60, topology_update_interval=1.0)
    await pool.wait_ready(timeout=30)
    victims = [next(iter(cluster.leaders().values()))]
    keys = list(range(800))

    def progress(_: int) -> None:
        while victims:
            cluster.kill(victims.pop())

    stops = await load_to_the_end(pool, table, keys, chunk_size=150, progress=progress)
    assert await ids(pool, table) == keys
    assert not victims
    measured("times the load stopped", stops)


@pytest.mark.stops_instances
async def test_a_load_of_repeatable_rows_survives_the_loss_of_a_leader(fresh: Fresh, open_pool: OpenPool) -> None:
    """What was acknowledged is not sent again; the rest of the chunk goes to the new leader."""
    target = fresh(replicasets=2, replication=2, auto_offline_timeout=1.0)
    target.need(Capability.KILL, Capability.OWN_SHAPE)
    assert isinstance(target, EmbeddedTarget)
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    pool = await open_pool(target.dsn, acquire_timeout=60, topology_update_interval=1.0)
    await pool.wait_ready(timeout=30)
    victims = [next(iter(target.cluster.leaders().values()))]

    def progress(_: int) -> None:
        while victims:
            target.cluster.kill(victims.pop())

    text = f"INSERT INTO {table} VALUES ($1, $2) ON CONFLICT DO NOTHING"
    rows = ((number, "x") for number in range(800))
    await pool.executemany(text, rows, chunk_size=200, progress=progress, idempotent=True)
    assert await ids(pool, table) == list(range(800))
    assert not victims


@both
@pytest.mark.stops_instances
async def test_a_switch_of_leaders_in_the_middle_of_a_load_loses_no_row(
    fresh: Fresh, open_pool: OpenPool, measured: Callable[[str, object], None]
) -> None:
    """What the old leader refuses had no effect, so the rest of the chunk goes to the new one.

    Only a chunk that stands still is ended, as it may hang; then it is told as unknown.
    """
    target = fresh(replicasets=2, replication=2)
    target.need(Capability.PROMOTE, Capability.OWN_SHAPE)
    assert isinstance(target, EmbeddedTarget)
    cluster = target.cluster
    table = await target.create_table("id INT PRIMARY KEY, v TEXT", distribution="DISTRIBUTED BY (id)")
    pool = await open_pool(target.dsn, acquire_timeout=60, topology_update_interval=1.0)
    await pool.wait_ready(timeout=30)
    leaders = set(cluster.leaders().values())
    followers = [name for name in cluster.instances if name not in leaders]
    promoted: list[str] = []

    def progress(_: int) -> None:
        if followers:
            promoted.append(followers.pop())
            cluster.promote(promoted[-1])

    stops = await load_to_the_end(pool, table, list(range(1000)), chunk_size=125, progress=progress)
    measured("times the load stopped", stops)
    assert await ids(pool, table) == list(range(1000))
    assert set(promoted) == set(cluster.leaders().values())
