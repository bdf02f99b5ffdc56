"""When the topology is read again, and who hears of it (contracts: the tracker)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from itertools import pairwise

import pytest

from picopyn.asynchronous.topology_tracker import TopologySource, TopologyTracker
from picopyn.topology import EventBatch, EventInstance, Topology
from tests.asynchronous.jump_loop import jumping, settle


class ScriptedSource(TopologySource):
    """A source of our own: every refresh emits one new fact, or fails, or waits until it is let go."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended = 0
        self.cancelled = 0
        self.closed = 0
        self.terminated = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.running = 0
        self.overlapped = False

    async def refresh(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        self.overlapped |= self.running > 0
        self.running += 1
        number = len(self.begun)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None:
                raise self.error
            self.push(f"i{number}")
            self.ended += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def push(self, uuid: str) -> None:
        self.emit(EventBatch((EventInstance(uuid, online=True),), epoch=1, sequence=len(self.begun)))

    async def close(self) -> None:
        self.closed += 1

    def terminate(self) -> None:
        self.terminated += 1


class Listener:
    """Remembers what it was told; can block, fail, or do something from inside."""

    def __init__(self) -> None:
        self.told: list[set[str]] = []
        self.gate: asyncio.Event | None = None
        self.action = None
        self.cancelled = 0
        self.finished = 0

    async def __call__(self, topology: Topology) -> None:
        self.told.append(known(topology))
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.action is not None:
                await self.action()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1


def known(topology: Topology) -> set[str]:
    return {node.uuid for node in topology.snapshot.all_nodes()}


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@contextlib.asynccontextmanager
async def tracking(source, listener=None, interval=5.0):
    tracker = TopologyTracker(source, interval, rng=random.Random(1))
    await tracker.start(listener)
    try:
        yield tracker
    finally:
        if source.gate is not None:
            source.gate.set()
        await tracker.stop()


# start


@jumping
async def test_start_refreshes_once_before_any_loop_exists(source, listener):
    """`start` contains one refresh; what it brought is known when it returns, and no loop ran before."""
    tracker = TopologyTracker(source, 5.0)
    source.gate = asyncio.Event()
    starting = asyncio.create_task(tracker.start(listener))
    await settle()
    tracker.trigger()
    await settle()
    assert len(source.begun) == 1
    source.gate.set()
    await starting
    assert known(tracker.topology) == {"i1"}
    assert len(source.begun) == 1
    await tracker.stop()


@jumping
async def test_looks_have_numbers_that_tell_which_began_after_a_moment(source, listener):
    """The one under way began before it, so the next one counts; one that failed is no look that anybody had."""
    async with tracking(source, listener, interval=None) as tracker:
        assert (tracker.last_look, tracker.next_look, tracker.failure) == (1, 2, None)
        source.gate = asyncio.Event()
        under_way = asyncio.create_task(tracker.refresh_now())
        await settle()
        assert (tracker.last_look, tracker.next_look) == (1, 3)
        source.gate.set()
        await under_way
        assert tracker.last_look == 2
        source.error = OSError("gone")
        await tracker.refresh_now()
        assert (tracker.last_look, tracker.next_look, tracker.failure) == (2, 4, source.error)


@jumping
async def test_the_listener_does_not_hear_of_the_refresh_inside_start(source, listener):
    """`on_refresh` is not called for the first refresh: the caller of `start` may still be setting itself up."""
    async with tracking(source, listener):
        await settle()
        assert listener.told == []


@jumping
async def test_a_second_start_does_nothing(source, listener):
    """A second `start` neither refreshes nor replaces the listener."""
    async with tracking(source) as tracker:
        await tracker.start(listener)
        await tracker.refresh_now()
        assert len(source.begun) == 2
        assert listener.told == []


@jumping
async def test_a_source_that_fails_does_not_fail_start(source, caplog):
    """Errors of the source are logged, not raised: whether enough is known is the caller's decision."""
    source.error = OSError("no route")
    async with tracking(source) as tracker:
        assert tracker.topology.snapshot.version == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@jumping
async def test_a_cancelled_start_can_be_repeated(source):
    """Cancelling `start` cancels its refresh; a later `start` works."""
    tracker = TopologyTracker(source, None)
    source.gate = asyncio.Event()
    starting = asyncio.create_task(tracker.start())
    await settle()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert source.cancelled == 1
    source.gate = None
    await tracker.start()
    assert known(tracker.topology) == {"i2"}
    await tracker.stop()


@jumping
async def test_without_an_interval_there_is_no_loop(source):
    """`interval=None`: nothing is read after the first refresh, and `trigger` does nothing."""
    async with tracking(source, interval=None) as tracker:
        tracker.trigger()
        await asyncio.sleep(1000)
        assert len(source.begun) == 1


# the loop


@jumping
async def test_every_interval_is_stretched_or_shrunk_by_up_to_a_tenth(source):
    """Refreshes come every interval ±10 %, never in step."""
    async with tracking(source, interval=10.0):
        await asyncio.sleep(500)
        gaps = [b - a for a, b in pairwise(source.begun)]
        assert len(gaps) > 40
        assert all(9.0 <= gap <= 11.0 for gap in gaps)
        assert len({round(gap, 3) for gap in gaps}) > 30


@jumping
async def test_the_listener_hears_of_every_refresh_of_the_loop(source, listener):
    """`on_refresh(topology)` is awaited after every successful refresh."""
    async with tracking(source, listener, interval=10.0):
        await asyncio.sleep(100)
        await settle()
        assert len(listener.told) == len(source.begun) - 1
        assert listener.told[-1] == {f"i{n}" for n in range(1, len(source.begun) + 1)}


@jumping
async def test_a_listener_that_raises_stops_nothing(source, listener, caplog):
    """If `on_refresh` raises: a warning, and tracking goes on."""

    async def fail():
        raise ValueError("reconcile failed")

    listener.action = fail
    async with tracking(source, listener, interval=10.0):
        await asyncio.sleep(35)
        assert len(listener.told) >= 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@jumping
async def test_a_listener_that_hangs_does_not_keep_the_topology_from_being_read(source, listener):
    """A hanging `on_refresh` stalls no refresh; when it comes back it is told once about all that happened since."""
    listener.gate = asyncio.Event()
    async with tracking(source, listener, interval=1.0) as tracker:
        await asyncio.sleep(20)
        assert len(listener.told) == 1
        assert len(source.begun) > 15
        listener.gate.set()
        await settle()
        assert len(listener.told) == 2
        assert listener.told[1] == known(tracker.topology)


@jumping
async def test_a_failed_refresh_changes_nothing_and_tells_nobody(source, listener):
    """A refresh that fails leaves what is known, and the listener is not called."""
    async with tracking(source, listener, interval=10.0) as tracker:
        source.error = OSError("gone")
        await asyncio.sleep(30)
        assert known(tracker.topology) == {"i1"}
        assert listener.told == []


@jumping
async def test_a_failed_refresh_is_retried_sooner_than_the_interval(source):
    """After a failure the next try comes after half a second, then twice as long each time, at most the interval."""
    async with tracking(source, interval=3.0):
        source.error = OSError("gone")
        await asyncio.sleep(20)
        failing = source.begun[1:6]
        gaps = [b - a for a, b in pairwise(failing)]
        assert gaps == [pytest.approx(seconds, rel=0.11) for seconds in (0.5, 1.0, 2.0, 3.0)]


@jumping
async def test_a_lasting_failure_is_one_warning_and_its_end_one_line(source, caplog):
    """State changes are logged once: a warning when reading fails, a line when it works again."""
    caplog.set_level(logging.INFO)
    async with tracking(source, interval=2.0):
        source.error = OSError("gone")
        await asyncio.sleep(20)
        source.error = None
        await asyncio.sleep(20)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]


