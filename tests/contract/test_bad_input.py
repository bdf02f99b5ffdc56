"""Wrong input is told at once, whole and without secrets; what the server will not explain still runs."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import socket
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AuthenticationFailed, ConfigError, NoNodeAvailable, PicopynError, PoolClosed, UsageError
from picopyn.testing import FaultProxy, ScriptedServer, black_hole
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import CloseConnection, Hang, Steps, Talk
from tests.contract.conftest import OpenPool
from tests.contract.one_node import OneNode
from tests.contract.tap import Tap
from tests.contract.target import Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster


# configuration


def test_every_problem_of_a_configuration_is_named_at_once_and_nothing_is_dialled() -> None:
    """Sizes, intervals, timeouts, roles and unknown options: one `ConfigError`, before any socket opens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with pytest.raises(ConfigError) as caught:
            Pool(
                f"postgresql://u:Sekr3t@127.0.0.1:{listener.getsockname()[1]}/db?min_size=many&nonsense=1",
                max_size=0,
                topology_update_interval=0.5,
                connect_timeout=-1,
                role="boss",
                max_sise=3,
                statement_cache_size=-1,
                on_event="not callable",
            )
        with pytest.raises(BlockingIOError):
            listener.accept()
    problems = "\n".join(caught.value.problems)
    for word in (
        "min_size",
        "nonsense",
        "max_size",
        "topology_update_interval",
        "connect_timeout",
        "role",
        "max_sise",
        "statement_cache_size",
        "on_event",
    ):
        assert word in problems, word
    assert "did you mean 'max_size'" in problems
    assert isinstance(caught.value, ValueError)
    assert "Sekr3t" not in problems


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "mysql://u@h/",
        "postgresql://",
        "postgresql://u:Sekr3t@h:notaport/db",
        "postgresql://u:Sekr3t@h:99999/db",
        "postgresql://u:Sekr3t@[::1/db",
        "postgresql://u:Sek@r3t:x@h:1:2/db",
        "postgresql://u:%zzSekr3t@h/db",
        "host=h port=1,2,3 password=Sekr3t",
        "host=h password='Sekr3t",
    ],
)
def test_a_wrong_connection_string_is_a_config_error_without_its_password(dsn: str) -> None:
    """Whatever is wrong with it, the text says what, and nothing that may be a password."""
    with pytest.raises(ConfigError) as caught:
        Pool(dsn)
    assert caught.value.problems
    told = "".join(traceback.format_exception(caught.value))
    assert "r3t" not in told.replace(dsn, "")


