"""What public bug reports of other drivers say about TLS; each test is named after its scenario."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.tls import TlsFailed
from picopyn.errors import NoNodeAvailable
from picopyn.testing import FaultProxy, PostgresServer, TlsFront, tls_only
from tests.asynchronous.test_scenarios import after_forks
from tests.cancelling import cancel_everywhere, eventually
from tests.tls.certificates import Authority
from tests.tls.conftest import Dial
from tests.tls.fronted import Fronted, names_by_address

Proxy = Callable[..., FaultProxy]

PLAIN, TLS, ASKED = "StartupMessage", "encrypted StartupMessage", "SSLRequest"


def by_user(encrypted: bool, keys: Mapping[str, str]) -> str | None:
    """As `pg_hba.conf` with `hostnossl` for u1 and `hostssl` for u2."""
    user = keys["user"]
    if encrypted is (user == "u2"):
        return None
    how = "SSL encryption" if encrypted else "no encryption"
    return f'no pg_hba.conf entry for host "127.0.0.1", user "{user}", database "postgres", {how}'


# User, word → what the proxy sees, and whether that ends well.
FALLBACK = [
    ("u1", "disable", [PLAIN], True),
    ("u1", "allow", [PLAIN], True),
    # libpq would go on in plain text; `prefer` here only does when the server offers no TLS.
    ("u1", "prefer", [ASKED, TLS], False),
    ("u1", "require", [ASKED, TLS], False),
    ("u2", "disable", [PLAIN], False),
    ("u2", "allow", [PLAIN, ASKED, TLS], True),
    ("u2", "prefer", [ASKED, TLS], True),
    ("u2", "require", [ASKED, TLS], True),
]


@pytest.fixture
async def users(dial: Dial, proxy: Proxy) -> None:
    """Both of them exist."""
    connection = await dial(proxy())
    for user in ("u1", "u2"):
        await connection.execute(f"DROP ROLE IF EXISTS {user}; CREATE ROLE {user} LOGIN")


@pytest.mark.parametrize(("user", "mode", "seen", "good"), FALLBACK)
async def test_tls_prefer_fallback(
    user: str, mode: str, seen: list[str], good: bool, users: None, proxy: Proxy, dial: Dial, authority: Authority
) -> None:
    """Who may come only with TLS, or only without: at most two connects, and the server's own words at the end."""
    front = TlsFront(authority.issue().server_side(), refuse=by_user)
    began = time.monotonic()
    if good:
        connection = await dial(proxy(front), user=user, sslmode=mode)
        assert await connection.fetchval("SELECT user") == user
    else:
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match=r"no pg_hba\.conf entry") as caught:
            await dial(proxy(front), user=user, sslmode=mode)
        assert caught.value.sqlstate == "28000"
        assert "sslmode=" in caught.value.hint
    assert front.openings == seen
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("mode", "good"), [("disable", 1), ("allow", 1), ("prefer", 1), ("require", 0)])
async def test_tls_prefer_fallback_where_there_is_no_tls(
    mode: str, good: int, users: None, proxy: Proxy, dial: Dial
) -> None:
    """`prefer` goes on over the same connection; `require` sends no start-up packet; `disable` does not ask."""
    front = TlsFront(refuse=lambda encrypted, keys: by_user(encrypted, keys))
    target = proxy(front)
    if good:
        await dial(target, user="u1", sslmode=mode)
        assert target.accepted == 1
    else:
        with pytest.raises(TlsFailed, match="no TLS with"):
            await dial(target, user="u1", sslmode=mode)
    assert (ASKED in front.openings, PLAIN in front.openings) == (mode in ("prefer", "require"), bool(good))
    # u2 may not come without: the first refusal is what is told, also when TLS was tried after it.
    with pytest.raises((asyncpg.InvalidAuthorizationSpecificationError, TlsFailed)) as caught:
        await dial(target, user="u2", sslmode=mode)
    assert (mode == "require") is isinstance(caught.value, TlsFailed)


