"""A password that was changed at the servers while a pool is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AcquireTimeout, AuthenticationFailed, PoolClosed
from picopyn.routing import credentials, password_turns
from picopyn.testing import FaultProxy, ScriptedServer
from tests.asynchronous.doormen import Doormen
from tests.postgres.conftest import until
from tests.postgres.nodes import Nodes
from tests.threads import FACADES


@pytest.mark.parametrize(("role", "watchers"), [("any", 0), (None, 1)])
async def test_a_changed_password_is_tried_once_and_costs_no_connection_that_works(
    caplog: pytest.LogCaptureFixture, role: str | None, watchers: int
) -> None:
    """Accounts are blocked after a few refusals: no node is asked again for half a minute, and none is down."""
    doormen = Doormen()
    with ExitStack() as stack:
        hosts = [f"127.0.0.1:{stack.enter_context(ScriptedServer(doormen, greet=False)).port}" for _ in range(2)]
        dsn = f"postgresql://admin:old@{','.join(hosts)}/db?sslmode=disable"
        async with Pool(dsn, dialect="postgres", min_size=1, max_size=4, reset=False, role=role) as pool:
            await pool.wait_ready()
            assert (doormen.accepted, doormen.refused) == (2 + 2 * watchers, 0)
            doormen.wanted = b"new\0"
            with caplog.at_level(logging.INFO, "picopyn"):
                held = [await pool.acquire(node=host) for host in hosts]
                for host in hosts * 3:
                    with pytest.raises(AcquireTimeout):
                        await pool.acquire(node=host, timeout=0.1)
                for connection in held:
                    connection.release()
                assert [await pool.fetchval("SELECT $1::int8", 1) for _ in range(20)] == [0] * 20
            assert doormen.refused == 1
            assert {node.state for node in pool.stats().nodes.values()} == {"up"}
            warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(warnings) == 1
            assert "refused the credentials" in warnings[0]


async def test_without_a_connection_left_the_refusal_reaches_the_caller_at_once() -> None:
    """With the server's words, though it was not asked again; and the word of the user ends the waiting."""
    doormen = Doormen()
    with ScriptedServer(doormen, greet=False) as server:
        dsn = f"postgresql://admin:old@127.0.0.1:{server.port}/db?sslmode=disable"
        async with Pool(dsn, dialect="postgres", min_size=0, max_size=1, reset=False) as pool:
            async with pool.acquire() as connection:
                await connection.close()
            doormen.wanted = b"new\0"
            for _ in range(5):
                with pytest.raises(AuthenticationFailed, match="password authentication failed"):
                    await pool.fetchval("SELECT $1::int8", 1)
            assert doormen.refused == 1
            doormen.wanted = b"old\0"
            await pool.expire_connections()
            assert await pool.fetchval("SELECT $1::int8", 1) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_pool_recovers_by_itself_when_the_password_is_right_again(
    pool_class: Any, full_size: bool, monkeypatch: pytest.MonkeyPatch, measured: Callable[[str, object], None]
) -> None:
    """One attempt at one of three nodes, although several ask for the password at the same moment.

    After the correction, connections are there without a call that asks.
    """
    if not full_size:
        monkeypatch.setattr(credentials, "PAUSE", 2.0)
    monkeypatch.setattr(password_turns, "STALLED", 60.0)
    doormen = Doormen()
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(doormen, greet=False)) for _ in range(3)]
        ways = [stack.enter_context(FaultProxy("127.0.0.1", server.port)) for server in servers]
        hosts = [f"127.0.0.1:{way.port}" for way in ways]
        dsn = f"postgresql://admin:old@{','.join(hosts)}/db?sslmode=disable"
        async with pool_class(dsn, dialect="postgres", min_size=1, max_size=1, reset=False, role="any") as pool:
            await pool.wait_ready()
            await until(lambda: pool.stats().idle == len(hosts))
            doormen.wanted, doormen.until_asked = b"new\0", doormen.asked + 2
            for way in ways:
                way.cut()
            await until(lambda: doormen.refused and doormen.asked >= doormen.until_asked)
            for _ in range(5):
                with pytest.raises(AuthenticationFailed, match="password authentication failed"):
                    await pool.fetchval("SELECT $1::int8", 1)
            assert doormen.refused == 1
            assert {node.state for node in pool.stats().nodes.values()} == {"up"}
            doormen.wanted = b"old\0"
            corrected = asyncio.get_running_loop().time()
            await until(lambda: pool.stats().idle == 3)
            measured("seconds until all nodes are connected again", asyncio.get_running_loop().time() - corrected)
            assert await pool.fetchval("SELECT $1::int8", 1) == 0
            assert doormen.refused == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_wrong_password_is_tried_at_one_node_once(pool_class: Any) -> None:
    """Opening fails at once, with the server's words, and no second node has heard of it."""
    doormen = Doormen()
    with ExitStack() as stack:
        hosts = [f"127.0.0.1:{stack.enter_context(ScriptedServer(doormen, greet=False)).port}" for _ in range(3)]
        dsn = f"postgresql://admin:wrong@{','.join(hosts)}/db?sslmode=disable"
        for dialect in ("postgres", "auto"):
            doormen.refused = 0
            with pytest.raises(AuthenticationFailed, match="password authentication failed"):
                await pool_class(dsn, dialect=dialect).open()
            assert (doormen.accepted, doormen.refused) == (0, 1)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_that_takes_long_to_refuse_a_wrong_password_is_the_only_one_that_gets_it(
    pool_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as nothing is known of a password, its answer is waited for longer than that of one that was right."""
    monkeypatch.setattr(password_turns, "STALLED", 0.0)
    monkeypatch.setattr(password_turns, "UNPROVEN", 60.0)
    doormen = Doormen()
    doormen.until_asked = 3
    with ExitStack() as stack:
        ports = [stack.enter_context(ScriptedServer(doormen, greet=False)).port for _ in range(3)]
        dsn = f"postgresql://admin:wrong@127.0.0.1:{ports[0]}/db?sslmode=disable"
        options = {"topology_source": Nodes(*ports), "connect_timeout": 60, "min_size": 1}
        pool = pool_class(dsn, dialect="postgres", **options)
        opening = asyncio.create_task(pool.open())
        await until(lambda: doormen.refused == 1)
        pool.terminate()
        with pytest.raises(PoolClosed):
            await opening
        assert (doormen.wrong, doormen.refused) == (1, 1)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_that_takes_the_password_and_hangs_does_not_keep_the_pool_from_opening(
    pool_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn ends, and the next node lets all of them in."""
    monkeypatch.setattr(password_turns, "UNPROVEN", 0.1)
    doormen, hanging = Doormen(), Doormen()
    hanging.wanted, hanging.silent = b"nothing\0", True
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedServer(hanging, greet=False)).port
        others = [stack.enter_context(ScriptedServer(doormen, greet=False)).port for _ in range(2)]
        dsn = f"postgresql://admin:old@127.0.0.1:{first}/db?sslmode=disable"
        options = {"topology_source": Nodes(first, *others), "connect_timeout": 60, "min_size": 1}
        async with pool_class(dsn, dialect="postgres", **options) as pool:
            await until(lambda: hanging.wrong == 1 and pool.stats().idle == 2)
            assert await pool.fetchval("SELECT $1::int8", 1) == 0
        assert hanging.wrong == 1
