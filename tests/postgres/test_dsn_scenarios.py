"""What went wrong in comparable drivers, class *dsn*: each scenario of public bug reports, on real servers."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.errors import AuthenticationFailed, ConfigError, ConnectionLost, NoNodeAvailable
from picopyn.observe import Event
from picopyn.testing import PostgresServer
from tests.postgres.conftest import OpenPool, set_password
from tests.postgres.nodes import Nodes
from tests.threads import FACADES, over_both

Put = Callable[[Mapping[str, str]], None]

CHARACTERS = "p@ss:w/o#r?d%25&=+ '\"\\ü日"
SECRET = "S3cr3t-x@y"


def conninfo_quoted(text: str) -> str:
    """A value of `key=value` text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@over_both("password", [*dict.fromkeys(CHARACTERS), CHARACTERS, SECRET], sync=[CHARACTERS])
async def test_dsn_password_special(
    strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put, password: str
) -> None:
    """Every password gets in, percent-encoded in a URI, as a keyword, and quoted in `key=value` text."""
    server = strict_servers[0]
    await set_password(server, password)
    place = f"127.0.0.1:{server.port}"
    encoded = quote(password, safe="")
    for dsn, options in [
        (f"postgresql://app:{encoded}@{place}/postgres", {}),
        (f"postgresql://app:{encoded}@{place},127.0.0.1:1,127.0.0.1:2/postgres", {}),
        (f"postgresql://app@{place}/postgres?password={encoded}", {}),
        (f"postgresql://app@{place}/postgres", {"password": password}),
        (f"host=127.0.0.1 port={server.port} user=app dbname=postgres password={conninfo_quoted(password)}", {}),
    ]:
        pool = await open_pool(dsn, min_size=0, **options)
        assert await pool.fetchval("SELECT current_user") == "app"
        await pool.close()


@pytest.mark.parametrize("password", ["a@b", "a/b", "a?b", "a%zz", SECRET])
def test_dsn_password_special_that_was_not_encoded(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """It is refused before any name is looked up, and no piece of it is told."""
    looked_up: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: looked_up.append(args))
    with pytest.raises(ConfigError) as caught:
        Pool(f"postgresql://app:{password}@db.example:5432/postgres")
    assert password not in f"{caught.value!r} {caught.value}"
    assert "S3cr3t" not in str(caught.value)
    assert not looked_up


@over_both("password", ["w:o", "r#d", "a+b", "q&=", "x y", "it's", 'a"b', "b\\c", "ü日"], sync=["w:o", "ü日"])
async def test_dsn_password_special_that_needs_no_code(
    strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put, password: str
) -> None:
    """What cannot be mistaken for anything else may stand as it is, as libpq has it; a plus is a plus."""
    await set_password(strict_servers[0], password)
    pool = await open_pool(f"postgresql://app:{password}@127.0.0.1:{strict_servers[0].port}/postgres")
    assert await pool.fetchval("SELECT current_user") == "app"


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_ipv6_and_ports(postgres: PostgresServer, open_pool: OpenPool, environment: Put) -> None:
    """The forms in which hosts and ports are written give the same list, in order, and connect."""
    port = postgres.port
    for hosts in [
        f"postgresql://postgres@[::1]:{port},127.0.0.1:{port}/postgres",
        f"postgresql://postgres@[::1],127.0.0.1:{port}/postgres",
        f"host=::1,127.0.0.1 port={port} user=postgres dbname=postgres",
        f"host=[::1],127.0.0.1 port={port},{port} user=postgres dbname=postgres",
        f"postgresql:///postgres?host=::1,127.0.0.1&port={port}&user=postgres",
    ]:
        pool = await open_pool(hosts)
        assert [end.address for end in pool.settings.endpoints] == [f"[::1]:{port}", f"127.0.0.1:{port}"]
        assert {node.address for node in pool.topology.nodes()} == {f"[::1]:{port}", f"127.0.0.1:{port}"}
        assert await pool.fetchval("SELECT 1") == 1
        await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_query_parameters(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, environment: Put
) -> None:
    """What concerns the driver is not sent to the server; what concerns the server is true at every host."""
    pool = await open_pool(
        f"postgresql://postgres@127.0.0.1:{postgres.port},127.0.0.1:{postgres_too.port}/postgres"
        "?connect_timeout=3&Application-Name=a%20b&options=-c%20search_path%3Dx%20-c%20work_mem%3D5MB"
        "&sslmode=disable&target_session_attrs=any&max_size=2&min_size=&client_encoding=UTF8&load_balance=true"
        "&command_timeout=9&gssencmode=prefer"
    )
    assert (pool.settings.connect_timeout, pool.settings.max_size, pool.settings.min_size) == (3.0, 2, 1)
    text = "SELECT inet_server_port(), current_setting('application_name'), current_setting('search_path')"
    await pool.wait_ready()
    seen = {tuple(await pool.fetchrow(text)) for _ in range(40)}
    assert seen == {(server.port, "a b", "x") for server in (postgres, postgres_too)}
    assert await pool.fetchval("SHOW work_mem") == "5MB"


