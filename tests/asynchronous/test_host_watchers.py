"""Watchers of hosts: what they ask, what they tell and when, and that one host never waits for another."""

from __future__ import annotations

import asyncio
import logging
import socket
from random import Random
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.host_names import HostNames
from picopyn.asynchronous.host_watchers import HostWatchers
from picopyn.dialects.postgres.host_question import HOST_QUESTIONS
from picopyn.dsn import Endpoint
from picopyn.errors import NoNodeAvailable
from picopyn.routing.host_roles import Host
from picopyn.routing.host_table import HostTable
from picopyn.topology import EventBatch, Topology

PRIMARY = {"in_recovery": False, "read_only": "off", "timeline": 1, "written": "0/10"}
STANDBY = {"in_recovery": True, "read_only": "on", "timeline": 1, "replayed": "0/10"}


def server_error(sqlstate: str) -> asyncpg.PostgresError:
    """An error as asyncpg raises it for what a server says."""
    error = asyncpg.PostgresError.new({"S": "ERROR", "C": sqlstate, "M": "no"})
    assert isinstance(error, asyncpg.PostgresError)
    return error


class Server:
    """A server that answers the question about its role as told: a row, an error, or not at all."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.refuses: Exception | None = None
        self.asked: list[str] = []
        self.connections: list[Link] = []
        self.awake = asyncio.Event()
        self.awake.set()


class Link:
    """A connection to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.closed = False
        self.lost: Any = None

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        self.server.asked.append(query)
        await self.server.awake.wait()
        answer = self.server.answer
        if callable(answer):
            answer = answer(query)
        if isinstance(answer, Exception):
            raise answer
        return [] if answer is None else [answer]

    def tell_when_lost(self, listener: Any) -> None:
        self.lost = listener

    def is_closed(self) -> bool:
        return self.closed

    async def close(self, *, timeout: float | None = None) -> None:
        self.closed = True

    def terminate(self) -> None:
        self.closed = True


class Place:
    """Servers by their letter, or by an address behind a seed, watched."""

    def __init__(self, *, seeds: str = "", timeout: float = 60.0, **servers: Server) -> None:
        self.servers = servers
        self.table = HostTable()
        self.topology = Topology()
        self.batches: list[EventBatch] = []
        self.news = asyncio.Event()
        self.names: dict[tuple[str, int], str] = {}
        self.resolved: dict[str, list[str]] = {}
        names = HostNames([Endpoint(f"{letter}.test", 5432) for letter in seeds or servers], self.names, self._look_up)
        self._letters = {host.uuid: letter for host, letter in zip(names.hosts, seeds or servers, strict=True)}
        now = asyncio.get_running_loop().time
        self.source = HostWatchers(
            names, self._connect, self.table, delay=60.0, timeout=timeout, now=now, rng=Random(1)
        )
        self.source.listen(self._take)

    async def _look_up(self, host: str, port: int) -> list[str]:
        """As many addresses as a test gives a name; else it stays a name."""
        if host not in self.resolved:
            raise socket.gaierror
        return self.resolved[host]

    def uuid(self, letter: str) -> str:
        """The identity of a host."""
        return next(uuid for uuid, own in self._letters.items() if own == letter)

    def trouble(self, letter: str) -> str | None:
        """Why a host did not answer last."""
        return self.table.trouble(self.uuid(letter))

    def shown(self, role: str | None = None) -> list[str]:
        """The hosts that the topology shows."""
        return [node.host.partition(".")[0] for node in self.topology.snapshot.nodes(role=role)]

    def _take(self, batch: EventBatch) -> None:
        self.batches.append(batch)
        self.topology.apply(batch)
        self.news.set()

    async def _connect(self, host: Host) -> Any:
        server = self.servers[host.host.removesuffix(".test")]
        await asyncio.sleep(0)
        if server.refuses is not None:
            raise server.refuses
        link = Link(server)
        server.connections.append(link)
        return link

    @property
    def leader(self) -> str:
        """Who leads, as the topology shows it."""
        return "".join(self.shown("leader"))

    async def until_led_by(self, letter: str) -> None:
        while self.leader != letter:
            self.news.clear()
            await self.news.wait()


