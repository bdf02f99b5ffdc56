"""The source that listens (Picodata's planned topology notices), over scripted connections."""

from __future__ import annotations

import asyncio
import logging

import pytest

from picopyn.asynchronous.notify_source import BUCKET_PAUSE, MOST_RUNS
from picopyn.dialects.picodata import discovery
from picopyn.dialects.picodata.catalog_view import BUCKET_PATIENCE, PATIENCE
from picopyn.errors import NoNodeAvailable
from picopyn.testing.scripted_connection import Hang
from tests.asynchronous import notices
from tests.asynchronous.catalog import denied
from tests.asynchronous.jump_loop import jumping
from tests.asynchronous.listening import Rig

# decided per connection


@jumping
async def test_what_is_told_and_what_is_read_at_first_are_one_step():
    """Names come from the tables, who leads from the notices, and there is one snapshot of both."""
    rig = Rig()
    rig.told_first = [*notices.whole(rig.cluster), notices.leads("r1", "r1_2", 11)]
    await rig.start()
    assert rig.source.listening
    assert rig.snapshot.version == 1
    assert rig.leader() == "r1_2"
    assert rig.snapshot.bucket_count("default") == 3000
    assert rig.snapshot.node("uuid-r1_1").version == "26.1.6"
    await rig.tracker.stop()


@jumping
async def test_a_server_that_tells_nothing_is_polled():
    """As every real one until now."""
    rig = await Rig(False).start()
    assert not rig.source.listening
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.refresh()
    assert rig.leader() == "r1_2"
    assert len(rig.connections) == 1
    await rig.tracker.stop()


@pytest.mark.parametrize("speaks", [True, False, None])
@jumping
async def test_a_connection_that_was_not_asked_is_replaced_if_another_one_tells(speaks):
    """The first look costs no connection of its own; the second one finds out, once, what the server can do."""
    rig = await Rig(speaks, first=True).start()
    assert len(rig.connections) == 1
    assert rig.leader() == "r1_1"
    await rig.refresh(2)
    assert rig.source.listening is bool(speaks)
    assert [connection.is_closed() for connection in rig.connections] == {
        True: [True, False],
        False: [False, True],
        None: [False],
    }[speaks]
    assert rig.tracker.stats().failures == 0
    await rig.tracker.stop()


@jumping
async def test_a_user_who_may_not_read_who_leads_is_told():
    """Nobody has to be asked for a leader that a notice names."""

    class Finder:
        def __init__(self):
            self.asked = []

        async def find(self, uuid, nodes):
            self.asked.append(uuid)

    finder = Finder()
    rig = Rig(leader_finder=finder)
    rig.told_first = notices.whole(rig.cluster)[1:]  # nothing of r1
    rig.cluster.replicaset_rows = lambda: denied("_pico_replicaset")
    await rig.start()
    assert rig.leader("r2") == "r2_1"
    assert not rig.snapshot.leader_known("uuid-r1")
    assert finder.asked == ["uuid-r1"]
    await rig.tracker.stop()


# what is told


@jumping
async def test_news_is_applied_as_it_comes_and_passed_on():
    """A leader change is known, and the listener called, without any refresh; only what changed is in the notice."""
    rig = await Rig().start()
    await rig.say(notices.leads("r1", "r1_2", 11))
    assert rig.leader() == "r1_2"
    assert rig.told == 1
    node = rig.snapshot.node("uuid-r1_1")
    await rig.say(notices.state("r1_1", "Offline", 12))
    assert not rig.snapshot.node("uuid-r1_1").online
    await rig.say(notices.state("r1_1", "Online", 13))
    assert rig.snapshot.node("uuid-r1_1") == node  # its address, replicaset and name are what they were
    await rig.tracker.stop()


@jumping
async def test_news_is_passed_on_while_a_refresh_hangs():
    """Whoever waits for a leader does not wait for the rest of a reading."""
    rig = await Rig().start()
    hang = Hang(rig.cluster.replicaset_rows())
    rig.connections[0].when(discovery.REPLICASETS, hang)
    refreshing = asyncio.create_task(rig.tracker.refresh_now())
    await hang.entered.wait()
    await rig.say(notices.leads("r1", "r1_2", 11))
    assert (rig.leader(), rig.told) == ("r1_2", 1)
    hang.release()
    await refreshing
    assert rig.leader() == "r1_2"
    await rig.tracker.stop()


