"""The smaller tools: PostgreSQL servers, the fault proxy, the black hole, the scripted server, and time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from picopyn.testing import (
    AutoJumpLoop,
    ClusterError,
    FaultProxy,
    ManualClock,
    PicodataCluster,
    PostgresNotFound,
    PostgresServer,
    ScriptedServer,
    black_hole,
    postgres_binaries,
    run_jumping,
)
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import CloseConnection, Expect, Invalidating, Send, Steps, Wait


class EchoServer:
    """Answers what it hears, in a process of the kernel's own threads: a plain blocking echo."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self.process.communicate()


_ECHO = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
def serve():
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def echo() -> Iterator[EchoServer]:
    """One echo server for all tests."""
    with closing(EchoServer()) as server:
        yield server


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    """A fresh proxy in front of it."""
    with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


def say(client: socket.socket, text: bytes, timeout: float = 5.0) -> bytes | str:
    """Send and read as much back; "silent" or "reset" if that fails."""
    client.settimeout(timeout)
    try:
        client.sendall(text)
        return client.recv(65536) or "closed"
    except TimeoutError:
        return "silent"
    except ConnectionError:
        return "reset"


def dial(proxy: FaultProxy) -> socket.socket:
    """A connection through the proxy."""
    return socket.create_connection((proxy.host, proxy.port), timeout=5)


def test_the_proxy_passes_bytes_on_and_counts_connections(proxy: FaultProxy) -> None:
    """Without a fault it is invisible."""
    with dial(proxy) as client:
        assert say(client, b"hello") == b"hello"
        assert (proxy.accepted, proxy.open) == (1, 1)


def test_a_refusing_proxy_refuses_new_connections_only(proxy: FaultProxy) -> None:
    """And listens on the same port again afterwards."""
    with dial(proxy) as client:
        assert say(client, b"here") == b"here"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        assert say(client, b"still here") == b"still here"
        proxy.let_pass()
        with dial(proxy) as second:
            assert say(second, b"again") == b"again"


def test_what_is_said_to_a_mute_proxy_is_lost(proxy: FaultProxy) -> None:
    """Nothing comes later."""
    with dial(proxy) as client:
        assert say(client, b"here") == b"here"
        proxy.mute()
        assert say(client, b"lost", timeout=0.1) == "silent"
        proxy.let_pass()
        assert say(client, b"heard") == b"heard"


def test_what_is_said_to_a_frozen_proxy_arrives_later(proxy: FaultProxy) -> None:
    """Everything, in order."""
    with dial(proxy) as client:
        proxy.freeze()
        assert say(client, b"one ", timeout=0.1) == "silent"
        proxy.let_pass()
        client.settimeout(5)
        assert client.recv(100) == b"one "


def test_a_delay_counts_in_both_directions(proxy: FaultProxy) -> None:
    """So a round trip takes it twice."""
    with dial(proxy) as client:
        proxy.delay(0.05)
        began = time.monotonic()
        assert say(client, b"slow") == b"slow"
        assert time.monotonic() - began >= 0.1


def test_a_cut_resets_open_connections_and_lets_new_ones_pass(proxy: FaultProxy) -> None:
    """Once."""
    with dial(proxy) as client, dial(proxy) as second:
        assert say(client, b"a") == say(second, b"a") == b"a"
        proxy.cut()
        assert say(client, b"b") in ("reset", "closed")
        with dial(proxy) as third:
            assert say(third, b"c") == b"c"


def test_a_connection_can_be_cut_in_the_middle_of_an_answer(proxy: FaultProxy) -> None:
    """After so many bytes."""
    with dial(proxy) as client:
        proxy.cut_after(3)
        first = say(client, b"abcdef")
        assert first in (b"abc", "reset")
        assert say(client, b"more") in ("reset", "closed")


def test_connecting_to_a_black_hole_never_completes() -> None:
    """Its SYNs are dropped."""
    with black_hole() as hole, pytest.raises(TimeoutError):
        socket.create_connection((hole.host, hole.port), timeout=0.3)


async def test_a_script_is_played_step_by_step() -> None:
    """And a gate holds it back until the test opens it."""
    steps = Steps(
        [
            Expect(wire.Query),
            Wait("go"),
            Send(wire.error_response("XX000", "scripted") + wire.READY),
            Expect("terminate"),
            CloseConnection(),
        ]
    )
    with ScriptedServer(steps) as server:
        connection = await asyncpg.connect(server.dsn, ssl=False)
        task = asyncio.ensure_future(connection.execute("SELECT 1"))
        await asyncio.sleep(0)
        assert not task.done()
        server.open_gate("go")
        with pytest.raises(asyncpg.InternalServerError, match="scripted"):
            await task
        await connection.close()


