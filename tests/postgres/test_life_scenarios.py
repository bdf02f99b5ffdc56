"""What went wrong in comparable drivers, classes *pool*, *timeout*, *shutdown*, *conc*, *clock*: harder variants.

The plain ones stand in `tests/asynchronous/test_pool_scenarios.py`, `tests/asynchronous/test_scenarios.py` and
`test_shutdown_scenarios.py`; each test is named after its scenario.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AcquireTimeout, CallTimeout, ConnectionLost, NoNodeAvailable, PoolClosed, UsageError
from picopyn.testing import FaultProxy, PostgresServer, ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk
from tests.asynchronous.servers import Watch, count
from tests.login import with_words
from tests.postgres.conftest import OpenPool, until
from tests.postgres.nodes import Nodes
from tests.postgres.real import address, through
from tests.threads import FACADES, over_both


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


# pool-outage-longer-than-backoff


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_outage_longer_than_backoff_of_a_server_that_was_never_there(
    pool_class: Any, open_pool: OpenPool
) -> None:
    """Down when the pool is opened: a reason. Stopped later: each call has one too, and `min_size` comes by itself."""
    server = PostgresServer(port=0).start()
    dsn = f"{server.dsn}?dialect=postgres&sslmode=disable&min_size=2&max_size=4"
    server.stop()
    pool = pool_class(dsn, connect_timeout=0.5)
    with pytest.raises(NoNodeAvailable) as caught:
        await pool.open()
    assert set(caught.value.reasons) == {f"127.0.0.1:{server.port}"}
    server.start()
    try:
        async with pool:
            await until(lambda: pool.stats().idle == 2)
            server.stop()
            await until(lambda: {node.state for node in pool.stats().nodes.values()} == {"down"})
            for _ in range(3):
                with pytest.raises((NoNodeAvailable, AcquireTimeout)) as failed:
                    await pool.acquire(timeout=0.2)
                assert isinstance(failed.value.__cause__, OSError)
            server.start()
            await until(lambda: pool.stats().idle == 2)
            assert await pool.fetchval("SELECT 1") == 1
    finally:
        server.stop()


# pool-reset-unsupported


class Grudging:
    """Answers every statement with 1, and refuses every text of the simple protocol: that is what resets come by."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate
        self.texts: list[str] = []

    async def play(self, talk: Talk) -> None:
        while (message := await talk.receive()) != wire.TERMINATE:
            match message:
                case wire.Query(text):
                    self.texts.append(text)
                    talk.send(wire.error_response(self.sqlstate, "not here"), wire.READY)
                case wire.Parse():
                    talk.send(wire.PARSE_COMPLETE)
                case wire.Describe():
                    talk.send(wire.parameter_description(()), wire.row_description([("v", 23)], [0]))
                case wire.Bind():
                    talk.send(wire.BIND_COMPLETE)
                case wire.Execute():
                    talk.send(wire.data_row([bytes([0, 0, 0, 1])]), wire.command_complete("SELECT 1"))
                case wire.Close():
                    talk.send(wire.CLOSE_COMPLETE)
                case _ if message == wire.SYNC:
                    talk.send(wire.READY)


@dataclass
class Welcoming:
    """Lets in whoever comes, and goes on with another script."""

    script: Grudging

    async def play(self, talk: Talk) -> None:
        talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", "18.0"), wire.READY)
        await self.script.play(talk)


@over_both("sqlstate", ["0A000", "42883", "42601", "XX000", "25006"], sync=["42601"])
async def test_pool_reset_unsupported_by_a_server_that_knows_none_of_it(open_pool: OpenPool, sqlstate: str) -> None:
    """It is asked for each text once, at the first release; no caller is told, and the session stays."""
    script = Grudging(sqlstate)
    with ScriptedServer(script) as server:
        pool = await open_pool(server.dsn, dialect="postgres", max_size=1)
        for _ in range(20):
            async with pool.acquire() as connection:
                assert await connection.fetchval("SELECT 1") == 1
        await until(lambda: pool.stats().idle == 1)
        assert len(script.texts) == len(set(script.texts))
        assert pool.stats().connects == 1
        await pool.close()


# timeout-accept-never-answer


