"""Bad input of settings and calls, and a closed pool: refused at once, before anything is opened or waited for."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import fields
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.acquired import AcquiredConnection
from picopyn.asynchronous.borrowed import Cursor, CursorFactory, PreparedStatement
from picopyn.errors import ConfigError, NoNodeAvailable, PoolClosed, UsageError
from picopyn.routing.sharding import ShardingKey
from picopyn.settings import PoolSettings
from picopyn.testing import PostgresServer, black_hole
from tests.postgres.conftest import OpenPool, until
from tests.threads import FACADES

NO_DURATIONS = (-1, -0.001, -math.inf, math.nan, math.inf)
NO_TIMEOUTS = (-1, -0.001, -math.inf, math.nan, 0, "5", True)

#: Every setting that is a time.
TIMES = [field.name for field in fields(PoolSettings) if "float" in str(field.type)]
#: Those of them that no connection string can say.
ONLY_KEYWORDS = ("after_connect_timeout",)


async def coroutine(*_: object) -> None:
    """What an observer may not be."""


# at construction


@pytest.mark.parametrize("value", NO_DURATIONS)
@pytest.mark.parametrize("name", TIMES)
def test_a_time_that_is_none_is_refused_at_construction(name: str, value: float) -> None:
    """As a keyword and in the connection string; the setting is named, and it is a `ValueError` too."""
    with pytest.raises(ConfigError, match=name) as caught:
        Pool("postgresql://u@h/", **{name: value})
    assert len(caught.value.problems) == 1
    assert isinstance(caught.value, ValueError)
    if name not in ONLY_KEYWORDS:
        with pytest.raises(ConfigError, match=name):
            Pool(f"postgresql://u@h/?{name}={value}")


@pytest.mark.parametrize("value", [3, "f", object(), [], True])
@pytest.mark.parametrize("name", ["after_connect", "init", "on_event", "address_map", "password", "reset"])
def test_a_hook_that_cannot_be_called_is_refused_at_construction(name: str, value: Any) -> None:
    """Whatever else it is; a password may be a text, and a reset may be switched."""
    if (name, type(value)) in (("password", str), ("reset", bool)):
        assert getattr(Pool("postgresql://u@h/", **{name: value}).settings, name) == value
        return
    with pytest.raises(ConfigError, match=name):
        Pool("postgresql://u@h/", **{name: value})


@pytest.mark.parametrize("name", ["on_event", "address_map", "ssl_server_name"])
def test_a_hook_that_is_called_plainly_may_be_no_coroutine_function(name: str) -> None:
    """It would never run."""
    with pytest.raises(ConfigError, match=name):
        Pool("postgresql://u@h/", **{name: coroutine})


async def test_a_hook_that_is_no_coroutine_function_fails_for_its_caller(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """That shows only when it is called: the caller gets the `TypeError`, and the node is not blamed."""
    answers: list[Any] = [coroutine()]
    hook: Any = lambda _: answers.pop() if answers else None  # noqa: E731
    pool = await open_pool(postgres.dsn, min_size=0, max_size=1, after_connect=hook)
    async with pool.acquire() as held:
        held.terminate()
    with pytest.raises(TypeError):
        await pool.fetchval("SELECT 1")
    assert {node.state for node in pool.stats().nodes.values()} == {"up"}


@pytest.mark.parametrize(
    "sizes",
    [
        {"min_size": 3, "max_size": 2},
        {"min_size": 11},
        {"max_size": 0},
        {"min_size": 0, "max_size": 0},
        {"min_size": -1},
        {"min_size": 3, "max_total": 2},
        {"max_total": 0},
        {"max_waiting": -1},
        {"max_size": math.nan},
    ],
)
def test_sizes_that_contradict_each_other_are_refused_at_construction(sizes: dict[str, Any]) -> None:
    """As keywords, in the connection string, and one of each."""
    named = "|".join(sizes)
    words = "&".join(f"{name}={value}" for name, value in sizes.items())
    first, *rest = sizes.items()
    for dsn, options in [
        ("postgresql://u@h/", sizes),
        (f"postgresql://u@h/?{words}", {}),
        (f"postgresql://u@h/?{first[0]}={first[1]}", dict(rest)),
    ]:
        with pytest.raises(ConfigError, match=named):
            Pool(dsn, **options)


# at a call


async def take(_: bytes) -> None:
    """Takes what is copied."""


async def _never_called(connection: Any) -> None:
    """The work of a transaction that is refused."""


#: `acquire` under other names.
ALIASES = {
    "acquire_replica",
    "acquire_by_sharding_key",
    "acquire_by_tier_and_bucket_id",
    "acquire_by_instance_uuid",
}


def calls_of_a_pool(pool: Pool) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Each of its methods that has a timeout, with one."""

    async def transact(timeout: Any) -> None:
        async with pool.transaction(timeout=timeout):
            pass

    return {
        "execute": lambda timeout: pool.execute("SELECT 1", timeout=timeout),
        "fetch": lambda timeout: pool.fetch("SELECT 1", timeout=timeout),
        "fetchrow": lambda timeout: pool.fetchrow("SELECT 1", timeout=timeout),
        "fetchval": lambda timeout: pool.fetchval("SELECT 1", timeout=timeout),
        "executemany": lambda timeout: pool.executemany("SELECT $1::int", [(1,)], timeout=timeout),
        "acquire": lambda timeout: pool.acquire(timeout=timeout),
        "transaction": transact,
        "acquire_master": lambda timeout: pool.acquire_master(timeout=timeout),
        "wait_ready": lambda timeout: pool.wait_ready(leaders=99, timeout=timeout),
        "ready": lambda timeout: pool.ready(99, 0, timeout=timeout),
        "fetch_by_keys": lambda timeout: pool.fetch_by_keys("SELECT 1 WHERE 1 = ($1)", [1], timeout=timeout),
        "copy_records": lambda timeout: pool.copy_records("t", [], timeout=timeout),
        "run_transaction": lambda timeout: pool.run_transaction(_never_called, timeout=timeout),
    }


