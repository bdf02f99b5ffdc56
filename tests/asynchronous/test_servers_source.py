"""How the list of a YugabyteDB's servers is read, what each failure means, and what is emitted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from picopyn.asynchronous.control_plane import _interval
from picopyn.asynchronous.host_names import HostNames
from picopyn.asynchronous.servers_source import ServersSource
from picopyn.dialects.yugabyte.servers import SERVERS
from picopyn.dsn import Endpoint
from picopyn.errors import NoNodeAvailable
from picopyn.placement_settings import BalanceMode
from picopyn.routing.placement import Placement
from picopyn.routing.server_table import ServerTable
from picopyn.settings import PoolSettings
from picopyn.testing.scripted_connection import Hang, ScriptedConnection, ScriptedConnections, table
from picopyn.topology import EventBatch, Topology
from picopyn.topology_keys import read_topology_keys
from tests.asynchronous.jump_loop import jumping

COLUMNS = "host port num_connections node_type cloud region zone public_ip uuid universe_uuid"
ANY = Placement(BalanceMode.ANY)


def rows(*numbers: int, universe: str = "ours") -> Sequence[Any]:
    return table(
        COLUMNS, *((f"10.0.0.{n}", 5433, 0, "primary", "c", "r", f"z{n}", "", f"u{n}", universe) for n in numbers)
    )


def error(sqlstate: str) -> asyncpg.PostgresError:
    made = asyncpg.PostgresError.new({"S": "ERROR", "C": sqlstate, "M": "it says no"})
    assert isinstance(made, asyncpg.PostgresError)
    return made


class Rig:
    """A source over scripted connections, and a topology that takes what it emits."""

    def __init__(self, *outcomes: Any, wanted: Placement = ANY, seeds: Sequence[str] = ("10.0.0.1", "lb")) -> None:
        self.connections = outcomes
        self.connect = ScriptedConnections(*outcomes)
        self.table = ServerTable(wanted)
        names = HostNames([Endpoint(seed, 5433) for seed in seeds], {}, self._all_addresses)
        self.source = ServersSource(self.connect, names, self.table, resolve=self._resolve, query_timeout=5.0)
        self.topology = Topology()
        self.batches: list[EventBatch] = []
        self.source.listen(self._take)

    async def _all_addresses(self, host: str, port: int) -> Sequence[str]:
        return ["10.0.9.9"]

    async def _resolve(self, host: str) -> str | None:
        return "10.0.9.9"

    def _take(self, batch: EventBatch) -> None:
        self.batches.append(batch)
        self.topology.apply(batch)

    @property
    def hosts(self) -> list[str]:
        return sorted(node.host for node in self.topology.snapshot.nodes())


def answering(*answers: Any) -> ScriptedConnection:
    return ScriptedConnection().when(SERVERS, *answers)


@jumping
async def test_each_refresh_is_one_batch_over_one_connection() -> None:
    """The first replaces everything; what vanished is deleted; an empty list changes nothing."""
    rig = Rig(answering(rows(1, 2), rows(1, 3), rows()))
    for expected in (["10.0.0.1", "10.0.0.2", "lb"], ["10.0.0.1", "10.0.0.3", "lb"], ["10.0.0.1", "10.0.0.3", "lb"]):
        await rig.source.refresh()
        assert rig.hosts == expected
    assert rig.connect.calls == 1
    assert [batch.reset for batch in rig.batches] == [True, False]
    assert rig.table.seeds[0] == "u1"
    assert rig.table.discovered
    await rig.source.close()


@jumping
async def test_a_server_that_does_not_answer_costs_the_connection() -> None:
    """A question has a deadline; what is known stays, and the next refresh asks another server."""
    first = answering(rows(1, 2), Hang())
    rig = Rig(first, answering(rows(2, 3)))
    await rig.source.refresh()
    with pytest.raises(TimeoutError):
        await rig.source.refresh()
    assert first.is_closed()
    assert rig.hosts == ["10.0.0.1", "10.0.0.2", "lb"]
    await rig.source.refresh()
    assert rig.hosts == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "lb"], "a host that is not listed any more is a mere seed"
    await rig.source.close()


@jumping
async def test_until_a_list_was_read_the_hosts_are_the_nodes() -> None:
    """Whatever the reason: no answer, an error, a row that makes no sense."""
    broken = table("host port", ("10.0.0.1", 5433))
    for failing in (answering(Hang()), answering(error("57P01")), answering(broken), None):
        rig = Rig(failing)
        with pytest.raises((TimeoutError, NoNodeAvailable, asyncpg.PostgresError, KeyError)):
            await rig.source.refresh()
        assert rig.hosts == ["10.0.0.1", "lb"]
        assert not rig.table.discovered
        await rig.source.close()


@jumping
async def test_a_later_failure_changes_nothing() -> None:
    """The servers that are known stay the nodes."""
    rig = Rig(answering(rows(1, 2)), None)
    await rig.source.refresh()
    rig.source.leave("", 0)
    rig.connections[0].terminate()
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    assert rig.hosts == ["10.0.0.1", "10.0.0.2", "lb"]
    await rig.source.close()


@pytest.mark.parametrize("sqlstate", ["42883", "42501"])
def test_a_server_without_a_list(sqlstate: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once; a plain PostgreSQL is not asked again, one that forbids it is."""

    @jumping
    async def run() -> None:
        rig = Rig(answering(error(sqlstate)))
        for _ in range(3):
            await rig.source.refresh()
        assert rig.hosts == ["10.0.0.1", "lb"]
        assert len(rig.connections[0].texts()) == (1 if sqlstate == "42883" else 3)
        await rig.source.close()

    with caplog.at_level(logging.INFO):
        run()
    assert len([record for record in caplog.records if "yb_servers()" in record.message]) == 1


