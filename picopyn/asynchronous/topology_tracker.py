"""When the topology is read again, and who hears of it.

[`TopologyTracker`][picopyn.asynchronous.topology_tracker.TopologyTracker] owns one
[`Topology`][picopyn.topology.Topology] and one
[`TopologySource`][picopyn.asynchronous.topology_source.TopologySource]. It decides when to refresh (an
interval with jitter, a trigger, a request), applies what the source emits, and tells one listener. It
knows no SQL, no connection and no pool. The sources live in `topology_source` and `notify_source` and can
be imported from here as well.

Not public API: the driver builds and owns these objects.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any

from picopyn.asynchronous.announcer import Announcer
from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.notify_source import NotifyTopologySource
from picopyn.asynchronous.service_connection import cause, stray_cancellations_are_errors
from picopyn.asynchronous.single_flight import SingleFlight
from picopyn.asynchronous.topology_source import PollingTopologySource, TopologySource
from picopyn.errors import ConfigError, UsageError
from picopyn.stats import TopologyStats
from picopyn.topology import EventBatch, Topology

__all__ = ["NotifyTopologySource", "PollingTopologySource", "TopologySource", "TopologyTracker"]

_LOG = logging.getLogger(__name__)

#: Called with the topology after a refresh.
RefreshListener = Callable[[Topology], Awaitable[None]]

#: Seconds from the start of one background refresh to the start of the next, at least: a storm of faults
#: must not become a storm of refreshes.
MIN_BACKGROUND_GAP = 0.2
#: Every interval is stretched or shrunk by up to this share, so that many clients do not poll in step.
JITTER = 0.1
#: Seconds until a failed background refresh is tried again; doubles up to the interval.
FIRST_RETRY = 0.5
#: Shortest interval that `update_interval` accepts, in seconds.
SHORTEST_INTERVAL = 1.0
#: Waits shorter than this (seconds) are none: a timer cannot be set so finely.
_TICK = 1e-6
#: Seconds `stop` waits for tasks or a source that ignore their cancellation.
_STOP_GRACE = 2.0


class _Phase(Enum):
    NEW = "not started"
    STARTING = "in its first refresh"
    RUNNING = "started"
    STOPPED = "stopped"


class TopologyTracker:
    """Keeps a topology current.

    Used on one event loop; not thread-safe.

    Args:
        source: Where facts come from; the tracker closes it.
        interval: Seconds between two refreshes (±10 %), or None for no periodic refreshes: then only `start`,
            `refresh_now` and a source that speaks by itself bring news.
        now: The clock that dates snapshots.
        rng: Source of the jitter.

    Attributes:
        topology: What is known. The same object for the life of the tracker; its `snapshot` is replaced.

    Raises:
        ConfigError: The interval is not a positive finite number.
    """

    def __init__(
        self,
        source: TopologySource,
        interval: float | None,
        *,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        if interval is not None and not (math.isfinite(interval) and interval > 0):
            raise ConfigError("the topology interval must be a positive number of seconds")
        self.topology = Topology()
        self._source = source
        self._now = now
        self._phase = _Phase.NEW
        self._refreshes = SingleFlight(self._refresh, "picopyn.topology.refresh")
        self._announcer = Announcer("picopyn.topology.listener")
        self._clock = _RefreshClock(interval, rng or random.Random())
        self._loop_task: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[None] | None = None
        self._untold = False
        self._record = _Record()
        source.listen(self._apply)

    @property
    def interval(self) -> float | None:
        """Seconds between two refreshes, or None when periodic tracking is off."""
        return self._clock.interval

    @property
    def stopped(self) -> bool:
        """Whether it was told to end."""
        return self._phase is _Phase.STOPPED

    def stats(self) -> TopologyStats:
        """How refreshing goes, now."""
        snapshot = self.topology.snapshot
        age = None if snapshot.refreshed_at is None else snapshot.age(self._now())
        record = self._record
        return TopologyStats(
            refreshes=record.successes,
            failures=record.failures,
            age=age,
            version=snapshot.version,
            push=self._source.push_stats(),
        )

    @property
    def next_look(self) -> int:
        """Number of the first refresh that begins from now on, however it is asked for."""
        return self._refreshes.begun + 1

    @property
    def last_look(self) -> int:
        """Number of the newest refresh that succeeded; 0 before the first."""
        return self._record.last_look

    @property
    def failure(self) -> Exception | None:
        """Why the last refresh failed; None when it did not."""
        return self._record.failure

    async def start(self, on_refresh: RefreshListener | None = None) -> None:
        """Refresh once, then begin to track. A second call does nothing.

        The source's errors are logged, not raised: whether what is known is enough is the caller's decision.

        Args:
            on_refresh: Awaited with the topology after every later successful refresh, and after news
                that the source pushed; not after the one inside this call, because the caller may still
                be setting itself up. Calls never overlap; refreshes that end while it is busy are told by
                one more call. If it raises, that is logged.
        """
        if self._phase is not _Phase.NEW:
            return
        self._phase = _Phase.STARTING
        try:
            await self._refreshes.run()
        except asyncio.CancelledError:
            if self._phase is _Phase.STARTING:
                self._phase = _Phase.NEW
            raise
        if self._phase is _Phase.STARTING:
            self._begin_tracking(on_refresh)

    async def refresh_now(self) -> None:
        """Refresh at once, whatever the timer says; nothing after `stop`.

        What is known afterwards is never older than this call: a refresh that began earlier does not
        count. The source's errors are logged, never raised. Returns after the listener has been told (at
        once when called from inside the listener; it is then called again). Cancelling the caller cancels
        the refresh it began.
        """
        if self._phase is _Phase.STOPPED:
            return
        self._clock.ask()
        await self._refreshes.run()
        await self._announcer.told()

    def trigger(self) -> None:
        """Wake the loop for a refresh soon (at most one per 0.2 s); nothing without a loop."""
        if self._loop_task is not None:
            self._clock.trigger()

    def update_interval(self, seconds: float) -> None:
        """Change the interval; takes effect at once, while a refresh under way finishes.

        Args:
            seconds: The new interval, at least 1.

        Raises:
            ConfigError: (a `ValueError`) Less than 1 s, or not a finite number.
            UsageError: (a `RuntimeError`) Periodic tracking is off.
        """
        if not (math.isfinite(seconds) and seconds >= SHORTEST_INTERVAL):
            raise ConfigError(f"the topology interval must be at least {SHORTEST_INTERVAL:g} second")
        if self._clock.interval is None:
            raise UsageError("periodic topology tracking is off")
        self._clock.change_interval(seconds)

    async def stop(self) -> None:
        """End a refresh in flight, then the loop, then close the source; idempotent.

        Called from inside the listener it neither waits for nor cancels the listener's own call.
        """
        if self._shutdown is None:
            self._phase = _Phase.STOPPED
            listener = self._announcer.close()
            self._shutdown = asyncio.create_task(self._shut_down(listener), name="picopyn.topology.stop")
        try:
            await asyncio.wait({self._shutdown})
        except asyncio.CancelledError:
            self.terminate()
            raise

    def terminate(self) -> None:
        """The same as `stop` without waiting: tasks are cancelled, the source drops its connection."""
        self._phase = _Phase.STOPPED
        self._announcer.close()
        self._refreshes.close()
        for task in (self._loop_task, self._shutdown):
            if task is not None:
                task.cancel()
        self._source.terminate()
        self._source.unlisten()

    def _begin_tracking(self, on_refresh: RefreshListener | None) -> None:
        self._phase = _Phase.RUNNING
        if on_refresh is not None:
            self._announcer.listen(lambda: on_refresh(self.topology))
        if self._clock.interval is not None:
            loop = asyncio.create_task(self._run(), name="picopyn.topology.loop", context=contextvars.Context())
            self._loop_task = unlamented(loop)

    async def _run(self) -> None:
        while self._phase is not _Phase.STOPPED:
            await self._clock.until_due()
            await self._refreshes.run()

    async def _refresh(self) -> None:
        """One refresh: the job of the single flight. Where the timer alone asked for it, a check will do."""
        number = self._refreshes.begun
        look = self._source.refresh if self._clock.take_request() else self._source.check
        try:
            with stray_cancellations_are_errors():
                await look()
        except Exception as error:
            self._record.failed(error)
            self._clock.ended(self._log_failure(error))
            if self._untold:
                self._tell()
        else:
            if self._clock.failures:
                _LOG.info("the topology can be read again")
            self._record.succeeded(number)
            self._clock.ended(0)
            self._tell()

    def _log_failure(self, error: Exception) -> int:
        failures = self._clock.failures + 1
        level = logging.WARNING if failures == 1 else logging.DEBUG
        _LOG.log(level, "the topology could not be read; what is known stays: %s", _reason(error))
        return failures

    def _apply(self, batch: EventBatch) -> None:
        """Take a batch from the source: at any time, also between refreshes."""
        if self._phase is _Phase.STOPPED:
            return
        self.topology.apply(batch, now=self._now())
        self._untold = True
        if batch.pushed or not self._refreshes.running:
            self._tell()

    def _tell(self) -> None:
        self._untold = False
        if self._phase is _Phase.RUNNING:
            self._announcer.news()

    async def _shut_down(self, listener: asyncio.Task[None] | None) -> None:
        await _ended([self._refreshes.close(), listener])
        if self._loop_task is not None:
            self._loop_task.cancel()
            await _ended([self._loop_task])
        try:
            async with asyncio.timeout(_STOP_GRACE):
                await self._source.close()
        except Exception as error:
            _LOG.debug("the topology source did not close by itself: %s", _reason(error))
            self._source.terminate()
        self._source.unlisten()


class _Record:
    """How refreshing went so far."""

    def __init__(self) -> None:
        self.successes = 0
        self.failures = 0
        self.last_look = 0
        self.failure: Exception | None = None

    def succeeded(self, number: int) -> None:
        self.successes += 1
        self.last_look, self.failure = number, None

    def failed(self, error: Exception) -> None:
        self.failures += 1
        self.failure = error


class _RefreshClock:
    """When the next background refresh is due.

    Args:
        interval: Seconds between refreshes, or None.
        rng: Source of the jitter.
    """

    def __init__(self, interval: float | None, rng: random.Random) -> None:
        self.interval = interval
        self.failures = 0
        self._rng = rng
        self._stretch = self._draw()
        self._triggered = False
        self._asked = True
        self._changed = asyncio.Event()
        self._last_begin = -math.inf
        self._last_end = -math.inf

    def trigger(self) -> None:
        self._triggered = self._asked = True
        self._changed.set()

    def ask(self) -> None:
        """Somebody wants the next refresh, whatever the timer says."""
        self._asked = True

    def take_request(self) -> bool:
        """Whether somebody wants the refresh that begins now, and not the timer alone."""
        asked, self._asked = self._asked, False
        return asked

    def change_interval(self, seconds: float) -> None:
        if seconds != self.interval:
            self.interval = seconds
            self._changed.set()

    def ended(self, failures: int) -> None:
        """A refresh of any kind has ended, the given number of failures in a row behind us."""
        self.failures = failures
        self._asked = self._asked or failures > 0
        self._stretch = self._draw()
        self._last_end = asyncio.get_running_loop().time()

    async def until_due(self) -> None:
        """Wait until a background refresh is due; the caller begins it at once."""
        loop = asyncio.get_running_loop()
        while (delay := self._due() - loop.time()) > _TICK:
            self._changed.clear()
            await _wait(self._changed, delay)
        self._triggered = False
        self._last_begin = loop.time()

    def _due(self) -> float:
        earliest = self._last_begin + MIN_BACKGROUND_GAP
        return earliest if self._triggered else max(earliest, self._last_end + self._pause())

    def _pause(self) -> float:
        interval = math.inf if self.interval is None else self.interval
        if self.failures:
            interval = min(interval, FIRST_RETRY * 2.0 ** min(self.failures - 1, 30))
        return interval * self._stretch

    def _draw(self) -> float:
        return self._rng.uniform(1 - JITTER, 1 + JITTER)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _ended(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    alive = {task for task in tasks if task is not None and not task.done()}
    if alive:
        await asyncio.wait(alive, timeout=_STOP_GRACE)


def _reason(error: Exception) -> str:
    return f"{cause(error)}: {error}" if str(error) else cause(error)
