"""Scenarios of classes "pool", "timeout", "res", "clock" and "conc" from public bug reports, on a real PostgreSQL.

Each test is named after its scenario.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous import Pool
from picopyn.asynchronous.topology_tracker import TopologySource
from picopyn.errors import AcquireTimeout, CallTimeout, NoNodeAvailable, UsageError
from picopyn.observe import ConnectionClosed, Event
from picopyn.testing import FaultProxy, PostgresServer, ScriptedServer, black_hole
from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Talk
from picopyn.topology import EventBatch, EventInstance
from tests.asynchronous.servers import Watch, count
from tests.cancelling import eventually
from tests.threads import FACADES

Measured = Callable[[str, object], None]


def through(pool_class: Any, proxy: FaultProxy, **options: Any) -> Any:
    """A pool that reaches its server through a proxy."""
    return pool_class(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", dialect="postgres", **options)


async def slots_are_intact(pool: Pool, watch: Watch, size: int) -> None:
    """All connections can be held at once, none is in use afterwards, and the server agrees."""
    held = [await pool.acquire(timeout=2) for _ in range(size)]
    for connection in held:
        connection.release()

    async def agree() -> bool:
        return count(pool)[1:] == (0, 0, 0) and count(pool)[0] <= len(await watch.sessions()) <= size + 1

    await eventually(agree, lambda: count(pool))  # one session may be that of the node's watcher


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


# pool


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_timeout_same_tick(pool_class: Any, watch: Watch, postgres: PostgresServer, full_size: bool) -> None:
    """A deadline that ends in the moment in which a connection arrives costs no slot."""
    rng = random.Random(1)
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        pool = through(pool_class, proxy, max_size=3, min_size=0, ssl="disable", application_name=watch.application)
        outcomes = {"handed over": 0, "timeout": 0}
        async with pool:
            for number in range(600 if full_size else 150):
                delay = rng.uniform(0, 0.01)
                proxy.delay(delay)
                try:
                    async with pool.acquire(timeout=max(0.001, 2 * delay + 0.0005 * (number % 9 - 4))) as held:
                        outcomes["handed over"] += 1
                        if number % 2:
                            await held.close()
                except TimeoutError:
                    outcomes["timeout"] += 1
            proxy.let_pass()
            await slots_are_intact(pool, watch, 3)
    assert all(outcomes.values())


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_hook_raises(watch: Watch) -> None:
    """Fifty failures of the hook: its own error each time, no session and no descriptor left, and then it works."""
    failures = 50

    async def hook(connection: Any) -> None:
        nonlocal failures
        if pool.stats().connects and failures:
            failures -= 1
            raise LookupError("not now")

    pool = watch.pool(min_size=0, max_size=2, after_connect=hook)
    async with pool:
        async with pool.acquire() as first:
            await first.close()
        before = descriptors()
        for _ in range(50):
            with pytest.raises(LookupError, match="not now"):
                await pool.acquire()
            assert len(await watch.sessions()) <= 2
        gc.collect()
        assert abs(descriptors() - before) <= 2
        began = time.monotonic()
        assert await pool.fetchval("SELECT 1") == 1
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("variant", ["idle", "nobody asks", "waiters"])
async def test_pool_outage_longer_than_backoff(
    pool_class: Any, watch: Watch, postgres: PostgresServer, variant: str, full_size: bool, measured: Measured
) -> None:
    """However long it takes: the first call after the server is back is answered, `min_size` comes back by itself."""
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        pool = through(pool_class, proxy, min_size=2, max_size=4, ssl="disable", application_name=watch.application)
        async with pool:
            await eventually_idle(pool, 2)
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(0.05)
            until = time.monotonic() + (8 if full_size else 1)
            while time.monotonic() < until:
                with pytest.raises(NoNodeAvailable) as caught:
                    await pool.fetchval("SELECT 1", timeout=0.3)
                assert isinstance(caught.value.__cause__, OSError)
                if variant == "nobody asks":
                    await asyncio.sleep(until - time.monotonic())
            calls = []
            if variant == "waiters":
                calls = [asyncio.create_task(pool.fetchval("SELECT 1", timeout=5)) for _ in range(20)]
                await asyncio.sleep(0.1)
            proxy.let_pass()
            began = time.monotonic()
            if variant == "idle":
                assert await pool.fetchval("SELECT 1", timeout=1.5) == 1
                measured("first answer after the outage, seconds", time.monotonic() - began)
            assert await asyncio.gather(*calls) == [1] * len(calls)
            await eventually_idle(pool, 2, 3.0)


async def eventually_idle(pool: Pool, number: int, limit: float = 30.0) -> None:
    """Wait until so many connections are idle."""
    until = time.monotonic() + limit
    while pool.stats().idle < number:
        assert time.monotonic() < until, pool.stats().nodes
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("own", [True, False])
async def test_pool_nested_acquire(watch: Watch, own: bool) -> None:
    """Tasks that hold a connection each and want another one: the wait ends, and says what is going on."""
    pool = watch.pool(max_size=2, acquire_timeout=0.6)
    async with pool:
        errors: list[BaseException] = []

        async def nested() -> None:
            async with pool.acquire() as outer:
                while pool.stats().in_use < 2:
                    await asyncio.sleep(0.001)
                with pytest.raises(AcquireTimeout) as caught:
                    async with pool.acquire(timeout=0.3 if own else None):
                        pass
                errors.append(caught.value)
                while len(errors) < 2:
                    await asyncio.sleep(0.01)
                assert await outer.fetchval("SELECT 1") == 1

        began = time.monotonic()
        await asyncio.gather(nested(), nested())
        took = time.monotonic() - began
        assert (0.3 if own else 0.6) <= took < 1.2
        assert any("all 2 in use, 1 calls wait" in str(error) for error in errors)
        await slots_are_intact(pool, watch, 2)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("how", ["by an administrator", "reset"])
async def test_pool_idle_killed_by_server(
    pool_class: Any, watch: Watch, postgres: PostgresServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Idle connections that die are nobody's error: the next calls are answered, nothing complains."""
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        pool = through(pool_class, proxy, min_size=5, max_size=5, ssl="disable", application_name=watch.application)
        async with pool:
            await eventually_idle(pool, 5)
            if how == "reset":
                proxy.cut()
            else:
                await watch.kill()
            await asyncio.sleep(0.2)
            for _ in range(20):
                assert await pool.fetchval("SELECT 1") == 1
            assert await asyncio.gather(*(pool.fetchval("SELECT 1") for _ in range(20))) == [1] * 20
            await eventually_idle(pool, 5)
            assert pool.stats().connects <= 12
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def test_pool_stale_waiters_slow_queue(watch: Watch, full_size: bool, measured: Measured) -> None:
    """Clients that hang up while they wait slow nobody down who behaves."""
    pool = watch.pool(max_size=4, min_size=4)
    rng = random.Random(2)
    waits: list[float] = []
    lags: list[float] = []

    async def worker(until: float) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            async with pool.acquire() as connection:
                waits.append(time.monotonic() - began)
                await connection.fetchval("SELECT 1")

    async def hang_up() -> None:
        acquiring = asyncio.ensure_future(acquire())
        await asyncio.sleep(rng.uniform(0, 0.02))
        acquiring.cancel()
        await asyncio.wait({acquiring})

    async def acquire() -> None:
        async with pool.acquire():
            await asyncio.sleep(0.001)

    async def sample(until: float) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - began - 0.01)

    async with pool:
        until = time.monotonic() + (10 if full_size else 1.5)
        noise = [hang_up() for _ in range(2000 if full_size else 400)]
        await asyncio.gather(*(worker(until) for _ in range(4)), sample(until), *noise)
        assert pool.stats().waiting == 0
        await slots_are_intact(pool, watch, 4)
    waits.sort()
    measured("p99 wait of a worker, seconds", waits[int(len(waits) * 0.99)])
    measured("longest loop lag, seconds", max(lags))


