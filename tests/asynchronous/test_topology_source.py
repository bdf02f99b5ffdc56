"""How the polling source reads, what each failure costs, and what it emits."""

from __future__ import annotations

import asyncio
import logging

import pytest

from picopyn.asynchronous.topology_tracker import PollingTopologySource, TopologyTracker
from picopyn.dialects.picodata import discovery
from picopyn.errors import NoNodeAvailable
from picopyn.testing.scripted_connection import Hang, ScriptedConnection, ScriptedConnections, table
from picopyn.topology import EventBatch, Topology
from tests.asynchronous.catalog import Cluster, ServerError, denied
from tests.asynchronous.jump_loop import jumping

MAIN = (discovery.REPLICASETS, discovery.INSTANCES)


class Rig:
    """A polling source over scripted connections to one cluster, and a topology that takes what it emits."""

    def __init__(self, *connections, **options) -> None:
        self.cluster = Cluster()
        self.connections = connections or (ScriptedConnection(), ScriptedConnection())
        for connection in self.connections:
            if isinstance(connection, ScriptedConnection):
                self.cluster.answer(connection)
        self.connect = ScriptedConnections(*self.connections)
        self.source = PollingTopologySource(self.connect, now=lambda: asyncio.get_running_loop().time(), **options)
        self.topology = Topology()
        self.batches: list[EventBatch] = []
        self.source.listen(self._take)

    def _take(self, batch: EventBatch) -> None:
        self.batches.append(batch)
        self.topology.apply(batch)

    @property
    def snapshot(self):
        """What is known."""
        return self.topology.snapshot

    @property
    def first(self) -> ScriptedConnection:
        """The first connection."""
        return self.connections[0]


# Order and events


@jumping
async def test_it_reads_replicasets_instances_tiers_and_then_the_buckets_of_each_tier():
    """The order of a poll, on one connection that is opened on first use."""
    rig = Rig()
    rig.cluster.tiers["cold"] = 100
    rig.cluster.ranges["cold"] = [(1, 100, "r2")]
    assert rig.connect.calls == 0
    await rig.source.refresh()
    assert rig.first.texts() == [*MAIN, discovery.TIERS, discovery.BUCKETS, discovery.BUCKETS]
    assert [asked.args for asked in rig.first.asked[-2:]] == [("default",), ("cold",)]
    assert rig.connect.calls == 1
    await rig.source.close()


@jumping
async def test_a_poll_is_one_batch():
    """Everything one refresh read arrives in one step."""
    rig = Rig()
    await rig.source.refresh()
    await rig.source.refresh()
    assert len(rig.batches) == 2
    assert [batch.reset for batch in rig.batches] == [True, False]
    assert rig.snapshot.leader("uuid-r1").name == "r1_1"
    assert rig.snapshot.owner("default", 1501) == "uuid-r2"
    assert rig.snapshot.bucket_count("default") == 3000


@jumping
async def test_polled_rows_carry_the_sequence_of_their_refresh():
    """Facts of one connection are numbered, so an older one never replaces a newer one."""
    rig = Rig()
    for _ in range(3):
        await rig.source.refresh()
    sequences = [batch.sequence for batch in rig.batches]
    assert sequences == sorted(set(sequences))
    assert {batch.epoch for batch in rig.batches} == {1}


@jumping
async def test_what_vanished_from_a_poll_is_deleted():
    """An expelled instance and a replicaset that is gone are forgotten with the next refresh."""
    rig = Rig()
    await rig.source.refresh()
    del rig.cluster.states["r2_1"], rig.cluster.states["r2_2"], rig.cluster.leaders["r2"]
    rig.cluster.ranges["default"] = [(1, 3000, "r1")]
    await rig.source.refresh()
    assert {node.name for node in rig.snapshot.all_nodes()} == {"r1_1", "r1_2"}
    assert rig.snapshot.replicaset("uuid-r2") is None
    assert rig.snapshot.owner("default", 3000) == "uuid-r1"


@jumping
async def test_a_tier_without_buckets_is_not_asked_for_any():
    """An arbiter tier has no map; the server would refuse the question."""
    rig = Rig()
    rig.cluster.tiers["arbiter"] = 0
    await rig.source.refresh()
    assert rig.first.texts().count(discovery.BUCKETS) == 1
    assert rig.snapshot.bucket_count("arbiter") == 0


@jumping
async def test_addresses_go_through_the_address_map():
    """Behind NAT the advertised address is not the one to dial."""
    rig = Rig(address_map=lambda host, port: ("gateway", port + int(host.rpartition(".")[2])))
    await rig.source.refresh()
    assert rig.snapshot.node("uuid-r1_2").address == "gateway:4329"