def calls_of_a_connection(held: AcquiredConnection) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Each of its methods that has a timeout, with one."""

    async def cursor(timeout: Any) -> None:
        async for _ in held.cursor("SELECT 1", timeout=timeout):
            pass

    return {
        "execute": lambda timeout: held.execute("SELECT 1", timeout=timeout),
        "executemany": lambda timeout: held.executemany("SELECT $1::int", [(1,)], timeout=timeout),
        "fetch": lambda timeout: held.fetch("SELECT 1", timeout=timeout),
        "fetchrow": lambda timeout: held.fetchrow("SELECT 1", timeout=timeout),
        "fetchval": lambda timeout: held.fetchval("SELECT 1", timeout=timeout),
        "fetchmany": lambda timeout: held.fetchmany("SELECT $1::int", [(1,)], timeout=timeout),
        "prepare": lambda timeout: held.prepare("SELECT 1", timeout=timeout),
        "cursor": cursor,
        "copy_from_table": lambda timeout: held.copy_from_table("t", output=take, timeout=timeout),
        "copy_from_query": lambda timeout: held.copy_from_query("SELECT 1", output=take, timeout=timeout),
        "copy_to_table": lambda timeout: held.copy_to_table("t", source=None, timeout=timeout),
        "copy_records_to_table": lambda timeout: held.copy_records_to_table("t", records=[], timeout=timeout),
        "reset": lambda timeout: held.reset(timeout=timeout),
        "close": lambda timeout: held.close(timeout=timeout),
    }


def calls_of_a_statement(statement: PreparedStatement) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Each of its methods that has a timeout, with one."""

    async def cursor(timeout: Any) -> None:
        async for _ in statement.cursor(1, timeout=timeout):
            pass

    return {
        "fetch": lambda timeout: statement.fetch(1, timeout=timeout),
        "fetchrow": lambda timeout: statement.fetchrow(1, timeout=timeout),
        "fetchval": lambda timeout: statement.fetchval(1, timeout=timeout),
        "fetchmany": lambda timeout: statement.fetchmany([(1,)], timeout=timeout),
        "executemany": lambda timeout: statement.executemany([(1,)], timeout=timeout),
        "cursor": cursor,
    }


