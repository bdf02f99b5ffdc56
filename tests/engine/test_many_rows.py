"""Rows that take effect one by one: what is acknowledged is never sent again, nor told as unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.engine.bulk import BulkLoad, BulkOptions
from picopyn.engine.bulk_rows import Machinery
from picopyn.engine.load_book import Book
from picopyn.engine.row_sources import GivenRows
from picopyn.errors import BulkError, BulkOutcomeUnknown, CallTimeout
from tests.engine.world import HANG, READ, WRITE, Link, World, broken, server_error, settle
from tests.snapshots import two_by_two

#: Keys whose buckets belong to r1.
AT_R1 = (2, 2, 2, 2, 2)
READ_ONLY = "failed to insert space: box error: Readonly: Can't modify data on a read-only instance"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two replicasets of two nodes, all connected."""
    world = World(two_by_two(), max_size=1)
    await world.warm()
    yield world
    world.cluster.terminate()


def bulk_load(world: World, source: GivenRows, **options: Any) -> BulkLoad:
    """A load of rows that take effect one by one."""
    machinery = Machinery(world.executor, world.cluster, world.executor._dialect.key_hash)
    return BulkLoad(machinery, WRITE, source, BulkOptions(one_by_one=True, **options))


def load(world: World, rows: Iterable[Any], **options: Any) -> asyncio.Task[int]:
    """Start a load in a task of its own."""
    source = GivenRows(rows, world.cluster.runtime.now)
    return asyncio.create_task(bulk_load(world, source, **options).run())


def after(count: int, then: Any) -> Any:
    """A server that acknowledges some rows, and then answers otherwise."""

    def answer(link: Link) -> Any:
        link.acknowledge(count)
        return then

    return answer


def sent(world: World, uuid: str) -> list[int]:
    """How many rows a node was sent, call by call."""
    return [len(args[0]) for _, args in world.servers[uuid].calls]


async def test_a_new_leader_gets_the_rows_that_the_old_one_refused(world: World) -> None:
    """Those before are not sent again, and nobody had to say that they may be."""
    world.servers["i11"].answers = [after(3, server_error("XX000", READ_ONLY))]
    world.servers["i12"].default = None
    world.look_again = lambda _: 7
    task = load(world, [(key,) for key in AT_R1])
    await settle(50)
    world.cluster.adopt(two_by_two(leaders={"r1": "i12"}), 7)
    await task
    assert (sent(world, "i11"), sent(world, "i12")) == ([5], [2])


async def test_an_outdated_plan_is_renewed_for_the_rest(world: World) -> None:
    """A change of the schema in the middle of a chunk."""
    world.servers["i11"].answers = [after(2, server_error("42999", "prepared statement  has been invalidated")), None]
    await load(world, [(key,) for key in AT_R1])
    assert sent(world, "i11") == [5, 3]


async def test_only_what_was_not_acknowledged_is_unknown(world: World) -> None:
    """The connection broke: of three rows nobody knows."""
    world.servers["i11"].answers = [after(2, broken())]
    with pytest.raises(BulkOutcomeUnknown) as caught:
        await load(world, [(key,) for key in AT_R1])
    report = caught.value.report
    assert report.positions(RowState.UNKNOWN) == (2, 3, 4)
    assert report.acknowledged == 2
    assert report.unfinished[0].node == "default_1_1"


async def test_a_limit_that_ends_in_a_chunk_leaves_its_rest_unknown(world: World) -> None:
    """And what was to follow was not sent."""
    world.servers["i11"].answers = [after(2, HANG)]
    with pytest.raises(BulkOutcomeUnknown) as caught:
        await load(world, [(2,)] * 8, chunk_size=5, timeout=0.1)
    report = caught.value.report
    assert isinstance(caught.value.__cause__, CallTimeout)
    assert (report.positions(RowState.UNKNOWN), report.positions(RowState.NOT_EXECUTED)) == ((2, 3, 4), (5, 6, 7))
    assert sent(world, "i11") == [5]


