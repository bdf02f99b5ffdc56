"""From `Pool(…)` to the last closed socket: opening, waiting, borrowing, watching, closing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.errors import AcquireTimeout, ConfigError, NoNodeAvailable, PicopynError, PoolClosed, UsageError
from picopyn.observe import ConnectFailed, ConnectionClosed, ConnectionOpened, Event, TopologyChanged
from picopyn.settings import PoolSettings
from picopyn.testing import FaultProxy, ScriptedServer, black_hole
from picopyn.testing.scripted_server import Invalidating
from tests.contract.conftest import OpenPool
from tests.contract.one_node import OneNode
from tests.contract.target import Capability, Target
from tests.threads import FACADES

pytestmark = pytest.mark.cluster


class Proxied:
    """The cluster behind a proxy for each instance; the pool's `address_map` leads through them."""

    def __init__(self, target: Target, proxies: dict[tuple[str, int], FaultProxy]) -> None:
        self.target = target
        self.proxies = proxies

    @property
    def dsn(self) -> str:
        return self.target.dsn_for(seeds=[(proxy.host, proxy.port) for proxy in self.proxies.values()])

    def address_map(self, host: str, port: int) -> tuple[str, int]:
        proxy = self.proxies[host, port]
        return proxy.host, proxy.port

    def freeze(self) -> None:
        for proxy in self.proxies.values():
            proxy.freeze()

    def let_pass(self) -> None:
        for proxy in self.proxies.values():
            proxy.let_pass()

    @property
    def open(self) -> int:
        return sum(proxy.open for proxy in self.proxies.values())


@pytest.fixture
async def proxied(target: Target) -> AsyncIterator[Proxied]:
    with ExitStack() as stack:
        members = await target.members()
        yield Proxied(target, {m.endpoint: stack.enter_context(FaultProxy(*m.endpoint)) for m in members})


# opening


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_opening_twice_does_nothing(target: Target, open_pool: OpenPool) -> None:
    """The second `open()` returns the pool; `async with` on an open pool as well."""
    pool = await open_pool(target.dsn)
    connects = pool.stats().connects
    assert await pool.open() is pool
    async with pool as same:
        assert same is pool
        assert pool.stats().connects <= max(connects, len(await target.members()))
    with pytest.raises(PoolClosed):
        await pool.open()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_two_tasks_may_not_open_a_pool_at_the_same_time(pool_class: Any, target: Target) -> None:
    """The one that comes second is told so; the first one's pool is whole."""
    pool = pool_class(target.dsn)
    outcomes = await asyncio.gather(pool.open(), pool.open(), return_exceptions=True)
    assert outcomes[0] is pool
    assert isinstance(outcomes[1], UsageError)
    assert await pool.fetchval("SELECT 1") == 1
    await pool.close()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_an_opening_that_fails_half_way_leaves_nothing(pool_class: Any, proxied: Proxied) -> None:
    """The topology is read, but no connection for calls can be made: the error says so, and all is closed."""
    with black_hole() as hole:
        pool = pool_class(proxied.dsn, connect_timeout=0.3, address_map=lambda host, port: (hole.host, hole.port))
        with pytest.raises(NoNodeAvailable) as caught:
            await pool.open()
        assert f"{hole.host}:{hole.port}" in str(caught.value)
    await proxied.target.until(_is_zero(proxied), "every connection is closed")
    with pytest.raises(UsageError, match="not open"):
        await pool.fetch("SELECT 1")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_pool_that_could_not_be_opened_may_be_opened_later(pool_class: Any, proxied: Proxied) -> None:
    """Once a seed answers."""
    proxies = list(proxied.proxies.values())
    for proxy in proxies:
        proxy.refuse()
    pool = pool_class(proxied.dsn, connect_timeout=1, address_map=proxied.address_map)
    with pytest.raises(NoNodeAvailable):
        await pool.open()
    proxied.let_pass()
    async with pool:
        assert await pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("where", ["at the first word", "in the pools"])