def calls_of_a_cursor(cursor: Cursor) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Each of its methods that has a timeout, with one."""
    return {
        "fetch": lambda timeout: cursor.fetch(1, timeout=timeout),
        "fetchrow": lambda timeout: cursor.fetchrow(timeout=timeout),
        "forward": lambda timeout: cursor.forward(1, timeout=timeout),
    }


def with_a_timeout(kind: type) -> set[str]:
    """Names of the public methods that take a timeout."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        name
        for name, method in methods
        if not name.startswith("_") and "timeout" in inspect.signature(method).parameters
    }


def test_every_method_with_a_timeout_is_tried_here() -> None:
    """`release` takes one for the sake of asyncpg's signature, and never waits; `explain` is a `fetch`, on Picodata."""
    nobody: Any = None
    assert with_a_timeout(Pool) - {"release", "explain"} - ALIASES == set(calls_of_a_pool(nobody))
    assert with_a_timeout(AcquiredConnection) == set(calls_of_a_connection(nobody))
    assert with_a_timeout(PreparedStatement) == set(calls_of_a_statement(nobody))
    assert with_a_timeout(Cursor) == set(calls_of_a_cursor(nobody))
    assert not with_a_timeout(CursorFactory)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("value", NO_TIMEOUTS)
async def test_a_timeout_that_is_none_is_refused_by_every_method(
    postgres: PostgresServer, open_pool: OpenPool, value: Any
) -> None:
    """Nothing is sent, no connection is lost, no node is in doubt, and the loop's timers still work."""
    pool = await open_pool(postgres.dsn, max_size=1)
    async with pool.acquire() as held, held.transaction():
        statement = await held.prepare("SELECT $1::int")
        pid = held.get_server_pid()
        cursor = await held.cursor("SELECT generate_series(1, 9)")
        for calls in (
            calls_of_a_pool(pool),
            calls_of_a_connection(held),
            calls_of_a_statement(statement),
            calls_of_a_cursor(cursor),
        ):
            for name, call in calls.items():
                with pytest.raises(ValueError, match="timeout must be"):
                    await call(value)
                    pytest.fail(f"{name} took it")
        assert await cursor.fetchrow() == (1,)
        assert await statement.fetchval(2) == 2
    assert await pool.fetchval("SELECT pg_backend_pid()", timeout=5) == pid
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    assert sum(pool.stats().calls.values()) == 1
    assert {node.state for node in pool.stats().nodes.values()} == {"up"}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("seconds", [*NO_DURATIONS, 0.999])
async def test_an_interval_that_is_none_is_refused(
    postgres: PostgresServer, open_pool: OpenPool, seconds: float
) -> None:
    """The old one stays."""
    pool = await open_pool(postgres.dsn)
    with pytest.raises(ValueError, match="at least 1"):
        pool.update_topology_interval(seconds)
    assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("grace", [-1, math.nan, None, "5", True])
async def test_a_grace_that_is_none_is_refused(postgres: PostgresServer, open_pool: OpenPool, grace: Any) -> None:
    """The pool stays open."""
    pool = await open_pool(postgres.dsn)
    with pytest.raises(ValueError, match="grace must be"):
        await pool.close(grace)
    assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("way", ["plain", "awaited"])
