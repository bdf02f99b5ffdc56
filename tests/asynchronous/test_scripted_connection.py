"""The scripted connection is a verified fake: it has asyncpg's surface and asyncpg's errors."""

from __future__ import annotations

import asyncio
import inspect

import asyncpg
import pytest
from asyncpg.prepared_stmt import PreparedStatement

from picopyn.testing.scripted_connection import (
    Hang,
    Row,
    ScriptedConnection,
    ScriptedConnections,
    ScriptedStatement,
    table,
)
from tests.asynchronous.jump_loop import jumping, settle


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        *(
            (ScriptedConnection, asyncpg.Connection, name)
            for name in ("fetch", "prepare", "is_closed", "close", "terminate")
        ),
        *((ScriptedStatement, PreparedStatement, name) for name in ("fetch", "get_parameters", "get_query")),
    ],
)
def test_its_methods_take_what_asyncpg_s_take(ours, theirs, name):
    """Same names, same parameters in the same order, and coroutines where asyncpg has coroutines."""
    fake, real = getattr(ours, name), inspect.unwrap(getattr(theirs, name))
    assert inspect.iscoroutinefunction(fake) == inspect.iscoroutinefunction(real)
    shape = [
        [(each.name, each.kind) for each in inspect.signature(method).parameters.values()] for method in (fake, real)
    ]
    assert shape[0] == shape[1]


@jumping
async def test_a_closed_connection_refuses_as_asyncpg_does():
    """InterfaceError, before anything is asked."""
    connection = ScriptedConnection().when("SELECT 1", [(1,)])
    await connection.close()
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await connection.fetch("SELECT 1")


@jumping
async def test_a_busy_connection_refuses_as_asyncpg_does():
    """One operation at a time."""
    hang = Hang()
    connection = ScriptedConnection().when("SELECT 1", hang)
    first = asyncio.create_task(connection.fetch("SELECT 1"))
    await hang.entered.wait()
    with pytest.raises(asyncpg.InterfaceError, match="another operation"):
        await connection.fetch("SELECT 1")
    hang.release()
    assert await first == []


@jumping
async def test_what_is_under_way_when_the_connection_breaks_fails_as_in_asyncpg():
    """ConnectionDoesNotExistError, a connection error of the server's classes."""
    hang = Hang()
    connection = ScriptedConnection().when("SELECT 1", hang)
    call = asyncio.create_task(connection.fetch("SELECT 1"))
    await hang.entered.wait()
    connection.break_off()
    with pytest.raises(asyncpg.PostgresConnectionError):
        await call


@jumping
async def test_a_timeout_is_a_timeout_error():
    """`timeout=` works on every request."""
    connection = ScriptedConnection().when("SELECT 1", Hang())
    with pytest.raises(TimeoutError):
        await connection.fetch("SELECT 1", timeout=1.0)
    await settle()


@jumping
async def test_answers_come_in_order_and_the_last_repeats():
    """A script is a list of answers per text."""
    connection = ScriptedConnection().when("SELECT 1", [(1,)], ValueError("no"), [(3,)])
    assert await connection.fetch("SELECT 1") == [(1,)]
    with pytest.raises(ValueError, match="no"):
        await connection.fetch("SELECT 1")
    assert [await connection.fetch("SELECT 1") for _ in range(2)] == [[(3,)], [(3,)]]
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await connection.fetch("SELECT 2")
    connection.otherwise([(9,)])
    assert await connection.fetch("SELECT 2") == [(9,)]


@jumping
async def test_notices_come_before_the_request_that_caused_them_completes():
    """As a real server's do."""
    heard = []
    connection = ScriptedConnection(heard.append).when_prepared("SELECT $1", [20], notice="hello")
    statement = await connection.prepare("SELECT $1", name="")
    assert heard == ["hello"]
    assert [parameter.oid for parameter in statement.get_parameters()] == [20]
    connection.when("SELECT $1", lambda value: [(value,)])
    assert await statement.fetch(7) == [(7,)]
    assert [(asked.verb, asked.args, asked.name) for asked in connection.asked] == [
        ("prepare", (), ""),
        ("bind", (7,), None),
    ]


def test_rows_are_read_as_asyncpg_records_are():
    """By name, by position, by iteration over the values."""
    (row,) = table("a b", (1, 2))
    assert (row["a"], row[1], list(row), list(row.keys()), dict(row.items())) == (
        1,
        2,
        [1, 2],
        ["a", "b"],
        {"a": 1, "b": 2},
    )
    assert row.get("c", 5) == 5
    assert repr(Row(["x"], [1])) == "<Row {'x': 1}>"


@jumping
async def test_connections_are_handed_out_in_order_and_then_there_is_none():
    """`connect` as the driver's parts are given it."""
    one, two = ScriptedConnection(), ScriptedConnection()
    connect = ScriptedConnections(one, two)
    assert [await connect() for _ in range(3)] == [one, two, None]
    failing = ScriptedConnections(OSError("refused"))
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            await failing()
    heard = []
    wired = await ScriptedConnections(ScriptedConnection())(heard.append)
    wired.speak("hello")
    await settle()
    assert heard == ["hello"]