async def test_what_one_host_tells_is_published_before_the_slowest_has_answered() -> None:
    """The first batch has one role; the other host is a node without one until it answers."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    place.servers["b"].awake.clear()
    await place.source.refresh()
    assert place.leader == "a"
    assert [node.current_state for node in place.topology.snapshot.nodes()] == ["primary", "unknown"]
    place.news.clear()
    place.servers["b"].awake.set()
    await place.news.wait()
    assert place.shown("replica") == ["b"]
    assert [batch.reset for batch in place.batches] == [True, False, False][: len(place.batches)]
    await place.source.close()
    assert all(link.closed for server in place.servers.values() for link in server.connections)


async def test_a_refresh_is_never_older_than_its_call() -> None:
    """A look that was under way does not count; a second one is taken."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()
    for server in place.servers.values():
        server.answer = STANDBY if server.answer is PRIMARY else {**PRIMARY, "timeline": 2}
    await place.source.refresh()
    assert place.leader == "b"
    asked = [len(server.asked) for server in place.servers.values()]
    assert asked == [3, 3] or asked == [2, 2]
    await place.source.refresh()
    assert len(place.batches) <= 5
    await place.source.close()


async def test_no_answer_at_all_fails_with_every_reason() -> None:
    """And nothing that was known is taken back."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()
    for server in place.servers.values():
        server.refuses = ConnectionRefusedError("nobody there")
        server.connections[-1].closed = True
    with pytest.raises(NoNodeAvailable, match="nobody there") as caught:
        await place.source.refresh()
    assert "a" in str(caught.value)
    assert place.leader == "a"
    assert not place.table.led
    place.source.terminate()


async def test_without_a_leader_hosts_are_looked_at_eagerly() -> None:
    """However long the usual pause is: a promotion is seen soon."""
    place = Place(a=Server(STANDBY), b=Server(STANDBY))
    await place.source.refresh()
    assert place.leader == ""
    place.servers["b"].answer = PRIMARY
    await place.until_led_by("b")
    await place.source.close()


async def test_a_lost_connection_is_a_reason_to_look() -> None:
    """At once, on a new one."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()
    place.servers["a"].answer = STANDBY
    place.servers["b"].answer = {**PRIMARY, "timeline": 2}
    for server in place.servers.values():
        link = server.connections[-1]
        link.closed = True
        link.lost(link)
    await place.until_led_by("b")
    assert [len(server.connections) for server in place.servers.values()] == [2, 2]
    await place.source.close()


async def test_a_look_has_a_limit_of_its_own() -> None:
    """The connection is dropped, the host is in trouble, and back as soon as it answers."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY), timeout=0.02)
    await place.source.refresh()
    place.servers["a"].awake.clear()
    await place.source.refresh()  # the other one answers
    while place.trouble("a") is None:
        await asyncio.sleep(0.001)
    assert place.servers["a"].connections[0].closed
    assert place.leader == "a"
    place.servers["a"].awake.set()
    while place.trouble("a") is not None:
        await asyncio.sleep(0.001)
    await place.source.close()


@pytest.mark.parametrize("understood", range(len(HOST_QUESTIONS)))
async def test_a_server_is_asked_for_less_until_it_answers(understood: int) -> None:
    """And from then on only for that; what it does not tell makes it a host like any other."""
    answers = [PRIMARY, PRIMARY, PRIMARY, {"transaction_read_only": "off"}, {"alive": 1}]

    def answer(query: str) -> Any:
        asked = HOST_QUESTIONS.index(query)
        return server_error("42883") if asked < understood else answers[asked]

    place = Place(a=Server(answer))
    await place.source.refresh()
    assert place.leader == "a"
    await place.source.refresh()
    assert place.servers["a"].asked[: understood + 2] == [*HOST_QUESTIONS[: understood + 1], HOST_QUESTIONS[understood]]
    assert len(place.servers["a"].connections) == 1
    await place.source.close()


@pytest.mark.parametrize("answer", [None, {"written": "junk"}, server_error("57P01"), server_error("42501")], ids=str)
async def test_an_answer_without_sense_costs_the_connection(answer: Any) -> None:
    """It is no role, whatever it is."""
    place = Place(a=Server(answer), b=Server(PRIMARY))
    await place.source.refresh()
    while place.trouble("a") is None:
        await asyncio.sleep(0)
    assert place.servers["a"].connections[0].closed
    assert place.leader == "b"
    await place.source.close()


async def test_a_cancellation_that_nobody_asked_for_ends_no_watcher(caplog: pytest.LogCaptureFixture) -> None:
    """The driver may raise one; it is an error like any other (hasql H-R10)."""
    caplog.set_level(logging.INFO)
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()

    def cancelled(_: str) -> Any:
        raise asyncio.CancelledError

    place.servers["a"].answer = cancelled
    await place.source.refresh()
    assert place.trouble("a") is not None
    place.servers["a"].answer = PRIMARY
    await place.source.refresh()
    while place.trouble("a") is not None:
        await asyncio.sleep(0)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the role of a.test:5432 cannot be read: ConnectionError",
        "the role of a.test:5432 can be read again",
    ]
    await place.source.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
async def test_h_r11_an_error_while_a_connection_is_given_up_ends_no_watcher(error: type[BaseException]) -> None:
    """The question fails, and dropping the connection fails as well: the next look has a new connection."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()

    def stubborn() -> None:
        raise error

    server = place.servers["a"]
    server.connections[0].terminate = stubborn  # type: ignore[method-assign]
    server.answer = OSError("gone")
    await place.source.refresh()
    server.answer = PRIMARY
    await place.source.refresh()
    while place.trouble("a") is not None:
        await asyncio.sleep(0)
    assert [link.closed for link in server.connections] == [False, False]  # the first one did not let itself be closed
    await place.source.close()


