"""Hooks, resets, start-up keys and CancelRequests: what is said on a caller's connection that he did not ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool, cancel_requests, sessions
from picopyn.dialects.base import Dialect
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.dsn import Endpoint
from picopyn.errors import AcquireTimeout, CallTimeout, ConfigError
from picopyn.observe import Event, NodeStateChanged
from picopyn.settings import PoolSettings
from picopyn.staleness import StalenessPolicy
from tests.asynchronous.servers import Watch
from tests.cancelling import eventually
from tests.threads import FACADES


class Rows(asyncpg.Record):
    """Rows with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


# the hook


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_hook_sets_up_every_connection_before_it_is_used(watch: Watch) -> None:
    """Codecs and settings hold for one-shot calls and for held connections, also after a reset."""

    async def hook(connection: Any) -> None:
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        await connection.execute("SET work_mem = '1234kB'")

    async with watch.pool(max_size=1, after_connect=hook) as pool:
        for _ in range(2):
            assert await pool.fetchval("SELECT '[1]'::json") == [1]
            assert await pool.fetchval("SHOW work_mem") == "1234kB"
            async with pool.acquire() as connection:
                assert await connection.fetchval("SELECT '[1]'::json") == [1]
                await connection.execute("SET work_mem = '99kB'")
        assert pool.stats().connects == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_failing_hook_gives_its_own_error_and_blames_no_node(watch: Watch) -> None:
    """The same object, to everybody who waits; as soon as it works again, so does the pool."""
    failing, events = True, list[Event]()
    own = ValueError("not today")

    async def hook(connection: Any) -> None:
        if failing:
            raise own

    failing = False
    async with watch.pool(min_size=0, max_size=1, init=hook, on_event=events.append) as pool:
        async with pool.acquire() as connection:
            connection.terminate()
        failing = True
        told = await asyncio.gather(*(pool.fetchval("SELECT 1") for _ in range(3)), return_exceptions=True)
        assert told == [own] * 3
        failing = False
        assert await pool.fetchval("SELECT 1") == 1
    assert not [event for event in events if isinstance(event, NodeStateChanged)]


async def test_the_hook_has_a_limit_of_its_own(watch: Watch) -> None:
    """And says so; a caller's own deadline may be shorter."""

    async def slow(connection: Any) -> None:
        if gate.is_set():
            await asyncio.Event().wait()

    gate = asyncio.Event()
    async with watch.pool(min_size=0, max_size=1, after_connect=slow, after_connect_timeout=0.05) as pool:
        async with pool.acquire() as connection:
            connection.terminate()
        gate.set()
        with pytest.raises(AcquireTimeout, match=r"after_connect did not finish within 0\.05 s"):
            await pool.fetchval("SELECT 1")
        with pytest.raises(AcquireTimeout, match="1 being opened"):
            await pool.fetchval("SELECT 1", timeout=0.01)
        gate.clear()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        ("BEGIN", RuntimeError, "left a transaction open"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", asyncpg.PostgresError, "terminating connection"),
    ],
)
async def test_a_hook_must_leave_the_connection_open_and_idle(
    watch: Watch, step: str, error: type[Exception], text: str
) -> None:
    """Else the connection is closed, and whoever waits is told."""
    bad = False

    async def hook(connection: Any) -> None:
        if bad:
            await connection.execute(step)

    async with watch.pool(min_size=0, max_size=1, after_connect=hook) as pool:
        async with pool.acquire() as connection:
            connection.terminate()
        bad = True
        with pytest.raises(error, match=text):
            await pool.fetchval("SELECT 1")
        bad = False
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.stats().nodes[next(iter(pool.stats().nodes))].state == "up"


async def test_a_hook_that_cancels_itself_cancels_no_caller(watch: Watch) -> None:
    """Nobody asked for that."""
    bad = False

    async def hook(connection: Any) -> None:
        if bad:
            raise asyncio.CancelledError

    async with watch.pool(min_size=0, max_size=1, after_connect=hook) as pool:
        async with pool.acquire() as connection:
            connection.terminate()
        bad = True
        with pytest.raises(RuntimeError, match="cancelled from inside"):
            await pool.fetchval("SELECT 1")
        bad = False
        assert await pool.fetchval("SELECT 1") == 1