@jumping
async def test_a_wildcard_address_is_replaced_by_the_host_that_was_dialled():
    """An instance that advertises 0.0.0.0 is reachable where we reached it."""
    connection = ScriptedConnection()
    connection.endpoint = ("db.example", 4327)
    rig = Rig(connection)
    rows = [list(row) for row in rig.cluster.instance_rows()]
    rows[0][-1] = "0.0.0.0:4327"
    connection.when(discovery.INSTANCES, rows)
    connection.when(discovery.ASKED_INSTANCE, table("col_1", ("uuid-r1_1",)))
    await rig.source.refresh()
    await rig.source.refresh()
    assert rig.snapshot.node("uuid-r1_1").address == "db.example:4327"
    assert connection.texts().count(discovery.ASKED_INSTANCE) == 1


# Tiers


@jumping
async def test_tiers_are_read_once_per_connection():
    """Tiers never change once the cluster is formed."""
    rig = Rig()
    for _ in range(3):
        await rig.source.refresh()
    assert rig.first.texts().count(discovery.TIERS) == 1
    rig.first.break_off()
    await rig.source.refresh()
    assert rig.connections[1].texts().count(discovery.TIERS) == 1


@jumping
async def test_tiers_are_read_again_when_an_unknown_one_shows_up():
    """A new tier is known with the refresh that first names it."""
    rig = Rig()
    await rig.source.refresh()
    rig.cluster.states["r3_1"] = "Online"
    rig.cluster.leaders["r3"] = "r3_1"
    rig.cluster.tier_of["r3"] = "hot"
    rig.cluster.tiers["hot"] = 500
    rig.cluster.ranges["hot"] = [(1, 500, "r3")]
    await rig.source.refresh()
    assert rig.snapshot.owner("hot", 500) == "uuid-r3"
    await rig.source.refresh()
    assert rig.first.texts().count(discovery.TIERS) == 2


@jumping
async def test_tiers_that_cannot_be_read_are_retried_and_the_rest_is_applied():
    """A failing tier query costs neither the refresh nor the connection."""
    rig = Rig()
    rig.first.when(discovery.TIERS, ServerError("busy"), table("name bucket_count", ("default", 3000)))
    await rig.source.refresh()
    assert rig.snapshot.owner("default", 1) == "uuid-r1"
    assert not rig.first.is_closed()
    await rig.source.refresh()
    assert rig.first.texts().count(discovery.TIERS) == 2
    assert rig.snapshot.bucket_count("default") == 3000


# Failures of the main queries


@pytest.mark.parametrize("query", MAIN)
@jumping
async def test_a_failed_main_query_applies_nothing_and_costs_the_connection(query):
    """Replicasets or instances cannot be read: nothing is emitted, and the next refresh reconnects."""
    rig = Rig()
    await rig.source.refresh()
    before = rig.snapshot
    rig.first.when(query, ServerError("sbroad: something"))
    with pytest.raises(ServerError):
        await rig.source.refresh()
    assert rig.snapshot is before
    assert rig.first.is_closed()
    await rig.source.refresh()
    assert rig.connect.calls == 2
    assert rig.batches[-1].reset


@jumping
async def test_a_source_whose_tracker_ended_serves_another_one():
    """A pool that could not be opened is opened again: a new connection, and a batch that replaces everything."""
    rig = Rig(ScriptedConnection(), ScriptedConnection())
    await rig.source.refresh()
    rig.source.terminate()
    rig.source.unlisten()
    tracker = TopologyTracker(rig.source, None)
    await tracker.start()
    assert rig.connect.calls == 2
    assert len(tracker.topology.snapshot.all_nodes()) == 4
    await tracker.stop()


@jumping
async def test_the_tracker_warns_of_a_failed_main_query(caplog):
    """The failure is a warning, once, and the topology stays."""
    rig = Rig()
    rig.source.unlisten()
    tracker = TopologyTracker(rig.source, None)
    await tracker.start()
    rig.first.when(discovery.INSTANCES, ServerError("sbroad: something"))
    await tracker.refresh_now()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert len(tracker.topology.snapshot.all_nodes()) == 4
    await tracker.stop()


@jumping
async def test_no_reachable_node_leaves_the_topology_untouched():
    """`connect` returns None: nothing is emitted."""
    rig = Rig(ScriptedConnection(), None)
    await rig.source.refresh()
    before = rig.snapshot
    rig.first.break_off()
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    assert rig.snapshot is before