class Three(TopologySource):
    """Three nodes; one of them can be taken away."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__()
        self.ports = ports
        self._sequence = 0

    async def refresh(self) -> None:
        self._sequence += 1
        nodes = [
            EventInstance(uuid=str(port), name=str(port), host="127.0.0.1", port=port, online=True)
            for port in self.ports
        ]
        gone = EventInstance(uuid=str(gone_port), op="delete") if (gone_port := self._gone()) else None
        self.emit(EventBatch((*nodes, gone) if gone else tuple(nodes), 1, self._sequence, reset=self._sequence == 1))

    def _gone(self) -> int | None:
        return getattr(self, "gone", None)

    async def close(self) -> None:
        pass

    def terminate(self) -> None:
        pass


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_pool_close_of_one_node_blocks_all(watch: Watch, postgres: PostgresServer, measured: Measured) -> None:
    """A node that leaves while it hangs, with everything in use there, delays nobody else."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy("127.0.0.1", postgres.port or 0)) for _ in range(3)]
        source = Three([proxy.port for proxy in proxies])
        pool = watch.pool(topology_source=source, max_size=10, min_size=5)
        async with pool:
            await eventually_idle(pool, 15)
            held = [await pool.acquire(node=str(proxies[0].port)) for _ in range(3)]
            proxies[0].freeze()
            longest, ended = 0.0, asyncio.Event()

            async def work() -> None:
                nonlocal longest
                while not ended.is_set():
                    began = time.monotonic()
                    async with pool.acquire(node=str(random.choice(proxies[1:]).port)) as connection:
                        assert await connection.fetchval("SELECT 1") == 1
                    longest = max(longest, time.monotonic() - began)

            hanging = next(one for one in pool._cluster.pools if one.node.port == proxies[0].port).slots
            there = [*hanging.held, *hanging.idle]
            workers = [asyncio.create_task(work()) for _ in range(20)]
            await asyncio.sleep(0.1)
            source.ports, source.gone = source.ports[1:], proxies[0].port  # type: ignore[attr-defined]
            await pool.refresh_topology()
            began = time.monotonic()
            assert len(pool.topology.nodes()) == 2
            assert pool.stats().size >= 10
            assert time.monotonic() - began < 3
            for connection in held:
                connection.release()
            while not all(link.is_closed() for link in there):
                assert time.monotonic() - began < 5
                await asyncio.sleep(0.02)
            measured("sockets of the node that left are gone after, seconds", time.monotonic() - began)
            ended.set()
            await asyncio.gather(*workers)
            measured("longest call elsewhere, seconds", longest)
            proxies[0].let_pass()