# reaching nobody


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_no_reachable_node_lists_each_address_with_its_own_reason(pool_class: Any) -> None:
    """Refused, silent, and a black hole: `open()` ends in time and tells them apart."""
    with (
        ScriptedServer(Steps([Hang()]), greet=False) as server,
        FaultProxy(server.host, server.port) as silent,
        black_hole() as hole,
        socket.create_server(("127.0.0.1", 0)) as closed,
    ):
        silent.mute()
        refusing = closed.getsockname()[1]
        closed.close()
        addresses = {f"127.0.0.1:{port}" for port in (refusing, hole.port, silent.port)}
        pool = pool_class(f"postgresql://u:Sekr3t@{','.join(sorted(addresses))}/db", connect_timeout=0.5)
        with pytest.raises(NoNodeAvailable) as caught:
            await pool.open()
    assert set(caught.value.reasons) == addresses
    assert all(address in str(caught.value) for address in addresses)
    assert f"[Errno {errno.ECONNREFUSED}]" in caught.value.reasons[f"127.0.0.1:{refusing}"]
    assert "0.5 s" in caught.value.reasons[f"127.0.0.1:{hole.port}"]
    assert "0.5 s" in caught.value.reasons[f"127.0.0.1:{silent.port}"]
    assert "Sekr3t" not in str(caught.value)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_server_that_hangs_up_is_a_reason_too(pool_class: Any) -> None:
    """It closes the connection during the start-up."""
    with ScriptedServer(Steps([CloseConnection()]), greet=False) as rude:
        with pytest.raises(NoNodeAvailable) as caught:
            await pool_class(f"postgresql://u@127.0.0.1:{rude.port}/db", connect_timeout=1).open()
        assert list(caught.value.reasons) == [f"127.0.0.1:{rude.port}"]
        assert caught.value.reasons[f"127.0.0.1:{rude.port}"]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_wrong_password_is_tried_once_at_one_node(pool_class: Any, target: Target) -> None:
    """Picodata blocks a user after four failures: one node is asked, once, and the error names it."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY")
    async with target.bare_user(table) as dsn, AsyncExitStack() as stack:
        user = dsn.partition("://")[2].partition(":")[0]
        taps = [await stack.enter_async_context(Tap(*member.endpoint)) for member in await target.members()]
        wrong = target.dsn_for(user, "Wr0ng-Sekr3t", [tap.endpoint for tap in taps])
        pool = pool_class(wrong)
        with pytest.raises(AuthenticationFailed) as caught:
            await pool.open()
        asked = [tap for tap in taps if tap.passwords]
        assert [tap.passwords for tap in asked] == [1]
        assert ":".join(map(str, asked[0].endpoint)) in str(caught.value)
        assert "Sekr3t" not in str(caught.value)
        async with pool_class(dsn) as right:
            assert await right.fetchval("SELECT 1") == 1


# use at the wrong time


def _calls(pool: Pool) -> dict[str, Callable[[], Any]]:
    return {
        "execute": lambda: pool.execute("SELECT 1"),
        "fetch": lambda: pool.fetch("SELECT 1"),
        "fetchrow": lambda: pool.fetchrow("SELECT 1"),
        "fetchval": lambda: pool.fetchval("SELECT 1"),
        "acquire": lambda: pool.acquire().__aenter__(),
        "wait_ready": lambda: pool.wait_ready(timeout=5),
        "explain_route": lambda: pool.explain_route("SELECT 1"),
        "explain": lambda: pool.explain("SELECT 1"),
        "refresh_topology": lambda: pool.refresh_topology(),
    }


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_use_before_open_is_a_usage_error_at_once(pool_class: Any, target: Target) -> None:
    """Every method says that the pool is not open; nothing is waited for."""
    pool = pool_class(target.dsn)
    for call in _calls(pool).values():
        with pytest.raises(UsageError, match="not open"):
            await call()
    with pytest.raises(UsageError, match="not open"):
        pool.update_topology_interval(2.0)
    with pytest.raises(UsageError, match="not open"):
        _ = pool.topology
    await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_use_after_close_is_pool_closed_at_once(pool_class: Any, target: Target) -> None:
    """Every method, and opening again, too."""
    pool = await pool_class(target.dsn).open()
    await pool.close()
    for call in (*_calls(pool).values(), pool.open):
        with pytest.raises(PoolClosed):
            await call()
    with pytest.raises(PoolClosed):
        pool.update_topology_interval(2.0)
    await pool.close()
    pool.terminate()


# secrets

SECRET = "Sekr3t-P@ss:w/rd"


@pytest.fixture
def everything_logged() -> AsyncIterator[io.StringIO]:
    """All that is logged while the test runs, by whom and how unimportant ever."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.setLevel(level)
    root.removeHandler(handler)


def _hosts(target: Target) -> str:
    return ",".join(f"{host}:{port}" for host, port in target.seeds)


