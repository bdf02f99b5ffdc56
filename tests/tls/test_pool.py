"""A whole pool over TLS: every connection it opens follows the one word, on every node."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.errors import AuthenticationFailed, NoNodeAvailable
from picopyn.routing import password_turns
from picopyn.settings import PoolSettings
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.wire import NamelessWire, Wire
from picopyn.testing import FaultProxy, PostgresServer, ScriptedServer, TlsFront, tls_only
from tests.asynchronous.doormen import Doormen
from tests.postgres.conftest import until
from tests.threads import FACADES, over_both
from tests.tls.certificates import Authority
from tests.tls.fronted import Fronted

TLS = "encrypted StartupMessage"


async def use(pool: Pool) -> None:
    """Write and read rows of every owner, each read sent straight to it."""
    await pool.execute("DROP TABLE IF EXISTS tls_rows")
    await pool.execute("CREATE TABLE tls_rows (id INT NOT NULL PRIMARY KEY, v TEXT)")
    await pool.wait_ready()
    for number in range(20):
        await pool.execute("INSERT INTO tls_rows VALUES ($1, $2)", number, "x" * 5000 * number)
    for number in range(20):
        row = await pool.fetchrow("SELECT v FROM tls_rows WHERE id = $1", number)
        assert row["v"] == "x" * 5000 * number
    explained = await pool.explain_route("SELECT v FROM tls_rows WHERE id = $1", 1)
    assert explained.direct


@over_both("mode", ["prefer", "require", "verify-ca", "verify-full"], sync=["verify-full"])
async def test_every_connection_is_encrypted(
    mode: str, picopyn_cluster: Any, pool_class: Any, authority: Authority
) -> None:
    """Those of callers and those that learn, on every node, each with a certificate of its own."""

    def front(number: int, address: str) -> TlsFront:
        return TlsFront(authority.issue(addresses=[address]).server_side(), refuse=tls_only)

    with Fronted(picopyn_cluster, front, pool_class) as fronted:
        async with fronted.pool(sslmode=mode, sslrootcert=authority.root) as pool:
            await use(pool)
        assert all(openings <= {TLS, "encrypted CancelRequest"} for openings in fronted.openings.values())
        leaders = set(picopyn_cluster.leaders().values())
        assert all(TLS in fronted.openings[name] for name in leaders)


@over_both("mode", ["disable", "allow", "prefer"], sync=["prefer"])
async def test_a_cluster_without_tls_is_used_in_plain_text(mode: str, picopyn_cluster: Any, pool_class: Any) -> None:
    """`disable` never asks, `prefer` asks each time and takes no for an answer."""
    with Fronted(picopyn_cluster, lambda number, address: TlsFront(), pool_class) as fronted:
        async with fronted.pool(sslmode=mode) as pool:
            await use(pool)
        asked = [opening for name in fronted.proxies for opening in fronted.front(name).openings]
        assert ("SSLRequest" in asked) is (mode != "disable")
        assert TLS not in asked


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_cluster_without_tls_under_require(picopyn_cluster: Any, pool_class: Any) -> None:
    """`open()` says of each node what it lacks; nobody was sent a start-up packet."""
    with Fronted(picopyn_cluster, lambda number, address: TlsFront(), pool_class) as fronted:
        with pytest.raises(NoNodeAvailable) as caught:
            await fronted.pool(sslmode="require").open()
        assert len(caught.value.reasons) == len(fronted.proxies)
        assert all("no TLS with" in reason for reason in caught.value.reasons.values())
        assert not any(fronted.openings.values())


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_cluster_with_tls_only_under_disable(
    picopyn_cluster: Any, pool_class: Any, authority: Authority
) -> None:
    """The server's own words, and what to change; one node was asked, since it is a refusal."""
    context = authority.issue().server_side()
    with Fronted(picopyn_cluster, lambda number, address: TlsFront(context, refuse=tls_only), pool_class) as fronted:
        with pytest.raises(AuthenticationFailed, match="requires the client to use ssl") as caught:
            await fronted.pool(sslmode="disable").open()
        assert "sslmode=require" in str(caught.value)
        assert sum("StartupMessage" in fronted.front(name).openings for name in fronted.proxies) == 1


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_nodes_demand_a_client_certificate(picopyn_cluster: Any, pool_class: Any, authority: Authority) -> None:
    """With it everything works; without it `open()` says what to give."""

    def front(number: int, address: str) -> TlsFront:
        return TlsFront(authority.issue(addresses=[address]).server_side(clients=authority.root))

    client = authority.issue(common_name="app")
    with Fronted(picopyn_cluster, front, pool_class) as fronted:
        words = {"sslmode": "verify-full", "sslrootcert": authority.root}
        async with fronted.pool(sslcert=client.cert, sslkey=client.key, **words) as pool:
            await use(pool)
        with pytest.raises(NoNodeAvailable, match="sslcert and sslkey"):
            await fronted.pool(**words).open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_context_of_ones_own_serves_the_whole_pool(
    picopyn_cluster: Any, pool_class: Any, authority: Authority
) -> None:
    """It is used as it is."""
    context = ssl.create_default_context(cafile=str(authority.root))

    def front(number: int, address: str) -> TlsFront:
        return TlsFront(authority.issue(addresses=[address]).server_side(), refuse=tls_only)

    with Fronted(picopyn_cluster, front, pool_class) as fronted:
        async with fronted.pool(ssl=context) as pool:
            await use(pool)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_node_whose_hand_shake_hangs_delays_nobody(
    picopyn_cluster: Any, pool_class: Any, authority: Authority
) -> None:
    """Not `open()`, not calls to other nodes, not `close()`."""
    context = authority.issue().server_side()
    hung = min(picopyn_cluster.leaders().values())

    def front(number: int, address: str) -> TlsFront:
        stalls = list(picopyn_cluster.instances)[number] == hung
        return TlsFront(context, stall="handshake" if stalls else None)

    with Fronted(picopyn_cluster, front, pool_class) as fronted:
        seeds = [hung, *(name for name in fronted.proxies if name != hung)]
        async with asyncio.timeout(20):
            async with fronted.pool(seeds=seeds, sslmode="require", connect_timeout=0.5) as pool:
                assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("dialect", ["auto", "postgres"])