async def test_a_cancelled_opening_leaves_nothing(pool_class: Any, proxied: Proxied, where: str) -> None:
    """Wherever it is: no task, no connection."""
    with black_hole() as hole:
        if where == "at the first word":
            proxied.freeze()
        pool = pool_class(proxied.dsn, connect_timeout=30, address_map=lambda host, port: (hole.host, hole.port))
        opening = asyncio.create_task(pool.open())
        await proxied.target.until(_is_some(proxied), "it is on its way")
        await asyncio.wait({opening}, timeout=0.1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    proxied.let_pass()
    await proxied.target.until(_is_zero(proxied), "every connection is closed")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_hook_that_fails_is_told_to_the_caller(pool_class: Any, target: Target) -> None:
    """`after_connect` raises everywhere: the opening ends with that at once, and nothing is left."""

    async def refuse(_: object) -> None:
        raise ValueError("not like this")

    pool = pool_class(target.dsn, after_connect=refuse, connect_timeout=60)
    with pytest.raises(ValueError, match="not like this"):
        await pool.open()


def _is_zero(proxied: Proxied):  # type: ignore[no-untyped-def]
    async def met() -> bool:
        return proxied.open == 0

    return met


def _is_some(proxied: Proxied):  # type: ignore[no-untyped-def]
    async def met() -> bool:
        return proxied.open > 0

    return met


# closing


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_lets_a_holder_finish_and_wakes_who_waits(pool_class: Any, target: Target) -> None:
    """New calls are refused, waiting ones get `PoolClosed`, the holder goes on until the grace ends."""
    pool = await pool_class(target.dsn, max_size=1).open()
    await pool.wait_ready()
    holders = [await pool.acquire() for _ in await target.members()]
    waiting = asyncio.create_task(pool.fetchval("SELECT 1", timeout=30))
    await _until_waiting(pool)
    closing = asyncio.create_task(pool.close(grace=30))
    with pytest.raises(PoolClosed):
        await waiting
    with pytest.raises(PoolClosed):
        await pool.fetchval("SELECT 1")
    assert [await holder.fetchval("SELECT 1") for holder in holders] == [1] * len(holders)
    assert not closing.done()
    for holder in holders:
        await pool.release(holder)
    await asyncio.wait_for(closing, 5)
    assert pool.stats().size == 0


async def _until_waiting(pool: Pool) -> None:
    async def met() -> bool:
        return pool.stats().waiting > 0

    await Target.until(met, "a call waits for a connection")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_ends_holders_when_the_grace_is_over(pool_class: Any, target: Target) -> None:
    """Their connections are dropped; giving them back afterwards does no harm."""
    pool = await pool_class(target.dsn).open()
    holder = await pool.acquire()
    began = time.monotonic()
    await pool.close(grace=0.2)
    assert 0.15 < time.monotonic() - began < 5
    assert holder.is_closed()
    await pool.release(holder)
    assert pool.stats().size == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_waits_for_a_call_in_flight(pool_class: Any, proxied: Proxied) -> None:
    """Its answer still arrives, although the pool takes no more calls."""
    pool = await pool_class(proxied.dsn, address_map=proxied.address_map).open()
    await pool.wait_ready()
    proxied.freeze()
    call = asyncio.create_task(pool.fetchval("SELECT 1"))
    while not pool.stats().in_use:
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(pool.close(grace=30))
    await asyncio.wait({closing}, timeout=0.05)
    assert not closing.done()
    proxied.let_pass()
    assert await call == 1
    await asyncio.wait_for(closing, 10)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_closing_does_not_wait_for_frozen_nodes(
    pool_class: Any, proxied: Proxied, measured: Callable[[str, object], None]
) -> None:
    """Nobody answers the farewell: it ends soon, with a short grace or a long one, and nothing is left."""
    for grace in (0.3, 30):
        pool = await pool_class(proxied.dsn, address_map=proxied.address_map).open()
        await pool.wait_ready()
        await pool.explain_route("SELECT 1 WHERE 1 = $1", 1)
        proxied.freeze()
        began = time.monotonic()
        await pool.close(grace=grace)
        measured(f"close(grace={grace}) with every node frozen (s)", time.monotonic() - began)
        assert time.monotonic() - began < 5
        assert asyncio.all_tasks() == {asyncio.current_task()}
        proxied.let_pass()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_terminating_is_immediate(pool_class: Any, proxied: Proxied) -> None:
    """Calls in flight end with an error, and every connection is gone; it may be done again and at any time."""
    pool = await pool_class(proxied.dsn, address_map=proxied.address_map).open()
    await pool.wait_ready()
    proxied.freeze()
    call = asyncio.create_task(pool.fetchval("SELECT 1"))
    await asyncio.wait({call}, timeout=0.05)
    pool.terminate()
    pool.terminate()
    with pytest.raises(PicopynError):
        await asyncio.wait_for(call, 20)
    with pytest.raises(PoolClosed):
        await pool.fetchval("SELECT 1")
    await pool.close()
    proxied.let_pass()
    await proxied.target.until(_is_zero(proxied), "every connection is closed")
    pool_class(proxied.dsn).terminate()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_leaving_the_block_closes_whatever_happened(pool_class: Any, target: Target) -> None:
    """The error of the block comes out, the pool is closed."""
    pool = pool_class(target.dsn)
    with pytest.raises(KeyError):
        async with pool:
            raise KeyError("mine")
    with pytest.raises(PoolClosed):
        await pool.fetch("SELECT 1")


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["close", "terminate"])
async def test_no_session_is_left_at_the_cluster(pool_class: Any, target: Target, how: str) -> None:
    """Connections for calls, for watching, for learning and for replica reads: all are gone."""
    target.need(Capability.COUNT_LOGINS)
    before = sum((await target.logins()).values())
    table = await target.create_table("id INT NOT NULL PRIMARY KEY")
    pool = await pool_class(target.dsn, min_size=2).open()
    await pool.wait_ready()
    await pool.explain_route(f"SELECT id FROM {table} WHERE id = $1", 1)
    await asyncio.gather(*(pool.fetch(f"SELECT id FROM {table} WHERE id = $1", n) for n in range(50)))
    assert sum((await target.logins()).values()) > before
    if how == "close":
        await pool.close()
    else:
        pool.terminate()

    async def gone() -> bool:
        return sum((await target.logins()).values()) <= before

    await target.until(gone, "every session ended")