async def test_a_password_that_is_no_text_is_named_by_its_type(
    postgres: PostgresServer, pool_class: Any, facade: str, way: str
) -> None:
    """What the function gave is not told, and nothing is sent."""

    def plain() -> Any:
        return 731946

    async def awaited() -> Any:
        return plain()

    pool = pool_class(postgres.dsn, password=plain if way == "plain" else awaited)
    with pytest.raises(NoNodeAvailable, match=r"password: the function .* must give a text, but it gave int") as caught:
        await pool.open()
    assert "731946" not in str(caught.value)
    await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_to_drain_that_is_no_name_is_refused(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """Like that of any other call; the pool goes on."""
    pool = await open_pool(postgres.dsn)
    wrong: list[tuple[Any, str]] = [(None, "NoneType"), (3, "int"), ("", "an empty one")]
    for node, what in wrong:
        with pytest.raises(UsageError, match=f"node= takes a name, not {what}"):
            await pool.drain(node)
        with pytest.raises(UsageError, match=f"node= takes a name, not {what}"):
            pool.undrain(node)
    assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_keyword_that_there_is_not_is_told_by_the_method_that_was_called(
    postgres: PostgresServer, open_pool: OpenPool
) -> None:
    """`fetchval` sends what `fetchrow` sends, but that is not what the caller wrote."""
    pool = await open_pool(postgres.dsn)
    for name in ("execute", "fetch", "fetchrow", "fetchval"):
        with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'bogus'"):
            await getattr(pool, name)("SELECT 1", bogus=1)


# a closed pool

#: Methods and properties that a closed pool still has an answer for.
ANSWERED = {"close", "terminate", "release", "settings", "stats", "topology", "available_pool_count"}


def everything(pool: Pool) -> dict[str, Callable[[], Any]]:
    """Every public method that needs an open pool."""
    return {
        "open": pool.open,
        "execute": lambda: pool.execute("SELECT 1"),
        "fetch": lambda: pool.fetch("SELECT 1"),
        "fetchrow": lambda: pool.fetchrow("SELECT 1"),
        "fetchval": lambda: pool.fetchval("SELECT 1"),
        "executemany": lambda: pool.executemany("SELECT $1::int", [(1,)]),
        "acquire": pool.acquire,
        "transaction": lambda: pool.transaction().__aenter__(),
        "acquire_master": pool.acquire_master,
        "acquire_replica": pool.acquire_replica,
        "wait_ready": pool.wait_ready,
        "ready": pool.ready,
        "wait_masters_ready": lambda: pool.wait_masters_ready(1),
        "explain_route": lambda: pool.explain_route("SELECT 1"),
        "refresh_topology": pool.refresh_topology,
        "expire_connections": pool.expire_connections,
        "update_topology_interval": lambda: pool.update_topology_interval(2.0),
        "fetch_by_keys": lambda: pool.fetch_by_keys("SELECT 1 WHERE 1 = ($1)", [1]),
        "copy_records": lambda: pool.copy_records("t", [(1,)]),
        "run_transaction": lambda: pool.run_transaction(_never_called),
        "sharding_key_factory": lambda: pool.sharding_key_factory("t"),
        "create_sharding_key_factory": lambda: pool.create_sharding_key_factory("t"),
        "acquire_by_sharding_key": lambda: pool.acquire_by_sharding_key(ShardingKey(values=(1,))),
        "acquire_by_tier_and_bucket_id": lambda: pool.acquire_by_tier_and_bucket_id("default", 1),
        "acquire_by_instance_uuid": lambda: pool.acquire_by_instance_uuid("i1"),
        "explain": lambda: pool.explain("SELECT 1"),
        "drain": lambda: pool.drain("i1"),
        "undrain": lambda: pool.undrain("i1"),
    }


async def says_closed(pool: Pool) -> None:
    """Every method raises `PoolClosed` before it waits for anything; the rest answers."""
    for name, call in everything(pool).items():
        with pytest.raises(PoolClosed):
            steps = call()
            if isinstance(pool, Pool):
                next(steps.__await__())
                pytest.fail(f"{name} waits")
            await steps
    assert "closed" in repr(pool)
    assert pool.stats().waiting == 0


def test_every_public_name_of_a_pool_is_tried_here() -> None:
    """A new one has to be added."""
    pool = Pool("postgresql://u@h/")
    assert {name for name in dir(pool) if not name.startswith("_")} == everything(pool).keys() | ANSWERED


async def _never_open(pool_class: Any, dsn: str) -> Pool:
    pool = pool_class(dsn)
    await pool.close()
    return pool


async def _terminated_unopened(pool_class: Any, dsn: str) -> Pool:
    pool = pool_class(dsn)
    pool.terminate()
    return pool


async def _closed(pool_class: Any, dsn: str) -> Pool:
    pool = await pool_class(dsn).open()
    await pool.close()
    return pool


async def _closed_again(pool_class: Any, dsn: str) -> Pool:
    pool = await _closed(pool_class, dsn)
    await pool.close()
    pool.terminate()
    return pool


async def _terminated(pool_class: Any, dsn: str) -> Pool:
    pool = await pool_class(dsn).open()
    pool.terminate()
    await says_closed(pool)
    await pool.close()
    return pool


async def _terminated_by_a_thread(pool_class: Any, dsn: str) -> Pool:
    pool = await pool_class(dsn).open()
    thread = threading.Thread(target=pool.terminate)
    thread.start()
    thread.join()
    await says_closed(pool)
    await pool.close()
    return pool


async def _closing(pool_class: Any, dsn: str) -> Pool:
    pool = await pool_class(dsn).open()
    async with pool.acquire() as held:
        closing = asyncio.create_task(pool.close(grace=30))
        await until(lambda: "closed" in repr(pool))
        await says_closed(pool)
        assert await held.fetchval("SELECT 1") == 1
    await closing
    return pool


async def _closing_with_a_crowd(pool_class: Any, dsn: str) -> Pool:
    """Calls that wait for the only connection end as well."""
    pool = await pool_class(dsn, max_size=1).open()
    async with pool.acquire():
        calls = [asyncio.create_task(pool.fetchval("SELECT 1")) for _ in range(5)]
        while pool.stats().waiting < 5:
            await asyncio.sleep(0)
        closing = asyncio.create_task(pool.close(grace=30))
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in ended} == {PoolClosed}
        await says_closed(pool)
    await closing
    return pool