@jumping
async def test_a_node_that_names_no_instance_is_not_believed():
    """An empty catalogue (a node that is just starting) does not erase what is known."""
    rig = Rig()
    await rig.source.refresh()
    before = rig.snapshot
    rig.cluster.states.clear()
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    assert rig.snapshot is before


@pytest.mark.parametrize("query", MAIN)
@jumping
async def test_a_silent_node_costs_one_deadline_not_the_topology(query):
    """Every query has a deadline: a frozen node is dropped, and the next refresh asks another one."""
    rig = Rig(query_timeout=3.0)
    await rig.source.refresh()
    rig.first.when(query, Hang())
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await rig.source.refresh()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3.0)
    assert rig.first.is_closed()
    assert not rig.first.closed_politely
    await rig.source.refresh()
    assert len(rig.connections[1].asked) == 4


@jumping
async def test_a_cancelled_refresh_drops_its_connection():
    """An answer may still be under way, so nobody may use the connection again."""
    rig = Rig()
    hang = Hang()
    rig.first.when(discovery.REPLICASETS, hang)
    refresh = asyncio.create_task(rig.source.refresh())
    await hang.entered.wait()
    refresh.cancel()
    with pytest.raises(asyncio.CancelledError):
        await refresh
    assert rig.first.is_closed()
    assert rig.batches == []


# Reconnecting


@jumping
async def test_a_new_connection_is_a_new_epoch_and_replaces_everything_in_one_step():
    """While it is read the old snapshot stays; then one batch replaces it."""
    rig = Rig()
    await rig.source.refresh()
    rig.first.break_off()
    hang = Hang(table("name bucket_count", ("default", 3000)))
    rig.connections[1].when(discovery.TIERS, hang)
    refresh = asyncio.create_task(rig.source.refresh())
    await hang.entered.wait()
    assert rig.snapshot.owner("default", 1) == "uuid-r1"
    hang.release()
    await refresh
    assert (rig.batches[-1].epoch, rig.batches[-1].reset) == (2, True)
    assert rig.snapshot.owner("default", 1) == "uuid-r1"


@jumping
async def test_the_new_node_may_be_behind_and_the_next_refresh_corrects_it():
    """A new epoch is believed even where it is older."""
    rig = Rig()
    await rig.source.refresh()
    rig.first.break_off()
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"


# Buckets


@jumping
async def test_a_tier_whose_buckets_fail_keeps_its_last_map_while_all_else_is_fresh(caplog):
    """Rebalancing makes the whole call fail: the last map stays, one warning, and a line when it works again."""
    caplog.set_level(logging.INFO)
    rig = Rig()
    rig.cluster.tiers["cold"] = 10
    rig.cluster.ranges["cold"] = [(1, 10, "r1")]
    await rig.source.refresh()
    failing = ServerError("sbroad: _pico_bucket: Bucket 7 cannot be found. Is rebalancing in progress?")
    rig.first.when(discovery.BUCKETS, lambda tier: failing if tier == "default" else rig.cluster.bucket_rows(tier))
    rig.cluster.leaders["r1"] = "r1_2"
    rig.cluster.ranges["cold"] = [(1, 10, "r2")]
    await rig.source.refresh()
    await rig.source.refresh()
    assert rig.snapshot.owner("default", 1500) == "uuid-r1"
    assert rig.snapshot.owner("cold", 1) == "uuid-r2"
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"
    assert not rig.first.is_closed()
    rig.cluster.answer(rig.first)
    await rig.source.refresh()
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]


@jumping
async def test_the_last_map_survives_a_reconnect_during_rebalancing():
    """The batch that replaces everything carries the last map of a tier that cannot be read now."""
    rig = Rig()
    await rig.source.refresh()
    rig.first.break_off()
    rig.connections[1].when(discovery.BUCKETS, ServerError("sbroad: _pico_bucket: Master is unreachable"))
    await rig.source.refresh()
    assert rig.batches[-1].reset
    assert rig.snapshot.owner("default", 1) == "uuid-r1"


@jumping
async def test_a_silent_bucket_query_costs_the_connection_but_not_the_poll():
    """What was read before the node fell silent is applied."""
    rig = Rig(query_timeout=2.0)
    await rig.source.refresh()
    rig.first.when(discovery.BUCKETS, Hang())
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"
    assert rig.snapshot.owner("default", 1) == "uuid-r1"
    assert rig.first.is_closed()
    await rig.source.refresh()
    assert rig.connect.calls == 2