# a restart under load


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_every_waiter_ends_with_a_result_or_a_clear_error_when_a_server_restarts(
    pool_class: Any, watch: Watch, postgres: PostgresServer, full_size: bool, measured: Measured
) -> None:
    """A hundred calls wait while it is away; the first is answered soon after it accepts again."""
    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        pool = through(pool_class, proxy, max_size=10, min_size=2, ssl="disable", application_name=watch.application)
        async with pool:
            await eventually_idle(pool, 2)
            answered: list[float] = []

            async def call() -> Any:
                result = await pool.fetchval("SELECT 1", timeout=10)
                answered.append(time.monotonic())
                return result

            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(0.05)
            calls = [asyncio.create_task(call()) for _ in range(100)]
            firsts = []
            for pause in (0.3, 0.77, 1.5) if full_size else (0.1, 0.77):
                await asyncio.sleep(pause)
                proxy.let_pass()
                back = time.monotonic()
                await asyncio.wait(calls, timeout=5)
                assert all(task.done() for task in calls)
                firsts.append(min(answered) - back)
                answered.clear()
                assert [task.result() for task in calls] == [1] * 100
                proxy.refuse()
                proxy.cut()
                await asyncio.sleep(0.05)
                calls = [asyncio.create_task(call()) for _ in range(100)]
            measured("first answers after the server accepts again, seconds", [round(one, 3) for one in firsts])
            proxy.let_pass()
            await asyncio.gather(*calls)


async def test_a_thousand_idle_waiters_cost_nearly_nothing(watch: Watch, measured: Measured) -> None:
    """Nobody polls."""

    async def share_of_a_core() -> float:
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.sleep(2)
        return (time.process_time() - cpu) / (time.monotonic() - began)

    pool = watch.pool(max_size=1)
    async with pool:
        held = await pool.acquire()
        measured("share of a core while nobody waits", await share_of_a_core())
        waiting = [asyncio.create_task(pool.fetchval("SELECT 1", timeout=60)) for _ in range(1000)]
        while pool.stats().waiting < 1000:
            await asyncio.sleep(0.01)
        share = await share_of_a_core()
        measured("share of a core while 1 000 wait", share)
        assert share < 0.1
        held.release()
        await asyncio.gather(*waiting)


