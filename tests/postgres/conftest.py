"""Real PostgreSQL servers as fixtures, pools that are closed at the end, and a guard that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.testing import PostgresServer
from tests.login import apart
from tests.postgres.real import REAL, RealServer, look
from tests.tidiness import nothing_stays

OpenPool = Callable[..., Coroutine[Any, Any, Pool]]

ONLY_WITH_PASSWORD = "local all all trust\nhost all postgres all trust\nhost all all all scram-sha-256\n"


@pytest.fixture(scope="session")
def real_servers() -> tuple[list[RealServer], list[RealServer]]:
    """Servers that the environment names: those that take writes, and standbys; none without it."""
    dsn = os.environ.get(REAL)
    return apart(look(dsn)) if dsn else ([], [])


@pytest.fixture(scope="session")
def postgres(real_servers: tuple[list[RealServer], list[RealServer]]) -> Iterator[PostgresServer | RealServer]:
    """A server for all tests that leave it as they found it."""
    if real_servers[0]:
        yield real_servers[0][0]
        return
    with PostgresServer(port=0) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_too(
    postgres: PostgresServer, real_servers: tuple[list[RealServer], list[RealServer]]
) -> Iterator[PostgresServer | RealServer]:
    """Another one."""
    if real_servers[0]:
        yield (
            real_servers[0][1] if len(real_servers[0]) > 1 else pytest.skip(f"{REAL} names one server that is written")
        )
        return
    with PostgresServer(port=0) as server:
        yield server


@pytest.fixture(scope="session")
def strict_servers() -> Iterator[list[PostgresServer]]:
    """Two servers that let the user `app` in with a password only, each with another one."""
    place = Path(tempfile.mkdtemp(prefix="pcp-hba-"))
    place.chmod(0o755)  # the server runs as another user
    hba = place / "hba.conf"
    hba.write_text(ONLY_WITH_PASSWORD)
    hba.chmod(0o644)
    servers = [PostgresServer(port=0, settings={"hba_file": str(hba)}) for _ in range(2)]
    try:
        yield [server.start() for server in servers]
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(place)


async def set_password(server: PostgresServer, password: str) -> None:
    """Make it the password of `app`."""
    admin = await asyncpg.connect(server.dsn)
    if not await admin.fetchval("SELECT 1 FROM pg_roles WHERE rolname = 'app'"):
        await admin.execute("CREATE ROLE app LOGIN")
    literal = await admin.fetchval("SELECT quote_literal($1::text)", password)
    await admin.execute(f"ALTER ROLE app PASSWORD {literal}")
    await admin.close()


@pytest.fixture
async def admin(postgres: PostgresServer) -> AsyncIterator[Any]:
    """A session of its own, to look at the server from outside."""
    connection = await asyncpg.connect(postgres.dsn)
    yield connection
    await connection.close()


@asynccontextmanager
async def opening(pool_class: Any) -> AsyncIterator[OpenPool]:
    """A function like `Pool(…)` whose pools are opened, and closed at the end."""
    pools: list[Any] = []

    async def open_it(dsn: str = "", **options: Any) -> Any:
        pool = pool_class(dsn, **options)
        pools.append(pool)
        return await pool.open()

    yield open_it
    for pool in pools:
        await pool.close(grace=1)


@pytest.fixture
async def open_pool(pool_class: Any) -> AsyncIterator[OpenPool]:
    """The same; closed at the end of the test."""
    async with opening(pool_class) as open_it:
        yield open_it


async def until(met: Callable[[], bool]) -> None:
    """Wait for something that the background brings about; the test's own time limit ends it."""
    while not met():
        await asyncio.sleep(0.005)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """A function that makes these the only variables that concern a connection; no home unless it is given."""
    for name in [name for name in os.environ if name.startswith("PG") or name == "HOME"]:
        monkeypatch.delenv(name)

    def put(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture(autouse=True)
async def nothing_left_behind() -> AsyncIterator[None]:
    """After every test; see `nothing_stays`."""
    async with nothing_stays():
        yield