# trigger


@jumping
async def test_trigger_wakes_the_loop(source):
    """`trigger` is synchronous and leads to a refresh at once, long before the interval ends."""
    async with tracking(source, interval=60.0) as tracker:
        tracker.trigger()
        assert len(source.begun) == 1
        await settle()
        assert len(source.begun) == 2


@jumping
async def test_a_storm_of_triggers_is_at_most_one_refresh_per_fifth_of_a_second(source):
    """Background refreshes begin at least 0.2 s apart, and the last trigger of a storm is not lost."""
    async with tracking(source, interval=60.0) as tracker:
        for _ in range(100):
            tracker.trigger()
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        background = source.begun[1:]
        gaps = [b - a for a, b in pairwise(background)]
        assert min(gaps) >= 0.2 - 1e-6
        assert 10 <= len(background) <= 12


@jumping
async def test_a_trigger_during_a_refresh_leads_to_another_one(source):
    """A fault seen while a refresh is under way may be newer than what that refresh reads: it is read again."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        tracker.trigger()
        await settle()
        tracker.trigger()
        source.gate.set()
        await asyncio.sleep(1)
        assert len(source.begun) == 3


@jumping
async def test_a_trigger_and_a_cancellation_in_the_same_tick_still_end_the_loop(source):
    """Stopping wins over a trigger of the same tick."""
    async with tracking(source, interval=60.0) as tracker:
        tracker.trigger()
        await tracker.stop()
        tracker.trigger()
        await asyncio.sleep(1000)
        assert len(source.begun) == 1
    everybody = asyncio.all_tasks() - {asyncio.current_task()}
    assert not everybody


@jumping
async def test_a_trigger_and_terminate_in_the_same_tick_still_end_the_loop(source):
    """The same for `terminate`, which waits for nothing."""
    tracker = TopologyTracker(source, 60.0)
    await tracker.start()
    await settle()
    tracker.trigger()
    tracker.terminate()
    await asyncio.sleep(1000)
    assert len(source.begun) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


# refresh_now


@jumping
async def test_refresh_now_refreshes_whatever_the_timer_says(source, listener):
    """`refresh_now` is exempt from the 0.2 s; the listener has been told when it returns."""
    async with tracking(source, listener, interval=60.0) as tracker:
        for _ in range(5):
            await tracker.refresh_now()
        assert len(source.begun) == 6
        assert source.begun[0] == source.begun[-1]
        assert len(listener.told) == 5


@jumping
async def test_refresh_now_never_returns_data_older_than_its_call(source):
    """A refresh that began before the call does not count: another one follows."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        tracker.trigger()
        await settle()
        assert len(source.begun) == 2
        call = asyncio.create_task(tracker.refresh_now())
        await settle()
        source.gate.set()
        await call
        assert len(source.begun) == 3
        assert "i3" in known(tracker.topology)