# borrowing


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_borrowed_connection_has_asyncpgs_surface(target: Target, open_pool: OpenPool) -> None:
    """`fetch*`, `execute`, `prepare`; it says where it leads."""
    table = await target.create_table("id INT NOT NULL PRIMARY KEY, v INT")
    pool = await open_pool(target.dsn)
    async with pool.acquire() as connection:
        assert connection.node.address in repr(connection)
        assert await connection.execute(f"INSERT INTO {table} VALUES ($1, $2)", 1, 2) == "INSERT 0 1"
        assert await connection.fetchval(f"SELECT v FROM {table} WHERE id = $1", 1) == 2
        assert (await connection.fetchrow(f"SELECT v FROM {table} WHERE id = $1", 1))["v"] == 2
        statement = await connection.prepare(f"SELECT id FROM {table} WHERE v = $1")
        assert [row["id"] for row in await statement.fetch(2)] == [1]
        assert not connection.is_closed()
        assert not connection.is_released()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_released_connection_refuses(target: Target, open_pool: OpenPool) -> None:
    """Every use, and a second release, is a `UsageError`; nothing is sent."""
    pool = await open_pool(target.dsn)
    connection = await pool.acquire()
    await pool.release(connection)
    assert connection.is_released()
    with pytest.raises(UsageError, match="given back"):
        connection.is_closed()
    with pytest.raises(UsageError, match="given back"):
        await connection.fetch("SELECT 1")
    with pytest.raises(UsageError, match="given back"):
        connection.get_server_version()
    with pytest.raises(UsageError, match="given back"):
        await pool.release(connection)
    assert pool.stats().in_use == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_release_inside_the_block_is_enough(target: Target, open_pool: OpenPool) -> None:
    """Leaving the block afterwards does nothing; one `acquire()` serves one borrower."""
    pool = await open_pool(target.dsn)
    acquiring = pool.acquire()
    async with acquiring as connection:
        with pytest.raises(UsageError):
            await acquiring.__aenter__()
        await pool.release(connection)
    assert pool.stats().in_use == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_borrowing_waits_no_longer_than_allowed(target: Target, open_pool: OpenPool) -> None:
    """`AcquireTimeout` at the limit; whoever waits gets the connection that is released."""
    pool = await open_pool(target.dsn, max_size=1, acquire_timeout=0.2)
    await pool.wait_ready()
    held = [await pool.acquire() for _ in pool.topology.nodes()]
    began = time.monotonic()
    with pytest.raises(AcquireTimeout):
        await pool.acquire()
    assert 0.15 < time.monotonic() - began < 3
    waiting = asyncio.create_task(pool.acquire(timeout=30).__aenter__())
    await _until_waiting(pool)
    for connection in held:
        await pool.release(connection)
    await pool.release(await waiting)
    assert pool.stats().in_use == 0
    assert pool.stats().acquire_timeouts == 1


