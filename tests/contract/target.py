"""The cluster under test, behind one small seam: an embedded one, or a real one named by environment variables.

It decides what a test may ask of a cluster, and how each kind of cluster does it. Tests ask for capabilities, never for
a kind of cluster; what a cluster cannot do is skipped with the reason. Everything that SQL can say is said in SQL, so
that both kinds share it.

| variable | what it says |
|---|---|
| `PICOPYN_TEST_PICODATA_DSN` | connection string of a real cluster, as administrator; without it one is embedded |
| `PICOPYN_TEST_PICODATA_HTTP` | its HTTP addresses, `http://host:port,…` or `name=http://…,…`: direct hits are there |
| `PICOPYN_TEST_PICODATA_KILL` | shell command that ends an instance as `kill -9` does; `{name}` stands for its name |
| `PICOPYN_TEST_PICODATA_START` | shell command that starts it again |
| `PICOPYN_TEST_PICODATA_FREEZE`, `…_THAW` | shell commands that stop it without ending it, and let it go on |

A command without `{name}` gets the name as its last argument.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shlex
import subprocess
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import asyncpg
import pytest

from picopyn.testing import PicodataCluster


class Capability(Enum):
    """What a test may need of a cluster; the text is the reason it is skipped with."""

    COUNT_DIRECT = "statements executed at their owner are not counted (PICOPYN_TEST_PICODATA_HTTP names no address)"
    COUNT_HANGING = "this cluster does not count the statements that hang"
    COUNT_LOGINS = "this cluster does not count logins"
    KILL = "instances cannot be ended (PICOPYN_TEST_PICODATA_KILL names no command)"
    RESTART = "instances cannot be started again (PICOPYN_TEST_PICODATA_START names no command)"
    FREEZE = "instances cannot be frozen (PICOPYN_TEST_PICODATA_FREEZE and _THAW name no commands)"
    PROMOTE = "the master cannot be switched: the user may not write _pico_replicaset"
    MOVE_BUCKETS = "buckets cannot be moved on demand on this cluster"
    LAG_VIEWS = "what an instance believes of the buckets cannot be held back on this cluster"
    INJECT_ERRORS = "this cluster gives no errors on demand"
    SECOND_USER = "the user of PICOPYN_TEST_PICODATA_DSN may not create users"
    OWN_SHAPE = "the cluster cannot be shaped by the test"


ALL = frozenset(Capability)


@dataclass(frozen=True, slots=True)
class Member:
    """One instance, as the system tables show it."""

    name: str
    uuid: str
    replicaset: str
    replicaset_uuid: str
    tier: str
    online: bool
    address: str
    leads: bool

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)


_MEMBERS = """
SELECT i.name, i.uuid, i.replicaset_name, i.replicaset_uuid, i.tier, i.current_state, i.target_state, a.address
FROM _pico_instance AS i JOIN _pico_peer_address AS a ON i.raft_id = a.raft_id WHERE a.connection_type = 'pgproto'
"""


def _state(value: Any) -> str:
    decoded = json.loads(value) if isinstance(value, str) else value
    return str(decoded[0])


class Target(ABC):
    """A cluster under test."""

    can: frozenset[Capability]
    _numbers = itertools.count(1)

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        parts = urlsplit(re.sub(r"@[^/?]*", "@host", dsn))
        self.user = unquote(parts.username or "")
        self.password = unquote(parts.password or "")
        self._database = parts.path.lstrip("/") or None
        self.seeds = [_endpoint(text) for text in re.sub(r"^[^@]*@|[/?].*$", "", dsn.partition("://")[2]).split(",")]
        self._created: list[str] = []

    def need(self, *capabilities: Capability) -> None:
        """Skip the test unless the cluster can do all of these."""
        missing = [capability.value for capability in capabilities if capability not in self.can]
        if missing:
            pytest.skip("; ".join(missing))

    # SQL

    async def connect(self, member: Member | None = None, **options: Any) -> Any:
        """A bare connection as administrator, to an instance or to any that answers."""
        settings = {"user": self.user, "password": self.password, "database": self._database, "timeout": 5, **options}
        places = [member.endpoint] if member is not None else self.seeds
        for host, port in places:
            try:
                return await asyncpg.connect(host=host, port=port, **settings)
            except OSError:
                if (host, port) == places[-1]:
                    raise
        raise AssertionError("no seed")

    async def fetch(self, sql: str, *args: Any, at: Member | None = None) -> list[Any]:
        """Rows of one statement, sent past the driver."""
        connection = await self.connect(at)
        try:
            return list(await connection.fetch(sql, *args, timeout=30))
        finally:
            await connection.close()

    async def execute(self, *texts: str) -> None:
        """Run statements past the driver."""
        connection = await self.connect()
        try:
            for text in texts:
                await connection.execute(text, timeout=60)
        finally:
            await connection.close()

    # shape

    async def members(self) -> list[Member]:
        """All instances that are not expelled."""
        connection = await self.connect()
        try:
            rows = await connection.fetch(_MEMBERS, timeout=30)
            masters = {row[0] for row in await connection.fetch("SELECT current_master_name FROM _pico_replicaset")}
        finally:
            await connection.close()
        return [
            Member(
                row[0],
                str(row[1]),
                row[2],
                str(row[3]),
                row[4],
                _state(row[5]) == _state(row[6]) == "Online",
                row[7],
                row[0] in masters,
            )
            for row in rows
            if _state(row[5]) != "Expelled"
        ]

    async def leaders(self) -> dict[str, Member]:
        """Replicaset name → its leader."""
        return {member.replicaset: member for member in await self.members() if member.leads}

    async def tiers(self) -> dict[str, int]:
        """Tier → number of buckets, those that have some."""
        rows = await self.fetch("SELECT name, bucket_count FROM _pico_tier")
        return {row[0]: row[1] for row in rows if row[1]}

    async def default_tier(self) -> str:
        """Where a table goes that names no tier."""
        rows = await self.fetch("SELECT name, is_default FROM _pico_tier")
        return next(str(row[0]) for row in rows if row[1] or len(rows) == 1)

    async def replicasets(self, tier: str) -> dict[str, list[Member]]:
        """Replicaset → instances, leader first."""
        found: dict[str, list[Member]] = {}
        for member in sorted(await self.members(), key=lambda m: (m.replicaset, not m.leads, m.name)):
            if member.tier == tier:
                found.setdefault(member.replicaset, []).append(member)
        return found

    async def two_replicasets_with_replicas(self) -> tuple[list[Member], list[Member]]:
        """Two replicasets of the default tier, each leader first; the test is skipped when there are none."""
        sets = [m for m in (await self.replicasets(await self.default_tier())).values() if len(m) > 1]
        if len(sets) < 2:
            pytest.skip("the cluster has no two replicasets with a replica in its default tier")
        return sets[0], sets[1]

    async def bucket_maps(self) -> dict[str, set[str]]:
        """Tier → the different answers that the instances give about its buckets."""
        members = [member for member in await self.members() if member.online]
        found: dict[str, set[str]] = {}
        for tier in await self.tiers():
            for member in members:
                rows = await self.fetch(f"SELECT _pico_bucket('{tier}')", at=member)
                found.setdefault(tier, set()).add(_canonical(rows[0][0]))
        return found

    async def settle(self, timeout: float = 50.0) -> None:
        """Wait until every instance answers the same bucket map, and rows written through each are seen by all.

        A freshly started real cluster keeps stale routes for 10 to 20 s (`picodata-recorded.md` section 4).
        """
        await self.until(self._agrees, "every instance answers the same bucket map", timeout)
        await self.until(self._sees_every_row, "rows written through one instance are seen through another", timeout)

    async def _agrees(self) -> bool:
        try:
            return all(len(answers) == 1 for answers in (await self.bucket_maps()).values())
        except (OSError, asyncpg.PostgresError):
            return False

    async def _sees_every_row(self) -> bool:
        members = [member for member in await self.members() if member.online]
        async with self.table("id INT NOT NULL PRIMARY KEY") as table:
            for number, member in enumerate(members):
                connection = await self.connect(member)
                try:
                    for row in range(25):
                        await connection.execute(f"INSERT INTO {table} VALUES ($1)", number * 100 + row, timeout=10)
                except (OSError, asyncpg.PostgresError, TimeoutError):
                    return False
                finally:
                    connection.terminate()
            counts = [(await self.fetch(f"SELECT count(*) FROM {table}", at=m))[0][0] for m in members]
        return set(counts) == {25 * len(members)}

    @staticmethod
    async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout: float = 30.0) -> None:
        """Wait for a condition of the outside world, asking again every 20 ms."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not await condition():
                    await asyncio.sleep(0.02)
                return
        raise AssertionError(f"not in {timeout:g} s: {what}")

    # tables and users of the test

    def new_name(self, hint: str = "t") -> str:
        """A name nobody else uses."""
        return f"pt_{hint}_{os.getpid()}_{next(self._numbers)}"

    async def create_table(self, columns: str, *, distribution: str = "", hint: str = "t") -> str:
        """Create a table of the test's own; `drop_tables` drops it. `columns` holds the primary key as well."""
        name = self.new_name(hint)
        await self.execute(f"CREATE TABLE {name} ({columns}) {distribution}")
        self._created.append(name)
        return name

    def adopt_tables(self, names: Iterable[str]) -> None:
        """Let `drop_tables` drop these, too."""
        self._created += names

    @asynccontextmanager
    async def table(self, columns: str, *, distribution: str = "", hint: str = "t") -> AsyncIterator[str]:
        """A table for the time of a `with`."""
        name = await self.create_table(columns, distribution=distribution, hint=hint)
        try:
            yield name
        finally:
            self._created.remove(name)
            await self.execute(f"DROP TABLE {name}")

    async def drop_tables(self) -> None:
        """Drop what the test created."""
        created, self._created = self._created, []
        if created:
            await self.execute(*(f"DROP TABLE IF EXISTS {name}" for name in created))

    @asynccontextmanager
    async def bare_user(self, *tables: str) -> AsyncIterator[str]:
        """The connection string of a user who may read and write these tables and nothing else."""
        self.need(Capability.SECOND_USER)
        name, password = self.new_name("user"), "T0psecret-Bare"
        await self.execute(
            f"CREATE USER {name} WITH PASSWORD '{password}' USING md5",
            *(f"GRANT {right} ON TABLE {table} TO {name}" for table in tables for right in ("READ", "WRITE")),
        )
        try:
            yield self.dsn_for(name, password)
        finally:
            await self.execute(f"DROP USER {name}")

    def dsn_for(self, user: str | None = None, password: str | None = None, seeds: Sequence[Any] | None = None) -> str:
        """A connection string for a user, with the seeds of the target or others, `(host, port)` each."""
        user, password = user or self.user, self.password if password is None else password
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in (self.seeds if seeds is None else seeds))
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{quote(user, safe='')}{secret}@{hosts}/{self._database or ''}"

    # counts

    @abstractmethod
    async def direct(self) -> int:
        """Statements executed at their owner since some moment in the past."""

    async def hanging(self) -> Mapping[str, int]:
        """Instance → statements that hang there now."""
        raise NotImplementedError

    async def logins(self) -> Mapping[str, int]:
        """Instance → client connections open now."""
        raise NotImplementedError

    # faults

    @abstractmethod
    async def kill(self, member: Member) -> None:
        """End an instance at once."""

    @abstractmethod
    async def start(self, member: Member) -> None:
        """Start a dead instance; returns when it is Online."""

    @abstractmethod
    async def freeze(self, member: Member) -> None:
        """Stop an instance without ending it."""

    @abstractmethod
    async def thaw(self, member: Member) -> None:
        """Let a frozen instance go on; returns when it is Online."""

    async def promote(self, member: Member) -> None:
        """Make an instance the master by a planned switch; returns when it is done."""
        self.need(Capability.PROMOTE)
        await self.execute(
            f"UPDATE _pico_replicaset SET target_master_name = '{member.name}' WHERE name = '{member.replicaset}'"
        )

        async def leads() -> bool:
            return (await self.leaders())[member.replicaset].name == member.name

        await self.until(leads, f"{member.name} leads {member.replicaset}")

    async def set_auto_offline_timeout(self, seconds: float) -> None:
        """How long after its loss an instance is declared Offline."""
        await self.execute(f"ALTER SYSTEM SET governor_auto_offline_timeout = {seconds}")

    async def reset_auto_offline_timeout(self) -> None:
        """Back to the server's default."""
        try:
            await self.execute("ALTER SYSTEM RESET governor_auto_offline_timeout")
        except asyncpg.PostgresError:
            await self.set_auto_offline_timeout(30.0)

    async def until_online(self, member: Member) -> None:
        """Wait until an instance is Online."""

        async def online() -> bool:
            with suppress(OSError, asyncpg.PostgresError, TimeoutError):
                return any(found.name == member.name and found.online for found in await self.members())
            return False

        await self.until(online, f"{member.name} is Online", 90)