def test_hooks_and_times_are_checked_when_the_pool_is_made() -> None:
    """Every problem at once."""
    with pytest.raises(ConfigError) as caught:
        Pool(
            "postgresql://u@h/",
            init=3,
            after_connect_timeout=float("nan"),
            reset="yes",
            record_class=dict,
            statement_timeout=-1,
            debug=1,
        )
    told = "\n".join(caught.value.problems)
    for word in ("init ", "after_connect_timeout", "reset", "record_class", "statement_timeout", "debug"):
        assert word in told
    with pytest.raises(ConfigError, match="same setting"):
        Pool("postgresql://u@h/", init=print, after_connect=repr)
    with pytest.raises(ConfigError, match="picodata has none"):
        Pool("postgresql://u@h/", dialect="picodata", statement_timeout=1)
    with pytest.raises(ConfigError, match="strict_routing: postgres sends no statement on"):
        Pool("postgresql://u@h/", dialect="postgres", strict_routing=True)
    with pytest.raises(ConfigError, match="strict_routing must be"):
        Pool("postgresql://u@h/", strict_routing="yes")
    with pytest.raises(ConfigError, match="setting of its own"):
        Pool("postgresql://u@h/", server_settings={"statement_timeout": "1"})


@pytest.mark.parametrize("server", [PicodataDialect(), YugabyteDialect()], ids=lambda server: server.name)
def test_what_limits_replicas_of_a_primary_is_refused_where_there_are_none(server: Dialect) -> None:
    """Also where only its greeting tells what the server is (`dialect="auto"`), or a dialect is given as an object."""
    limits = {"staleness": StalenessPolicy(max_lag=1), "fallback_master": True, "master_as_replica_weight": 0.5}
    settings = PoolSettings(endpoints=(Endpoint("h1"), Endpoint("h2")), role="prefer_replica", **limits)
    with pytest.raises(ConfigError) as caught:
        sessions.refuse_unsupported(settings, server)
    told = "; ".join(caught.value.problems)
    assert all(name in told for name in limits)
    sessions.refuse_unsupported(settings, PostgresDialect())
    with pytest.raises(ConfigError, match=r"staleness.* is for plain PostgreSQL"):
        Pool("postgresql://u@h1,h2/", dialect=server, role="prefer_replica", staleness=StalenessPolicy(max_lag=1))


# start-up keys and rows


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_server_settings_survive_resets(watch: Watch) -> None:
    """They are what a session starts with."""
    async with watch.pool(max_size=1, server_settings={"work_mem": "1234kB"}) as pool:
        async with pool.acquire() as connection:
            await connection.execute("SET work_mem = '99kB'")
        assert await pool.fetchval("SHOW work_mem") == "1234kB"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_statement_timeout_is_the_servers(watch: Watch) -> None:
    """It ends a statement itself, and the connection stays."""
    async with watch.pool(max_size=1, statement_timeout=0.05) as pool:
        assert await pool.fetchval("SHOW statement_timeout") == "50ms"
        with pytest.raises(asyncpg.QueryCanceledError):
            await pool.execute("SELECT pg_sleep(30)")
        assert pool.stats().connects == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_rows_have_the_class_one_asks_for(watch: Watch) -> None:
    """In one-shot calls and on held connections."""
    async with watch.pool(record_class=Rows) as pool:
        assert (await pool.fetchrow("SELECT 7 AS seven")).seven == 7
        async with pool.acquire() as connection:
            assert (await connection.fetch("SELECT 7 AS seven"))[0].seven == 7


