"""The governor: declares lost instances Offline, finds new masters, takes returning instances back.

Decides when roles change after something happened to a process. Must not know sockets, statements or rows.

*Source*: `picodata-recorded.md` section 1 (demotion after `governor_auto_offline_timeout`, orderly stop,
planned switch, what a returning instance becomes).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from picopyn.testing.picodata.cluster import Cluster, set_current, set_target
from picopyn.testing.picodata.laws import Life
from picopyn.testing.picodata.model import Instance, Replicaset


class Governor:
    """Owner: the server process. `publish` makes the system tables current."""

    def __init__(self, cluster: Cluster, publish: Callable[[], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._publish = publish
        self._running: dict[str, asyncio.Task[None]] = {}

    def lost(self, instance: Instance) -> None:
        """Nobody hears from this instance any more: unless it is back in time, it will be Offline."""
        self._begin(instance, self._after_loss(instance))

    def stopped(self, instance: Instance) -> None:
        """This instance said good-bye."""
        self._begin(instance, self._after_stop(instance))

    def returning(self, instance: Instance) -> None:
        """The process was started again: its loss no longer counts."""
        task = self._running.pop(instance.name, None)
        if task is not None:
            task.cancel()

    async def back(self, instance: Instance) -> None:
        """The instance serves again; declared Offline before, it returns as a replica if another leads."""
        self.returning(instance)
        if instance.target.variant == "Expelled" or instance.online:
            return
        set_target(instance, "Online", "restart")
        await self._publish()
        await asyncio.sleep(self._cluster.shape.return_delay)
        if instance.life is Life.ALIVE:
            set_current(instance)
            self.elect(self._cluster.replicasets[instance.replicaset])
            await self._tell()

    async def switch(self, instance: Instance) -> float:
        """Make this instance the master, in an orderly way: writes are refused for a moment; gives when it was."""
        home = self._cluster.replicasets[instance.replicaset]
        if home.current_master == instance.name:
            return time.monotonic()
        home.target_master = instance.name
        home.read_only = True
        try:
            await self._publish()
            await asyncio.sleep(self._cluster.shape.switch_delay)
        finally:
            home.read_only = False
        if instance.online:
            self._crown(home, instance.name)
        moment = time.monotonic()
        await self._tell()
        return moment

    def elect(self, home: Replicaset) -> None:
        """Find a new master if the present one is not Online; without a candidate nothing changes."""
        if self._cluster.instances[home.current_master].online:
            return
        for candidate in self._cluster.members(home.name):
            if candidate.online and candidate.life is Life.ALIVE:
                self._crown(home, candidate.name)
                return

    def _crown(self, home: Replicaset, name: str) -> None:
        home.current_master = home.target_master = name
        home.config_version += 1
        home.master_changes += 1
        self._cluster.tiers[home.tier].vshard_version += 1

    def _begin(self, instance: Instance, step: Coroutine[Any, Any, None]) -> None:
        self.returning(instance)
        self._running[instance.name] = asyncio.get_running_loop().create_task(step)

    async def _after_loss(self, instance: Instance) -> None:
        await asyncio.sleep(self._cluster.settings.auto_offline_timeout)
        set_target(instance, "Offline", "auto-offline")
        await self._publish()
        await asyncio.sleep(self._cluster.shape.offline_delay)
        await self._offline(instance)

    async def _after_stop(self, instance: Instance) -> None:
        await asyncio.sleep(self._cluster.shape.stop_delay)
        set_target(instance, "Offline", "shutdown")
        await self._offline(instance)

    async def _offline(self, instance: Instance) -> None:
        set_current(instance)
        self.elect(self._cluster.replicasets[instance.replicaset])
        await self._tell()

    async def _tell(self) -> None:
        self._cluster.watch.changed()
        await self._publish()