@jumping
async def test_notices_that_arrive_together_are_one_step():
    """A change of several rows is never seen half."""
    rig = await Rig().start()
    await rig.say(notices.leads("r1", "r1_2", 11), notices.buckets(1501, 2000, "r1", 12))
    assert rig.snapshot.version == 2
    assert (rig.leader(), rig.owner(2000), rig.owner(2001)) == ("r1_2", "r1", "r2")
    await rig.tracker.stop()


@jumping
async def test_a_storm_of_moving_buckets_is_gathered_and_a_leader_does_not_wait_for_it():
    """The first move counts at once, the next ones together; news of a leader takes along what was gathered."""
    rig = await Rig().start()
    await asyncio.sleep(BUCKET_PAUSE)
    await rig.say(notices.buckets(1, 1, "r2", 11))
    assert (rig.owner(1), rig.snapshot.version) == ("r2", 2)
    for number in range(2, 40):
        await rig.say(notices.buckets(number, number, "r2", 10 + number))
    assert rig.snapshot.version == 2
    await asyncio.sleep(BUCKET_PAUSE)
    assert rig.snapshot.version == 3
    assert {rig.owner(number) for number in range(1, 40)} == {"r2"}
    await rig.say(notices.buckets(40, 40, "r2", 90))
    await rig.say(notices.leads("r1", "r1_2", 91))
    assert (rig.owner(40), rig.leader(), rig.snapshot.version) == ("r2", "r1_2", 4)
    await rig.say(*(notices.buckets(41, 41, "r2", 100 + number) for number in range(MOST_RUNS)))
    assert rig.owner(41) == "r2"
    await rig.tracker.stop()


@jumping
async def test_an_older_raft_position_changes_nothing():
    """(term, index): what is older than what is known of a field is dropped, a duplicate is harmless, a term counts."""
    rig = await Rig().start()
    await rig.say(notices.leads("r1", "r1_2", 20), notices.buckets(1, 10, "r2", 21))
    version = rig.snapshot.version
    for late in (
        notices.leads("r1", "r1_1", 99, term=1),
        notices.leads("r1", "r1_1", 19),
        notices.leads("r1", "r1_2", 20),
    ):
        await rig.say(late, late)
    await rig.say(notices.buckets(1, 10, "r1", 15), notices.gone("replicaset", "r1", 18))
    await asyncio.sleep(BUCKET_PAUSE)
    assert (rig.leader(), rig.owner(1), rig.snapshot.version) == ("r1_2", "r2", version)
    await rig.say(notices.leads("r1", "r1_1", 1, term=3))
    assert rig.leader() == "r1_1"
    await rig.tracker.stop()


@jumping
async def test_a_snapshot_in_the_middle_takes_nothing_back():
    """A server that tells everything again, from before the news, changes nothing; one that knows more does."""
    rig = await Rig().start()
    await rig.say(notices.leads("r1", "r1_2", 20), notices.gone("instance", "r2_2", 21))
    await rig.say(*notices.whole(rig.cluster, 15))
    assert rig.leader() == "r1_2"
    assert rig.snapshot.node("uuid-r2_2") is None
    await rig.say(*notices.whole(rig.cluster, 30))
    assert rig.leader() == "r1_1"
    assert rig.snapshot.node("uuid-r2_2").online
    await rig.tracker.stop()


@jumping
async def test_instances_come_and_go():
    """A new one can be used at once, and its name is fetched; an expelled or deleted one is gone."""
    rig = await Rig().start()
    await rig.say(notices.instance("r1_3", 11, address="10.0.0.7:4327"))
    assert rig.snapshot.node("uuid-r1_3").address == "10.0.0.7:4327"
    assert rig.snapshot.node("uuid-r1_3").tier == "default"
    assert rig.doubts == 1
    rig.cluster.states["r1_3"] = "Online"
    await rig.refresh()
    assert rig.snapshot.node("uuid-r1_3").name == "r1_3"
    await rig.say(notices.state("r1_3", "Expelled", 12), notices.gone("instance", "r2_2", 13))
    assert {node.name for node in rig.snapshot.all_nodes()} == {"r1_1", "r1_2", "r2_1"}
    await rig.refresh()  # the tables still have both
    assert {node.name for node in rig.snapshot.all_nodes()} == {"r1_1", "r1_2", "r2_1"}
    await rig.say(notices.gone("replicaset", "r2", 14))
    assert rig.snapshot.replicaset("uuid-r2") is None
    await rig.tracker.stop()


