"""The embedded cluster as one process: puts the parts together and carries out what the control room asks.

Decides the order of steps of each control action. Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from picopyn.testing.picodata import cluster as state
from picopyn.testing.picodata import system_tables
from picopyn.testing.picodata.backend import InstanceBackend
from picopyn.testing.picodata.catalog_feed import MANNERS, CatalogFeed
from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.ddl import Schema
from picopyn.testing.picodata.execution import Execution
from picopyn.testing.picodata.governor import Governor
from picopyn.testing.picodata.host import Fault, Host
from picopyn.testing.picodata.laws import Life
from picopyn.testing.picodata.model import Instance, Standing
from picopyn.testing.picodata.planner.values import encode_value
from picopyn.testing.picodata.plans import Plans
from picopyn.testing.picodata.rows import Rows
from picopyn.testing.picodata.session import Session
from picopyn.testing.picodata.shape import Shape
from picopyn.testing.picodata.startup import StartUp
from picopyn.testing.picodata.storage import Storage
from picopyn.testing.picodata.users import ADMIN
from picopyn.testing.postgres import PostgresServer

_ADMIN = StartUp(ADMIN)


class ControlError(Exception):
    """A control action that makes no sense now; the text goes to the caller."""


class Server:
    """The whole cluster. Owner: `process.main`."""

    def __init__(self, shape: Shape, postgres: PostgresServer) -> None:
        self._storage = Storage(postgres)
        self._cluster: Cluster = state.found(shape)
        self._cluster.views.default_lag = shape.view_lag
        self._feed = CatalogFeed(self._cluster)
        self._publisher = system_tables.Publisher(self._cluster, self._storage, self._feed.changed)
        self._plans = Plans(self._cluster)
        self._rows = Rows(self._cluster, self._storage)
        self._schema = Schema(self._cluster, self._storage, self._publisher.publish)
        self._governor = Governor(self._cluster, self._publisher.publish)
        self._hosts: dict[str, Host] = {}
        self._clients = 0
        self._jobs: set[asyncio.Task[Any]] = set()
        self._moves: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Make the system tables and open every door."""
        await system_tables.create(self._storage, self._cluster.accent)
        for instance in self._cluster.instances.values():
            self._open(instance)
        await self._publisher.publish()

    def close(self) -> None:
        """End everything at once."""
        for host in self._hosts.values():
            host.kill()
        for job in self._jobs:
            job.cancel()
        self._storage.close()

    def _open(self, instance: Instance) -> None:
        host = self._hosts[instance.name] = Host(instance, self._cluster.shape.concurrency, self._admit)
        host.open()
        for tier, truth in self._cluster.buckets.items():
            self._cluster.views.follow(instance.name, tier, truth)

    def _admit(self, host: Host) -> Session:
        self._clients += 1
        execution = Execution(self._cluster, host, self._rows, self._schema)
        return Session(InstanceBackend(self._cluster, host, self._plans, execution, self._feed), self._clients)

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            raise ControlError(f"there is no instance {name!r}, only {', '.join(self._hosts)}")
        return self._hosts[name]

    def _later(self, step: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        job = asyncio.get_running_loop().create_task(step)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    def _moving(self, step: Coroutine[Any, Any, None]) -> None:
        job = self._later(step)
        self._moves.add(job)
        job.add_done_callback(self._moves.discard)

    # what the control room may ask

    async def describe(self) -> dict[str, Any]:
        """Instances with their addresses and roles."""
        return {
            "instances": {
                item.name: {
                    "name": item.name,
                    "uuid": item.uuid,
                    "host": item.address.host,
                    "port": item.address.port,
                    "replicaset": item.replicaset,
                    "tier": item.tier,
                }
                for item in self._cluster.instances.values()
            },
            "leaders": {item.name: item.current_master for item in self._cluster.of_tier(None) if item.current_master},
            "replicasets": {item.name: item.uuid for item in self._cluster.replicasets.values()},
        }

    async def states(self) -> dict[str, dict[str, str]]:
        """What each process does and what the cluster says about it."""
        return {
            item.name: {
                "life": item.life.value,
                "current": item.current.variant,
                "target": item.target.variant,
            }
            for item in self._cluster.instances.values()
        }

    async def kill(self, name: str) -> None:
        """End a process at once."""
        host = self._host(name)
        host.kill()
        self._governor.lost(host.instance)
        self._cluster.watch.changed()

    async def stop(self, name: str) -> None:
        """End a process in an orderly way."""
        host = self._host(name)
        host.end()
        self._governor.stopped(host.instance)
        self._cluster.watch.changed()

    async def freeze(self, name: str) -> None:
        """Stop a process without ending it."""
        host = self._host(name)
        if host.instance.life is not Life.ALIVE:
            raise ControlError(f"{name} is {host.instance.life.value}, only a living instance freezes")
        host.freeze()
        self._governor.lost(host.instance)
        self._cluster.watch.changed()

    async def thaw(self, name: str) -> None:
        """Let a frozen process go on."""
        host = self._host(name)
        if host.instance.life is not Life.FROZEN:
            raise ControlError(f"{name} is {host.instance.life.value}, not frozen")
        self._governor.returning(host.instance)
        host.thaw()
        self._cluster.watch.changed()
        await self._governor.back(host.instance)

    async def restart(self, name: str, wait: bool = True) -> None:
        """Start a dead process: it is silent first; with `wait` this returns when it serves and is Online."""
        host = self._host(name)
        if host.instance.life is not Life.DEAD:
            raise ControlError(f"{name} is {host.instance.life.value}, not dead")
        if host.instance.target.variant == "Expelled":
            raise ControlError(f"{name} was expelled")
        self._governor.returning(host.instance)
        host.start_silent()
        job = self._later(self._come_back(host))
        if wait:
            await job

    async def _come_back(self, host: Host) -> None:
        await asyncio.sleep(self._cluster.shape.restart_silence)
        if host.instance.life is Life.SILENT:
            host.open()
            self._cluster.watch.changed()
            await self._governor.back(host.instance)

    async def wait_hanging(self, count: int, instance: str | None = None, timeout: float = 10.0) -> None:
        """Return when so many statements hang, at one instance or in all."""
        hosts = [self._host(instance)] if instance is not None else list(self._hosts.values())
        async with asyncio.timeout(timeout):
            await self._cluster.watch.until(lambda: sum(host.tally.hanging for host in hosts) == count)

    async def wait_leader(self, replicaset: str, instance: str | None = None, timeout: float = 30.0) -> str:
        """Return when this instance, or any living one, leads a replicaset; gives its name."""
        home = self._cluster.replicasets[replicaset]

        def leads() -> bool:
            master = self._cluster.instances[home.current_master]
            return master.life is Life.ALIVE and master.online and instance in (None, master.name)

        async with asyncio.timeout(timeout):
            await self._cluster.watch.until(leads)
        await self._publisher.publish()
        return home.current_master

    async def promote(self, name: str, wait: bool = True) -> float | None:
        """Make an instance the master of its replicaset; gives the machine's monotonic time when it was."""
        instance = self._host(name).instance
        if not instance.online:
            raise ControlError(f"{name} is not Online")
        job = self._later(self._governor.switch(instance))
        return await job if wait else None

    async def add_instance(self, replicaset: str | None = None, tier: str | None = None) -> str:
        """A further instance; without a replicaset in a new one, of this tier or the default one."""
        if replicaset is None:
            tier = tier or self._cluster.catalog.default_tier
            if tier not in self._cluster.tiers:
                raise ControlError(f"there is no tier {tier!r}")
            replicaset = state.add_replicaset(self._cluster, tier)
        elif replicaset not in self._cluster.replicasets:
            raise ControlError(f"there is no replicaset {replicaset!r}")
        instance = state.add_instance(self._cluster, replicaset)
        if self._cluster.shape.join_delay > 0:
            instance.routes = False
            self._later(self._learn(instance))
        self._open(instance)
        self._cluster.watch.changed()
        await self._publisher.publish()
        return instance.name

    async def _learn(self, instance: Instance) -> None:
        await asyncio.sleep(self._cluster.shape.join_delay)
        instance.routes = True
        await self._publisher.publish()

    async def expel(self, name: str) -> None:
        """Take an instance out for good; its replicaset must not be left with buckets and nobody."""
        host = self._host(name)
        home = self._cluster.replicasets[host.instance.replicaset]
        last = len(self._cluster.members(home.name)) == 1
        if last and any(home.name in truth.owners(None) for truth in self._cluster.buckets.values()):
            raise ControlError(f"{name} is the last instance of {home.name}, which still has buckets")
        self._governor.returning(host.instance)
        host.end()
        incarnation = host.instance.current.incarnation
        host.instance.current = host.instance.target = Standing("Expelled", incarnation)
        if last:
            home.state = "expelled"
        self._governor.elect(home)
        self._cluster.watch.changed()
        await self._publisher.publish()

    async def move_buckets(
        self, tier: str, first: int, last: int, to_replicaset: str, duration: float = 0.0, steps: int = 10
    ) -> None:
        """Give a range of buckets to a replicaset, at once or in steps (then this returns at once)."""
        self._check_move(tier, first, last, to_replicaset)
        if duration <= 0:
            await self._move(tier, first, last, to_replicaset)
            return
        self._moving(self._move_slowly(tier, first, last, to_replicaset, duration, steps))

    def _check_move(self, tier: str, first: int, last: int, replicaset: str) -> None:
        truth = self._cluster.buckets.get(tier)
        if truth is None or not 1 <= first <= last <= truth.bucket_count:
            raise ControlError(f"there are no buckets {first} to {last} in tier {tier!r}")
        home = self._cluster.replicasets.get(replicaset)
        if home is None or home.tier != tier or home.state == "expelled":
            raise ControlError(f"there is no replicaset {replicaset!r} in tier {tier!r}")

    async def _move_slowly(
        self, tier: str, first: int, last: int, replicaset: str, duration: float, steps: int
    ) -> None:
        size = -(-(last - first + 1) // steps)
        for start in range(first, last + 1, size):
            await asyncio.sleep(duration / steps)
            await self._move(tier, start, min(last, start + size - 1), replicaset)

    async def _move(self, tier: str, first: int, last: int, replicaset: str) -> None:
        self._cluster.buckets[tier].move(first, last, replicaset)
        views = self._cluster.views
        for name in self._hosts:
            lag = views.lag_of(name)
            if lag > 0:
                self._moving(self._follow_later(name, tier, lag))
            else:
                views.follow(name, tier, self._cluster.buckets[tier])
        await self._tell()

    async def _follow_later(self, name: str, tier: str, lag: float) -> None:
        await asyncio.sleep(lag)
        self._cluster.views.follow(name, tier, self._cluster.buckets[tier])
        await self._tell()

    async def _tell(self) -> None:
        await self._publisher.publish()
        self._cluster.watch.changed()

    def _settled(self) -> bool:
        names = [name for name in self._hosts if self._cluster.instances[name].current.variant != "Expelled"]
        return self._cluster.views.current(names, self._cluster.buckets)

    async def wait_views(self, timeout: float = 30.0) -> None:
        """Return when no gradual move is under way and every instance sees the true bucket map."""
        async with asyncio.timeout(timeout):
            while self._moves:
                await asyncio.wait(set(self._moves))
            await self._cluster.watch.until(self._settled)
        await self._publisher.publish()

    async def set_view_lag(self, seconds: float, instance: str | None = None) -> None:
        """How long views stay behind from now on, everywhere or at one instance."""
        if instance is None:
            self._cluster.views.default_lag = seconds
            self._cluster.views.lag.clear()
        else:
            self._cluster.views.lag[self._host(instance).instance.name] = seconds

    async def lose_bucket(self, tier: str, bucket: int | None, instance: str | None = None) -> None:
        """Let `_pico_bucket(tier)` fail over this bucket, everywhere or at one instance; None: no more."""
        for name in [instance] if instance is not None else list(self._hosts):
            self._cluster.views.of(self._host(name).instance.name, tier).lost = bucket
        await self._publisher.publish()

    async def mute_notices(self, name: str, muted: bool = True) -> None:
        """Let an instance tell nothing of the topology any more, although it goes on answering; or again."""
        self._feed.mute(self._host(name).instance.name, muted)

    async def set_notices(self, manner: str) -> None:
        """What becomes, from now on, of clients that ask to be told of the topology."""
        if manner not in MANNERS:
            raise ControlError(f"notices are {', '.join(MANNERS)}, not {manner!r}")
        self._feed.manner = manner

    async def advertise(self, name: str, address: str | None) -> None:
        """Let an instance advertise another address than its own; None: its own again."""
        self._host(name).instance.address.advertised = address
        await self._publisher.publish()

    async def inject_error(self, instance: str, message: str, sqlstate: str = "XX000", times: int = 1) -> None:
        """Let the next statements on sharded tables at an instance fail with this error, without effect."""
        self._host(instance).faults.append(Fault(message, sqlstate, times))

    async def execute(self, sql: str) -> dict[str, Any]:
        """Run a text as admin at a living instance."""
        host = next((host for host in self._hosts.values() if host.instance.life is Life.ALIVE), None)
        if host is None:
            raise ControlError("no instance lives")
        statement = self._plans.prepare(sql, (), host.instance.tier)
        execution = Execution(self._cluster, host, self._rows, self._schema)
        result = await execution.start(statement, (), _ADMIN)
        oids = [oid for _, oid in statement.columns or ()]
        return {"rows": [list(map(_plain, oids, row)) for row in result.rows], "count": result.count}

    async def create_user(self, name: str, password: str, auth: str = "md5") -> None:
        """Make a user without any privilege."""
        self._cluster.users.create(name, password, auth)

    async def deny(self, user: str, table: str) -> None:
        """Take every right on a table from a user, even public and owner's rights."""
        self._cluster.users.deny(user, table)

    async def allow(self, user: str, table: str) -> None:
        """Undo `deny`."""
        self._cluster.users.allow(user, table)

    async def counters(self) -> dict[str, Any]:
        """Counts by instance."""
        return {name: host.tally.as_json() for name, host in self._hosts.items()}

    async def reset_counters(self) -> None:
        """Start counting anew."""
        for host in self._hosts.values():
            host.tally.reset()

    async def sessions(self) -> dict[str, int]:
        """Open client connections by instance."""
        return {name: len(host.sessions) for name, host in self._hosts.items()}

    async def bucket_of(self, table: str, values: list[Any]) -> int:
        """Bucket of a key given as the values of the sharding key, in its order."""
        return self._schema.bucket_of(table, [_typed(value) for value in values])

    async def owner_of(self, tier: str, bucket: int) -> str:
        """Name of the replicaset that holds a bucket."""
        try:
            return self._cluster.buckets[tier].owner(bucket)
        except KeyError:
            raise ControlError(f"there is no bucket {bucket} in tier {tier!r}") from None


_TYPES: dict[str, Callable[[str], Any]] = {
    "Decimal": Decimal,
    "UUID": UUID,
    "datetime": datetime.fromisoformat,
}


def _typed(value: Any) -> Any:
    """A value of an order: JSON's own, or a pair of type name and text."""
    return _TYPES[value[0]](value[1]) if isinstance(value, list) else value


def _plain(oid: int, value: Any) -> Any:
    """A result value for JSON: its own types as they are, everything else as the wire's text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    encoded = encode_value(oid, 0, value)
    return None if encoded is None else encoded.decode()