@jumping
async def test_another_universe_is_refused() -> None:
    """Its list is not taken, and the host that it came from is no seed any more."""
    stranger = answering(rows(7, 8, universe="theirs"))
    stranger.endpoint = ("lb", 5433)  # type: ignore[attr-defined]
    rig = Rig(answering(rows(1, 2)), stranger, answering(rows(1, 3)))
    await rig.source.refresh()
    rig.connections[0].terminate()
    with pytest.raises(NoNodeAvailable, match="another cluster"):
        await rig.source.refresh()
    assert stranger.is_closed()
    await rig.source.refresh()
    assert rig.hosts == ["10.0.0.1", "10.0.0.3"]
    await rig.source.close()


@jumping
async def test_without_balancing_nothing_is_opened() -> None:
    """The hosts are the nodes, in the order written."""
    rig = Rig(wanted=Placement(), seeds=("b", "a"))
    await rig.source.refresh()
    await rig.source.refresh()
    assert rig.connect.calls == 0
    names = {node.uuid: node.host for node in rig.topology.snapshot.nodes()}
    assert [names[uuid] for uuid in rig.table.seeds] == ["b", "a"]
    assert len(rig.batches) == 2
    await rig.source.close()


def test_keys_without_a_server_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each by itself."""
    keys = read_topology_keys("c.r.z1:1,c.r.z9:2,x.y.*:3")[0]

    @jumping
    async def run() -> None:
        rig = Rig(answering(rows(1)), wanted=Placement(BalanceMode.ANY, keys))
        await rig.source.refresh()
        await rig.source.refresh()
        await rig.source.close()

    run()
    told = [record.message for record in caplog.records if "topology_keys" in record.message]
    assert told == ["no server lies in c.r.z9:2 of topology_keys", "no server lies in x.y.*:3 of topology_keys"]


def test_67_how_often_the_list_is_read() -> None:
    """As the setting says, once a second at most; never by itself where periodic looks are off."""
    for interval, expected in ((0, 1.0), (2, 2.0), (600, 600.0)):
        settings = PoolSettings.from_dsn("postgresql://h", yb_servers_refresh_interval=interval)
        assert _interval(settings, lists=True) == expected
    assert _interval(PoolSettings.from_dsn("postgresql://h", topology_update_interval=None), lists=True) is None