class Falling:
    """A server that falls silent at a stage of the start-up, and notices when the client leaves."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.left = 0

    async def play(self, talk: Talk) -> None:
        try:
            await self._talk(talk)
            while True:
                await talk.receive()
        finally:
            self.left += 1

    async def _talk(self, talk: Talk) -> None:
        if self.stage == "the start-up packet":
            return
        if self.stage in ("the question for SASL", "the first round", "the second round"):
            talk.send(wire.ask_sasl(["SCRAM-SHA-256"]))
            if self.stage != "the question for SASL":
                first = await talk.receive()
                assert isinstance(first, wire.Password)
            if self.stage == "the second round":
                nonce = first.body.rpartition(b"r=")[2]
                talk.send(wire.sasl_continue(b"r=" + nonce + b"more,s=c2FsdA==,i=4096"))
                assert isinstance(await talk.receive(), wire.Password)
            return
        talk.send(wire.AUTHENTICATION_OK)
        if self.stage != "AuthenticationOk":
            talk.send(wire.parameter_status("server_version", "18.0"), wire.message(b"K", bytes(8)))
        if self.stage == "ReadyForQuery":
            talk.send(wire.READY)


STAGES = (
    "the start-up packet",
    "the question for SASL",
    "the first round",
    "the second round",
    "AuthenticationOk",
    "the key data",
    "ReadyForQuery",
)


@over_both("stage", STAGES, sync=["the start-up packet", "the second round", "ReadyForQuery"])
async def test_timeout_accept_never_answer_at_any_stage(pool_class: Any, stage: str, full_size: bool) -> None:
    """Each attempt ends with a time-out, the server sees the socket close, and nothing of the attempts is left."""
    script, attempts = Falling(stage), 100 if full_size else 15
    with ScriptedServer(script, greet=False) as server:
        dsn = f"postgresql://u:p@127.0.0.1:{server.port}/d?sslmode=disable&dialect=postgres&connect_timeout=0.2"
        tasks, files = len(asyncio.all_tasks()), descriptors()

        async def attempt() -> None:
            if stage == "ReadyForQuery":
                async with pool_class(dsn, max_size=1) as pool:
                    with pytest.raises(CallTimeout):
                        await pool.fetchval("SELECT 1", timeout=0.2)
            else:
                with pytest.raises(NoNodeAvailable, match=r"0\.2 s"):
                    await pool_class(dsn, max_size=1).open()

        await asyncio.gather(*(attempt() for _ in range(attempts)))
        await until(lambda: script.left == len(server.start_ups) and descriptors() <= files + 2)
        assert len(server.start_ups) >= attempts
        assert len(asyncio.all_tasks()) == tasks


@over_both("stage", STAGES[:-1], sync=["the second round"])
async def test_timeout_accept_never_answer_while_acquiring(pool_class: Any, stage: str) -> None:
    """A pool that has a connection wants another one, and the server falls silent: the wait ends, the pool is whole."""
    silent, welcome = Falling(stage), [Welcoming(Grudging("0A000"))]
    with ScriptedServer(lambda _: welcome[0] if welcome else silent, greet=False) as server:
        dsn = f"postgresql://u:p@127.0.0.1:{server.port}/d?sslmode=disable&dialect=postgres&connect_timeout=0.3"
        async with pool_class(dsn, max_size=2, reset=False) as pool:
            async with pool.acquire() as held:
                welcome.clear()
                with pytest.raises((AcquireTimeout, NoNodeAvailable)):
                    await pool.acquire(timeout=0.1)
                assert await held.fetchval("SELECT 1") == 1
            assert await pool.fetchval("SELECT 1") == 1
            await until(lambda: silent.left >= 1)


# shutdown-close-with-leak


def test_shutdown_close_with_leak_has_a_finite_default() -> None:
    """Who names no grace waits, but not for ever; and the documentation of `close` names the parameter."""
    grace = inspect.signature(Pool.close).parameters["grace"].default
    assert math.isfinite(grace)
    assert grace > 0
    assert "grace" in (Pool.close.__doc__ or "")


@pytest.mark.parametrize(
    ("facade", "how"), [*product(FACADES, ["grace", "terminate"]), ("asynchronous", "cancelled")], indirect=["facade"]
)
async def test_shutdown_close_with_leak_while_connecting_and_probing(
    pool_class: Any, postgres: PostgresServer, how: str
) -> None:
    """A holder, a call in flight, an `acquire` in the midst of a connect and a probe that hangs: all of it ends."""
    with FaultProxy(*address(postgres)) as proxy:
        dsn = with_words(through(postgres, proxy.port), "dialect=postgres&sslmode=disable")
        async with Watch(postgres, f"leak_{how}") as watch:
            pool = await pool_class(dsn, max_size=3, min_size=0, application_name=watch.application).open()
            held = await pool.acquire()
            running = asyncio.create_task(pool.execute("SELECT pg_sleep(60)"))
            await until(lambda: pool.stats().in_use == 2)
            accepted = proxy.accepted
            proxy.freeze()
            waiting = [asyncio.create_task(pool.fetchval("SELECT 1", timeout=60)) for _ in range(2)]
            await until(lambda: count(pool) == (0, 2, 2, 2) or count(pool) == (0, 2, 1, 2))
            with pytest.raises(CallTimeout):
                await held.execute("SELECT 1", timeout=0.05)  # now the node is in doubt, and asked
            await until(lambda: {node.state for node in pool.stats().nodes.values()} == {"suspect"})
            await until(lambda: proxy.accepted > accepted + count(pool)[2])  # the question needs a connection, too
            closing = asyncio.create_task(pool.close(grace=30 if how == "cancelled" else 0.2))
            ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
            assert {type(error) for error in ended} == {PoolClosed}
            if how == "cancelled":
                assert not closing.done()
                closing.cancel()
            elif how == "terminate":
                pool.terminate()
            await asyncio.wait_for(asyncio.wait({closing}), 10)
            assert closing.cancelled() == (how == "cancelled")
            told = (await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 5))[0]
            assert isinstance(told, ConnectionLost | PoolClosed)
            with pytest.raises(ConnectionLost):
                await held.fetchval("SELECT 1")
            held.release()
            await pool.close()
            assert pool.stats().size == 0
            proxy.let_pass()
            await watch.kill()  # the statement of a client behind a frozen link goes on at the server
            await watch.no_session()


# conc-two-tasks-one-connection


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_conc_two_tasks_one_connection_during_a_copy(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """While one task copies, in or out, the other is refused; the copy is whole, and the connection goes on."""
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=1)
    for _ in range(5):
        async with pool.acquire() as held:
            await held.execute("CREATE TEMP TABLE copied (n int)")
            inside, go_on = asyncio.Event(), asyncio.Event()

            async def source() -> Any:
                for number in range(100):
                    if number == 50:
                        inside.set()  # noqa: B023
                        await go_on.wait()  # noqa: B023
                    yield b"%d\n" % number

            async def sink(part: bytes) -> None:
                got.append(part)  # noqa: B023
                inside.set()  # noqa: B023
                await go_on.wait()  # noqa: B023

            got: list[bytes] = []
            for copy in (
                held.copy_to_table("copied", source=source()),
                held.copy_from_query("SELECT n FROM copied ORDER BY n", output=sink),
            ):
                inside.clear()
                go_on.clear()
                copying = asyncio.create_task(copy)
                await inside.wait()
                for call in (held.fetchval("SELECT 1"), held.execute("SELECT 1"), held.prepare("SELECT 1")):
                    with pytest.raises(UsageError, match="copy"):
                        await call
                go_on.set()
                assert await copying == "COPY 100"
            assert b"".join(got).split() == [b"%d" % number for number in range(100)]
            assert await held.fetchval("SELECT count(*) FROM copied") == 100


async def test_conc_two_tasks_one_connection_in_a_transaction(postgres: PostgresServer, open_pool: OpenPool) -> None:
    """The transaction of one task is untouched by another that uses, releases or ends the connection meanwhile."""
    pool = await open_pool(postgres.dsn, dialect="postgres", max_size=1)
    await pool.execute("CREATE TABLE steps (n int)")
    try:
        for turn in range(20):
            async with pool.acquire() as held, held.transaction():
                await held.execute("INSERT INTO steps VALUES ($1)", turn)
                slow = asyncio.create_task(held.execute("INSERT INTO steps SELECT $1 FROM pg_sleep(0.002)", turn))
                await asyncio.sleep(0)
                for call in (held.fetchval("SELECT 1"), held.execute("COMMIT"), held.transaction().start()):
                    with pytest.raises(UsageError):
                        await call
                assert await slow == "INSERT 0 1"
                assert held.is_in_transaction()
            assert await pool.fetchval("SELECT count(*) FROM steps WHERE n = $1", turn) == 2
        held = await pool.acquire()
        transaction = held.transaction()
        await transaction.start()
        slow = asyncio.create_task(held.execute("INSERT INTO steps SELECT 99 FROM pg_sleep(0.01)"))
        await asyncio.sleep(0)
        held.release()
        assert await pool.fetchval("SELECT count(*) FROM steps WHERE n = 99") == 0
        assert await slow == "INSERT 0 1"
        with pytest.raises(UsageError):
            await transaction.commit()
        assert await pool.fetchval("SELECT count(*) FROM steps WHERE n = 99") == 0
    finally:
        await pool.execute("DROP TABLE steps")


# clock-wall-jump


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_clock_wall_jump_and_the_background(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the wall clock jumps: looks at the cluster go on, a node that comes back is tried, none is dropped."""
    real, jump = time.time, 0.0

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return super().now(tz) + datetime.timedelta(seconds=jump)

    monkeypatch.setattr(time, "time", lambda: real() + jump)
    monkeypatch.setattr(datetime, "datetime", Jumping)
    with FaultProxy("127.0.0.1", postgres_too.port or 0) as proxy:
        source = Nodes(postgres.port, proxy.port)
        pool = await open_pool(
            postgres.dsn,
            dialect="postgres",
            topology_source=source,
            topology_update_interval=1.0,
            min_size=1,
            max_lifetime=60.0,
            max_idle=30.0,
        )
        await pool.wait_ready()

        def state() -> str:
            return pool.stats().nodes[str(proxy.port)].state

        over = asyncio.Event()

        async def jumps() -> None:
            nonlocal jump
            while not over.is_set():
                jump = {0.0: 3600.0, 3600.0: -3600.0, -3600.0: 3.2e8}.get(jump, 0.0)
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 0.02)

        jumping = asyncio.create_task(jumps())
        try:
            connects, looks = pool.stats().connects, source.refreshes
            proxy.refuse()
            proxy.cut()
            await until(lambda: state() == "down")
            proxy.let_pass()
            await until(lambda: state() == "up" and pool.stats().idle == 2)
            await until(lambda: source.refreshes >= looks + 2)
            assert await pool.fetchval("SELECT 1", timeout=60) == 1
            assert set(pool.stats().closes) <= {"broken", "terminated"}
            assert pool.stats().connects <= connects + 3
        finally:
            over.set()
            await jumping