@over_both("mode", ["allow", "prefer", "verify-full"], sync=["allow"])
async def test_a_plain_postgresql_with_tls_only(
    pool_class: Any, mode: str, dialect: str, server: PostgresServer, authority: Authority
) -> None:
    """It is told apart, used and closed over TLS; under `allow` each connection is refused once before."""
    front = TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side(), refuse=tls_only)
    with FaultProxy("127.0.0.1", server.port or 0, tls=front) as proxy:
        dsn = f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres"
        async with pool_class(dsn, dialect=dialect, sslmode=mode, sslrootcert=authority.root) as pool:
            texts = await asyncio.gather(*(pool.fetchval("SELECT repeat('x', $1)", n * 1000) for n in range(200)))
            assert [len(text) for text in texts] == [n * 1000 for n in range(200)]
            with pytest.raises(TimeoutError):
                await pool.execute("SELECT pg_sleep(60)", timeout=0.1)
    assert TLS in front.openings
    assert "encrypted CancelRequest" in front.openings
    assert ("StartupMessage" in front.openings) is (mode == "allow")


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("facade", FACADES)
async def test_a_wrong_password_is_sent_once_although_nobody_waits_for_its_answer(
    encrypted: bool, facade: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sent it has been cancelled; what the node says counts all the same, and no second node is sent it."""
    monkeypatch.setattr(password_turns, "UNPROVEN", 60.0)
    doormen = Doormen()
    doormen.wanted, doormen.silent = b"new\0", True
    settings = PoolSettings.from_dsn(
        "postgresql://admin:old@h/db", sslmode="require" if encrypted else "disable", connect_timeout=60
    )
    dialer = Dialer(settings, PostgresDialect())
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedServer(doormen, greet=False)) for _ in range(2)]
        fronts = [TlsFront(authority.issue().server_side() if encrypted else None) for _ in servers]
        ways = [
            stack.enter_context(FaultProxy("127.0.0.1", s.port, tls=f)) for s, f in zip(servers, fronts, strict=True)
        ]
        first = asyncio.create_task(dialer.dial(("127.0.0.1", ways[0].port), Purpose.TOPOLOGY))
        await until(lambda: doormen.wrong == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(_dialled(facade, dialer, ("127.0.0.1", ways[1].port)))
        await until(lambda: doormen.asked == 2)
        doormen.silent = False
        with pytest.raises(AuthenticationFailed, match="password authentication failed"):
            await second
        assert (doormen.wrong, doormen.refused) == (1, 1)
        await dialer.stragglers.close()


async def _dialled(facade: str, dialer: Dialer, address: tuple[str, int]) -> object:
    """A connection that is opened on this loop, or in a thread."""
    if facade == "asynchronous":
        return await dialer.dial(address, Purpose.PLAIN)
    blocking: Any = dialer.of_kinds((Wire, NamelessWire))  # type: ignore[arg-type]
    return await asyncio.to_thread(lambda: CallerLoop().run(blocking.dial(address, Purpose.PLAIN)))
