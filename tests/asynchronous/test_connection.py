"""What the driver leans on in asyncpg: an asyncpg release that changes it is found here first."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import transport
from picopyn.asynchronous.config_files import PasswordFile
from picopyn.asynchronous.connection import Connection
from picopyn.dialects.base import Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.errors import Fault
from picopyn.settings import PoolSettings
from picopyn.testing import ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk

TEXT = "SELECT v FROM t WHERE id = $1"


@dataclass
class Chatty:
    """Answers any statement with one row of one text; tells at each Parse, and notes what it is sent.

    Attributes:
        prepared: (name, text) of every Parse.
        closed: Names of statements that were closed.
        silent: Execute is not answered.
    """

    prepared: list[tuple[str, str]] = field(default_factory=list)
    closed: Counter[str] = field(default_factory=Counter)
    silent: bool = False

    async def play(self, talk: Talk) -> None:
        while (message := await talk.receive()) != wire.TERMINATE:
            match message:
                case wire.Parse(name, text, _):
                    self.prepared.append((name, text))
                    talk.send(wire.notice_response(f"about {text}"), wire.PARSE_COMPLETE)
                case wire.Describe():
                    talk.send(wire.parameter_description((20,)), wire.row_description([("v", 25)], [0]))
                case wire.Bind():
                    talk.send(wire.BIND_COMPLETE)
                case wire.Execute():
                    if not self.silent:
                        talk.send(wire.data_row([b"here"]), wire.command_complete("SELECT 1"))
                case wire.Close(_, name):
                    self.closed[name] += 1
                    talk.send(wire.CLOSE_COMPLETE)
                case _ if message == wire.SYNC and not self.silent:
                    talk.send(wire.READY)


@pytest.fixture
def script() -> Chatty:
    return Chatty()


@pytest.fixture
def server(script: Chatty) -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as server:
        yield server


async def _connect(server: ScriptedServer, **options: Any) -> Connection:
    connection: Connection = await asyncpg.connect(server.dsn, connection_class=Connection, ssl=False, **options)
    return connection


@pytest.fixture
async def connection(server: ScriptedServer) -> AsyncIterator[Connection]:
    connection = await _connect(server)
    yield connection
    connection.terminate()


@pytest.fixture(autouse=True)
async def everything_ends() -> AsyncIterator[None]:
    """A call that was cut short has sent a cancel request in a task of asyncpg's, which ends with its connection."""
    yield
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=5)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# notices


async def test_a_notice_arrives_before_the_request_that_caused_it_completes(connection: Connection) -> None:
    """In the same turn of the loop as the answer: nobody can use the statement before its metadata is known."""
    heard: list[str] = []
    connection.on_notice = heard.append
    asyncio.get_running_loop().call_soon(lambda: None)
    await connection.prepare(TEXT)
    assert heard == [f"about {TEXT}"]
    assert await connection.fetchval(TEXT, 1) == "here"


async def test_asyncpgs_own_listeners_hear_it_too(connection: Connection) -> None:
    """Whoever added a log listener is served as without us."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    connection.add_log_listener(lambda _, message: told.set_result(message.message))
    connection.on_notice = lambda _: None
    await connection.prepare(TEXT)
    assert await asyncio.wait_for(told, 5) == f"about {TEXT}"


async def test_without_a_callback_notices_are_dropped(connection: Connection) -> None:
    """As asyncpg does."""
    assert connection.on_notice is None
    assert await connection.fetchval(TEXT, 1) == "here"


# statements


async def test_forgotten_statements_are_prepared_again_and_closed_at_the_server(
    connection: Connection, script: Chatty
) -> None:
    """Once each; the old ones do not pile up in the server's store."""
    for _ in range(3):
        assert await connection.fetchval(TEXT, 1) == "here"
    assert len(script.prepared) == 1
    connection.forget_statements()
    for _ in range(3):
        assert await connection.fetchval(TEXT, 1) == "here"
    assert [text for _, text in script.prepared] == [TEXT, TEXT]
    (old, _), (new, _) = script.prepared
    assert old != new
    assert script.closed == {old: 1}


async def test_forgetting_nothing_is_harmless(connection: Connection) -> None:
    """A connection without statements has nothing to forget."""
    connection.forget_statements()
    assert await connection.fetchval(TEXT, 1) == "here"


async def test_an_empty_name_keeps_nothing_at_the_server(connection: Connection, script: Chatty) -> None:
    """Questions are prepared under it, whatever the size of the cache."""
    statement = await connection.prepare(TEXT, name="")
    assert [parameter.oid for parameter in statement.get_parameters()] == [20]
    assert [row["v"] for row in await statement.fetch(1)] == ["here"]
    assert script.prepared == [("", TEXT)]


async def test_without_a_cache_no_statement_has_a_name(server: ScriptedServer, script: Chatty) -> None:
    """`statement_cache_size=0` is for servers whose sessions are shared."""
    connection = await _connect(server, statement_cache_size=0)
    for _ in range(2):
        await connection.fetchval(TEXT, 1)
        await connection.execute(TEXT, 1)
    assert {name for name, _ in script.prepared} == {""}
    connection.terminate()


# the end of a connection


async def test_a_call_in_flight_when_the_connection_ends_is_lost(connection: Connection, script: Chatty) -> None:
    """Whoever ended it; the driver takes that for "sent, outcome unknown"."""
    script.silent = True
    call = asyncio.create_task(connection.fetchval(TEXT, 1))
    await asyncio.wait({call}, timeout=0.05)
    assert script.prepared
    connection.terminate()
    with pytest.raises(asyncpg.ConnectionDoesNotExistError) as caught:
        await call
    assert transport.fault(caught.value) is Fault.LOST


