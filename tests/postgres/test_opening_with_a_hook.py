"""Opening a pool whose `after_connect` fails: at every node, at some, beside nodes that cannot be reached.

The time limits are so long that a test that waits for one of them does not end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from picopyn import asynchronous
from picopyn.errors import AcquireTimeout
from picopyn.testing import FaultProxy, PostgresServer, black_hole
from tests.postgres.conftest import OpenPool
from tests.postgres.nodes import Nodes
from tests.postgres.real import address
from tests.threads import FACADES

LONG = 60.0


async def fail(_: Any) -> None:
    """A hook that fails at every node."""
    raise LookupError("not here")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("min_size", [0, 1, 3])
async def test_a_hook_that_always_fails_fails_the_opening_with_its_own_error(
    pool_class: Any, postgres: PostgresServer, min_size: int
) -> None:
    """At once, with the cause it has itself; once it is mended the same pool can be opened."""
    cause = KeyError("deeper")
    broken = True

    async def hook(_: Any) -> None:
        if broken:
            raise LookupError("not here") from cause

    pool = pool_class(postgres.dsn, after_connect=hook, connect_timeout=LONG, min_size=min_size)
    with pytest.raises(LookupError, match="not here") as caught:
        await pool.open()
    assert caught.value.__cause__ is cause
    broken = False
    async with pool:
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_hook_that_takes_too_long_is_told_in_the_same_way(pool_class: Any, postgres: PostgresServer) -> None:
    """Its limit is its own, whatever the time to connect is."""

    async def slow(connection: Any) -> None:
        await connection.execute(f"SELECT pg_sleep({LONG})")

    with pytest.raises(AcquireTimeout, match="after_connect did not finish"):
        await pool_class(postgres.dsn, after_connect=slow, after_connect_timeout=0.05, connect_timeout=LONG).open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("min_size", [0, 1])
async def test_a_node_that_refuses_does_not_hide_the_hooks_error(
    pool_class: Any, postgres: PostgresServer, min_size: int
) -> None:
    """Whichever of them fails first, and however often it is tried again."""
    with FaultProxy(*address(postgres)) as proxy:
        proxy.refuse()
        source = Nodes(proxy.port, postgres.port)
        pool = pool_class(
            postgres.dsn, dialect="postgres", topology_source=source, after_connect=fail, connect_timeout=LONG,
            min_size=min_size,
        )  # fmt: skip
        with pytest.raises(LookupError, match="not here"):
            await pool.open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_that_stays_silent_does_not_hide_the_hooks_error(
    pool_class: Any, postgres: PostgresServer
) -> None:
    """It is waited for, since the hook may succeed there; then the hook's error is what is told."""
    with black_hole() as hole:
        source = Nodes(hole.port, postgres.port)
        pool = pool_class(
            postgres.dsn, dialect="postgres", topology_source=source, after_connect=fail, connect_timeout=0.2
        )
        with pytest.raises(LookupError, match="not here"):
            await pool.open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("min_size", [0, 1])
@pytest.mark.parametrize("max_total", [None, 1])
async def test_a_hook_that_succeeds_at_one_node_is_enough(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, min_size: int, max_total: int | None
) -> None:
    """However late: at every other one it failed before. Nodes are tried even where none had to be connected to."""
    ports = {postgres.port, postgres_too.port}
    failed: set[int] = set()
    others_failed = asyncio.Event()

    async def hook(connection: Any) -> None:
        port = await connection.fetchval("SELECT inet_server_port()")
        if failed in (set(), {port}):
            failed.add(port)
            others_failed.set()
            raise LookupError("not here")
        await others_failed.wait()

    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    pool = await open_pool(
        f"postgresql://postgres@{hosts}/postgres", dialect="postgres", after_connect=hook, connect_timeout=LONG,
        min_size=min_size, max_total=max_total,
    )  # fmt: skip
    (good,) = ports - failed
    async with pool.acquire(node=f"127.0.0.1:{good}") as connection:
        assert await connection.fetchval("SELECT inet_server_port()") == good


class Unusual(BaseException):
    """No `Exception`, and nothing that ends a loop."""


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("error", [GeneratorExit, Unusual])
async def test_a_hook_may_raise_what_is_no_exception(
    postgres: PostgresServer, pool_class: Any, error: type[BaseException]
) -> None:
    """Whoever waits for its connection learns what it was; no place is lost, and the node is not in doubt."""
    fails = True

    async def hook(_: Any) -> None:
        if fails:
            raise error

    pool = pool_class(postgres.dsn, dialect="postgres", after_connect=hook, max_size=1, min_size=0)
    with pytest.raises(RuntimeError, match=f"after_connect raised {error.__name__}"):
        await pool.open()
    fails = False
    async with pool:
        async with pool.acquire() as connection:
            fails = True
            connection.terminate()
        with pytest.raises(RuntimeError, match=f"after_connect raised {error.__name__}"):
            await pool.fetchval("SELECT 1")
        fails = False
        assert await pool.fetchval("SELECT 2") == 2
        (node,) = pool.stats().nodes.values()
        assert (node.state, node.in_use, node.connecting, node.waiting) == ("up", 0, 0, 0)


async def _lose_one(pool: asynchronous.Pool) -> None:
    async with pool.acquire() as connection:
        connection.terminate()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_hook_that_ends_the_loop(postgres: PostgresServer, error: type[BaseException]) -> None:
    """It does, as out of any task. Where the loop goes on, callers learn what it was, and no place is lost."""
    fails = False

    async def hook(_: Any) -> None:
        if fails:
            raise error

    pool = asynchronous.Pool(postgres.dsn, dialect="postgres", after_connect=hook, max_size=1, min_size=0)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(pool.open())
        loop.run_until_complete(_lose_one(pool))
        fails = True
        call = loop.create_task(pool.fetchval("SELECT 1"))
        with pytest.raises(error):
            loop.run_until_complete(call)
        with pytest.raises(RuntimeError, match=f"after_connect raised {error.__name__}"):
            loop.run_until_complete(call)
        fails = False
        assert loop.run_until_complete(pool.fetchval("SELECT 2")) == 2
        (node,) = pool.stats().nodes.values()
        assert (node.state, node.in_use, node.connecting, node.waiting) == ("up", 0, 0, 0)
        loop.run_until_complete(pool.close())
    finally:
        loop.close()