@pytest.mark.parametrize("name", ["keepalives", "KeepAlives"])
@pytest.mark.parametrize(("word", "value"), [(w, False) for w in ("false", "0", "off", "FALSE")] + [("on", True)])
def test_dsn_query_parameters_that_are_switches(name: str, word: str, value: bool) -> None:
    """A word for no is no, however it is written; a keyword says the same."""
    assert Pool(f"postgresql://h/?{name}={word}").settings.keepalives is value
    assert Pool("postgresql://h/", keepalives=value).settings == Pool(f"postgresql://h/?{name}={word}").settings


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("keepalives=maybe", "keepalives"),
        ("nonsense=1", "nonsense"),
        ("connect_timeout=soon", "connect_timeout"),
        ("max_size=3&max-size=4", "max_size"),
        ("load_balance=sometimes", "load_balance"),
        ("sslmode=perhaps", "ssl"),
    ],
)
def test_dsn_query_parameters_that_cannot_be(query: str, named: str) -> None:
    """Unknown, of the wrong kind, or given twice: the word is named, and nothing is sent to a server."""
    with pytest.raises(ConfigError, match=named):
        Pool(f"postgresql://h/?{query}")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_query_parameters_of_the_server_hold_on_every_host(
    postgres: PostgresServer, postgres_too: PostgresServer, open_pool: OpenPool, environment: Put
) -> None:
    """A limit for statements and a name in the string, start-up keys given as keywords."""
    pool = await open_pool(
        f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres?application_name=in%20all&statement_timeout=12.5s",
        dialect="postgres",
        topology_source=Nodes(postgres.port, postgres_too.port),
        server_settings={"search_path": "x"},
        min_size=1,
    )
    await pool.wait_ready()
    for server in (postgres, postgres_too):
        async with pool.acquire(node=str(server.port)) as held:
            shown = [await held.fetchval(f"SHOW {key}") for key in ("statement_timeout", "search_path")]
            assert [*shown, await held.fetchval("SHOW application_name")] == ["12500ms", "x", "in all"]


