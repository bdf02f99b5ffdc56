"""`dialect="auto"`: a server says what it is while it greets; only a greeting that fits no kind costs a question."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from picopyn.asynchronous.config_files import PasswordFile
from picopyn.asynchronous.dialect_detection import Introduction, introduce
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Dialect
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.settings import PoolSettings
from picopyn.testing import PicodataCluster, PostgresServer, ScriptedServer
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk

SESSION = ("is_superuser", "session_authorization", "standard_conforming_strings")


@dataclass
class Greeting:
    """A server that greets in a certain way, and answers or refuses the question for its version."""

    server_version: str
    can_cancel: bool
    has_session: bool
    version: str | None = None
    asked: list[str] = field(default_factory=list)

    async def play(self, talk: Talk) -> None:
        talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", self.server_version))
        talk.send(*(wire.parameter_status(name, "on") for name in SESSION if self.has_session))
        if self.can_cancel:
            talk.send(wire.message(b"K", struct.pack("!II", 4711, 42)))
        talk.send(wire.READY)
        failed = False
        while (message := await talk.receive()) != wire.TERMINATE:
            match message:
                case wire.Parse(_, text, _):
                    self.asked.append(text)
                    failed = self.version is None
                    refusal = wire.error_response("42883", "function version() does not exist")
                    talk.send(refusal if failed else wire.PARSE_COMPLETE)
                case wire.Describe() if not failed:
                    talk.send(wire.parameter_description(()), wire.row_description([("version", 25)], [0]))
                case wire.Bind() if not failed:
                    talk.send(wire.BIND_COMPLETE)
                case wire.Execute() if not failed:
                    talk.send(wire.data_row([(self.version or "").encode()]), wire.command_complete("SELECT 1"))
                case _ if message == wire.SYNC:
                    talk.send(wire.READY)


async def introduced(dsn: str, **options: Any) -> Introduction:
    """The first connection to a server, dropped again."""
    settings = PoolSettings.from_dsn(dsn, **options)

    def make_dialer(dialect: Dialect) -> Dialer:
        return Dialer(settings, dialect, PasswordFile(None))

    first = await introduce(settings, make_dialer, Random(1))
    if first.connection is not None:
        first.connection.terminate()
    return first


@pytest.mark.parametrize(
    ("greeting", "name", "questions"),
    [
        (Greeting("18.1", can_cancel=True, has_session=True), "postgres", 0),
        (Greeting("15.0", can_cancel=True, has_session=True), "postgres", 0),
        (Greeting("15.0", can_cancel=False, has_session=False), "picodata", 0),
        # A Picodata that has learned to cancel, or to tell of the session.
        (Greeting("15.0", can_cancel=True, has_session=False, version="picodata 27.1.0"), "picodata", 1),
        (Greeting("15.0", can_cancel=False, has_session=True, version="picodata 27.1.0"), "picodata", 1),
        (Greeting("15.0", can_cancel=False, has_session=True, version="26.1.6"), "picodata", 1),
        (Greeting("15.0", can_cancel=False, has_session=True), "picodata", 1),
        # Something in front of a PostgreSQL, or something like one.
        (Greeting("16.2", can_cancel=False, has_session=True, version="PostgreSQL 16.2 on x86_64"), "postgres", 1),
        (Greeting("16.2", can_cancel=True, has_session=False, version="PostgreSQL 16.2 on x86_64"), "postgres", 1),
        (Greeting("13.0", can_cancel=True, has_session=False, version="CockroachDB CCL v24"), "postgres", 1),
        (Greeting("8.0", can_cancel=True, has_session=False), "postgres", 1),
    ],
)
async def test_a_server_is_told_by_its_greeting_and_by_one_question_at_most(
    greeting: Greeting, name: str, questions: int
) -> None:
    """A cancel key and news of the session make a PostgreSQL, neither of both a Picodata; else its version tells."""
    greeting.asked.clear()
    with ScriptedServer(greeting, greet=False) as server:
        assert (await introduced(server.dsn)).dialect.name == name
        assert greeting.asked == ["SELECT version()"] * questions


@pytest.mark.parametrize(
    "greeting",
    [
        Greeting("15.12-YB-2025.1.0.0-b0", can_cancel=True, has_session=True),
        Greeting("15.12", can_cancel=True, has_session=False, version="PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64"),
    ],
)
async def test_a_yugabytedb_says_what_it_is(greeting: Greeting) -> None:
    """With `dialect="postgres"` its nodes are taken as plain servers."""
    with ScriptedServer(greeting, greet=False) as server:
        assert (await introduced(server.dsn)).dialect == YugabyteDialect()
        assert (await introduced(server.dsn, dialect="postgres")).dialect == PostgresDialect()


async def test_real_servers_are_told_apart_without_a_question(picopyn_cluster: PicodataCluster) -> None:
    """PostgreSQL, and the embedded cluster, which greets as the recorded Picodata does."""
    with PostgresServer(port=0) as server:
        assert (await introduced(server.dsn)).dialect == PostgresDialect()
    assert (await introduced(picopyn_cluster.dsn)).dialect == PicodataDialect()


async def test_a_dialect_that_is_named_is_not_doubted() -> None:
    """Whatever the server says."""
    greeting = Greeting("15.0", can_cancel=False, has_session=False)
    with ScriptedServer(greeting, greet=False) as server:
        assert (await introduced(server.dsn, dialect="postgres")).dialect == PostgresDialect()
        assert greeting.asked == []


async def test_a_host_without_a_port_is_looked_for_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's port first, Picodata's a little later; the server that answers decides for all hosts."""
    greeting = Greeting("15.0", can_cancel=False, has_session=False)
    with ScriptedServer(greeting, greet=False) as server:
        monkeypatch.setattr(PicodataDialect, "default_port", property(lambda _: server.port))
        monkeypatch.setattr(PostgresDialect, "default_port", property(lambda _: 1))
        first = await introduced("postgresql://u@127.0.0.1,127.0.0.2/")
    assert [endpoint.address for endpoint in first.endpoints] == [f"127.0.0.{n}:{server.port}" for n in (1, 2)]