def _places_of_a_password(target: Target, directory: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Where a password may stand: connection string and environment."""
    hosts, first = _hosts(target), target.seeds[0]
    quoted = SECRET.replace("@", "%40").replace(":", "%3A").replace("/", "%2F")
    passfile = directory / "passfile"
    passfile.write_text("*:*:*:*:" + SECRET.replace(":", "\\:") + "\n")
    passfile.chmod(0o600)
    return {
        "user information": (f"postgresql://nobody:{quoted}@{hosts}/db", {}),
        "parameter": (f"postgresql://nobody@{hosts}/db?password={quoted}", {}),
        "key=value": (f"host={first[0]} port={first[1]} user=nobody password='{SECRET}'", {}),
        "environment": (f"postgresql://nobody@{hosts}/db", {"PGPASSWORD": SECRET}),
        "passfile": (f"postgresql://nobody@{hosts}/db", {"PGPASSFILE": str(passfile)}),
    }


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("place", ["user information", "parameter", "key=value", "environment", "passfile"])
async def test_a_password_appears_nowhere(
    pool_class: Any,
    target: Target,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everything_logged: io.StringIO,
) -> None:
    """In no repr, log or error, wherever it stood, whether the server takes it or not."""
    dsn, environment = _places_of_a_password(target, tmp_path)[place]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = everything_logged
    for hosts in (dsn, dsn.replace(_hosts(target), "127.0.0.1:1").replace(f"port={target.seeds[0][1]}", "port=1")):
        pool = pool_class(hosts, connect_timeout=2)
        told.write(f"{pool!r} {pool} {pool.settings!r} {pool.settings.dsn} {pool.settings.dsn!r}\n")
        try:
            await pool.open()
            pytest.fail("somebody let nobody in")
        except PicopynError as error:
            told.write("".join(traceback.format_exception(error)) + f"{error!r} {getattr(error, '__notes__', '')}")
        with suppress(PicopynError):
            await pool.fetch("SELECT 1")
        told.write(f"{pool.stats()!r}\n")
        await pool.close()
    assert place not in ("user information", "parameter") or "nobody" in told.getvalue()
    _assert_untold(told.getvalue(), SECRET)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_password_that_is_right_appears_nowhere(
    target: Target, open_pool: OpenPool, everything_logged: io.StringIO
) -> None:
    """A pool at work, its errors, its statistics, its events."""
    events: list[object] = []
    table = await target.create_table("id INT NOT NULL PRIMARY KEY")
    pool = await open_pool(target.dsn, on_event=events.append)
    await pool.wait_ready()
    for text, args in ((f"INSERT INTO {table} VALUES ($1)", (1,)), ("SELECT nonsense", ()), ("SELECT $1", (object(),))):
        try:
            await pool.execute(text, *args)
        except Exception as error:
            everything_logged.write("".join(traceback.format_exception(error)))
    explained = await pool.explain_route(f"SELECT id FROM {table} WHERE id = $1", 1)
    async with pool.acquire() as connection:
        everything_logged.write(f"{connection!r} {pool!r} {pool.settings!r} {pool.stats()!r} {explained!r} {explained}")
    await pool.close()
    everything_logged.write(repr(events))
    _assert_untold(everything_logged.getvalue(), target.password)


def _assert_untold(told: str, secret: str) -> None:
    for form in {secret, secret.replace("@", "%40"), secret.split("@")[0], secret.replace(":", "%3A")}:
        assert form not in told


# what the server does not explain


class Grumpy:
    """Knows any statement with one int8 parameter and answers one row; refuses or garbles every EXPLAIN."""

    def __init__(self, refuses: bool) -> None:
        self.executed: Counter[str] = Counter()
        self.questions = 0
        self._refuses = refuses

    async def play(self, talk: Talk) -> None:
        prepared: dict[str, str] = {}
        skipping, bound = False, ""
        while (message := await talk.receive()) != wire.TERMINATE:
            match message:
                case _ if message == wire.SYNC:
                    skipping = False
                    talk.send(wire.READY)
                case _ if skipping:
                    continue
                case wire.Parse(name, text, _):
                    prepared[name] = text
                    self.questions += text.startswith("EXPLAIN")
                    skipping = text.startswith("EXPLAIN") and self._refuses
                    talk.send(wire.error_response("42601", "no plan for you") if skipping else wire.PARSE_COMPLETE)
                case wire.Describe(_, name):
                    row = wire.row_description([("buckets are secret" if self._refuses else "plan", 25)], [0])
                    talk.send(wire.parameter_description((20,)), row)
                case wire.Bind(_, name):
                    bound = prepared[name]
                    talk.send(wire.BIND_COMPLETE)
                case wire.Execute():
                    self.executed[bound] += 1
                    talk.send(wire.data_row([b"who knows"]), wire.command_complete("SELECT 1"))
                case wire.Close():
                    talk.send(wire.CLOSE_COMPLETE)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "unreadable"])
async def test_what_the_server_does_not_explain_runs_unrouted_and_once(open_pool: OpenPool, refuses: bool) -> None:
    """An EXPLAIN that is refused, or a plan that cannot be read: each call is sent once, and a counter says so."""
    script, text = Grumpy(refuses), "SELECT v FROM t WHERE id = $1"
    with ScriptedServer(script) as server:
        pool = await open_pool(server.dsn, topology_source=OneNode(server.host, server.port))
        assert await pool.fetchval(text, 1) == "who knows"
        explained = await pool.explain_route(text, 1)
        assert not explained.buckets
        for number in range(10):
            assert await pool.fetchval(text, number) == "who knows"
        assert script.executed[text] == 11
        metadata = pool.stats().metadata
        assert metadata is not None
        assert (metadata.refused, metadata.unreadable) == ((1, 0) if refuses else (0, 1))
        assert script.questions == 1, "what is known to give nothing is not asked again"
        calls = pool.stats().calls
        assert calls["keyed"] == 0
        assert calls["unlearned"] + calls["not_keyed"] == 11
        await asyncio.sleep(0)
        await pool.close()


@pytest.mark.cluster
@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_statement_that_is_no_text_is_refused(target: Target, open_pool: OpenPool) -> None:
    """By the caller's own call: nothing is left to a background job, which can only log it. A NUL would end it."""
    pool = await open_pool(target.dsn)
    for call in (pool.fetch, pool.execute, pool.explain, pool.explain_route):
        with pytest.raises(UsageError, match="takes the text of a statement, not NoneType"):
            await call(None)
    with pytest.raises(UsageError, match="takes the text of a statement, not int"):
        await pool.executemany(5, [(1,)])
    for text, told in (
        ("SELECT 1\0 + $1", "NUL; there is one at position 8"),
        ("SELECT '\ud800'", "pair at position 8"),
    ):
        for call in (pool.fetch, pool.execute, pool.explain, pool.explain_route):
            with pytest.raises(UsageError, match=told):
                await call(text)
        with pytest.raises(UsageError, match=told):
            await pool.executemany(text, [(1,)])
        with pytest.raises(UsageError, match=told):
            await pool.fetch_by_keys(text, [1])