MISLEADING = {
    "PGHOST": "misleading.invalid",
    "PGPORT": "1",
    "PGUSER": "nobody",
    "PGPASSWORD": "wrong",
    "PGDATABASE": "nowhere",
    "PGSSLMODE": "verify-full",
    "PGAPPNAME": "misled",
    "PGOPTIONS": "-c search_path=misled",
    "PGPASSFILE": "/nonexistent/passfile",
    "PGTARGETSESSIONATTRS": "standby",
}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_environment_explicit_values_win(
    strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put
) -> None:
    """With everything written, misleading variables change nothing, at any host."""
    for server in strict_servers:
        await set_password(server, "p")
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in strict_servers)
    environment(MISLEADING)
    pool = await open_pool(
        f"postgresql://app:p@{hosts}/postgres?sslmode=disable&application_name=mine&role=leader"
        "&options=-c%20search_path%3Dmine"
    )
    text = (
        "SELECT inet_server_port(), current_user, current_database(), current_setting('application_name'), "
        "current_setting('search_path')"
    )
    await pool.wait_ready()
    seen = {tuple(await pool.fetchrow(text)) for _ in range(40)}
    assert seen == {(server.port, "app", "postgres", "mine", "mine") for server in strict_servers}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_environment_fills_what_is_open(
    strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put
) -> None:
    """With nothing written, the variables decide."""
    for server in strict_servers:
        await set_password(server, "p")
    environment(
        {
            "PGHOST": "127.0.0.1,127.0.0.1",
            "PGPORT": ",".join(str(server.port) for server in strict_servers),
            "PGUSER": "app",
            "PGPASSWORD": "p",
            "PGDATABASE": "postgres",
            "PGAPPNAME": "from outside",
            "PGOPTIONS": "-c search_path=outside",
            "PGCONNECT_TIMEOUT": "3",
            "PGSSLMODE": "disable",
        }
    )
    pool = await open_pool()
    text = (
        "SELECT inet_server_port(), current_user, current_setting('application_name'), current_setting('search_path')"
    )
    await pool.wait_ready()
    seen = {tuple(await pool.fetchrow(text)) for _ in range(40)}
    assert seen == {(server.port, "app", "from outside", "outside") for server in strict_servers}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_environment_and_query_parameters_on_discovered_nodes(
    strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put, passfile: Path
) -> None:
    """A node that is not in the string: its own line of the password file, the words of the string, nothing else."""
    for number, server in enumerate(strict_servers):
        await set_password(server, f"on:e{number}")
    seed, found = strict_servers
    admins = [await asyncpg.connect(server.dsn) for server in strict_servers]
    misleading = {name: value for name, value in MISLEADING.items() if name != "PGPASSWORD"}
    environment({**misleading, "PGPASSFILE": str(passfile)})
    pool = await open_pool(
        f"postgresql://app@127.0.0.1:{seed.port}/postgres?sslmode=disable&application_name=mine&role=leader"
        "&options=-c%20search_path%3Dmine",
        topology_source=Nodes(seed.port, found.port),
        dialect="postgres",
        min_size=1,
    )
    await pool.wait_ready()
    text = (
        "SELECT inet_server_port(), current_user, current_database(), current_setting('application_name'), "
        "current_setting('search_path')"
    )
    for server in strict_servers:
        async with pool.acquire(node=str(server.port)) as held:
            assert tuple(await held.fetchrow(text)) == (server.port, "app", "postgres", "mine", "mine")
            with pytest.raises(TimeoutError):
                await held.execute("SELECT pg_sleep(60)", timeout=0.05)  # the server is told over another connection
    for admin in admins:
        sleepers = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
        async with asyncio.timeout(10):
            while await admin.fetchval(sleepers):
                await asyncio.sleep(0.01)
        await admin.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_settings_made_without_the_environment_do_not_look_into_it(
    pool_class: Any, strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put
) -> None:
    """Neither does the library below."""
    await set_password(strict_servers[0], "p")
    settings = pool_class(f"postgresql://app@127.0.0.1:{strict_servers[0].port}/postgres?sslmode=disable").settings
    environment({**MISLEADING, "PGPASSWORD": "p"})
    with pytest.raises(AuthenticationFailed):
        await pool_class(settings=settings).open()


@pytest.fixture
def passfile(strict_servers: list[PostgresServer], tmp_path: Path) -> Path:
    """A password file with a line for each server."""
    file = tmp_path / "pass:file"
    lines = ["# passwords", "", "elsewhere:*:*:*:wrong"]
    lines += [f"127.0.0.1:{server.port}:postgres:app:on\\:e{n}" for n, server in enumerate(strict_servers)]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return file