async def test_rows_that_may_be_repeated_are_sent_again_but_for_the_acknowledged(world: World) -> None:
    """After the loss of a connection; if the server then refuses one, what was sent twice is unknown."""
    world.servers["i11"].answers = [after(2, broken()), None]
    await load(world, [(key,) for key in AT_R1], idempotent=True)
    assert sent(world, "i11") == [5, 3]
    world.servers["i11"].calls.clear()
    world.servers["i11"].answers = [after(2, broken()), after(1, server_error("XX000", "no"))]
    with pytest.raises(BulkOutcomeUnknown) as caught:
        await load(world, [(key,) for key in AT_R1], idempotent=True)
    assert caught.value.report.positions(RowState.UNKNOWN) == (3, 4)


async def test_a_chunk_that_was_acknowledged_as_a_whole_is_done(world: World) -> None:
    """Although its connection broke before the end of the call."""
    world.servers["i11"].answers = [after(5, broken())]
    await load(world, [(key,) for key in AT_R1])
    assert sent(world, "i11") == [5]


async def test_a_chunk_that_goes_on_after_a_change_of_leaders_is_not_ended(world: World) -> None:
    """It is ended when it stands still for as long as any other call may."""
    world.servers["i11"].answers = [HANG]
    task = load(world, [(key,) for key in AT_R1 * 8])
    await settle()
    ((link, _),) = world.cluster.flights.aloft()
    assert isinstance(link, Link)
    ending = asyncio.create_task(world.cluster.flights.end_if_stuck(world.cluster.stuck(frozenset({"r1"}))))
    for _ in range(35):  # more often, and for longer, than it takes to count as standing still
        await asyncio.sleep(0.02)
        link.acknowledge(1)
    with pytest.raises(BulkError, match="leader changed") as caught:
        await task
    assert caught.value.report.positions(RowState.UNKNOWN) == tuple(range(35, 40))
    await ending