class EmbeddedTarget(Target):
    """A cluster of `picopyn.testing`."""

    can = ALL

    def __init__(self, cluster: PicodataCluster) -> None:
        super().__init__(cluster.dsn)
        self.cluster = cluster

    async def direct(self) -> int:
        counters = await asyncio.to_thread(self.cluster.counters)
        return sum(counter.direct for counter in counters.values())

    async def hanging(self) -> Mapping[str, int]:
        counters = await asyncio.to_thread(self.cluster.counters)
        return {name: counter.hanging for name, counter in counters.items()}

    async def logins(self) -> Mapping[str, int]:
        return await asyncio.to_thread(self.cluster.sessions)

    async def kill(self, member: Member) -> None:
        await asyncio.to_thread(self.cluster.kill, member.name)

    async def start(self, member: Member) -> None:
        await asyncio.to_thread(self.cluster.restart, member.name)

    async def freeze(self, member: Member) -> None:
        await asyncio.to_thread(self.cluster.freeze, member.name)

    async def thaw(self, member: Member) -> None:
        await asyncio.to_thread(self.cluster.thaw, member.name)

    async def promote(self, member: Member) -> None:
        await asyncio.to_thread(self.cluster.promote, member.name)


class RealTarget(Target):
    """A cluster that runs somewhere else."""

    def __init__(self, dsn: str, environment: Mapping[str, str]) -> None:
        super().__init__(dsn)
        self._commands = {
            word: environment.get(f"PICOPYN_TEST_PICODATA_{word}", "") for word in ("KILL", "START", "FREEZE", "THAW")
        }
        pages = environment.get("PICOPYN_TEST_PICODATA_HTTP", "")
        self.pages = [page.strip().rpartition("=")[2].rstrip("/") for page in pages.split(",") if page.strip()]
        self.can = frozenset()

    async def look(self) -> None:
        """Find out what can be done."""
        can = set()
        if self.pages:
            can.add(Capability.COUNT_DIRECT)
        if self._commands["KILL"]:
            can.add(Capability.KILL)
        if self._commands["KILL"] and self._commands["START"]:
            can.add(Capability.RESTART)
        if self._commands["FREEZE"] and self._commands["THAW"]:
            can.add(Capability.FREEZE)
        if await self._may_create_users():
            can.add(Capability.SECOND_USER)
        if await self._may_write_replicasets():
            can.add(Capability.PROMOTE)
        self.can = frozenset(can)

    async def _may_create_users(self) -> bool:
        name = self.new_name("probe")
        try:
            await self.execute(f"CREATE USER {name} WITH PASSWORD 'T0psecret-Probe' USING md5", f"DROP USER {name}")
        except asyncpg.PostgresError:
            return False
        return True

    async def _may_write_replicasets(self) -> bool:
        try:
            await self.execute("UPDATE _pico_replicaset SET target_master_name = 'nobody' WHERE name = 'no such one'")
        except asyncpg.PostgresError:
            return False
        return True

    async def direct(self) -> int:
        texts = await asyncio.gather(*(asyncio.to_thread(_page, f"{page}/metrics") for page in self.pages))
        return sum(map(local_queries, texts))

    async def kill(self, member: Member) -> None:
        await self._run("KILL", member)

    async def start(self, member: Member) -> None:
        await self._run("START", member)
        await self.until_online(member)

    async def freeze(self, member: Member) -> None:
        await self._run("FREEZE", member)

    async def thaw(self, member: Member) -> None:
        await self._run("THAW", member)
        await self.until_online(member)

    async def _run(self, word: str, member: Member) -> None:
        template, name = self._commands[word], shlex.quote(member.name)
        command = template.replace("{name}", name) if "{name}" in template else f"{template} {name}"
        await asyncio.to_thread(subprocess.run, command, shell=True, check=True, timeout=120)


def local_queries(page: str) -> int:
    """Locally executed statements that a `/metrics` page counts.

    *Source*: `picodata-recorded.md` section 4 (`pico_sql_local_query_total{query_type, result}` on 26.1.6).
    """
    lines = re.findall(r'^pico_sql_local_query_total\{[^}]*result="ok"[^}]*\}\s+([0-9.e+]+)', page, re.MULTILINE)
    return sum(int(float(number)) for number in lines)


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if host else (text, 4327)


def _canonical(answer: Any) -> str:
    ranges = json.loads(answer) if isinstance(answer, str) else answer
    return json.dumps([json.loads(item) if isinstance(item, str) else item for item in ranges], sort_keys=True)
