"""The source that listens (Picodata's planned topology notices), over a scripted connection."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from picopyn.asynchronous.topology_tracker import NotifyTopologySource, TopologyTracker
from picopyn.errors import NoNodeAvailable
from picopyn.testing.scripted_connection import Hang, ScriptedConnection
from tests.asynchronous.jump_loop import jumping, settle

PING = "SELECT 1"


def replicaset(name, leader, index, op="replace"):
    """A notice about a replicaset."""
    return {
        "op": op,
        "map": "replicaset",
        "timestamp": "2026-01-01T00:00:00Z",
        "raft": {"term": 2, "index": index},
        "replicaset_uuid": name,
        "tier": "default",
        "current_master_uuid": leader,
    }


def instance(name, owner, index, state="Online", op="replace"):
    """A notice about an instance."""
    return {
        "op": op,
        "map": "instance",
        "raft": {"term": 2, "index": index},
        "instance_uuid": name,
        "replicaset_uuid": owner,
        "current_state": state,
        "address": "10.0.0.1:4327",
    }


def buckets(first, last, owner, index, op="replace", term=2):
    """A notice about a run of buckets."""
    return {
        "op": op,
        "map": "bucket",
        "raft": {"term": term, "index": index},
        "tier": "default",
        "bucket_id": {"start": first, "end": last},
        "state": "active",
        "current_replicaset_uuid": owner,
    }


SNAPSHOT = [
    replicaset("r1", "i1", 1),
    replicaset("r2", "i2", 2),
    instance("i1", "r1", 3),
    instance("i2", "r2", 4),
    buckets(1, 1500, "r1", 5),
    buckets(1501, 3000, "r2", 6),
]


class Rig:
    """A tracker over the source; each connection tells its snapshot before it is ready."""

    def __init__(self, *snapshots, interval=None) -> None:
        self.snapshots = list(snapshots or [SNAPSHOT])
        self.connections: list[ScriptedConnection] = []
        self.callbacks = []
        self.source = NotifyTopologySource(self.connect, query_timeout=2.0)
        self.batches = []
        self.tracker = TopologyTracker(self.source, interval)
        self.told = 0

    async def connect(self, on_notice):
        """Open the next connection, or None when the script says so."""
        snapshot = self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]
        if snapshot is None:
            return None
        connection = ScriptedConnection(on_notice).when(PING, [(1,)])
        self.connections.append(connection)
        self.callbacks.append(on_notice)
        self.say(*snapshot)
        await asyncio.sleep(0)
        return connection

    def say(self, *notices, connection=-1) -> None:
        """Let a connection say something."""
        self.connections[connection].speak(*(json.dumps(each) for each in notices))

    async def start(self) -> Rig:
        """Start tracking, counting what the listener is told."""

        async def listen(topology):
            self.told += 1

        await self.tracker.start(listen)
        return self

    @property
    def snapshot(self):
        """What is known."""
        return self.tracker.topology.snapshot


@jumping
async def test_the_snapshot_told_before_the_connection_is_ready_is_one_batch():
    """Everything the server says until then replaces what was known, in one step."""
    rig = await Rig().start()
    assert rig.snapshot.version == 1
    assert rig.snapshot.leader("r1").uuid == "i1"
    assert rig.snapshot.owner("default", 3000) == "r2"
    assert rig.snapshot.bucket_count("default") == 3000
    assert rig.snapshot.node("i1").address == "10.0.0.1:4327"
    await rig.tracker.stop()


@jumping
async def test_increments_are_applied_as_they_come_and_told():
    """A leader change is known, and the listener called, without any refresh."""
    rig = await Rig().start()
    rig.say(instance("i3", "r1", 7), replicaset("r1", "i3", 8))
    await settle()
    assert rig.snapshot.leader("r1").uuid == "i3"
    assert rig.told == 1
    await rig.tracker.stop()


@jumping
async def test_notices_that_arrive_together_are_one_step():
    """A change of several rows is never seen half."""
    rig = await Rig().start()
    before = rig.snapshot.version
    rig.say(buckets(1501, 2000, "r1", 7), buckets(2001, 3000, "r2", 8))
    await settle()
    assert rig.snapshot.version == before + 1
    assert (rig.snapshot.owner("default", 2000), rig.snapshot.owner("default", 2001)) == ("r1", "r2")
    await rig.tracker.stop()


@jumping
async def test_a_deleted_bucket_row_leaves_no_bucket_without_an_owner():
    """A row that is cut anew is deleted first: until the new rows are told, the last owner stays."""
    rig = await Rig().start()
    rig.say(buckets(1501, 3000, "r2", 7, op="delete"))
    await settle()
    assert rig.snapshot.owner("default", 1501) == "r2"
    rig.say(buckets(1501, 3000, "r1", 8))
    await settle()
    assert rig.snapshot.owner("default", 1501) == "r1"
    await rig.tracker.stop()


@jumping
async def test_an_older_raft_position_changes_nothing():
    """Facts carry (term, index); what is older than the fact known is ignored, a higher term wins."""
    rig = await Rig().start()
    rig.say(buckets(1, 1500, "r2", 9))
    await settle()
    rig.say(buckets(1, 1500, "r1", 8))
    await settle()
    assert rig.snapshot.owner("default", 1) == "r2"
    rig.say(buckets(1, 1500, "r1", 1, term=3))
    await settle()
    assert rig.snapshot.owner("default", 1) == "r1"
    await rig.tracker.stop()


@jumping
async def test_deleted_instances_and_replicasets_are_forgotten():
    """An expelled instance goes with its notice."""
    rig = await Rig().start()
    rig.say(instance("i2", "r2", 7, op="delete"), replicaset("r2", None, 8, op="delete"))
    await settle()
    assert rig.snapshot.node("i2") is None
    assert rig.snapshot.replicaset("r2") is None
    await rig.tracker.stop()


@jumping
async def test_an_instance_that_is_not_online_takes_no_calls():
    """The state is read from a word or from a pair of word and incarnation."""
    rig = await Rig().start()
    rig.say(instance("i1", "r1", 7, state="Offline"), instance("i2", "r2", 8, state=["Online", 3]))
    await settle()
    assert [node.uuid for node in rig.snapshot.nodes()] == ["i2"]
    assert rig.snapshot.leader("r1") is None
    await rig.tracker.stop()


@jumping
async def test_everything_else_the_server_says_is_dropped(caplog):
    """Other notices, other maps, broken ones: no event, no log line."""
    rig = await Rig().start()
    before = rig.snapshot
    rig.connections[0].speak("hello", "[]", "3", "{", '{"op": "replace", "map": "weather"}')
    rig.say({"op": "replace", "map": "bucket"}, {"op": "upsert", "map": "instance", "instance_uuid": "x"})
    await settle()
    assert rig.snapshot is before
    assert caplog.records == []
    await rig.tracker.stop()


@jumping
async def test_notices_that_contradict_the_model_are_logged_and_change_nothing(caplog):
    """A batch is applied whole or not at all, and the connection lives on."""
    rig = await Rig().start()
    rig.say(instance("i9", "r1", 7), buckets(5, 4, "r1", 8))
    await settle()
    assert rig.snapshot.node("i9") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    rig.say(instance("i9", "r1", 9))
    await settle()
    assert rig.snapshot.node("i9") is not None
    await rig.tracker.stop()


@jumping
async def test_refresh_only_makes_sure_that_the_connection_lives():
    """A question that the server answers proves that everything said before it has arrived."""
    rig = await Rig().start()
    await rig.tracker.refresh_now()
    assert len(rig.connections) == 1
    assert rig.connections[0].texts() == [PING]
    await rig.tracker.stop()


@jumping
async def test_what_was_said_before_the_answer_is_known_after_refresh_now():
    """`refresh_now` never returns data older than its call."""
    rig = await Rig().start()

    def answer():
        rig.say(replicaset("r1", "i2", 20), instance("i2", "r1", 21))
        return [(1,)]

    rig.connections[0].when(PING, answer)
    await rig.tracker.refresh_now()
    assert rig.snapshot.leader("r1").uuid == "i2"
    await rig.tracker.stop()


@jumping
async def test_a_lost_connection_is_replaced_by_one_that_tells_everything_anew():
    """A new connection is a new epoch: what it does not tell is forgotten."""
    rig = await Rig(SNAPSHOT, SNAPSHOT[:1] + SNAPSHOT[2:3] + [buckets(1, 3000, "r1", 1)]).start()
    rig.connections[0].break_off()
    await rig.tracker.refresh_now()
    assert rig.snapshot.replicaset("r2") is None
    assert rig.snapshot.owner("default", 3000) == "r1"
    await rig.tracker.stop()


@jumping
async def test_a_frozen_connection_is_replaced_after_a_deadline():
    """A server that says nothing and answers nothing is not alive."""
    rig = await Rig(SNAPSHOT, SNAPSHOT).start()
    rig.connections[0].when(PING, Hang())
    begun = asyncio.get_running_loop().time()
    await rig.tracker.refresh_now()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0)
    assert rig.connections[0].is_closed()
    assert len(rig.connections) == 2
    await rig.tracker.stop()


@jumping
async def test_an_old_connection_is_not_heard_any_more():
    """Notices of a connection that was given up change nothing."""
    rig = await Rig(SNAPSHOT, SNAPSHOT).start()
    rig.connections[0].break_off()
    await rig.tracker.refresh_now()
    rig.say(replicaset("r1", None, 99), connection=0)
    await settle()
    assert rig.snapshot.leader("r1").uuid == "i1"
    await rig.tracker.stop()


@jumping
async def test_while_no_node_can_be_reached_the_topology_stays():
    """`connect` returns None: what is known stays, and the failure is a warning of the tracker."""
    rig = await Rig(SNAPSHOT, None).start()
    before = rig.snapshot
    rig.connections[0].break_off()
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    await rig.tracker.refresh_now()
    assert rig.snapshot is before
    await rig.tracker.stop()


@jumping
async def test_after_the_end_nothing_is_heard():
    """`close` and `terminate` end the connection; late notices change nothing."""
    for end in ("close", "terminate"):
        rig = await Rig().start()
        before = rig.snapshot
        done = getattr(rig.source, end)()
        if done is not None:
            await done
        rig.callbacks[0](json.dumps(replicaset("r1", None, 99)))
        await settle()
        assert rig.snapshot is before
        assert rig.connections[0].is_closed()
        assert rig.connections[0].closed_politely == (end == "close")
        await rig.tracker.stop()