@jumping
async def test_a_map_that_makes_no_sense_costs_only_the_map():
    """A range beyond the tier's buckets is refused; the rest of the poll is applied."""
    rig = Rig()
    await rig.source.refresh()
    rig.cluster.ranges["default"] = [(1, 99_999, "r1")]
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.source.refresh()
    assert rig.snapshot.owner("default", 3000) == "uuid-r2"
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"
    assert not rig.first.is_closed()


@jumping
async def test_a_map_that_says_the_same_is_not_read_again():
    """It may be very long; a change of it is seen at once."""
    rig = Rig()
    for _ in range(2):
        await rig.source.refresh()
    first, second = (batch.events[-1] for batch in rig.batches)
    assert second is first
    rig.cluster.ranges["default"] = [(1, 3000, "r1")]
    await rig.source.refresh()
    assert rig.snapshot.owner("default", 3000) == "uuid-r1"


@jumping
async def test_a_migration_leaves_every_other_bucket_alone():
    """Half of a range moves: only those buckets change their owner."""
    rig = Rig()
    await rig.source.refresh()
    rig.cluster.ranges["default"] = [(1, 1500, "r1"), (1501, 2500, "r2"), (2501, 3000, "r1")]
    await rig.source.refresh()
    owners = [rig.snapshot.owner("default", bucket) for bucket in (1, 1500, 1501, 2500, 2501, 3000)]
    assert owners == ["uuid-r1", "uuid-r1", "uuid-r2", "uuid-r2", "uuid-r1", "uuid-r1"]


@jumping
async def test_a_server_without_the_bucket_function_degrades_and_says_so_once(caplog):
    """Before 25.5.1 there is no map; leaders and roles still work."""
    rig = Rig()
    rig.cluster.version = "25.4.2"
    rig.first.when(discovery.BUCKETS, ServerError("sbroad: function _pico_bucket not found"))
    await rig.source.refresh()
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1").name == "r1_1"
    assert rig.snapshot.owner("default", 1) is None
    assert ["25.5.1" in record.getMessage() for record in caplog.records] == [True]


# Closing


@jumping
async def test_close_says_goodbye():
    """`close` closes the connection; a refresh afterwards opens none that stays."""
    rig = Rig()
    await rig.source.refresh()
    await rig.source.close()
    assert rig.first.closed_politely
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    assert rig.connections[1].is_closed()


@jumping
async def test_close_does_not_wait_for_a_frozen_node():
    """A node that does not answer the goodbye is dropped after a second."""

    class Deaf(ScriptedConnection):
        async def close(self, *, timeout=None):
            await asyncio.Event().wait()

    rig = Rig(Deaf())
    await rig.source.refresh()
    begun = asyncio.get_running_loop().time()
    await rig.source.close()
    assert asyncio.get_running_loop().time() - begun <= 1.01
    assert rig.first.is_closed()


@jumping
async def test_terminate_drops_the_connection_at_once():
    """No goodbye, no waiting."""
    rig = Rig()
    await rig.source.refresh()
    rig.source.terminate()
    assert rig.first.is_closed()
    assert not rig.first.closed_politely


# A user with fewer rights


class Finder:
    """A leader finder with prepared answers."""

    def __init__(self, **leaders) -> None:
        self.leaders = leaders
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    async def find(self, replicaset_uuid, nodes):
        """Answer, and remember who was to be asked."""
        name = replicaset_uuid.removeprefix("uuid-")
        self.asked.append((name, tuple(node.name for node in nodes)))
        leader = self.leaders.get(name)
        return f"uuid-{leader}" if leader else None


def bare(finder=None, **options) -> Rig:
    """A rig whose user may read neither replicasets nor tiers."""
    rig = Rig(leader_finder=finder, **options)
    for connection in rig.connections:
        connection.when(discovery.REPLICASETS, denied("_pico_replicaset"))
        connection.when(discovery.TIERS, denied("_pico_tier"))
    return rig


@jumping
async def test_a_bare_user_gets_instances_buckets_and_derived_counts(caplog):
    """What may not be read degrades: no leaders, bucket counts from the maps; one warning per table with the GRANT."""
    rig = bare()
    await rig.source.refresh()
    await rig.source.refresh()
    snapshot = rig.snapshot
    assert len(snapshot.nodes()) == 4
    assert snapshot.owner("default", 1501) == "uuid-r2"
    assert snapshot.bucket_count("default") == 3000
    assert not snapshot.leader_known("uuid-r1")
    assert snapshot.leader("uuid-r1") is None
    assert not rig.first.is_closed()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "GRANT READ ON TABLE _pico_replicaset TO u" in texts[0]
    assert "GRANT READ ON TABLE _pico_tier TO u" in texts[1]


