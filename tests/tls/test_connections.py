"""Connections under each `sslmode` to servers with and without TLS, good certificates and bad ones.

These tests also find an asyncpg release that goes past `Doorway`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.buffered import BUFFER_SIZE, BufferedFront
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.tls import TlsFailed
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.settings import PoolSettings
from picopyn.testing import FaultProxy, PicodataCluster, PostgresServer, TlsFront, tls_only
from picopyn.tls import SSL_MODES
from tests.tls.certificates import Authority
from tests.tls.conftest import Dial

Proxy = Callable[..., FaultProxy]

PLAIN, TLS = "StartupMessage", "encrypted StartupMessage"
NO_TLS, NO_CHAIN, EXPIRED, NO_NAME = "no TLS with", "unable to get local issuer", "expired", "is not valid for"

#: Server → what each word, in the order of `SSL_MODES`, comes to: without a root certificate, and with one.
EXPECTED = {
    "no TLS": ([PLAIN, PLAIN, PLAIN, NO_TLS, None, None], [PLAIN, PLAIN, PLAIN, NO_TLS, NO_TLS, NO_TLS]),
    "good": ([PLAIN, PLAIN, TLS, TLS, None, None], [PLAIN, PLAIN, TLS, TLS, TLS, TLS]),
    "wrong name": ([PLAIN, PLAIN, TLS, TLS, None, None], [PLAIN, PLAIN, TLS, TLS, TLS, NO_NAME]),
    "unknown authority": ([PLAIN, PLAIN, TLS, TLS, None, None], [PLAIN, PLAIN, *[NO_CHAIN] * 4]),
    "expired": ([PLAIN, PLAIN, TLS, TLS, None, None], [PLAIN, PLAIN, *[EXPIRED] * 4]),
}
CASES = [
    pytest.param(server, mode, rooted, outcome, id=f"{server}-{mode}-{'root' if rooted else 'no root'}")
    for server, both in EXPECTED.items()
    for rooted, outcomes in enumerate(both)
    for mode, outcome in zip(SSL_MODES, outcomes, strict=True)
    if outcome is not None
]


def front_of(kind: str, authority: Authority, stranger: Authority) -> TlsFront:
    """The first words of a kind of server."""
    if kind == "no TLS":
        return TlsFront()
    issuer = stranger if kind == "unknown authority" else authority
    address = "127.0.0.9" if kind == "wrong name" else "127.0.0.1"
    return TlsFront(issuer.issue(addresses=[address], expired=kind == "expired").server_side())


def encrypted(connection: Connection) -> bool:
    """Whether a connection is encrypted, as its socket sees it."""
    return connection._transport.get_extra_info("ssl_object") is not None


@pytest.mark.parametrize(("kind", "mode", "rooted", "outcome"), CASES)
async def test_each_word_with_each_server(
    kind: str, mode: str, rooted: int, outcome: str,
    proxy: Proxy, dial: Dial, authority: Authority, stranger: Authority,
) -> None:  # fmt: skip
    """The table of the manual. A failed verification never ends in plain text."""
    front = front_of(kind, authority, stranger)
    settings = {"sslmode": mode, **({"sslrootcert": authority.root} if rooted else {})}
    if outcome in (PLAIN, TLS):
        connection = await dial(proxy(front), **settings)
        assert await connection.fetchval("SELECT 6 * 7") == 42
        assert encrypted(connection) is (outcome == TLS)
        assert front.openings[-1] == outcome
    else:
        with pytest.raises(TlsFailed, match=outcome):
            await dial(proxy(front), **settings)
        assert not {PLAIN, TLS} & set(front.openings)


async def test_the_name_that_is_dialled_is_asked_for_and_checked(
    proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """SNI carries a name, never an address; the certificate may list either."""
    by_name = TlsFront(authority.issue(names=["localhost"]).server_side())
    by_address = TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side())
    settings = {"sslmode": "verify-full", "sslrootcert": authority.root}
    await dial(proxy(by_name), host="localhost", **settings)
    await dial(proxy(by_address), **settings)
    assert (by_name.server_names, by_address.server_names) == (["localhost"], [None])
    with pytest.raises(TlsFailed, match=r"IP address mismatch.*expected: '127\.0\.0\.1'; sslmode=verify-full"):
        await dial(proxy(TlsFront(by_name.context)), **settings)


async def test_an_ipv6_address_in_the_certificate(server: PostgresServer, dial: Dial, authority: Authority) -> None:
    """Compared as an address, not as a text."""
    context = authority.issue(addresses=["::1"]).server_side()
    try:
        with FaultProxy("127.0.0.1", server.port or 0, tls=context, listen="::1") as front:
            await dial(front, sslmode="verify-full", sslrootcert=authority.root)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


@pytest.mark.parametrize("name", ["n1.test", "wild.nodes.test"])
async def test_a_name_of_its_own_for_a_server_dialled_by_address(
    name: str, proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """`ssl_server_name` is what is asked for and checked, in place of the host; a wildcard fits as usual."""
    front = TlsFront(authority.issue(names=[name.replace("wild", "*")]).server_side())
    target = proxy(front)
    settings = {"sslmode": "verify-full", "sslrootcert": authority.root}
    asked: list[tuple[str, int]] = []

    def name_of(host: str, port: int) -> str:
        asked.append((host, port))
        return name.replace("wild", "n7")

    await dial(target, ssl_server_name=name_of, **settings)
    assert asked == [("127.0.0.1", target.port)]
    assert front.server_names == [name.replace("wild", "n7")]
    with pytest.raises(TlsFailed, match="Hostname mismatch"):
        await dial(target, ssl_server_name="n7.elsewhere", **settings)
    with pytest.raises(ValueError, match="ssl_server_name gives no name"):
        await dial(target, ssl_server_name=lambda host, port: 7, **settings)


@pytest.mark.parametrize("mode", ["prefer", "require", "verify-full"])
async def test_a_client_shows_its_certificate(mode: str, proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """A server with a `ca.crt` demands one (Picodata does); without one the error says what to give."""
    front = TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side(clients=authority.root))
    target = proxy(front)
    client = authority.issue(common_name="app")
    settings = {"sslmode": mode, "sslrootcert": authority.root}
    connection = await dial(target, sslcert=client.cert, sslkey=client.key, **settings)
    assert await connection.fetchval("SELECT 1") == 1
    assert front.clients == ["app"]
    with pytest.raises(TlsFailed, match=r"sslcert and sslkey"):
        await dial(target, **settings)


async def test_a_client_certificate_that_the_server_does_not_know(
    proxy: Proxy, dial: Dial, authority: Authority, stranger: Authority
) -> None:
    """Under TLS 1.2 and 1.3, where the refusal comes at different moments."""
    other = stranger.issue(common_name="other")
    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.issue(addresses=["127.0.0.1"]).server_side(clients=authority.root, newest=newest)
        with pytest.raises(TlsFailed, match="UNKNOWN_CA"):
            await dial(proxy(context), sslmode="require", sslcert=other.cert, sslkey=other.key)


async def test_a_revoked_certificate_is_not_accepted(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """`sslcrl` lists those; others of the same authority go on."""
    revoked, sound = authority.issue(addresses=["127.0.0.1"]), authority.issue(addresses=["127.0.0.1"])
    settings = {"sslmode": "verify-ca", "sslrootcert": authority.root, "sslcrl": authority.revoke(revoked)}
    await dial(proxy(sound.server_side()), **settings)
    with pytest.raises(TlsFailed, match="certificate revoked"):
        await dial(proxy(revoked.server_side()), **settings)


async def test_versions_of_the_protocol_have_limits(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Client and server must have one in common."""
    old = proxy(authority.issue().server_side(newest=ssl.TLSVersion.TLSv1_2))
    connection = await dial(old, sslmode="require", ssl_max_protocol_version="TLSv1.2")
    assert connection._transport.get_extra_info("ssl_object").version() == "TLSv1.2"
    with pytest.raises(TlsFailed, match=r"TLS with .* failed"):
        await dial(old, sslmode="require", ssl_min_protocol_version="TLSv1.3")