@jumping
async def test_concurrent_calls_share_one_refresh_that_began_after_all_of_them(source):
    """Many callers cost one refresh; refreshes never overlap, however they were asked for."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        first = asyncio.create_task(tracker.refresh_now())
        await settle()
        others = [asyncio.create_task(tracker.refresh_now()) for _ in range(10)]
        tracker.trigger()
        await settle()
        source.gate.set()
        await asyncio.gather(first, *others)
        assert 3 <= len(source.begun) <= 4
        assert not source.overlapped


@jumping
async def test_errors_of_the_source_are_logged_never_raised(source, caplog):
    """`refresh_now` returns although the source failed."""
    async with tracking(source) as tracker:
        source.error = ValueError("broken row")
        await tracker.refresh_now()
    assert "ValueError" in caplog.text


@jumping
async def test_after_stop_refresh_now_is_a_silent_no_op(source, caplog):
    """`refresh_now` after `stop` reads nothing and says nothing."""
    async with tracking(source) as tracker:
        await tracker.stop()
        await tracker.refresh_now()
        assert len(source.begun) == 1
    assert caplog.records == []


@jumping
async def test_cancelling_the_caller_cancels_the_refresh_and_re_raises(source):
    """The caller's cancellation reaches the source and is raised again."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        call = asyncio.create_task(tracker.refresh_now())
        await settle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert source.cancelled == 1


