"""An argument that asyncpg cannot send: its error tells which one, and what is expected, and never the value."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from picopyn.engine.refused_arguments import hide_value
from picopyn.errors import BulkError
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool
from tests.threads import FACADES

#: Put together here, so that no line of this file that a traceback shows contains it.
SECRET = "".join(map(chr, range(ord("k"), ord("z"))))
NO_INTEGER = r"invalid input for query argument \$1 \('str' object cannot be interpreted as an integer\)"

Call = Callable[[Any], Awaitable[object]]


async def through_a_cursor(connection: Any) -> object:
    async with connection.transaction():
        return [row async for row in connection.cursor("SELECT $1::int8", SECRET)]


async def once_prepared(connection: Any) -> object:
    statement = await connection.prepare("SELECT $1::int8")
    return await statement.fetchval(SECRET)


async def known_before(caller: Any) -> object:
    assert await caller.fetchval("SELECT $1::int8", 1) == 1
    return await caller.fetchval("SELECT $1::int8", SECRET)


CALLS: list[Call] = [
    lambda caller: caller.fetch("SELECT $1::int8", SECRET),
    lambda caller: caller.fetchrow("SELECT $1::int8", SECRET),
    lambda caller: caller.execute("SELECT $1::int8", SECRET),
    known_before,
]
OF_A_CONNECTION: list[Call] = [
    through_a_cursor,
    once_prepared,
    lambda caller: caller.fetchmany("SELECT $1::int8", [(SECRET,)]),
]


def shown(error: BaseException) -> str:
    """Everything that a log shows of an error, and what travels with it to another process."""
    kept = pickle.dumps(error).decode("latin-1")
    return "".join(traceback.format_exception(error)) + repr(error) + kept


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_value_of_an_argument_is_not_told(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Neither by a call of the pool, nor on a borrowed connection, nor by what is made on it."""
    pool = await open_pool(postgres.dsn)
    for call in CALLS:
        with pytest.raises(asyncpg.DataError, match=NO_INTEGER) as caught:
            await call(pool)
        assert SECRET not in shown(caught.value)
        assert any("127.0.0.1" in note for note in caught.value.__notes__)
    async with pool.acquire() as connection:
        for call in (*CALLS, *OF_A_CONNECTION):
            with pytest.raises(
                asyncpg.DataError, match=r"invalid input for query argument \$1.* an integer\)"
            ) as caught:
                await call(connection)
            assert SECRET not in shown(caught.value)
    with pytest.raises((BulkError, asyncpg.DataError)) as many:
        await pool.executemany("SELECT $1::int8", [(1,), (SECRET,)])
    assert SECRET not in shown(many.value)
    assert await pool.fetchval("SELECT $1::int8", 1) == 1


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("int8", 2**70, "value out of int64 range"),
        ("text", 5, "expected str, got int"),
        ("bool", SECRET, "a boolean is required (got type str)"),
        ("bytea", SECRET, "a bytes-like object is required, not 'str'"),
        ("float8", SECRET, "must be real number, not str"),
        ("float4", 1e300, "value out of float32 range"),
        ("timestamptz", SECRET, "expected a datetime.date or datetime.datetime instance, got 'str'"),
        ("timestamp", datetime(2000, 1, 1, tzinfo=UTC), "can't subtract offset-naive and offset-aware datetimes"),
        ("date", SECRET, "'str' object has no attribute 'toordinal'"),
        ("uuid", SECRET, "invalid UUID"),
        ("uuid[]", [SECRET], "invalid UUID"),
        ("numeric", SECRET, "[<class 'decimal.ConversionSyntax'>]"),
        ("inet", SECRET, "does not appear to be an IPv4 or IPv6 interface"),
        ("text", SECRET + "\ud800", "'utf-8' codec can't encode character"),
        ("int8[]", [SECRET], "invalid array element at index 0: 'str' object cannot be interpreted as an integer"),
        ("int8[]", SECRET, "a sized iterable container expected (got type 'str')"),
        ("int8[]", [[1], 2], "non-homogeneous array"),
        ("int4range", (SECRET, 2), "'str' object cannot be interpreted as an integer"),
        ("int8", float("nan"), "ValueError"),
    ],
    ids=str,
)
async def test_what_is_expected_is_told(admin: Any, kind: str, value: object, said: str) -> None:
    """In asyncpg's words, as far as they are about types; else the kind of error."""
    with pytest.raises(asyncpg.DataError) as caught:
        await admin.fetchval(f"SELECT $1::{kind}", value)
    before = shown(caught.value)
    assert SECRET in before or SECRET not in repr(value)
    hide_value(caught.value)
    assert str(caught.value) == f"invalid input for query argument $1 ({said})"
    assert SECRET not in shown(caught.value)
    hide_value(caught.value)
    assert str(caught.value) == f"invalid input for query argument $1 ({said})"


async def test_what_a_codec_of_ones_own_says_is_not_told(admin: Any) -> None:
    """It may say anything, whatever class its error has."""

    def encode(value: object) -> str:
        raise TypeError(f"expected str, got {value}")

    await admin.set_type_codec("int8", schema="pg_catalog", encoder=encode, decoder=int)
    with pytest.raises(asyncpg.DataError) as caught:
        await admin.fetchval("SELECT $1::int8", SECRET)
    hide_value(caught.value)
    assert str(caught.value) == "invalid input for query argument $1 (TypeError)"
    assert SECRET not in shown(caught.value)


async def test_other_errors_stay_as_they_are(admin: Any) -> None:
    """Those of a server too, whatever its text begins with, and the caller's own."""
    said = "invalid input for query argument $1: x"
    with pytest.raises(asyncpg.PostgresError) as caught:
        await admin.execute(f"DO $do$ BEGIN RAISE EXCEPTION '{said}'; END $do$")
    for error in (caught.value, ValueError(said), asyncpg.DataError(), asyncpg.InterfaceError(said)):
        before = shown(error)
        hide_value(error)
        assert shown(error) == before