@over_both("named", ["word", "variable", "home"], sync=["home"])
async def test_dsn_environment_each_host_has_its_own_line_of_the_password_file(
    strict_servers: list[PostgresServer],
    open_pool: OpenPool,
    environment: Put,
    passfile: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str,
) -> None:
    """Named in the string, by `PGPASSFILE`, or lying at home; a password that changes counts at once."""
    for number, server in enumerate(strict_servers):
        await set_password(server, f"on:e{number}")
    word = f"?passfile={quote(str(passfile), safe='')}" if named == "word" else ""
    if named == "home":
        os.rename(passfile, passfile.with_name(".pgpass"))
        environment({"HOME": str(passfile.parent)})
    elif named == "variable":
        environment({"PGPASSFILE": str(passfile), "HOME": "/nonexistent"})
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in strict_servers)
    pool = await open_pool(f"postgresql://app@{hosts}/postgres{word}")
    await pool.wait_ready()
    assert {await pool.fetchval("SELECT inet_server_port()") for _ in range(40)} == {s.port for s in strict_servers}


@over_both("flaw", ["mode", "directory", "missing", "unreadable home", "no home"], sync=["mode", "missing"])
async def test_dsn_environment_a_password_file_that_cannot_be_used_is_ignored(
    pool_class: Any,
    strict_servers: list[PostgresServer],
    environment: Put,
    passfile: Path,
    caplog: pytest.LogCaptureFixture,
    flaw: str,
) -> None:
    """With one warning at most; the server then says what is missing."""
    await set_password(strict_servers[0], "on:e0")
    variables = {"PGPASSFILE": str(passfile)}
    match flaw:
        case "mode":
            os.chmod(passfile, 0o644)
        case "directory":
            variables = {"PGPASSFILE": str(passfile.parent)}
        case "missing":
            variables = {"PGPASSFILE": str(passfile) + "x"}
        case "unreadable home":
            variables = {"HOME": str(passfile)}
        case _:
            variables = {}
    environment(variables)
    with pytest.raises(AuthenticationFailed):
        await pool_class(f"postgresql://app@127.0.0.1:{strict_servers[0].port}/postgres").open()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (flaw in ("mode", "directory", "unreadable home"))
    assert all("password file" in warning for warning in warnings)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_environment_a_service_names_everything(
    pool_class: Any, strict_servers: list[PostgresServer], open_pool: OpenPool, environment: Put, tmp_path: Path
) -> None:
    """`service=`, `PGSERVICE` with `PGSERVICEFILE`, or the file at home."""
    await set_password(strict_servers[0], SECRET)
    file = tmp_path / ".pg_service.conf"
    file.write_text(
        f"[mine]\nhost=127.0.0.1\nport={strict_servers[0].port}\nuser=app\npassword={SECRET}\ndbname=postgres\n"
        "application_name=by service\n"
    )
    environment({"HOME": str(tmp_path), "PGUSER": "nobody", "PGPORT": "1"})
    assert await (await open_pool("service=mine")).fetchval("SHOW application_name") == "by service"
    assert await (await open_pool("postgresql:///?service=mine")).fetchval("SELECT current_user") == "app"
    environment({"HOME": "/nonexistent", "PGSERVICE": "mine", "PGSERVICEFILE": str(file)})
    assert await (await open_pool()).fetchval("SELECT current_user") == "app"
    with pytest.raises(ConfigError, match="'other' is not defined"):
        pool_class("service=other")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("place", ["uri", "keyword", "service", "passfile"])
