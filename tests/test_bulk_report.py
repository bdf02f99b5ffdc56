"""The report of a load: it shows no values, and is found wherever an interruption has got to."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from picopyn.bulk_report import BulkReport, RowState, Unfinished
from picopyn.errors import BulkError

SECRET = "secret-value"
QUERY = "INSERT INTO t VALUES ($1)"


def refused() -> asyncpg.PostgresError:
    """An error as a server tells it: with the values of the row."""
    error = asyncpg.PostgresError.new({"S": "ERROR", "C": "23505", "M": f"Duplicate key, tuple ({SECRET})"})
    assert isinstance(error, asyncpg.PostgresError)
    return error


def test_a_report_names_rows_nodes_and_kinds_of_errors_but_no_values() -> None:
    """The server's own error is there for who asks for it."""
    error = refused()
    rest = (0, 1, 2, 3, 7, 9, 11, 13, 15, 16)
    parts = (Unfinished(RowState.FAILED, (5,), "n1", error), Unfinished(RowState.NOT_EXECUTED, rest))
    report = BulkReport(QUERY, 20, parts)
    assert repr(parts[0]) == "<FAILED: row 5 at n1: UniqueViolationError (23505)>"
    assert repr(parts[1]) == "<NOT_EXECUTED: rows 0-3, 7, 9, 11, 13 and 2 more>"
    assert repr(Unfinished(RowState.UNKNOWN, (1, 2), None, OSError(SECRET))) == "<UNKNOWN: rows 1-2: OSError>"
    for text in (repr(report), str(report), repr(BulkError("stopped", report)), repr(report.unfinished)):
        assert SECRET not in text
    assert "row 5 at n1" in repr(report)
    assert report.errors == (error,)
    again = pickle.loads(pickle.dumps(report))
    assert SECRET not in repr(again)
    assert SECRET in str(again.errors[0])


async def within(load: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(0.001):
        await load


@pytest.mark.parametrize("limit", [within, lambda load: asyncio.wait_for(load, 0.001)], ids=["timeout", "wait_for"])
async def test_an_interruption_carries_the_report(limit: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    """Also through what turns a cancellation into a `TimeoutError`; other errors carry none."""
    report = BulkReport(QUERY, 3)

    async def load() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            report.put_on(error)
            raise

    with pytest.raises(TimeoutError) as caught:
        await limit(load())
    assert BulkReport.of(caught.value) is report
    task = asyncio.create_task(load())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert cancelled.value.report is report  # type: ignore[attr-defined]
    assert "of 3 rows taken 3 are acknowledged" in cancelled.value.__notes__[0]
    assert BulkReport.of(BulkError("stopped", report)) is report
    lonely = KeyError()
    lonely.__cause__ = lonely
    assert BulkReport.of(lonely) is None