@jumping
async def test_a_deleted_bucket_row_leaves_no_bucket_without_an_owner():
    """A row that is cut anew is deleted first: until the new rows are told, the last owner stays."""
    rig = await Rig().start()
    await rig.say(notices.notice("bucket", 11, "delete", tier="default", bucket_id={"start": 1501, "end": 3000}))
    assert rig.owner(1501) == "r2"
    await rig.tracker.stop()


@jumping
async def test_addresses_that_are_told_go_through_the_address_map():
    """Behind NAT the advertised address is not the one to dial; one that nobody can dial does not replace another."""
    rig = Rig(
        address_map=lambda host, port: ("gateway", port + int(host.rpartition(".")[2])) if host != "::" else (host, 1)
    )
    await rig.start()
    await rig.say(notices.notice("instance", 11, instance_uuid="uuid-r1_1", address="10.0.0.200:4327"))
    assert rig.snapshot.node("uuid-r1_1").address == "gateway:4527"
    await rig.say(notices.notice("instance", 12, instance_uuid="uuid-r1_1", address="[::]:4327"))
    assert rig.snapshot.node("uuid-r1_1").address == "gateway:4328"
    await rig.tracker.stop()


# what is read beside it


@jumping
async def test_a_reading_brings_what_is_not_told_and_takes_back_nothing_that_is():
    """Which state an instance shall have, and buckets nobody told of; a table that is behind changes nothing."""
    rig = Rig()
    rig.told_first = [text for text in notices.whole(rig.cluster) if '"bucket"' not in text]
    await rig.start()
    await rig.say(notices.leads("r1", "r1_2", 11), notices.buckets(1, 10, "r2", 12))
    rig.cluster.ranges["default"] = [(1, 3000, "r1")]
    await rig.refresh()
    assert (rig.leader(), rig.owner(1), rig.owner(3000)) == ("r1_2", "r2", "r1")
    await rig.tracker.stop()


@jumping
async def test_a_server_that_stops_telling_is_polled(caplog):
    """It answers on, but its tables contradict what it told, for longer than it needs to do as it says."""
    rig = await Rig().start()
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.refresh(2, PATIENCE / 4)
    assert (rig.leader(), rig.source.listening) == ("r1_1", True)
    await rig.refresh(1, PATIENCE)
    assert (rig.leader(), rig.source.listening) == ("r1_2", False)
    await rig.say(notices.leads("r1", "r1_1", 50))
    await rig.refresh()
    assert rig.leader() == "r1_2"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await rig.tracker.stop()


@pytest.mark.parametrize("what", ["state", "expelled", "buckets"])
@jumping
async def test_whatever_it_stops_telling_of(what):
    """The state of an instance, that one is gone, the owners of buckets; the last takes longer to be sure of."""
    rig = await Rig().start()
    if what == "state":
        rig.cluster.states["r1_1"] = "Offline"
    elif what == "expelled":
        del rig.cluster.states["r1_1"]
        await rig.refresh()
    else:
        rig.cluster.ranges["default"] = [(1, 3000, "r1")]
        await rig.refresh(2, PATIENCE)
        assert rig.source.listening
    await rig.refresh(2, BUCKET_PATIENCE if what == "buckets" else PATIENCE)
    assert not rig.source.listening
    node = rig.snapshot.node("uuid-r1_1")
    assert (what == "state") is (node is not None and not node.online)
    assert (what == "expelled") is (node is None)
    assert (what == "buckets") is (rig.owner(3000) == "r1")
    await rig.tracker.stop()