@jumping
async def test_cancelling_one_caller_does_not_cost_the_others_their_data(source):
    """Others who waited for the cancelled refresh get one of their own."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        call = asyncio.create_task(tracker.refresh_now())
        await settle()
        other = asyncio.create_task(tracker.refresh_now())
        await settle()
        call.cancel()
        await settle()
        source.gate.set()
        await other
        assert source.ended == 2
        assert "i3" in known(tracker.topology)


@jumping
async def test_cancelling_a_caller_that_waits_for_another_refresh_leaves_that_one_alone(source):
    """A caller cancels only the refresh it began."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        tracker.trigger()
        await settle()
        call = asyncio.create_task(tracker.refresh_now())
        await settle()
        call.cancel()
        await settle()
        source.gate.set()
        await settle()
        assert source.cancelled == 0
        assert source.ended == 2


@jumping
async def test_refresh_now_from_inside_the_listener_reads_and_tells_again(source, listener):
    """The listener may ask for a refresh; it does not wait for itself and is called once more afterwards."""
    async with tracking(source, listener, interval=60.0) as tracker:

        async def refresh_once():
            if len(listener.told) == 1:
                await tracker.refresh_now()

        listener.action = refresh_once
        await tracker.refresh_now()
        await settle()
        assert len(source.begun) == 3
        assert len(listener.told) == 2
        assert listener.told[1] == {"i1", "i2", "i3"}


@jumping
async def test_a_task_of_the_listener_may_refresh_as_well(source, listener):
    """The same from a task the listener started and waits for."""
    async with tracking(source, listener, interval=60.0) as tracker:

        async def refresh_once():
            if len(listener.told) == 1:
                await asyncio.create_task(tracker.refresh_now())

        listener.action = refresh_once
        await tracker.refresh_now()
        await settle()
        assert len(listener.told) == 2


# push


@jumping
async def test_pushed_news_is_applied_at_once_and_told(source, listener):
    """A source may emit at any time; the listener hears of it without a refresh."""
    async with tracking(source, listener, interval=None) as tracker:
        source.push("pushed")
        assert "pushed" in known(tracker.topology)
        await settle()
        assert listener.told == [{"i1", "pushed"}]


@jumping
async def test_news_after_stop_changes_nothing(source):
    """A source that still speaks after `stop` is not heard."""
    async with tracking(source) as tracker:
        await tracker.stop()
        source.push("late")
        assert known(tracker.topology) == {"i1"}


@jumping
async def test_what_a_failing_refresh_emitted_before_it_failed_is_told(source, listener):
    """A batch is a batch: it counts even if its refresh fails afterwards."""

    async def emit_then_fail():
        source.push("half")
        raise OSError("gone")

    async with tracking(source, listener, interval=60.0) as tracker:
        source.refresh = emit_then_fail
        await tracker.refresh_now()
        assert listener.told == [{"i1", "half"}]


# update_interval


@jumping
async def test_an_interval_below_one_second_is_refused(source):
    """`update_interval` raises ValueError below 1 s and for what is no number; the interval stays."""
    async with tracking(source, interval=10.0) as tracker:
        for bad in (0.999, 0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="interval"):
                tracker.update_interval(bad)
        assert tracker.interval == 10.0


@jumping
async def test_an_interval_cannot_be_set_when_periodic_tracking_is_off(source):
    """RuntimeError: there is no loop to obey."""
    async with tracking(source, interval=None) as tracker:
        with pytest.raises(RuntimeError, match="off"):
            tracker.update_interval(5)


@jumping
async def test_a_shorter_interval_takes_effect_at_once(source):
    """The time already waited counts: no wait for the old, longer interval, and no refresh before its time."""
    async with tracking(source, interval=600.0) as tracker:
        await asyncio.sleep(10)
        tracker.update_interval(20.0)
        await asyncio.sleep(5)
        assert len(source.begun) == 1
        await asyncio.sleep(8)
        assert len(source.begun) == 2
        tracker.update_interval(2.0)
        await asyncio.sleep(20)
        assert 10 <= len(source.begun) <= 15


