"""What went wrong in comparable drivers, class *types*: each scenario of public bug reports, on plain PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from picopyn.testing import PostgresServer, ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk
from tests.postgres.conftest import OpenPool, until
from tests.postgres.nodes import Nodes
from tests.threads import FACADES

VALUES: list[tuple[str, Any]] = [
    ("date", dt.date.max),
    ("date", dt.date.min),
    ("date", dt.date(1999, 12, 31)),
    ("timestamp", dt.datetime.max),
    ("timestamp", dt.datetime.min),
    ("timestamp", dt.datetime(1999, 12, 31, 23, 59, 59, 1)),
    ("timestamptz", dt.datetime(1999, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC)),
    ("time", dt.time(23, 59, 59, 999999)),
    ("timetz", dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3)))),
    ("interval", dt.timedelta(days=400, seconds=3, microseconds=5)),
    ("numeric", Decimal("1e-1000")),
    ("numeric", Decimal("9" * 1000)),
    ("numeric", Decimal("Infinity")),
    ("float8", -0.0),
    ("float8", math.inf),
    ("int8", 2**63 - 1),
    ("int8", -(2**63)),
    ("oid", 2**32 - 1),
    ("bytea", b""),
    ("bytea", bytes(range(256))),
    ("text", "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x11000)]))),
    ("uuid", uuid.UUID(int=2**128 - 1)),
    ("int4[]", []),
    ("text[]", [None, "NULL", "", '"', "{}", "\\"]),
    ("int4[]", [[1, None], [3, 4]]),
    ("json", "null"),
    ("json", None),
    ("jsonb", '{"a": [1, null]}'),
    ("jsonb[]", ["null", None]),
    ("bool", None),
]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(VALUES)])
async def test_types_special_values(postgres: PostgresServer, open_pool: OpenPool, kind: str, value: Any) -> None:
    """A round trip gives the value back, as a parameter and through a table filled by `executemany`."""
    pool = await open_pool(postgres.dsn, max_size=1)
    assert await pool.fetchval(f"SELECT $1::{kind}", value) == value
    await pool.execute(f"CREATE TEMP TABLE special (v {kind})")
    await pool.executemany("INSERT INTO special VALUES ($1)", [(value,), (value,)])
    assert [row[0] for row in await pool.fetch("SELECT v FROM special")] == [value, value]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'infinity'::date", dt.date.max),
        ("'-infinity'::timestamp", dt.datetime.min),
        ("'infinity'::timestamptz", dt.datetime.max),
        ("'24:00'::time", dt.time.max),
        ("'[0:1]={1,2}'::int[]", [1, 2]),
        ("'1 mon'::interval", dt.timedelta(days=30)),
        ("12345678901.1::money", "$12,345,678,901.10"),
    ],
)
async def test_types_special_values_with_a_stand_in(
    postgres: PostgresServer, open_pool: OpenPool, literal: str, value: Any
) -> None:
    """What Python cannot express arrives as the nearest thing, or fails for its statement alone."""
    pool = await open_pool(postgres.dsn, max_size=1)
    pid = await pool.fetchval("SELECT pg_backend_pid()")
    if literal == "'24:00'::time":
        with pytest.raises(ValueError, match="hour"):
            await pool.fetchval(f"SELECT {literal}")
    else:
        assert await pool.fetchval(f"SELECT {literal}") == value
    assert await pool.fetchval("SELECT pg_backend_pid()") == pid


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("literal", ["'10000-01-01'::date", "'0044-03-15 BC'::timestamp", "'294276-12-31'::timestamp"])
async def test_types_special_values_out_of_range(postgres: PostgresServer, open_pool: OpenPool, literal: str) -> None:
    """A date beyond Python's is an error of that statement; the next statement works."""
    pool = await open_pool(postgres.dsn, max_size=1)
    with pytest.raises((ValueError, OverflowError)):
        await pool.fetchval(f"SELECT {literal}")
    assert await pool.fetchval("SELECT 1") == 1
    assert {node.state for node in pool.stats().nodes.values()} == {"up"}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_special_values_that_equal_nothing(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """NaN of both kinds, numbers as long as they may be, and JSON's null beside SQL's."""
    pool = await open_pool(postgres.dsn, max_size=1)
    assert math.isnan(await pool.fetchval("SELECT $1::float8", math.nan))
    assert (await pool.fetchval("SELECT $1::numeric", Decimal("NaN"))).is_nan()
    long = Decimal("7" * 20_000)
    assert await pool.fetchval("SELECT $1::numeric", long) == long
    assert math.copysign(1, await pool.fetchval("SELECT $1::float8", -0.0)) == -1
    assert tuple(await pool.fetchrow("SELECT $1::jsonb, $2::jsonb", "null", None)) == ("null", None)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_special_values_by_copy(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """COPY in and out again gives the same values; one that cannot be is an error of that COPY alone."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as held:
        for number, (kind, value) in enumerate(VALUES):
            await held.execute(f"CREATE TEMP TABLE copied{number} (v {kind})")
            await held.copy_records_to_table(f"copied{number}", records=[(value,), (None,)])
            assert [row[0] for row in await held.fetch(f"SELECT v FROM copied{number}")] == [value, None]
        await held.execute("CREATE TEMP TABLE whole (v int8)")
        with pytest.raises((OverflowError, asyncpg.DataError)):
            await held.copy_records_to_table("whole", records=[(1,), (2**63,)])
        assert await held.fetchval("SELECT count(*) FROM whole") == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_special_values_through_another_node(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """A node that was found, not named, gives the same answers."""
    source = Nodes(postgres.port, postgres_too.port)
    pool = await open_pool(postgres.dsn, dialect="postgres", topology_source=source, min_size=1)
    await pool.wait_ready()
    for port in source.ports:
        async with pool.acquire(node=str(port)) as held:
            assert await held.fetchval("SELECT inet_server_port()") == port
            for kind, value in VALUES:
                assert await held.fetchval(f"SELECT $1::{kind}", value) == value


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_hook_on_every_node(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """The hook ran once per connection, at every host: 200 of 200 calls have its codec and its setting."""
    ran: Counter[tuple[int, int]] = Counter()

    async def hook(connection: Any) -> None:
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await connection.execute("SET search_path TO special")
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        ran[await connection.fetchval("SELECT inet_server_port()"), pid] += 1

    hosts = f"127.0.0.1:{postgres.port},127.0.0.1:{postgres_too.port}"
    pool = await open_pool(f"postgresql://postgres@{hosts}/postgres", after_connect=hook, max_size=3)
    await pool.wait_ready()
    text = (
        "SELECT '[1]'::json, ARRAY['[2]'::json], current_setting('search_path'), inet_server_port(), pg_backend_pid()"
    )
    seen = set()
    for _ in range(200):
        value, values, path, port, pid = await pool.fetchrow(text)
        assert (value, values, path) == ([1], [[2]], "special")
        seen.add((port, pid))
    assert {port for port, _ in seen} == {postgres.port, postgres_too.port}
    assert seen <= set(ran)
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_hook_on_every_node_that_comes_and_after_a_loss(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool
) -> None:
    """A node that joins later, sessions that were lost, connections that were reset: codec and setting are there.

    The hook runs for a new connection and after each reset, and never for one that only asks whether a node lives.
    """
    ran: Counter[int] = Counter()
    ready: list[Any] = []

    async def hook(connection: Any) -> None:
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await connection.execute("SET search_path TO special")
        ready.append(await connection.prepare("SELECT 1"))
        ran[connection.get_server_pid()] += 1

    source = Nodes(postgres.port)
    pool = await open_pool(
        f"{postgres.dsn}?application_name=hooked",
        dialect="postgres",
        topology_source=source,
        after_connect=hook,
        min_size=2,
        max_size=2,
    )

    async def all_have_it(held: bool) -> set[tuple[int, int]]:
        seen = set()
        text = "SELECT '[1]'::json, current_setting('search_path'), inet_server_port(), pg_backend_pid()"
        for _ in range(100):
            if held:
                async with pool.acquire() as connection:
                    row = await connection.fetchrow(text)
                    await connection.execute("SET search_path TO other")
            else:
                row = await pool.fetchrow(text)
            assert tuple(row)[:2] == ([1], "special")
            seen.add(tuple(row)[2:])
        return seen

    await all_have_it(held=False)
    source.ports.append(postgres_too.port or 0)
    await pool.refresh_topology()
    await until(lambda: pool.stats().idle == 4)
    found = await all_have_it(held=False)
    assert {port for port, _ in found} == {postgres.port, postgres_too.port}
    assert set(ran.values()) == {1}
    for server in (postgres, postgres_too):
        admin = await asyncpg.connect(server.dsn)
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hooked'")
        await admin.close()
    await until(lambda: pool.stats().closes.get("broken") == 4)
    again = await all_have_it(held=False)
    assert not again & found
    assert {ran[pid] for _, pid in again} == {1}
    await all_have_it(held=True)
    await until(lambda: pool.stats().in_use == 0)
    await all_have_it(held=True)


@dataclass
class Odd:
    """A server that describes the one parameter and the one column of every statement by one odd OID, and echoes."""

    oid: int

    async def play(self, talk: Talk) -> None:
        value: bytes | None = None
        talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", "15.0"), wire.READY)
        while (message := await talk.receive()) != wire.TERMINATE:
            match message:
                case wire.Parse():
                    talk.send(wire.PARSE_COMPLETE)
                case wire.Describe():
                    talk.send(wire.parameter_description((self.oid,)), wire.row_description([("v", self.oid)], [0]))
                case wire.Bind(_, _, _, values):
                    (value,) = values
                    talk.send(wire.BIND_COMPLETE)
                case wire.Execute():
                    talk.send(wire.data_row([value]), wire.command_complete("SELECT 1"))
                case wire.Close():
                    talk.send(wire.CLOSE_COMPLETE)
                case _ if message == wire.SYNC:
                    talk.send(wire.READY)


#: A pool of threads cannot use the connection by which its event loop got to know the server.
LOGINS = {"asynchronous": 1, "sync": 2}

#: asyncpg takes whatever has `__int__` for an int8, a UUID too.
INPUTS: list[Any] = [1, "a", Decimal(2), uuid.UUID(int=1), dt.datetime(2020, 1, 1), True]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("oid", [0, 20, 25, 705, 1043, 1700])
async def test_types_parameter_type_differs(open_pool: OpenPool, facade: str, oid: int) -> None:
    """A value arrives, or a data error names the parameter before anything is sent; None always works."""
    with ScriptedServer(Odd(oid), greet=False) as server:
        pool = await open_pool(server.dsn, dialect="postgres", max_size=1)
        arrived, refused = 0, list[str]()
        for value in INPUTS:
            try:
                assert await pool.fetchval("SELECT $1", value) in (value, getattr(value, "int", value))
                arrived += 1
            except asyncpg.DataError as error:
                refused.append(str(error))
            assert await pool.fetchval("SELECT $1", None) is None
        assert arrived
        assert all("$1" in told for told in refused)
        assert {node.state for node in pool.stats().nodes.values()} == {"up"}
        assert len(server.start_ups) == LOGINS[facade]
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("oids", "value"),
    [((25, 1043), "a"), ((25, 705), "a"), ((20, 1700), 7), ((1043, 0), "a"), ((20, 25), None), ((1700, 20), None)],
)
async def test_types_parameter_type_differs_between_nodes(
    open_pool: OpenPool, oids: tuple[int, int], value: Any
) -> None:
    """What one node calls otherwise than the other gives the same answer at both, again and again."""
    with ScriptedServer(Odd(oids[0]), greet=False) as one, ScriptedServer(Odd(oids[1]), greet=False) as other:
        pool = await open_pool(
            one.dsn, dialect="postgres", topology_source=Nodes(one.port, other.port), max_size=1, reset=False
        )
        await pool.wait_ready()
        for _ in range(3):
            for server in (one, other):
                async with pool.acquire(node=str(server.port)) as held:
                    assert await held.fetchval("SELECT $1", value) == value
                assert await pool.fetchval("SELECT $1", value) == value
        assert {node.state for node in pool.stats().nodes.values()} == {"up"}
        await pool.close()
        assert len(one.start_ups) + len(other.start_ups) <= 3


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_types_parameter_type_differs_on_a_real_server(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """`SELECT $1` has a text parameter: a number is refused by name, and the connection goes on."""
    pool = await open_pool(postgres.dsn, max_size=1)
    for value in INPUTS:
        if isinstance(value, str):
            continue
        with pytest.raises(asyncpg.DataError, match=r"\$1"):
            await pool.fetchval("SELECT $1", value)
    assert await pool.fetchval("SELECT $1", "a") == "a"
    assert await pool.fetchval("SELECT $1 + 1", 1) == 2
    assert await pool.fetchval("SELECT $1", None) is None