async def stopped(task: asyncio.Task[int]) -> BulkReport:
    """Cancel a load, and what it says of its rows."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    report = BulkReport.of(caught.value)
    assert report is not None
    return report


@pytest.mark.parametrize("idempotent", [None, True])
async def test_a_cancelled_load_tells_what_became_of_its_rows(world: World, idempotent: bool | None) -> None:
    """Of two owners: what was acknowledged, what was under way, what was not sent; and nothing is sent any more."""

    def acknowledge_two(link: Link) -> Any:
        link.acknowledge(2)
        return HANG

    world.servers["i11"].answers = [acknowledge_two]
    world.servers["i21"].answers = [after(3, None), HANG]
    keys = [2, 1] * 8
    task = load(world, [(key,) for key in keys], chunk_size=3, idempotent=idempotent)
    await settle(50)
    report = await stopped(task)
    assert (sent(world, "i11"), sent(world, "i21")) == ([3], [3, 3])
    assert report.taken == 16
    assert report.positions(RowState.UNKNOWN) == (4, 7, 9, 11)
    assert {part.node for part in report.unfinished if part.state is RowState.UNKNOWN} == {"default_1_1", "default_2_1"}
    assert report.acknowledged == 5
    assert report.positions(RowState.FAILED) == ()
    await load(world, [(key,) for key in keys], resume=report.settled([4]))
    assert (sum(sent(world, "i11")), sum(sent(world, "i21"))) == (3 + 5, 6 + 5)


async def test_of_what_waits_for_a_connection_or_a_leader_an_interruption_leaves_nothing_unknown(world: World) -> None:
    """It was not sent."""
    (link,) = world.servers["i11"].for_callers
    world.servers["i11"].answers = [HANG]
    other = world.call(READ, 2)
    await settle()
    world.cluster.adopt(two_by_two(leaders={"r2": None}), 7)
    task = load(world, [(2,), (1,)])
    await settle(50)
    assert (await stopped(task)).positions(RowState.NOT_EXECUTED) == (0, 1)
    link.reply(None)
    await other
    assert [query for server in world.servers.values() for query, _ in server.calls] == [READ]


async def test_an_interruption_where_rows_are_made_takes_none_of_them(world: World) -> None:
    """Rows of the batch that was not complete do not count as taken."""
    now = [0.0]

    def rows() -> Iterator[tuple[int]]:
        yield from [(2,)] * 2
        now[0] += 1  # what is there is sent
        yield from [(2,)] * 3
        raise KeyboardInterrupt

    world.servers["i11"].answers = [after(3, None)]
    with pytest.raises(KeyboardInterrupt) as caught:
        await bulk_load(world, GivenRows(rows(), lambda: now[0])).run()
    report = BulkReport.of(caught.value)
    assert report is not None
    assert (report.taken, report.acknowledged) == (3, 3)
    assert sent(world, "i11") == [3]


async def test_a_second_interruption_does_not_cost_the_report(world: World) -> None:
    """It is found through what was under way when the second one came."""

    def rows() -> Iterator[tuple[int]]:
        try:
            yield from [(2,)] * 50
        finally:
            raise SystemExit

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    world.servers["i11"].answers = [after(1, None)] * 50
    with pytest.raises(SystemExit) as caught:
        await bulk_load(world, GivenRows(rows(), lambda: 0.0), chunk_size=1, progress=interrupt).run()
    report = BulkReport.of(caught.value)
    assert report is not None
    assert 0 < report.acknowledged <= report.taken < 50


async def test_rows_of_a_slow_source_do_not_wait_for_each_other(world: World) -> None:
    """They are sent before more is taken, although neither a chunk nor a batch is complete."""
    now = [0.0]
    told: list[list[int]] = []

    def rows() -> Iterator[tuple[int]]:
        for _ in range(4):
            told.append(sent(world, "i11"))
            now[0] += 1
            yield (2,)

    world.servers["i11"].answers = [after(1, None)] * 4
    await bulk_load(world, GivenRows(rows(), lambda: now[0])).run()
    assert sent(world, "i11") == [1, 1, 1, 1]
    assert told[-1] == [1, 1, 1]


async def test_what_cannot_be_sent_in_time_is_not_sent(world: World) -> None:
    """The limit passed while rows were made."""

    def rows() -> Iterator[tuple[int]]:
        yield (2,)
        time.sleep(0.02)
        yield (2,)

    with pytest.raises(BulkError, match=r"not done within 0.01 s") as caught:
        await load(world, rows(), timeout=0.01)
    assert isinstance(caught.value.__cause__, CallTimeout)
    assert caught.value.report.positions(RowState.NOT_EXECUTED) == (0, 1)


class UnhashableError(Exception):
    """Cannot be hashed, and neither can what holds it."""

    __hash__ = None  # type: ignore[assignment]


def test_the_report_of_a_resumed_load_costs_one_look_at_each_row() -> None:
    """A part of a report is not hashed for each of its rows: that takes all its positions, every time."""
    error = UnhashableError()
    parts = tuple(Unfinished(RowState.NOT_EXECUTED, tuple(range(n, n + 100)), "n1", error) for n in (0, 100))
    book = Book(WRITE, BulkReport(WRITE, 200, parts))
    book.stop(OSError("gone"))
    assert book.error().report.unfinished == parts


async def test_a_resumed_load_wants_the_rows_that_are_left(world: World) -> None:
    """With fewer rows than before, some would be left out and nobody told."""
    left = Unfinished(RowState.NOT_EXECUTED, (1, 4), None, None)
    with pytest.raises(BulkError, match="only 3 rows were given, but resume= says that row 4 is left") as caught:
        await load(world, [(2,)] * 3, resume=BulkReport(WRITE, 5, (left,)))
    assert caught.value.report.positions(RowState.NOT_EXECUTED) == (1, 4)
    await load(world, [(2,)] * 5, resume=caught.value.report)