@jumping
async def test_a_longer_interval_takes_effect_at_once(source):
    """The refresh that was due by the old interval does not happen."""
    async with tracking(source, interval=10.0) as tracker:
        await asyncio.sleep(5)
        tracker.update_interval(1000.0)
        await asyncio.sleep(500)
        assert len(source.begun) == 1


@jumping
async def test_an_equal_interval_changes_nothing(source):
    """The running wait is not restarted."""
    async with tracking(source, interval=10.0) as tracker:
        for _ in range(10):
            await asyncio.sleep(2)
            tracker.update_interval(10.0)
        assert len(source.begun) >= 2


@jumping
async def test_a_running_refresh_survives_a_new_interval(source):
    """`update_interval` does not cancel what is under way."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        tracker.trigger()
        await settle()
        tracker.update_interval(2.0)
        await asyncio.sleep(10)
        assert source.cancelled == 0
        source.gate.set()
        await settle()
        assert source.ended == 2


def test_a_meaningless_interval_is_refused_by_the_constructor():
    """Zero, negative and non-numbers are a ConfigError before anything starts."""
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="interval"):
            TopologyTracker(ScriptedSource(), bad)


# stop and terminate


@jumping
async def test_stop_ends_the_refresh_in_flight_then_closes_the_source(source):
    """`stop` waits for nothing the server owes: the refresh is cancelled, then the source is closed."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        tracker.trigger()
        await settle()
        await tracker.stop()
        assert source.cancelled == 1
        assert source.closed == 1


@jumping
async def test_a_refresh_now_caller_returns_when_the_tracker_stops(source):
    """Whoever waits for a refresh is not cancelled by `stop`, it just returns."""
    async with tracking(source, interval=60.0) as tracker:
        source.gate = asyncio.Event()
        call = asyncio.create_task(tracker.refresh_now())
        await settle()
        await tracker.stop()
        assert await call is None


@jumping
async def test_stop_twice_closes_the_source_once(source):
    """`stop` is idempotent, and every caller returns when it is done."""
    async with tracking(source) as tracker:
        await asyncio.gather(tracker.stop(), tracker.stop())
        await tracker.stop()
        assert source.closed == 1


@jumping
async def test_stop_during_start_leaves_no_loop(source):
    """A tracker stopped while it starts never begins to track."""
    tracker = TopologyTracker(source, 1.0)
    source.gate = asyncio.Event()
    starting = asyncio.create_task(tracker.start())
    await settle()
    await tracker.stop()
    await starting
    await asyncio.sleep(100)
    assert len(source.begun) == 1


@jumping
async def test_stop_from_inside_the_listener_neither_waits_for_nor_cancels_itself(source, listener):
    """The listener may stop the tracker and goes on afterwards."""
    async with tracking(source, listener, interval=60.0) as tracker:
        listener.action = tracker.stop
        tracker.trigger()
        await asyncio.sleep(1)
        assert (listener.finished, listener.cancelled) == (1, 0)
        assert source.closed == 1


@jumping
async def test_terminate_from_inside_the_listener_does_not_cancel_it(source, listener):
    """The same for `terminate`."""
    async with tracking(source, listener, interval=60.0) as tracker:

        async def end():
            tracker.terminate()

        listener.action = end
        tracker.trigger()
        await asyncio.sleep(1)
        assert (listener.finished, listener.cancelled) == (1, 0)
        assert source.terminated >= 1


@jumping
async def test_stop_from_outside_ends_a_listener_that_hangs(source, listener):
    """`stop` waits for no listener: it is cancelled."""
    listener.gate = asyncio.Event()
    async with tracking(source, listener, interval=60.0) as tracker:
        tracker.trigger()
        await settle()
        await tracker.stop()
        assert listener.cancelled == 1


@jumping
async def test_terminate_does_not_wait(source, listener):
    """`terminate` is synchronous: everything is cancelled, the source drops its connection, nothing is left."""
    source.gate = None
    tracker = TopologyTracker(source, 60.0)
    await tracker.start(listener)
    source.gate = asyncio.Event()
    tracker.trigger()
    await settle()
    tracker.terminate()
    assert source.terminated == 1
    await settle()
    assert source.cancelled == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@jumping
