"""When a server that tells of changes is still read, when it is polled instead, and how it is listened to again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from picopyn.asynchronous.notify_source import CHECK_TIMEOUT, READ_INTERVAL, SHORT_LIFE
from picopyn.asynchronous.push_record import FIRST_PAUSE, LONGEST_PAUSE
from picopyn.dialects.picodata import PicodataDialect, discovery
from picopyn.dialects.picodata.catalog_view import PATIENCE
from picopyn.testing.scripted_connection import Hang
from tests.asynchronous import notices
from tests.asynchronous.catalog import Cluster
from tests.asynchronous.jump_loop import jumping, settle
from tests.asynchronous.listening import Rig

QUESTION = PicodataDialect().probe_question
INTERVAL = 5.0
#: The longest time between two looks of the timer.
LOOK = 1.1 * INTERVAL
MALFORMED = notices.notice("instance", 11, "upsert", instance_uuid="x")


def asked(rig: Rig) -> tuple[int, int]:
    """How often the tables were read, and how often it was only asked whether the server lives."""
    texts = [text for connection in rig.connections for text in connection.texts()]
    return texts.count(discovery.INSTANCES), texts.count(QUESTION)


# the rhythm


@jumping
async def test_where_everything_is_told_the_tables_are_read_once_a_minute():
    """In between, each interval, it is only made sure that the server lives; what is known counts as confirmed."""
    rig = await Rig(interval=INTERVAL).start()
    await asyncio.sleep(5 * READ_INTERVAL)
    readings, checks = asked(rig)
    assert 5 <= readings <= 6  # the first one included
    assert checks >= 45
    assert rig.push.checks == checks
    assert rig.tracker.stats().age <= LOOK
    assert rig.tracker.stats().mode == "push"
    assert rig.snapshot.version == 1
    await rig.tracker.stop()


@pytest.mark.parametrize("untold", ["buckets", "some buckets", "a leader", "an instance"])
@jumping
async def test_where_something_is_not_told_the_tables_are_read_at_every_interval(untold):
    """Buckets of tiers that vshard shards, for one, are in no notice: they are polled as on any other server."""
    told = notices.whole(Cluster())
    left = {"buckets": '"bucket"', "some buckets": "1501", "a leader": '"uuid-r1", "tier"', "an instance": "r2_2"}
    told_first = [text for text in told if left[untold] not in text]
    assert len(told_first) < len(told)
    rig = await Rig(interval=INTERVAL, told_first=told_first).start()
    await asyncio.sleep(READ_INTERVAL)
    readings, checks = asked(rig)
    assert checks == 0
    assert readings >= 11
    assert rig.tracker.stats().mode == "push"
    await rig.tracker.stop()


@jumping
async def test_whoever_wants_a_look_gets_one():
    """A call that met an outdated leader triggers a reading, and `refresh_now` is one: a check is for the timer."""
    rig = await Rig(interval=INTERVAL).start()
    await rig.refresh()
    assert asked(rig) == (2, 0)
    rig.tracker.trigger()
    await asyncio.sleep(1)
    assert asked(rig) == (3, 0)
    await asyncio.sleep(LOOK)
    assert asked(rig) == (3, 1)
    await rig.tracker.stop()


@jumping
async def test_a_look_that_is_asked_for_during_a_check_is_a_reading():
    """What is known afterwards is never older than the request, so a check under way does not count."""
    rig = await Rig(interval=INTERVAL).start()
    hang = Hang([("plan",)])
    rig.connections[0].when(QUESTION, hang)
    await hang.entered.wait()
    looking = asyncio.create_task(rig.tracker.refresh_now())
    await settle()
    assert asked(rig) == (1, 1)
    hang.release()
    await looking
    assert asked(rig) == (2, 1)
    await rig.tracker.stop()


@jumping
async def test_a_check_during_which_something_is_not_understood_is_none():
    """What is known was not confirmed: it is read anew, and only what is read counts."""
    rig = await Rig(interval=INTERVAL).start()
    hang = Hang([("plan",)])
    rig.connections[0].when(QUESTION, hang)
    await hang.entered.wait()
    await rig.say(MALFORMED)
    hang.release()
    await settle()
    assert asked(rig) == (2, 1)
    assert rig.tracker.stats().failures == 0
    assert rig.tracker.stats().mode == "polling"
    await rig.tracker.stop()


# silence


@jumping
async def test_a_server_that_freezes_is_left_after_one_check():
    """No news and no end of the connection: the next check is not answered in time, and another node tells."""
    rig = await Rig(interval=INTERVAL).start()
    for text in (QUESTION, discovery.REPLICASETS):
        rig.connections[0].when(text, Hang())
    rig.cluster.leaders["r1"] = "r1_2"
    await asyncio.sleep(LOOK + CHECK_TIMEOUT + 0.1)
    assert rig.open_connections() == [1]
    assert rig.leader() == "r1_2"
    assert rig.source.listening
    assert rig.tracker.stats().failures == 0
    await rig.tracker.stop()


@jumping
async def test_a_connection_that_ends_is_replaced_at_once():
    """What changed meanwhile is known without waiting for a timer."""
    rig = await Rig(interval=INTERVAL).start()
    await asyncio.sleep(SHORT_LIFE)
    rig.cluster.leaders["r1"] = "r1_2"
    rig.connections[0].break_off()
    await asyncio.sleep(0.3)
    assert rig.leader() == "r1_2"
    assert rig.push.address == "10.0.0.1:1"
    assert rig.push.snapshots == 2
    await rig.tracker.stop()


@jumping
async def test_a_server_that_keeps_hanging_up_is_not_hurried_after():
    """One that tells and hangs up at once, again and again, is connected to no more often than it is looked at."""
    rig = await Rig(interval=INTERVAL).start()
    for _ in range(10):
        rig.connections[-1].break_off()
        await asyncio.sleep(SHORT_LIFE / 2)
    assert len(rig.connections) <= 2
    await rig.tracker.stop()


@jumping
async def test_a_feed_that_stops_unnoticed_is_found_out_by_the_next_reading():
    """The connection lives and nothing is told: the tables contradict, twice, and count from then on."""
    rig = await Rig(interval=INTERVAL).start()
    rig.cluster.leaders["r1"] = "r1_2"
    await asyncio.sleep(READ_INTERVAL + 2 * LOOK + PATIENCE)
    assert rig.leader() == "r1_2"
    assert rig.tracker.stats().mode == "polling"
    assert rig.push.fallbacks == {"contradicted": 1}
    await rig.tracker.stop()


# and back


@pytest.mark.parametrize("why", ["silent", "refused", "malformed", "malformed at first", "contradicted"])
@jumping
async def test_a_server_that_is_polled_is_asked_again_to_tell(caplog, why):
    """Whatever it was, a minute later another connection is tried, and replaces the polled one if it tells."""
    begins = {"silent": False, "refused": "refused"}.get(why, True)
    rig = Rig(begins, True, interval=INTERVAL)
    rig.told_first = [*notices.whole(rig.cluster), MALFORMED] if why == "malformed at first" else None
    await rig.start()
    if why == "malformed":
        await rig.say(MALFORMED)
    elif why == "contradicted":
        rig.cluster.leaders["r1"] = "r1_2"
        await rig.refresh(2, PATIENCE)
    rig.told_first = None
    rig.cluster.leaders["r1"] = "r1_2"
    await asyncio.sleep(2 * LOOK)
    assert rig.tracker.stats().mode == "polling"
    assert rig.push.fallbacks == {why.split()[0]: 1}
    assert rig.leader() == "r1_2"
    await asyncio.sleep(FIRST_PAUSE)
    assert rig.tracker.stats().mode == "push"
    assert rig.open_connections() == [1]
    await rig.say(notices.leads("r1", "r1_1", 11))
    assert rig.leader() == "r1_1"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (0 if why in ("silent", "refused") else 1)
    await rig.tracker.stop()


@jumping
async def test_servers_that_never_tell_are_asked_ever_less_often():
    """As no real one does, so far: some connections in the first hours, later one an hour; each is closed again."""
    rig = await Rig(False, first=True, interval=60.0).start()
    await asyncio.sleep(4 * LONGEST_PAUSE)
    assert 9 <= len(rig.connections) <= 10
    assert rig.open_connections() == [0]
    assert set(rig.push.fallbacks) == {"silent"}
    assert rig.tracker.stats().failures == 0
    await rig.tracker.stop()


@jumping
async def test_while_nobody_can_be_asked_the_polled_connection_is_used_on():
    """No second connection can be made: that is no reason to give up the first one, nor to try at every look."""
    rig = await Rig(False, None, interval=INTERVAL).start()
    await asyncio.sleep(5 * FIRST_PAUSE)
    assert rig.open_connections() == [0]
    assert 4 <= rig.attempts <= 6
    assert rig.tracker.stats().failures == 0
    await rig.tracker.stop()


@jumping
async def test_a_server_that_begins_to_tell_late_is_believed_as_far_as_it_tells():
    """It was updated, say, and goes on over the same connection: its news count, everything else is polled."""
    rig = await Rig(False, interval=INTERVAL).start()
    await asyncio.sleep(LOOK)
    rig.cluster.leaders["r1"] = "r1_2"
    await rig.say(notices.leads("r1", "r1_2", 11))
    assert rig.leader() == "r1_2"
    assert rig.snapshot.replicaset("uuid-r1").tier == "default"
    readings, _ = asked(rig)
    await asyncio.sleep(LOOK)
    assert asked(rig) == (readings + 1, 0)
    assert rig.tracker.stats().mode == "push"
    await rig.tracker.stop()


@jumping
async def test_a_node_that_is_drained_is_left_for_another_one():
    """The old connection serves until the next refresh; the one after that goes to somebody else."""
    rig = await Rig(interval=INTERVAL).start()
    assert not rig.source.move("10.0.0.1", 7)
    await rig.refresh()
    assert rig.open_connections() == [0]
    assert rig.source.move("10.0.0.1", 0)
    assert rig.open_connections() == [0]
    await rig.refresh()
    assert rig.open_connections() == [1]
    assert rig.source.listening
    await rig.refresh()
    assert rig.open_connections() == [1]
    await rig.tracker.stop()


# numbers


@jumping
async def test_what_is_counted_of_listening():
    """Events, the age of the last one, snapshots, checks, and where we listen; nothing for a source that only polls."""
    rig = await Rig(interval=INTERVAL).start()
    first = len(notices.whole(rig.cluster))
    assert rig.push.events == first
    await rig.say(notices.leads("r1", "r1_2", 11), "not for us", '{"map": "weather"}')
    await asyncio.sleep(3)
    assert rig.push.events == first + 1
    assert rig.push.last_event_age == pytest.approx(3)
    assert (rig.push.active, rig.push.snapshots, rig.push.address) == (True, 1, "10.0.0.1:0")
    rig.connections[0].endpoint = ("::1", 4327)
    assert rig.push.address == "[::1]:4327"
    await rig.tracker.stop()
    assert (rig.push.active, rig.push.address) == (False, None)


@jumping
async def test_a_storm_of_three_thousand_rows_costs_few_snapshots():
    """Each bucket told by itself, in one packet or in many: gathered, and a leader among them is not kept waiting."""
    rig = await Rig(interval=INTERVAL).start()
    storm = [notices.buckets(number, number, "r2", 10 + number) for number in range(1, 3001)]
    await rig.say(*storm[:1000])
    for number in range(1000, 2000):
        rig.connections[0].speak(storm[number])
        await asyncio.sleep(0.0005)
        if number == 1500:
            await rig.say(notices.leads("r1", "r1_2", 9000))
            assert rig.leader() == "r1_2"
    await rig.say(*storm[2000:])
    await asyncio.sleep(0.1)
    assert set(rig.snapshot.shard_map("default").owners[1:]) == {"uuid-r2"}
    assert rig.snapshot.version <= 20
    assert rig.tracker.stats().mode == "push"
    await rig.tracker.stop()