@pytest.mark.parametrize("end", ["timeout", "cancellation"])
async def test_a_connection_on_which_a_call_was_cut_short_is_dropped(
    proxied: Proxied, open_pool: OpenPool, end: str
) -> None:
    """What comes back from it later must not be taken for the next answer."""
    pool = await open_pool(proxied.dsn, address_map=proxied.address_map, topology_update_interval=None)
    await pool.wait_ready()
    connection = await pool.acquire()
    proxied.freeze()
    if end == "timeout":
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT 1", timeout=0.05)
    else:
        call = asyncio.create_task(connection.fetchval("SELECT 1"))
        await asyncio.wait({call}, timeout=0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await pool.release(connection)
    proxied.let_pass()
    assert await pool.fetchval("SELECT 2") == 2
    assert pool.stats().closes == {"state_unknown": 1}


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_statement_error_does_not_cost_the_connection(target: Target, open_pool: OpenPool) -> None:
    """The server said no; the connection is as good as before."""
    pool = await open_pool(target.dsn)
    await pool.wait_ready()
    async with pool.acquire() as connection:
        with pytest.raises(Exception, match="no_such_table"):
            await connection.fetch("SELECT * FROM no_such_table")
    with pytest.raises(Exception, match="no_such_table"):
        await pool.fetch("SELECT * FROM no_such_table")
    assert not pool.stats().closes


# watching


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_events_tell_each_connections_life(pool_class: Any, target: Target) -> None:
    """Opened once, closed once, with the reason; the topology is told first. An observer that raises harms nobody."""
    seen: list[Event] = []

    def observe(event: Event) -> None:
        seen.append(event)
        raise RuntimeError("observer")

    logger = logging.getLogger("picopyn.observe")
    logger.disabled = True
    try:
        async with pool_class(target.dsn, on_event=observe) as pool:
            await pool.wait_ready()
    finally:
        logger.disabled = False
    assert isinstance(seen[0], TopologyChanged)
    assert len(seen[0].nodes_added) == len(await target.members())
    opened = {e.connection: e for e in seen if isinstance(e, ConnectionOpened)}
    closed = {e.connection: e for e in seen if isinstance(e, ConnectionClosed)}
    assert opened.keys() == closed.keys()
    assert {e.reason for e in closed.values()} == {"shutdown"}
    assert {e.address for e in opened.values()} == {m.address for m in await target.members()}
    assert len([e for e in seen if isinstance(e, ConnectionOpened | ConnectionClosed)]) == 2 * len(opened)
    assert all(event.seconds >= 0 for event in opened.values())


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_connect_that_fails_is_an_event(pool_class: Any, target: Target) -> None:
    """With the address and the reason, and without a secret."""
    seen: list[Event] = []
    lost = (await target.members())[0]
    async with pool_class(
        target.dsn,
        on_event=seen.append,
        address_map=lambda host, port: (host, 1) if (host, port) == lost.endpoint else (host, port),
    ) as pool:

        async def told() -> bool:
            return any(isinstance(event, ConnectFailed) for event in seen)

        await target.until(told, "the failure is told")
        assert pool.stats().connect_failures >= 1
    failed = next(event for event in seen if isinstance(event, ConnectFailed))
    assert failed.address == f"{lost.endpoint[0]}:1"
    assert failed.error
    assert target.password not in repr(seen)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_address_map_decides_where_nodes_are_dialled(proxied: Proxied, open_pool: OpenPool) -> None:
    """Every discovered address passes through it; statistics and topology show the mapped ones."""
    pool = await open_pool(proxied.dsn, address_map=proxied.address_map)
    await pool.wait_ready()
    mapped = {f"{proxy.host}:{proxy.port}" for proxy in proxied.proxies.values()}
    assert {node.address for node in pool.topology.nodes()} == mapped
    assert {node.address for node in pool.stats().nodes.values()} == mapped
    assert all(proxy.open for proxy in proxied.proxies.values())


# the topology


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_source_of_ones_own_drives_the_pool(pool_class: Any) -> None:
    """It is listened to, asked, and closed; nothing else is read."""
    with ScriptedServer(Invalidating()) as server:
        source = OneNode(server.host, server.port)
        async with pool_class(server.dsn, topology_source=source) as pool:
            assert [node.name for node in pool.topology.nodes()] == ["only_1_1"]
            asked = source.refreshes
            await pool.refresh_topology()
            assert source.refreshes == asked + 1
            assert await pool.fetchval("SELECT changes FROM t WHERE id = $1", 1) == 0
        assert source.closed


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_refresh_that_fails_is_told_and_what_was_known_stays(pool_class: Any) -> None:
    """Nobody takes an older look for the one he asked for."""

    class Failing(OneNode):
        failing = False

        async def refresh(self) -> None:
            if self.failing:
                raise OSError("the catalogue is on fire")
            await super().refresh()

    with ScriptedServer(Invalidating()) as server:
        source = Failing(server.host, server.port)
        async with pool_class(server.dsn, topology_source=source, topology_update_interval=None) as pool:
            known = pool.topology
            source.failing = True
            with pytest.raises(NoNodeAvailable, match=r"could not be read.*on fire") as caught:
                await pool.refresh_topology()
            assert isinstance(caught.value.__cause__, OSError)
            assert pool.topology is known
            source.failing = False
            assert (await pool.refresh_topology()).nodes()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_source_that_fails_at_first_is_told(pool_class: Any) -> None:
    """Nothing is known of the cluster: `open()` says so instead of waiting for ever."""

    class Failing(TopologySource):
        async def refresh(self) -> None:
            raise OSError("no news")

        async def close(self) -> None:
            return

        def terminate(self) -> None:
            return

    pool = pool_class("postgresql://u@127.0.0.1:1/db", topology_source=Failing(), connect_timeout=0.3)
    with pytest.raises(NoNodeAvailable):
        await pool.open()


@pytest.mark.parametrize(
    ("facade", "how"),
    [("asynchronous", "failed"), ("asynchronous", "cancelled"), ("sync", "failed")],
    indirect=["facade"],
)
async def test_a_pool_with_a_source_of_ones_own_can_be_opened_again(pool_class: Any, how: str) -> None:
    """What the first attempt had begun is given up, and the same source is asked once more."""

    class Failing(OneNode):
        failing, asked = True, asyncio.Event()

        async def refresh(self) -> None:
            self.asked.set()
            if self.failing and how == "failed":
                raise OSError("no news")
            if self.failing:
                await asyncio.Event().wait()
            await super().refresh()

    with ScriptedServer(Invalidating()) as server:
        source = Failing(server.host, server.port)
        pool = pool_class(server.dsn, topology_source=source, connect_timeout=0.3)
        opening = asyncio.create_task(pool.open())
        await source.asked.wait()
        if how == "cancelled":
            opening.cancel()
        with pytest.raises((NoNodeAvailable, asyncio.CancelledError)):
            await opening
        assert source.closed
        source.failing = False
        async with pool:
            assert await pool.fetchval("SELECT changes FROM t WHERE id = $1", 1) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_waiting_until_ready(target: Target, open_pool: OpenPool) -> None:
    """All nodes, or so many leaders and others; `TimeoutError` when they do not come."""
    pool = await open_pool(target.dsn)
    leaders = len(await target.leaders())
    await pool.wait_ready(leaders=1)
    await pool.wait_ready(leaders=leaders, replicas=len(await target.members()) - leaders)
    await pool.wait_ready()
    assert len(pool.stats().nodes) == len(await target.members())
    assert all(node.size for node in pool.stats().nodes.values())
    with pytest.raises(TimeoutError):
        await pool.wait_ready(leaders=leaders + 1, timeout=0.05)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_the_interval_can_be_changed(target: Target, open_pool: OpenPool) -> None:
    """It takes effect at once; too short is refused; a pool that does not look by itself says so."""
    with ScriptedServer(Invalidating()) as server:
        source = OneNode(server.host, server.port)
        pool = await open_pool(server.dsn, topology_source=source, topology_update_interval=3600.0)
        with pytest.raises(ValueError, match="1"):
            pool.update_topology_interval(0.5)
        asked = source.refreshes
        pool.update_topology_interval(1.0)

        async def looked() -> bool:
            return source.refreshes > asked

        await target.until(looked, "it looks by itself", 5)
        never = await open_pool(
            server.dsn, topology_source=OneNode(server.host, server.port), topology_update_interval=None
        )
        with pytest.raises(RuntimeError):
            never.update_topology_interval(2.0)
        await pool.close()
        await never.close()


# settings


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_settings_as_one_value(pool_class: Any, target: Target) -> None:
    """The same as a connection string with keywords; not both."""
    settings = PoolSettings.from_dsn(target.dsn, max_size=3)
    async with pool_class(settings=settings) as pool:
        assert pool.settings is settings
        assert await pool.fetchval("SELECT 1") == 1
    with pytest.raises(ConfigError):
        pool_class(target.dsn, settings=settings)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_a_role_or_a_timeout_of_a_call_that_cannot_be(target: Target, open_pool: OpenPool) -> None:
    """Are refused before anything is sent."""
    pool = await open_pool(target.dsn)
    with pytest.raises(ConfigError, match="role"):
        await pool.fetch("SELECT 1", role="boss")
    for timeout in (0, -1):
        with pytest.raises(ValueError, match="timeout"):
            await pool.fetch("SELECT 1", timeout=timeout)
    assert sum(pool.stats().calls.values()) == 0


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_terminating_a_pool_that_is_closing(pool_class: Any, target: Target) -> None:
    """`close()` returns at once, without waiting for the grace; nobody cancelled whoever waits for it."""
    pool = await pool_class(target.dsn).open()
    connection = await pool.acquire()
    closing = asyncio.create_task(pool.close(grace=60))
    await asyncio.sleep(0)
    pool.terminate()
    await asyncio.wait({closing}, timeout=20)
    assert closing.done()
    assert not closing.cancelled()
    assert closing.exception() is None
    assert connection.is_closed()
    connection.release()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_waiting_until_ready_tells_what_is_missing(pool_class: Any, target: Target) -> None:
    """More leaders than there are: the error says for how long, and which nodes have no connection."""
    async with pool_class(target.dsn) as pool:
        with pytest.raises(TimeoutError, match=r"not ready within 0\.05 s; without a connection: "):
            await pool.wait_ready(leaders=99, timeout=0.05)