@jumping
async def test_a_difference_that_passes_is_none():
    """A server tells what is decided, and shows it in its tables a moment later."""
    rig = await Rig().start()
    await rig.say(notices.leads("r1", "r1_2", 11))
    await rig.refresh()
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.refresh(3, PATIENCE)
    assert rig.source.listening
    await rig.tracker.stop()


@pytest.mark.parametrize(
    "text",
    [
        notices.notice("instance", 11, "upsert", instance_uuid="x"),
        notices.notice("bucket", 11),
        notices.notice("replicaset", 11, replicaset_uuid=3),
        '{"op": "replace", "map": "instance", "instance_uuid": "x"}',
        notices.buckets(5, 4, "r1", 11),
        notices.buckets(1, 3001, "r1", 11),
    ],
)
@pytest.mark.parametrize("early", [True, False])
@jumping
async def test_a_server_that_is_not_understood_is_polled(caplog, text, early):
    """A notice of a known map that makes no sense: perhaps none was understood. One warning; calls notice nothing."""
    rig = Rig()
    rig.told_first = [*notices.whole(rig.cluster), text] if early else None
    await rig.start()
    if not early:
        await rig.say(notices.leads("r1", "r1_2", 11))
        assert rig.leader() == "r1_2"
        await rig.say(text)
        await asyncio.sleep(BUCKET_PAUSE)
        assert rig.doubts == 1
        await rig.refresh()
    assert not rig.source.listening
    assert rig.leader() == "r1_1"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    await rig.tracker.stop()


@jumping
async def test_everything_else_the_server_says_is_dropped(caplog):
    """Other notices and maps that come with later versions: no event, no log line."""
    rig = await Rig().start()
    before = rig.snapshot
    await rig.say("hello", "[]", "3", "{", '{"op": "replace", "map": "weather"}', '{"map": []}')
    assert rig.snapshot is before
    assert rig.source.listening
    assert caplog.records == []
    await rig.tracker.stop()


# connections


@pytest.mark.parametrize("speaks", [True, False])
@jumping
async def test_a_lost_connection_is_replaced_by_one_that_begins_anew(speaks):
    """What the old one told is forgotten: the new node may know less. It may also be one that tells nothing."""
    rig = await Rig(True, speaks).start()
    await rig.say(notices.leads("r1", "r1_2", 50))
    rig.connections[0].break_off()
    await rig.refresh()
    assert rig.leader() == "r1_1"
    assert rig.source.listening is speaks
    await rig.say(notices.leads("r1", "r1_2", 99), connection=0)
    assert rig.leader() == "r1_1"
    await rig.tracker.stop()


@jumping
async def test_a_frozen_connection_is_given_up_after_a_deadline():
    """A server that says nothing and answers nothing is not alive; what is known stays meanwhile."""
    rig = await Rig().start()
    before = rig.snapshot
    rig.connections[0].when(discovery.REPLICASETS, Hang())
    begun = asyncio.get_running_loop().time()
    await rig.refresh()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(2.0)
    assert rig.connections[0].is_closed()
    assert rig.snapshot is before
    await rig.refresh()
    assert len(rig.connections) == 2
    assert rig.source.listening
    await rig.tracker.stop()


@jumping
async def test_while_no_node_can_be_reached_the_topology_stays():
    """`connect` returns None: what is known stays, and the failure is a warning of the tracker."""
    rig = await Rig(True, None).start()
    before = rig.snapshot
    rig.connections[0].break_off()
    with pytest.raises(NoNodeAvailable):
        await rig.source.refresh()
    await rig.refresh()
    assert rig.snapshot is before
    await rig.tracker.stop()


@pytest.mark.parametrize("end", ["close", "terminate"])
@jumping
async def test_after_the_end_nothing_is_heard(end):
    """`close` and `terminate` end the connection; what was heard and not handed on, and what comes late, is lost."""
    rig = await Rig().start()
    before = rig.snapshot
    rig.connections[0].speak(notices.leads("r1", "r1_2", 11))
    done = getattr(rig.source, end)()
    if done is not None:
        await done
    await rig.say(notices.leads("r1", "r1_2", 12))
    assert rig.snapshot is before
    assert rig.connections[0].is_closed()
    assert rig.connections[0].closed_politely == (end == "close")
    await rig.tracker.stop()