# timeout


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize("dead", [1, 3])
@pytest.mark.parametrize("how", ["mute", "no answer to the SYN"])
async def test_timeout_multi_host_budget(
    pool_class: Any, watch: Watch, postgres: PostgresServer, dead: int, how: str, measured: Measured
) -> None:
    """Dead hosts in front of the list cost next to nothing; with all dead, each is listed with its reason."""
    with ExitStack() as stack:
        places: list[Any] = []
        for _ in range(dead):
            if how == "mute":
                proxy = stack.enter_context(FaultProxy("127.0.0.1", postgres.port or 0))
                proxy.mute()
                places.append(proxy)
            else:
                places.append(stack.enter_context(black_hole()))
        hosts = [f"127.0.0.1:{place.port}" for place in places]
        began = time.monotonic()
        dsn = f"postgresql://postgres@{','.join([*hosts, f'127.0.0.1:{postgres.port}'])}/postgres"
        async with pool_class(dsn, ssl="disable", connect_timeout=4, application_name=watch.application) as pool:
            assert await pool.fetchval("SELECT 1", timeout=4) == 1
            measured(f"open with {dead} dead of {dead + 1} hosts ({how}), seconds", time.monotonic() - began)
            assert time.monotonic() - began < 10
        began = time.monotonic()
        with pytest.raises(NoNodeAvailable) as caught:
            await pool_class(f"postgresql://postgres@{','.join(hosts)}/postgres", connect_timeout=0.5).open()
        assert time.monotonic() - began < 10
        assert set(caught.value.reasons) == set(hosts)


class Silent:
    """A server that stops talking at a stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    async def play(self, talk: Talk) -> None:
        stages = {
            "after the startup message": [],
            "after AuthenticationOk": [wire.AUTHENTICATION_OK],
            "before ReadyForQuery": [
                wire.AUTHENTICATION_OK,
                wire.parameter_status("server_version", "18.0"),
                wire.parameter_status("client_encoding", "UTF8"),
                wire.message(b"K", bytes(8)),
            ],
        }
        said = stages.get(self.stage, [*stages["before ReadyForQuery"], wire.READY])
        talk.send(*said)
        await asyncio.Event().wait()


@pytest.mark.parametrize("facade", FACADES, indirect=True)
@pytest.mark.parametrize(
    "stage", ["after the startup message", "after AuthenticationOk", "before ReadyForQuery", "after ReadyForQuery"]
)
async def test_timeout_accept_never_answer(pool_class: Any, stage: str, full_size: bool) -> None:
    """Wherever a server falls silent, the limit holds, and the socket is closed."""
    with ScriptedServer(lambda _: Silent(stage), greet=False) as server:
        dsn = f"{server.dsn}?sslmode=disable"
        for _ in range(3 if full_size else 1):
            pool = pool_class(dsn, dialect="postgres", connect_timeout=0.4, min_size=1)
            began = time.monotonic()
            with pytest.raises((NoNodeAvailable, CallTimeout)):
                async with pool:
                    await pool.fetchval("SELECT 1", timeout=0.4)
            assert time.monotonic() - began < 10


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_timeout_dead_peer_keepalive(pool_class: Any, watch: Watch, postgres: PostgresServer) -> None:
    """The system's options are set on every connection; an idle connection is replaced after `max_idle`."""
    words = "keepalives=1&keepalives_idle=7&keepalives_interval=2&keepalives_count=3&tcp_user_timeout=2500"
    closed: list[ConnectionClosed] = []

    def observe(event: Event) -> None:
        if isinstance(event, ConnectionClosed):
            closed.append(event)

    with FaultProxy("127.0.0.1", postgres.port or 0) as proxy:
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{words}&max_idle=0.4"
        pool = pool_class(
            dsn,
            dialect="postgres",
            ssl="disable",
            min_size=2,
            on_event=observe,
            application_name=watch.application,
        )
        async with pool:
            await eventually_idle(pool, 2)
            before = set(await watch.sessions())
            for node in pool._cluster.pools:
                for link in node.slots.idle:
                    sock = getattr(link, "wire", link)._transport.get_extra_info("socket")
                    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500
            await asyncio.sleep(0.7)
            await eventually_idle(pool, 2)
            assert not before & set(await watch.sessions())
            assert {event.reason for event in closed} == {"idle"}
            proxy.freeze()
            began = time.monotonic()
            with pytest.raises(CallTimeout):
                await pool.fetchval("SELECT 1", timeout=0.3)
            assert time.monotonic() - began < 20
            proxy.let_pass()