@pytest.mark.parametrize("answer", [b"", b"E" + bytes([0, 0, 0, 12]) + b"SFATAL\0\0"])
@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require"])
async def test_tls_prefer_fallback_where_the_question_is_resented(
    mode: str, answer: bytes, users: None, proxy: Proxy, dial: Dial
) -> None:
    """A server that closes, or answers with an error: who has to ask fails at once, who need not gets in."""
    front = TlsFront(answer=answer)
    if mode in ("disable", "allow"):
        await dial(proxy(front), user="u1", sslmode=mode)
    else:
        with pytest.raises(TlsFailed, match="no TLS with"):
            await dial(proxy(front), user="u1", sslmode=mode)
        assert front.openings == [ASKED]


async def test_tls_prefer_fallback_tries_a_wrong_password_once(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """`allow` goes on after 28000 only: four failures in a row block a user on Picodata."""
    front = TlsFront(authority.issue().server_side())
    with pytest.raises(asyncpg.PostgresError) as caught:
        await dial(proxy(front), user="nobody", sslmode="allow")
    assert caught.value.sqlstate == "28000"
    assert front.openings == [PLAIN, ASKED, TLS]


async def test_tls_prefer_fallback_stays_in_one_connect_limit(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Both ways of `allow` together take no longer than `connect_timeout`."""
    front = TlsFront(authority.issue().server_side(), refuse=by_user)
    target = proxy(front)
    target.delay(0.2)
    with pytest.raises(TimeoutError):
        await dial(target, user="u2", sslmode="allow", connect_timeout=0.7)
    assert front.openings[:1] == [PLAIN]


@pytest.mark.cluster
async def test_tls_prefer_fallback_on_discovered_nodes(picopyn_cluster: Any, authority: Authority) -> None:
    """A cluster in which some nodes have TLS and some have not: each is met as it is."""

    def front(number: int, address: str) -> TlsFront:
        return TlsFront(authority.issue().server_side() if number % 2 else None)

    with Fronted(picopyn_cluster, front) as fronted:
        first = next(iter(fronted.proxies))
        async with fronted.pool(seeds=[first], sslmode="prefer", min_size=1) as pool:
            await pool.wait_ready()
            for number, name in enumerate(fronted.proxies):
                assert fronted.openings[name] <= {TLS if number % 2 else PLAIN}


@pytest.mark.cluster
class TestTlsVerifyFullDiscoveredIp:
    """tls-verify-full-discovered-ip: names in the certificates, addresses from discovery, and the reverse."""

    @staticmethod
    def named(authority: Authority, wrong: int | None = None, *, wildcard: bool = False) -> Any:
        """Fronts whose certificates list names only: n0.pico.test, n1.pico.test, …."""

        def front(number: int, address: str) -> TlsFront:
            name = "other.pico.test" if number == wrong else f"n{number}.pico.test"
            names = ["*.pico.test"] if wildcard else [name]
            return TlsFront(authority.issue(names=names).server_side())

        return front

    @staticmethod
    def name_of(number: int) -> str:
        """The address of an instance."""
        return f"127.0.0.{11 + number}"

    @pytest.mark.parametrize("wildcard", [False, True])
    async def test_names_in_certificates_and_a_map(
        self, wildcard: bool, picopyn_cluster: Any, authority: Authority
    ) -> None:
        """`ssl_server_name` maps what is dialled to what is expected; SNI carries it; every node is used."""
        names = {self.name_of(number): f"n{number}.pico.test" for number in range(4)}
        with Fronted(picopyn_cluster, self.named(authority, wildcard=wildcard)) as fronted:
            async with fronted.pool(
                sslmode="verify-full", sslrootcert=authority.root, ssl_server_name=names_by_address(names)
            ) as pool:
                await pool.wait_ready()
            for number, name in enumerate(fronted.proxies):
                assert fronted.openings[name] == {TLS}
                assert set(fronted.front(name).server_names) == {f"n{number}.pico.test"}

    async def test_one_node_is_not_who_it_should_be(
        self, picopyn_cluster: Any, authority: Authority, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It gets no start-up packet; one warning says which name was expected; the others are used."""
        followers = set(picopyn_cluster.instances) - set(picopyn_cluster.leaders().values())
        wrong = list(picopyn_cluster.instances).index(min(followers))
        names = {self.name_of(number): f"n{number}.pico.test" for number in range(4)}
        with Fronted(picopyn_cluster, self.named(authority, wrong)) as fronted, caplog.at_level(logging.WARNING):
            words = {"sslrootcert": authority.root, "ssl_server_name": names_by_address(names)}
            async with fronted.pool(sslmode="verify-full", **words) as pool:
                await pool.wait_ready(leaders=2)
                async with asyncio.timeout(10):
                    while not fronted.front(min(followers)).server_names:
                        await asyncio.sleep(0.01)
                assert await pool.fetchval("SELECT 1") == 1
            assert fronted.openings[min(followers)] == set()
        told = [record.getMessage() for record in caplog.records if "a node is not used" in record.getMessage()]
        assert len(told) == 1
        assert f"expected: 'n{wrong}.pico.test'" in told[0]

    async def test_without_the_map_nobody_is_used_unverified(self, picopyn_cluster: Any, authority: Authority) -> None:
        """`verify-full` fails with a reason for every node; `verify-ca` and `require` do not look at names."""
        with Fronted(picopyn_cluster, self.named(authority)) as fronted:
            with pytest.raises(NoNodeAvailable) as caught:
                await fronted.pool(sslmode="verify-full", sslrootcert=authority.root).open()
            assert all("IP address mismatch" in reason for reason in caught.value.reasons.values())
            assert not any(fronted.openings.values())
            for mode in ("verify-ca", "require"):
                async with fronted.pool(sslmode=mode, sslrootcert=authority.root) as pool:
                    await pool.wait_ready()
            assert set.union(*fronted.openings.values()) == {TLS}

    async def test_a_seed_given_as_a_name_and_nodes_found_as_addresses(
        self, picopyn_cluster: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name is asked for where a name was dialled, the address is checked where an address was."""

        def front(number: int, address: str) -> TlsFront:
            names = ["localhost"] if number == 0 else []
            return TlsFront(authority.issue(names=names, addresses=[address]).server_side())

        with Fronted(picopyn_cluster, front) as fronted:
            first = next(iter(fronted.proxies))
            loop = asyncio.get_running_loop()
            resolve = loop.getaddrinfo

            async def as_here(host: Any, *args: Any, **more: Any) -> Any:
                return await resolve(fronted.proxies[first].host if host == "localhost" else host, *args, **more)

            monkeypatch.setattr(loop, "getaddrinfo", as_here)
            seed = f"localhost:{fronted.proxies[first].port}"
            async with fronted.pool(seeds=[seed], sslmode="verify-full", sslrootcert=authority.root) as pool:
                await pool.wait_ready()
            assert set(fronted.front(first).server_names) == {"localhost", None}
            assert all(openings == {TLS} for openings in fronted.openings.values())


@pytest.mark.parametrize("stall", ["answer", "handshake"])
async def test_timeout_accept_never_answer(stall: Any, proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Silence before the answer and inside the hand-shake: each ends in time, no socket and no task is left."""
    target = proxy(TlsFront(authority.issue().server_side(), stall=stall))
    tasks = len(asyncio.all_tasks())
    began = time.monotonic()
    results = await asyncio.gather(
        *(dial(target, sslmode="require", connect_timeout=0.5) for _ in range(50)), return_exceptions=True
    )
    assert all(isinstance(result, TimeoutError) for result in results)
    assert time.monotonic() - began < 10
    async with asyncio.timeout(5):
        while target.open:
            await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == tasks


async def test_block_connect_in_loop(
    proxy: Proxy, dial: Dial, authority: Authority, measured: Callable[[str, object], None]
) -> None:
    """Fifty hand-shakes at once leave the loop room for others: they go on in between."""
    target = proxy(authority.issue(addresses=["127.0.0.1"]).server_side())
    turns, worst, over = 0, 0.0, asyncio.Event()

    async def sample() -> None:
        nonlocal turns, worst
        while not over.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0)
            worst = max(worst, time.perf_counter() - began)
            turns += 1

    sampler = asyncio.create_task(sample())
    words = {"sslmode": "verify-full", "sslrootcert": authority.root, "connect_timeout": 60.0}
    await asyncio.gather(*(dial(target, **words) for _ in range(50)))
    over.set()
    await sampler
    measured("longest stop of the loop in 50 hand-shakes (s)", worst)
    assert turns > 10


async def test_cancel_in_transaction(proxy: Proxy, dial: Dial, authority: Authority) -> None:
    """Over TLS: who is cancelled in a transaction leaves no lock behind once the connection is dropped."""
    target = proxy(authority.issue().server_side())
    other = await dial(proxy())
    await other.execute("CREATE TABLE IF NOT EXISTS locked (id int PRIMARY KEY, v int)")
    await other.execute("INSERT INTO locked VALUES (1, 0) ON CONFLICT DO NOTHING; SET lock_timeout = '5s'")
    for steps in range(0, 40, 4):
        connection = await dial(target, sslmode="require")

        async def work(connection: Any = connection) -> None:
            async with connection.transaction():
                await connection.fetch("SELECT * FROM locked WHERE id = 1 FOR UPDATE")
                await connection.execute("SELECT pg_sleep(60)")

        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        connection.terminate()
        await other.execute("UPDATE locked SET v = v + 1 WHERE id = 1")


async def test_cancel_in_transaction_of_a_pool(
    server: PostgresServer, authority: Authority, proxy: Proxy, dial: Dial, measured: Callable[[str, object], None]
) -> None:
    """Over TLS, with a pool: cancelled at each step of a transaction, the lock is gone and the pool is whole."""
    target = proxy(TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side(), refuse=tls_only))
    admin = await dial(proxy())
    await admin.execute("CREATE TABLE IF NOT EXISTS locked_too (id int PRIMARY KEY, v int)")
    await admin.execute("INSERT INTO locked_too VALUES (1, 0) ON CONFLICT DO NOTHING; SET lock_timeout = '5s'")
    dsn = f"postgresql://postgres@{target.host}:{target.port}/postgres?application_name=over_tls"
    pool = Pool(dsn, dialect="postgres", sslmode="verify-full", sslrootcert=authority.root, max_size=2)
    sessions = "SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in%') FROM pg_stat_activity "
    sessions += "WHERE application_name = 'over_tls'"

    async def work() -> None:
        async with pool.transaction() as connection:
            await connection.fetch("SELECT * FROM locked_too WHERE id = 1 FOR UPDATE")
            await connection.execute("SELECT pg_sleep(0.01)")
            await connection.execute("UPDATE locked_too SET v = -1 WHERE id = 1")

    async def prepare() -> Any:
        return work()

    async def check(where: str) -> None:
        await admin.execute("UPDATE locked_too SET v = v + 1 WHERE id = 1")

        async def none_is_left_open() -> bool:
            return tuple(await admin.fetchrow(sessions))[1] == 0 and pool.stats().in_use == 0

        await eventually(none_is_left_open, lambda: where)
        assert await pool.fetchval("SELECT 1") == 1

    async with pool:
        measured("cancellations", await cancel_everywhere(prepare, check))
        held = [await pool.acquire(timeout=2) for _ in range(2)]
        for connection in held:
            connection.release()
    await admin.execute("DROP TABLE locked_too")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_fork_after_pool(server: PostgresServer, authority: Authority, proxy: Proxy) -> None:
    """Over TLS: a child neither speaks on inherited connections nor ends their TLS; the parent goes on with them."""
    target = proxy(TlsFront(authority.issue(addresses=["127.0.0.1"]).server_side(), refuse=tls_only))
    dsn = f"postgresql://postgres@{target.host}:{target.port}/postgres?sslmode=verify-full&sslrootcert={authority.root}"
    await after_forks(dsn, "forks_over_tls")