async def test_a_source_that_does_not_close_is_terminated(source):
    """A source that hangs in `close` costs two seconds, not the shutdown."""

    async def hang():
        await asyncio.Event().wait()

    async with tracking(source) as tracker:
        source.close = hang
        before = asyncio.get_running_loop().time()
        await tracker.stop()
        assert asyncio.get_running_loop().time() - before <= 2.1
        assert source.terminated == 1


@jumping
async def test_a_cancelled_stop_terminates(source):
    """Whoever gives up waiting for `stop` leaves nothing running."""
    source_closing = asyncio.Event()

    async def hang():
        source_closing.set()
        await asyncio.Event().wait()

    async with tracking(source) as tracker:
        source.close = hang
        stopping = asyncio.create_task(tracker.stop())
        await source_closing.wait()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert source.terminated == 1


def test_a_source_belongs_to_one_tracker():
    """`listen` is set once."""
    source = ScriptedSource()
    TopologyTracker(source, None)
    with pytest.raises(RuntimeError, match="belongs"):
        TopologyTracker(source, None)


@pytest.fixture(autouse=True)
def _record_from_info(caplog) -> None:
    """Debug lines are not counted as log lines by these tests."""
    caplog.set_level(logging.INFO, "picopyn")


# Under any schedule


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_asked_cancelled_and_stopped_in_whatever_order(seed):
    """Refreshes never overlap; who was not cancelled has data not older than its call; nothing is left running."""

    @jumping
    async def play():
        rng = random.Random(seed)
        source = ScriptedSource()
        loop = asyncio.get_running_loop()

        async def refresh():
            source.begun.append(loop.time())
            source.overlapped |= source.running > 0
            source.running += 1
            begun = loop.time()
            try:
                await asyncio.sleep(rng.choice((0, 0.01, 0.1, 1.0)))
                if rng.random() < 0.2:
                    raise OSError("gone")
                source.emit(EventBatch((EventInstance("i", port=1 + len(source.begun) % 60_000),), epoch=1))
                finished.append(begun)
            finally:
                source.running -= 1

        finished: list[float] = []
        source.refresh = refresh
        listener = Listener()
        tracker = TopologyTracker(source, 1.0, rng=rng)
        await tracker.start(listener)

        async def call():
            asked, count = loop.time(), len(source.begun)
            await tracker.refresh_now()
            assert tracker._phase.name == "STOPPED" or len(source.begun) > count
            assert tracker._phase.name == "STOPPED" or source.begun[-1] >= asked

        calls = []
        for _ in range(60):
            action = rng.random()
            if action < 0.4:
                calls.append(asyncio.create_task(call()))
            elif action < 0.6:
                tracker.trigger()
            elif action < 0.8 and calls:
                rng.choice(calls).cancel()
            else:
                await asyncio.sleep(rng.choice((0, 0, 0.005, 0.05, 0.5)))
        if rng.random() < 0.5:
            await asyncio.sleep(5)
        await tracker.stop()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert not [each for each in outcomes if isinstance(each, Exception)]
        assert not source.overlapped
        assert source.closed == 1

    play()


@jumping
async def test_a_cancellation_nobody_asked_for_is_a_failed_refresh(source, caplog):
    """A source that raises CancelledError by accident neither ends the loop nor hangs a caller."""

    async def stray():
        source.begun.append(0.0)
        raise asyncio.CancelledError

    async with tracking(source, interval=10.0) as tracker:
        source.refresh = stray
        await tracker.refresh_now()
        await asyncio.sleep(30)
        assert len(source.begun) > 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@jumping
async def test_a_listener_cancelled_from_inside_is_one_that_failed(source, listener, caplog):
    """The next news is told all the same."""

    async def stray():
        raise asyncio.CancelledError

    listener.action = stray
    async with tracking(source, listener, interval=60.0) as tracker:
        await tracker.refresh_now()
        await tracker.refresh_now()
        assert len(listener.told) == 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