@jumping
async def test_a_grant_is_noticed_at_the_next_refresh(caplog):
    """What an administrator grants works without a reconnect, and is logged."""
    caplog.set_level(logging.INFO)
    rig = bare()
    await rig.source.refresh()
    rig.cluster.answer(rig.first)
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1").name == "r1_1"
    assert [record.levelno for record in caplog.records].count(logging.INFO) == 2


@jumping
async def test_a_bare_user_s_leaders_are_found_by_asking():
    """Every replicaset is asked about; what is found is part of the same batch."""
    finder = Finder(r1="r1_2", r2="r2_1")
    rig = bare(finder)
    await rig.source.refresh()
    assert sorted(finder.asked) == [("r1", ("r1_1", "r1_2")), ("r2", ("r2_1", "r2_2"))]
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"
    assert rig.snapshot.leader_known("uuid-r2")
    assert len(rig.batches) == 1


@jumping
async def test_a_known_leader_is_not_asked_about_at_every_refresh():
    """Only a change of the replicaset's instances, or half a minute, makes it worth asking again."""
    finder = Finder(r1="r1_2", r2="r2_1")
    rig = bare(finder)
    await rig.source.refresh()
    await rig.source.refresh()
    assert len(finder.asked) == 2
    await asyncio.sleep(31)
    await rig.source.refresh()
    assert len(finder.asked) == 4


@jumping
async def test_an_unknown_leader_is_asked_about_again():
    """Until somebody says who leads, every refresh asks."""
    finder = Finder(r1="r1_1")
    rig = bare(finder)
    for _ in range(3):
        await rig.source.refresh()
    assert [name for name, _ in finder.asked].count("r2") == 3
    finder.leaders["r2"] = "r2_2"
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r2").name == "r2_2"


@jumping
async def test_a_change_of_a_replicaset_s_instances_makes_it_asked_about_again():
    """The dead leader is forgotten at once, and the promoted one is found in the same refresh."""
    finder = Finder(r1="r1_1", r2="r2_1")
    rig = bare(finder)
    await rig.source.refresh()
    rig.cluster.states["r1_1"] = "Offline"
    finder.leaders["r1"] = "r1_2"
    await rig.source.refresh()
    assert finder.asked[2:] == [("r1", ("r1_2",))]
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"


@jumping
async def test_a_leader_that_left_is_not_believed_although_nobody_answers():
    """Without an answer the leader is unknown, not the one that went."""
    finder = Finder(r1="r1_1", r2="r2_1")
    rig = bare(finder)
    await rig.source.refresh()
    rig.cluster.states["r1_1"] = "Offline"
    finder.leaders.clear()
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1") is None
    assert not rig.snapshot.leader_known("uuid-r1")
    assert rig.snapshot.leader("uuid-r2").name == "r2_1"


@jumping
async def test_a_doubted_leader_is_asked_about_at_the_next_refresh():
    """An answer that contradicts what was found makes the source ask again."""
    finder = Finder(r1="r1_1", r2="r2_1")
    rig = bare(finder)
    await rig.source.refresh()
    finder.leaders["r1"] = "r1_2"
    rig.source.doubt_leader("uuid-r1")
    await rig.source.refresh()
    assert rig.snapshot.leader("uuid-r1").name == "r1_2"
    assert len(finder.asked) == 3


@jumping
async def test_servers_that_execute_nothing_locally_are_not_asked():
    """On 25.6 every instance says no, so asking tells nothing."""
    finder = Finder(r1="r1_1")
    rig = bare(finder)
    rig.cluster.version = "25.6.0"
    await rig.source.refresh()
    assert all(nodes == () for _, nodes in finder.asked)


@jumping
async def test_a_bare_user_s_tier_without_buckets_is_no_warning(caplog):
    """An arbiter tier whose count is hidden refuses the question; that is not worth a warning."""
    rig = bare()
    rig.cluster.states["r3_1"] = "Online"
    rig.cluster.tier_of["r3"] = "arbiter"
    await rig.source.refresh()
    assert not any("arbiter" in record.getMessage() for record in caplog.records)


@jumping
async def test_no_rights_at_all_is_a_failure_that_names_the_grants(caplog):
    """A cluster that was bootstrapped before 25.2 lets a bare user read nothing."""
    rig = Rig()
    rig.first.when(discovery.INSTANCES, denied("_pico_instance"))
    with pytest.raises(ServerError):
        await rig.source.refresh()
    assert "GRANT READ ON TABLE _pico_instance" in caplog.text
    assert rig.batches == []