async def test_a_call_on_a_closed_connection_was_not_sent(connection: Connection) -> None:
    """It says so in words, which the driver reads."""
    connection.terminate()
    assert connection.is_closed()
    with pytest.raises(asyncpg.InterfaceError) as caught:
        await connection.fetchval(TEXT, 1)
    assert transport.fault(caught.value) is Fault.NOT_SENT


async def test_wrong_arguments_are_the_callers_affair(connection: Connection) -> None:
    """They are no fault of the connection: it stays in use."""
    for args in ((), (1, 2), ("text",)):
        with pytest.raises((asyncpg.InterfaceError, asyncpg.DataError)) as caught:
            await connection.fetchval(TEXT, *args)
        assert transport.fault(caught.value) is None
    assert await connection.fetchval(TEXT, 1) == "here"


async def test_a_timeout_is_no_socket_error(connection: Connection, script: Chatty) -> None:
    """A call's own deadline has no errno; that tells it from a timeout of the network."""
    await connection.fetchval(TEXT, 1)
    script.silent = True
    with pytest.raises(TimeoutError) as caught:
        await connection.fetchval(TEXT, 1, timeout=0.05)
    assert caught.value.errno is None


@pytest.mark.parametrize("outdated", ["forgotten", "pushed out of the cache"])
async def test_a_deadline_covers_the_closing_of_outdated_statements(
    server: ScriptedServer, script: Chatty, outdated: str
) -> None:
    """Left to itself, asyncpg closes them before the call and waits for it without a limit."""
    connection = await _connect(server, statement_cache_size=1)
    await connection.fetchval(TEXT, 1)
    if outdated == "forgotten":
        connection.forget_statements()
    script.silent = True
    began = time.monotonic()
    call = asyncio.create_task(
        connection.fetchval("SELECT another" if outdated != "forgotten" else TEXT, 1, timeout=0.05)
    )
    done, _ = await asyncio.wait({call}, timeout=2)
    connection.terminate()
    assert done, "the call outlived its deadline"
    with pytest.raises(TimeoutError) as caught:
        call.result()
    assert caught.value.errno is None
    assert time.monotonic() - began < 10


async def test_a_deadline_does_not_outlive_its_call(connection: Connection, script: Chatty) -> None:
    """Outdated statements of a later call without a deadline are closed in their own time."""
    await connection.fetchval(TEXT, 1, timeout=0.5)
    connection.forget_statements()
    await asyncio.sleep(0.52)
    assert await connection.fetchval(TEXT, 1) == "here"
    assert sum(script.closed.values()) == 1


async def test_the_end_is_told_once(connection: Connection) -> None:
    """Termination listeners are how node pools learn of it."""
    ended: list[object] = []
    connection.add_termination_listener(ended.append)
    connection.terminate()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connection.terminate()
    await asyncio.sleep(0)
    assert ended == [connection]


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
async def test_that_it_is_of_no_use_is_told_at_once(connection: Connection, script: Chatty, kept: bool) -> None:
    """Nobody may take it from then on, although it may be kept until a request on it has been cancelled."""
    told: list[str] = []
    connection.tell_when_lost(lambda _: told.append("gone"), lambda _: told.append("of no use"))
    connection.on_abandoned = lambda _: kept
    script.silent = True
    with pytest.raises(TimeoutError):
        await connection.fetchval(TEXT, 1, timeout=0.05)
    connection.terminate()
    assert (told, connection.is_closed()) == (["of no use"], True)
    connection.end()
    await asyncio.sleep(0)
    assert told == ["of no use", "gone"]


async def test_a_server_that_hangs_up_is_noticed_without_a_query(script: Chatty) -> None:
    """The socket says so; nothing of ours is sent to find out."""
    with ScriptedServer(script) as server:
        connection = await _connect(server)
        ended = asyncio.get_running_loop().create_future()
        connection.add_termination_listener(ended.set_result)
    await asyncio.wait_for(ended, 5)
    assert connection.is_closed()
    assert not script.prepared


@pytest.mark.parametrize("on_notice", [None, str.upper])
async def test_a_dial_that_is_given_up_leaves_no_complaint(script: Chatty, on_notice: Any) -> None:
    """Cancelled in every turn of the loop between the TCP connect and the end of the hand-shake."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    with ScriptedServer(script) as server:
        dialer = transport.Dialer(PoolSettings.from_dsn(server.dsn), PicodataDialect(), PasswordFile(None))
        for turns in range(30):
            dialling = asyncio.create_task(dialer.dial((server.host, server.port), Purpose.PLAIN, on_notice))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            (outcome,) = await asyncio.gather(dialling, return_exceptions=True)
            if isinstance(outcome, Connection):
                outcome.terminate()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(0)
    assert not complaints


@pytest.mark.parametrize("on_notice", [None, str.upper])
@pytest.mark.parametrize("heard", [b"", wire.AUTHENTICATION_OK])
async def test_a_server_that_hangs_up_in_the_hand_shake_ends_the_dial(on_notice: Any, heard: bytes) -> None:
    """At once, also where somebody listens to its first words."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(heard)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        dialer = transport.Dialer(
            PoolSettings.from_dsn(f"postgresql://u@{host}:{port}/?sslmode=disable"),
            PicodataDialect(),
            PasswordFile(None),
        )
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await dialer.dial((host, port), Purpose.PLAIN, on_notice)
    await asyncio.sleep(0)
    assert not complaints