async def test_dsn_secret_in_errors(
    pool_class: Any,
    strict_servers: list[PostgresServer],
    environment: Put,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    """Wherever a password stands, it is in no error, no log line and no repr: right, wrong, or host unreachable."""
    caplog.set_level(logging.DEBUG)
    good, dead = f"127.0.0.1:{strict_servers[0].port}", "127.0.0.1:1"
    (tmp_path / ".pgpass").write_text(f"*:*:*:*:{SECRET}\n")
    (tmp_path / ".pgpass").chmod(0o600)
    (tmp_path / ".pg_service.conf").write_text(f"[s]\npassword={SECRET}\n")
    environment({"HOME": str(tmp_path)} if place in ("service", "passfile") else {})
    login = f"app:{quote(SECRET, safe='')}" if place == "uri" else "app"
    options = {"password": SECRET} if place == "keyword" else {}
    query = "?service=s" if place == "service" else ""
    told: list[str] = []
    for password, host in [(SECRET, good), ("other", good), (SECRET, dead)]:
        await set_password(strict_servers[0], password)
        pool = pool_class(f"postgresql://{login}@{host}/postgres{query}", connect_timeout=2, **options)
        told += [repr(pool), str(pool), repr(pool.settings), repr(pool.settings.dsn)]
        try:
            await pool.open()
            told += [repr(pool.topology.nodes()), repr(pool.stats())]
            await pool.close()
            assert (password, host) == (SECRET, good)
        except (AuthenticationFailed, NoNodeAvailable) as error:
            told += [repr(error), str(error), repr(error.args), repr(error.__cause__)]
            assert (password, host) != (SECRET, good)
    told += [record.getMessage() for record in caplog.records] + [caplog.text]
    assert not [text for text in told if "S3cr3t" in text]


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://app:{SECRET}@127.0.0.1:port/postgres",
        f"mysql://app:{quote(SECRET)}@127.0.0.1/postgres",
        f"postgresql://app:{quote(SECRET)}@127.0.0.1:70000/postgres",
        f"postgresql://app:{quote(SECRET)}@127.0.0.1/postgres?nonsense=1",
        f"postgresql://app:{quote(SECRET)}@127.0.0.1/postgres?max_size=none",
        f"host=127.0.0.1 user=app password={SECRET} nonsense=1",
        f"host=127.0.0.1 user=app password='{SECRET}",
    ],
)
def test_dsn_secret_in_errors_of_the_string(environment: Put, dsn: str) -> None:
    """Wrong port, scheme, option, quote: neither the error nor what is logged or pickled of it tells the password."""
    with pytest.raises(ConfigError) as caught:
        Pool(dsn)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), copied.args, copied.problems) == (ConfigError, caught.value.args, caught.value.problems)
    told = [repr(caught.value), str(caught.value), repr(copied.args), repr(copied.problems)]
    told += [repr(error) for error in (caught.value.__cause__, caught.value.__context__)]
    assert not [text for text in told if "S3cr3t" in text]


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_dsn_secret_in_errors_tasks_and_events(
    pool_class: Any, strict_servers: list[PostgresServer], environment: Put, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool at work, and one that fails: task names, events, statistics, pickled and logged errors."""
    caplog.set_level(logging.DEBUG)
    await set_password(strict_servers[0], SECRET)
    place = f"127.0.0.1:{strict_servers[0].port}"
    events: list[Event] = []
    told: list[str] = []
    pool = pool_class(f"postgresql://app:{quote(SECRET, safe='')}@{place}/postgres", max_size=1, on_event=events.append)
    async with pool:
        calls = [asyncio.create_task(pool.fetchval("SELECT pg_sleep(0.01)")) for _ in range(3)]
        await asyncio.sleep(0)
        told += [f"{task!r} {task.get_name()} {task.get_coro()!r}" for task in asyncio.all_tasks()]
        await asyncio.gather(*calls)
        async with pool.acquire() as held:
            told += [repr(held), repr(held.node), repr(pool), repr(pool.topology), repr(await pool.explain_route("x"))]
            held.terminate()
            with pytest.raises(ConnectionLost) as lost:
                await held.fetchval("SELECT 1")
    assert events
    dead = pool_class(f"postgresql://app:{quote(SECRET, safe='')}@127.0.0.1:1/postgres", connect_timeout=1)
    wrong = pool_class(f"postgresql://app:wrong-{quote(SECRET, safe='')}@{place}/postgres")
    errors: list[BaseException] = [lost.value]
    for failing in (dead, wrong):
        with pytest.raises((NoNodeAvailable, AuthenticationFailed)) as caught:
            await failing.open()
        errors.append(caught.value)
    for error in errors:
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), copied.args) == (type(error), error.args)
        told += [repr(copied), *traceback.format_exception(error)]
        logging.getLogger("application").error("it failed", exc_info=error)
    told += [repr(events), caplog.text]
    assert len([record for record in caplog.records if record.name == "application"]) == 3
    assert not [text for text in told if "S3cr3t" in text]