async def _given_up_while_opening(pool_class: Any, dsn: str) -> Pool:
    with black_hole() as hole:
        pool = pool_class(f"postgresql://u@{hole.host}:{hole.port}/d")
        opening = asyncio.create_task(pool.open())
        await until(lambda: "opening" in repr(pool))
        closing = asyncio.create_task(pool.close())
        await until(lambda: "closed" in repr(pool))
        await says_closed(pool)
        ended = await asyncio.gather(opening, closing, return_exceptions=True)
    assert [type(outcome) for outcome in ended] == [PoolClosed, type(None)]
    return pool


async def _left_by_an_error(pool_class: Any, dsn: str) -> Pool:
    pool = pool_class(dsn)
    with pytest.raises(ZeroDivisionError):
        async with pool:
            raise ZeroDivisionError
    return pool


async def _close_was_cancelled(pool_class: Any, dsn: str) -> Pool:
    pool = await pool_class(dsn).open()
    held = await pool.acquire()
    closing = asyncio.create_task(pool.close(grace=30))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await says_closed(pool)
    held.release()
    await pool.close()
    return pool


async def _its_loop_is_gone(pool_class: Any, dsn: str) -> Pool:
    def elsewhere() -> Pool:
        with asyncio.Runner() as runner:
            pool = runner.run(pool_class(dsn).open())
            runner.run(pool.close())
        return pool

    return await asyncio.to_thread(elsewhere)


STATES: list[Callable[[Any, str], Coroutine[Any, Any, Pool]]] = [
    _never_open,
    _terminated_unopened,
    _closed,
    _closed_again,
    _terminated,
    _terminated_by_a_thread,
    _closing,
    _closing_with_a_crowd,
    _given_up_while_opening,
    _left_by_an_error,
    _close_was_cancelled,
    _its_loop_is_gone,
]


@pytest.mark.parametrize(
    ("facade", "into"),
    [("asynchronous", state) for state in STATES] + [("sync", state) for state in STATES[:-2]],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
    indirect=["facade"],
)
async def test_a_closed_pool_says_so_at_once_from_any_state(
    pool_class: Any, postgres: PostgresServer, into: Callable[[Any, str], Coroutine[Any, Any, Pool]]
) -> None:
    """However it came to be closed, each public method raises `PoolClosed` without waiting for anything."""
    await says_closed(await into(pool_class, f"{postgres.dsn}?dialect=postgres&sslmode=disable"))
