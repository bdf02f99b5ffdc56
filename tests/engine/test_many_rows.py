"""Rows that take effect one by one: what is acknowledged is never sent again, nor told as unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.engine.bulk import Book, BulkLoad, BulkOptions
from picopyn.engine.bulk_rows import GivenRows
from picopyn.errors import BulkError, BulkOutcomeUnknown
from tests.engine.world import HANG, WRITE, Link, World, broken, server_error, settle
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


def load(world: World, rows: list[Any], **options: Any) -> asyncio.Task[int]:
    """Start a load in a task of its own."""
    wanted = BulkOptions(one_by_one=True, **options)
    key_hash = world.executor._dialect.key_hash
    work = BulkLoad(world.executor, world.cluster, key_hash, WRITE, GivenRows(rows), wanted)
    return asyncio.create_task(work.run())


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