# the reset


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_reset_that_hangs_costs_the_connection(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is bounded, and nobody waits for that session."""
    monkeypatch.setattr("picopyn.engine.loan.RESTORE_TIMEOUT", 0.05)
    monkeypatch.setattr(sessions, "RESET", ("SELECT pg_sleep(30)",))
    async with watch.pool(max_size=1) as pool:
        async with pool.acquire() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
        assert await pool.fetchval("SELECT pg_backend_pid()", timeout=2) != pid
        await watch.agrees(pool)


async def test_closing_does_not_wait_for_resets(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with the pool."""
    monkeypatch.setattr(sessions, "RESET", ("SELECT pg_sleep(30)",))
    for pause in (None, 0.0, 0.01):
        pool = await watch.pool(max_size=1).open()
        async with pool.acquire() as connection:
            await connection.execute("SELECT 1")
        if pause is not None:
            await asyncio.sleep(pause)
        async with asyncio.timeout(20):
            await pool.close(grace=30)
        await watch.no_session()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_texts_a_server_refuses_are_left_out_from_then_on(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of the reset is done; it is told once."""
    monkeypatch.setattr(sessions, "RESET", ("RESET ALL", "RESET EVERYTHING AT ONCE", "SELECT no_such_function()"))
    seen: list[str] = []
    async with watch.pool(max_size=1) as pool:
        for _ in range(3):
            async with pool.acquire() as connection:
                await connection.execute("SET work_mem = '99kB'")
            assert await pool.fetchval("SHOW work_mem") != "99kB"
        assert pool.stats().connects == 1
    refused = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(refused) == 2, seen


# sessions the server ends


async def test_a_statement_for_a_session_that_has_been_told_to_end_goes_to_another(watch: Watch) -> None:
    """The goodbye was read, the end of the connection was not yet: nothing is sent there, so nothing is in doubt."""
    text = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    async with watch.pool(max_size=2) as pool:
        await pool.execute("CREATE TABLE IF NOT EXISTS goodbye (n int)")
        for _ in range(2):
            async with pool.acquire() as connection:
                pid, protocol = connection.get_server_pid(), connection._connection._protocol
            protocol.data_received(b"E" + (len(text) + 4).to_bytes(4) + text)
            await pool.execute("INSERT INTO goodbye VALUES (1)")
            assert await pool.fetchval("SELECT pg_backend_pid()") != pid
        assert await pool.fetchval("SELECT count(*) FROM goodbye") == 2
        await pool.execute("DROP TABLE goodbye")


# CancelRequests


@pytest.mark.parametrize("way", ["cancelled", "timed out", "held and cancelled"])
async def test_the_server_stops_working_for_nobody(watch: Watch, way: str) -> None:
    """A statement whose caller has gone is cancelled; the session ends at once, not after its half minute."""
    async with watch.pool(max_size=1) as pool:
        if way == "timed out":
            with pytest.raises(CallTimeout):
                await pool.execute("SELECT pg_sleep(30)", timeout=0.05)
        else:

            async def hold() -> None:
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute("SELECT pg_sleep(30)")

            call = asyncio.create_task(hold() if way.startswith("held") else pool.execute("SELECT pg_sleep(30)"))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

        async def idle() -> bool:
            text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%sleep%'"
            return await watch.admin.fetchval(text, watch.application) == 0

        await eventually(idle, lambda: "the server still sleeps", limit=1.0)
        assert await pool.fetchval("SELECT 1") == 1


async def test_a_request_that_overtook_its_statement_is_sent_again(watch: Watch) -> None:
    """The server reads a statement after the request to cancel it: it would work for nobody."""
    async with watch.pool(max_size=4) as pool:
        for _ in range(20):
            call = asyncio.create_task(pool.execute("SELECT pg_sleep(30)"))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await asyncio.sleep(0.5)
        await watch.agrees(pool)


async def test_connections_on_their_way_out_end_with_the_pool(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a node that hangs; there are never many."""
    monkeypatch.setattr(cancel_requests, "MOST", 2)

    async def never(**_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncpg.connect_utils, "_cancel", never)
    async with watch.pool(max_size=4) as pool:
        calls = [pool.execute("SELECT pg_sleep(1)", timeout=0.3) for _ in range(4)]
        told = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, CallTimeout | AcquireTimeout) for error in told)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert names.count("picopyn cancel request") == 2
        pool.terminate()
    await watch.kill()


# fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_child_process_lets_go(watch: Watch) -> None:
    """Pools and held connections refuse there, with a clear error; the parent's sessions never notice."""
    async with watch.pool(min_size=2, max_size=2) as pool:
        await watch.agrees(pool)
        await asyncio.gather(*(pool.execute("SELECT pg_sleep(0.01)") for _ in range(2)))
        connection = await pool.acquire()
        before = sorted(await watch.sessions())
        read, write = os.pipe()
        child = os.fork()
        if not child:
            told = _in_the_child(pool, connection)
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        os.close(write)
        said = json.loads(await asyncio.to_thread(os.read, read, 65536))
        os.close(read)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert said == ["another process"] * 5 + ["quiet"] * 4
        assert await connection.fetchval("SELECT 1") == 1
        connection.release()
        answers = await asyncio.gather(*(pool.fetchval("SELECT $1::int", number) for number in range(20)))
        assert answers == list(range(20))
        assert sorted(await watch.sessions()) == before
        await watch.agrees(pool)


def _in_the_child(pool: Pool, connection: Any) -> list[str]:
    told = []
    for call in (
        lambda: pool.execute("SELECT 1"),
        lambda: pool.acquire().__aenter__(),
        lambda: pool.open(),
        lambda: connection.execute("SELECT 1"),
        lambda: pool.release(connection),
    ):
        try:
            asyncio.run(call())
        except RuntimeError as error:
            told.append("another process" if "another process" in str(error) else repr(error))
    for step in (lambda: asyncio.run(pool.close()), pool.terminate, pool.stats, connection.__del__):
        try:
            step()
            told.append("quiet")
        except BaseException as error:
            told.append(repr(error))
    return told