# res


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_res_timers(watch: Watch, full_size: bool) -> None:
    """A deadline leaves no timer behind when the answer came first."""
    loop: Any = asyncio.get_running_loop()
    async with watch.pool(max_size=4) as pool:
        await pool.fetchval("SELECT 1", timeout=600)

        async def work() -> None:
            for _ in range(5000 if full_size else 100):
                await pool.fetchval("SELECT 1", timeout=600)
                async with pool.acquire(timeout=600) as connection:
                    await connection.fetchval("SELECT 1", timeout=600)

        await asyncio.gather(*(work() for _ in range(10)))
        far = [handle for handle in loop._scheduled if not handle.cancelled() and handle.when() > loop.time() + 100]
        others = [handle for handle in far if "_StatementCache" not in repr(handle)]  # one for each cached statement
        assert len(others) <= 2  # the pool's alarm, and the one of those who wait
        assert len(far) <= 4 * 2
        # asyncio keeps cancelled handles until they are many; it sweeps them itself
        assert len(loop._scheduled) < 300


# clock


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_clock_wall_jump(watch: Watch, monkeypatch: pytest.MonkeyPatch, full_size: bool) -> None:
    """The wall clock may jump as it likes: nothing expires by it, no wait ends by it."""
    real = time.time
    jump = 0.0

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return super().now(tz) + datetime.timedelta(seconds=jump)

    monkeypatch.setattr(time, "time", lambda: real() + jump)
    monkeypatch.setattr(datetime, "datetime", Jumping)
    pool = watch.pool(max_size=2, min_size=2, max_lifetime=60.0, max_idle=30.0)
    async with pool:
        await eventually_idle(pool, 2)
        connects = pool.stats().connects
        ended = time.monotonic() + (5 if full_size else 0.7)

        async def work() -> None:
            while time.monotonic() < ended:
                assert await pool.fetchval("SELECT 1", timeout=2) == 1

        workers = [asyncio.create_task(work()) for _ in range(3)]
        while time.monotonic() < ended:
            jump = random.choice([3600.0, -3600.0, 3.2e8, 0.0])
            await asyncio.sleep(0.05)
        await asyncio.gather(*workers)
        held = [await pool.acquire() for _ in range(2)]
        jump = 3.2e8
        began = time.monotonic()
        with pytest.raises(AcquireTimeout):
            await pool.fetchval("SELECT 1", timeout=0.5)
        assert 0.49 < time.monotonic() - began < 8
        for connection in held:
            connection.release()
        assert pool.stats().connects == connects


# conc


async def test_conc_two_tasks_one_connection(watch: Watch, full_size: bool) -> None:
    """The second task is refused, the first one's call is not damaged; a release during a call waits for its end."""
    async with watch.pool(max_size=1) as pool:
        for number in range(200 if full_size else 40):
            async with pool.acquire() as connection:
                calls = [connection.fetchval("SELECT $1::int", number + n) for n in range(10)]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert answers[0] == number
                assert all(isinstance(answer, UsageError) for answer in answers[1:])
                assert await connection.fetchval("SELECT 1") == 1
                left = asyncio.create_task(connection.fetchval("SELECT pg_sleep(0.002)"))
                await asyncio.sleep(0)
            assert await pool.fetchval("SELECT $1::int", number) == number
            await left
        await watch.agrees(pool)
        assert count(pool)[0] == 1


# fairness


async def test_calls_at_a_server_are_served_in_the_order_of_asking(watch: Watch) -> None:
    """Not one inversion among a thousand. Threads note their answers in any order, see `tests/sync`."""
    async with watch.pool(max_size=1) as pool:
        order: list[int] = []

        async def call(number: int) -> None:
            await pool.fetchval("SELECT 1", timeout=30)
            order.append(number)

        await asyncio.gather(*(call(number) for number in range(1000)))
        assert order == sorted(order)


@pytest.mark.parametrize("facade", FACADES, indirect=True)
async def test_expired_connections_are_replaced_under_load(watch: Watch) -> None:
    """No call notices; afterwards every session is a new one."""
    async with watch.pool(max_size=4, min_size=4) as pool:
        await eventually_idle(pool, 4)
        before = set(await watch.sessions())
        ended = asyncio.Event()

        async def work() -> None:
            while not ended.is_set():
                assert await pool.fetchval("SELECT 1") == 1

        workers = [asyncio.create_task(work()) for _ in range(8)]
        await asyncio.sleep(0.05)
        await pool.expire_connections()

        async def replaced() -> bool:
            return not before & set(await watch.sessions())

        await eventually(replaced, lambda: "old sessions are left")
        ended.set()
        await asyncio.gather(*workers)


async def test_asyncpg_is_what_it_was_when_we_leaned_on_it() -> None:
    """`_params` has a field `ssl` that says whether a cancel request asks for TLS."""
    assert "ssl" in asyncpg.connect_utils._ConnectionParameters._fields