async def test_h_r12_a_watcher_tries_to_connect_until_it_can() -> None:
    """A host that cannot be reached twice is a host like any other afterwards."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    server = place.servers["b"]
    server.refuses = ConnectionRefusedError("connection refused")
    for _ in range(2):
        await place.source.refresh()
        assert place.trouble("b") == "connection refused"
    server.refuses = None
    await place.source.refresh()
    while place.shown("replica") != ["b"]:
        place.news.clear()
        await place.news.wait()
    assert place.trouble("b") is None
    await place.source.close()


async def test_it_can_be_opened_again() -> None:
    """As a pool that could not be opened is: everything begins anew."""
    place = Place(a=Server(PRIMARY), b=Server(STANDBY))
    await place.source.refresh()
    await place.source.close()
    place.source.unlisten()
    place.source.listen(place._take)
    place.batches.clear()
    await place.source.refresh()
    assert place.batches[0].reset
    assert place.leader == "a"
    place.source.terminate()
    await asyncio.sleep(0)


async def test_terminated_while_connecting_it_leaves_nothing_open() -> None:
    """The connection that comes too late is dropped."""
    place = Place(a=Server(PRIMARY))
    refreshing = asyncio.create_task(place.source.refresh())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    place.source.terminate()
    refreshing.cancel()
    await asyncio.wait({refreshing})
    for _ in range(5):
        await asyncio.sleep(0)
    assert all(link.closed for link in place.servers["a"].connections)


# --- names -------------------------------------------------------------------------------------------------


async def test_every_address_of_a_name_is_a_host() -> None:
    """With a role of its own; what goes by names (certificates, password files) still does."""
    behind = {"10.0.0.1": Server(STANDBY), "10.0.0.2": Server(PRIMARY)}
    place = Place(seeds="d", d=Server(PRIMARY), **behind)
    place.resolved["d.test"] = ["10.0.0.2", "10.0.0.1", "10.0.0.1", "::1"]
    await place.source.refresh()
    while len(place.topology.snapshot.nodes(role="replica")) != 1:
        place.news.clear()
        await place.news.wait()
    assert [node.host for node in place.topology.snapshot.nodes()] == ["10.0.0.1", "10.0.0.2"]
    assert [node.host for node in place.topology.snapshot.nodes(role="leader")] == ["10.0.0.2"]
    assert place.names == {("10.0.0.1", 5432): "d.test", ("10.0.0.2", 5432): "d.test"}
    await place.source.close()
    assert all(link.closed for server in place.servers.values() for link in server.connections)