async def test_a_client_that_leaves_its_script_fails_the_test() -> None:
    """When the server is closed."""
    server = ScriptedServer(Steps([Expect(wire.Parse)])).start()
    connection = await asyncpg.connect(server.dsn, ssl=False)
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await connection.execute("SELECT 1")
    with pytest.raises(AssertionError, match="expected"):
        server.close()


async def test_statements_prepared_before_a_change_are_invalidated_once() -> None:
    """42999 at Bind until the client parses again; in the other variant at every Bind."""
    script = Invalidating()
    with ScriptedServer(script) as server:
        connection = await asyncpg.connect(server.dsn, ssl=False)
        statement = await connection.prepare("SELECT $1")
        assert await statement.fetchval(1) == 0
        script.change()
        for _ in range(2):
            with pytest.raises(asyncpg.PostgresError) as stale:
                await statement.fetchval(1)
            assert stale.value.sqlstate == "42999"
        assert await (await connection.prepare("SELECT $1")).fetchval(1) == 1
        assert (script.parses["SELECT $1"], script.invalidated) == (2, 2)
        script.always = True
        with pytest.raises(asyncpg.PostgresError, match="has been invalidated"):
            await connection.fetchval("SELECT $1", 1)
        connection.terminate()


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    """And never goes back."""
    clock = ManualClock(10.0)
    assert clock() == clock() == 10.0
    assert clock.advance(2.5) == clock() == 12.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_a_jumping_loop_waits_hours_in_no_time_and_in_order() -> None:
    """Timers fire in their order; nothing sleeps."""
    order = []

    async def wait(hours: float) -> None:
        await asyncio.sleep(hours * 3600)
        order.append((hours, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(wait(3), wait(1), wait(2))

    began = time.monotonic()
    run_jumping(main())
    assert order == [(1, 3600.0), (2, 7200.0), (3, 10800.0)]
    assert time.monotonic() - began < 5


def test_a_jumping_loop_says_when_nothing_will_ever_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of waiting for ever."""
    monkeypatch.setattr("picopyn.testing.clock._GRACE", 0.05)
    loop = AutoJumpLoop()
    with pytest.raises(RuntimeError, match="no timer"):
        loop.run_until_complete(loop.create_future())
    loop.close()


async def test_a_postgres_server_leaves_nothing_behind() -> None:
    """Neither its directory nor its process."""
    with PostgresServer(port=0) as server:
        directory = server.socket_directory
        connection = await asyncpg.connect(**server.connect_arguments, database="postgres", ssl=False)
        assert await connection.fetchval("SELECT 1") == 1
        second = await asyncpg.connect(server.dsn, ssl=False)
        second.terminate()
        connection.terminate()
    assert not os.path.exists(directory)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_missing_binaries_are_reported_with_every_place_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with what to do."""
    monkeypatch.setenv(postgres_binaries.ENVIRONMENT_NAME, str(tmp_path))
    with pytest.raises(PostgresNotFound, match=rf"'\.\[testing\]'.*{tmp_path}: no initdb there"):
        PostgresServer().start()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("exit 3", "its process ended with 3; its log: empty"),
        ("kill -9 $$", "its process was ended by signal 9; its log: empty"),
        ("echo no room >&2; exit 1", "its process ended with 1; its log: no room"),
        ("cat >/dev/null", "it said nothing for 0.2 s; its log: empty"),
    ],
)
def test_a_cluster_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    """Also when its process has written nothing."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nread shape\n{what}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr("picopyn.testing.picodata.picodata_cluster._START_TIMEOUT", 0.2 if "cat" in what else 60.0)
    with pytest.raises(ClusterError) as failed:
        PicodataCluster().start()
    assert str(failed.value) == f"the embedded cluster did not start: {told}"


_START = """
import sys
from picopyn.testing import PicodataCluster
cluster = PicodataCluster(replicasets=1, replication=1).start()
print(cluster._process.pid, cluster._directory, flush=True)
sys.stdin.read()
"""


def test_a_killed_starter_takes_its_cluster_and_storage_with_it() -> None:
    """Kill -9 of the process that started them: no process and no directory is left."""
    starter = subprocess.Popen(
        [sys.executable, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
        starter.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (_alive(int(pid)) or Path(directory).exists()):
        time.sleep(0.01)
    assert not _alive(int(pid))
    assert not Path(directory).exists()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_settings_that_cannot_work_are_refused_together() -> None:
    """Before anything starts."""
    with pytest.raises(ValueError, match=r"version '99'.*; auto_offline_timeout must be positive"):
        PicodataCluster(version="99", auto_offline_timeout=0)