async def test_a_context_of_ones_own_decides_alone(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """It means TLS always; `ssl_server_name` serves it, too."""
    context = ssl.create_default_context(cafile=str(authority.root))
    front = TlsFront(authority.issue(names=["n1.test"]).server_side())
    assert encrypted(await dial(proxy(front), ssl=context, ssl_server_name="n1.test"))
    with pytest.raises(TlsFailed, match=r"not accepted.*an ssl\.SSLContext"):
        await dial(proxy(front), ssl=context)
    with pytest.raises(TlsFailed, match=NO_TLS):
        await dial(proxy(TlsFront()), ssl=context)


@pytest.mark.parametrize("mode", SSL_MODES[2:])
@pytest.mark.parametrize("answer", [b"", b"E", b"SX", b"X", b"N" * 9])
async def test_another_answer_than_yes_or_no_is_an_error(
    answer: bytes, mode: str, proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """Closing, an error text, bytes smuggled in behind the answer: no start-up packet follows."""
    front = TlsFront(answer=answer)
    with pytest.raises(TlsFailed, match=NO_TLS):
        await dial(proxy(front), sslmode=mode, sslrootcert=authority.root)
    assert front.openings == ["SSLRequest"]


@pytest.mark.parametrize("mode", SSL_MODES)
@pytest.mark.parametrize("stall", ["answer", "handshake"])
async def test_a_server_that_falls_silent_costs_the_connect_timeout(
    stall: Any, mode: str, proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """Before its answer and in the hand-shake; the socket is closed. Who asks for no TLS does not notice."""
    target = proxy(TlsFront(authority.issue().server_side(), stall=stall))
    settings = {"sslmode": mode, "sslrootcert": authority.root, "connect_timeout": 0.2}
    if mode in ("disable", "allow"):
        await dial(target, **settings)
        return
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await dial(target, **settings)
    assert time.monotonic() - began < 5
    await _until(lambda: target.open == 0)


async def test_a_cancelled_dial_leaves_no_socket(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Wherever it is cancelled."""
    target = proxy(authority.issue().server_side())
    for steps in range(1, 60):
        dialling = asyncio.create_task(dial(target, sslmode="prefer" if steps % 2 else "require"))
        for _ in range(steps):
            await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.wait({dialling})
        if not dialling.cancelled() and dialling.exception() is None:
            dialling.result().terminate()
    await _until(lambda: target.open == 0)


async def test_replies_of_all_sizes_through_the_kept_buffer(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Small, of the buffer's size, many times larger; many at once; in both directions."""
    target = proxy(authority.issue().server_side())
    connections = [await dial(target, sslmode="require") for _ in range(3)]
    assert all(isinstance(connection._transport.get_protocol(), BufferedFront) for connection in connections)

    async def ask(connection: Connection) -> None:
        for size in (1, 100, 16_384, BUFFER_SIZE - 7, BUFFER_SIZE, BUFFER_SIZE + 1, 3_000_000):
            text = "xy" * (size // 2 + 1)
            assert await connection.fetchval("SELECT $1::text", text) == text
        assert len(await connection.fetch("SELECT generate_series(1, 30000)")) == 30_000

    await asyncio.gather(*map(ask, connections))


async def test_the_end_of_an_idle_connection_is_seen(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Without a query; both when the server says goodbye and when the line is cut."""
    target = proxy(authority.issue().server_side())
    for end in ("server", "line"):
        connection = await dial(target, sslmode="require")
        if end == "server":
            other = await dial(target, sslmode="require")
            await other.fetchval("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        else:
            target.cut()
        await _until(connection.is_closed)


@pytest.mark.parametrize("mode", ["prefer", "require"])
async def test_a_statement_is_cancelled_through_tls(mode: str, proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """The request for it goes the way of the connection, so a server with TLS only takes it."""
    front = TlsFront(authority.issue(names=["n1.test"]).server_side(), refuse=tls_only)
    settings = {"sslmode": mode, "sslrootcert": authority.root, "ssl_server_name": "n1.test"}
    connection = await dial(proxy(front), **settings)
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT pg_sleep(60)", timeout=0.1)
    assert await connection.fetchval("SELECT 1") == 1
    assert front.openings == ["SSLRequest", TLS, "SSLRequest", "encrypted CancelRequest"]


async def test_a_polite_goodbye_does_not_wait_for_a_frozen_server(
    proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """Closing ends with its own limit, terminating at once."""
    target = proxy(authority.issue().server_side())
    first, second = await dial(target, sslmode="require"), await dial(target, sslmode="require")
    target.freeze()
    with pytest.raises(TimeoutError):
        await first.close(timeout=0.1)
    second.terminate()
    assert first.is_closed()
    assert second.is_closed()


async def test_a_certificate_that_is_not_accepted_is_told_once(
    proxy: Proxy, dial: Dial, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning for each node, with the name that was expected; again only after it was good in between."""
    from picopyn.asynchronous.transport import Dialer
    from picopyn.dialects.base import Purpose
    from picopyn.dialects.picodata import PicodataDialect
    from picopyn.settings import PoolSettings

    target = proxy(authority.issue(names=["n1.test"]).server_side())
    settings = PoolSettings.from_dsn("postgresql://u@h", sslmode="verify-full", sslrootcert=authority.root)
    dialer = Dialer(settings, PicodataDialect(startup=False))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(TlsFailed):
                await dialer.dial((target.host, target.port), Purpose.PLAIN)
    (record,) = caplog.records
    assert "expected: '127.0.0.1'" in record.getMessage()


async def test_what_the_server_says_keeps_its_class_and_gets_a_hint(
    proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """Picodata with TLS on refuses plain text with 28000; the hint says what to change."""
    target = proxy(TlsFront(authority.issue().server_side(), refuse=tls_only))
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError) as caught:
        await dial(target, sslmode="disable")
    assert caught.value.sqlstate == "28000"
    assert str(caught.value).splitlines() == [
        "this server requires the client to use ssl",
        "HINT:  the connection was not encrypted (sslmode=disable); with sslmode=require or stronger it is",
    ]


async def test_the_environment_of_asyncpg_changes_nothing(
    proxy: Proxy, dial: Dial, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads `PG*` variables itself; every decision about TLS reaches it as a value."""
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGSSLNEGOTIATION", "direct")
    monkeypatch.setenv("PGSSLROOTCERT", "/no/such/file")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    front = TlsFront(authority.issue().server_side())
    assert encrypted(await dial(proxy(front), sslmode="prefer"))
    assert encrypted(await dial(proxy(front), sslmode="require"))
    monkeypatch.setenv("PGSSLMODE", "require")
    assert not encrypted(await dial(proxy(front), sslmode="disable"))


def test_all_of_it_on_uvloop(proxy: Proxy, authority: Authority, server: PostgresServer) -> None:
    """`prefer` with and without TLS, a name of its own, large replies, a failed verification."""
    uvloop = pytest.importorskip("uvloop")
    from picopyn.asynchronous.transport import Dialer
    from picopyn.dialects.base import Purpose
    from picopyn.dialects.picodata import PicodataDialect
    from picopyn.settings import PoolSettings

    good = proxy(authority.issue(names=["n1.test"]).server_side())
    plain = proxy(TlsFront())

    async def connect(target: FaultProxy, **words: Any) -> bool:
        settings = PoolSettings.from_dsn("postgresql://postgres@h/postgres", sslrootcert=authority.root, **words)
        dialer = Dialer(settings, PicodataDialect(startup=False))
        connection = await dialer.dial((target.host, target.port), Purpose.PLAIN)
        assert len(await connection.fetchval("SELECT repeat('x', 2000000)")) == 2_000_000
        with pytest.raises(TimeoutError):
            await connection.execute("SELECT pg_sleep(60)", timeout=0.05)
        await connection.close()
        return target is good

    async def everything() -> None:
        assert await connect(good, sslmode="prefer", ssl_server_name="n1.test")
        assert await connect(good, sslmode="verify-full", ssl_server_name="n1.test")
        assert not await connect(plain, sslmode="prefer")
        with pytest.raises(TlsFailed):
            await connect(good, sslmode="verify-full")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(everything())


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in the thread of a proxy or in the kernel."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", ["disable", "prefer", "require"])
async def test_what_a_server_tells_before_it_is_ready_is_heard(authority: Authority, mode: str) -> None:
    """Whatever stands between the socket and asyncpg, whose connection is not there yet; and what comes later, too."""
    heard: list[str] = []
    with PicodataCluster(replicasets=1, replication=1, topology_notices=True) as cluster:
        port = next(iter(cluster.instances.values())).port
        front = None if mode == "disable" else TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side())
        with FaultProxy("127.0.0.1", port, tls=front) as proxy:
            dialer = Dialer(PoolSettings.from_dsn(cluster.dsn, sslmode=mode), PicodataDialect())
            connection = await dialer.dial(("127.0.0.1", proxy.port), Purpose.TOPOLOGY_NEWS, heard.append)
            told = [json.loads(text)["map"] for text in heard]
            assert told == ["replicaset", "instance", "bucket"]
            assert encrypted(connection) is (mode != "disable")
            await asyncio.to_thread(cluster.advertise, "default_1_1", "10.0.0.1:1")
            assert await connection.fetchval("SELECT 1") == 1
            assert json.loads(heard[-1])["address"] == "10.0.0.1:1"
            connection.terminate()
