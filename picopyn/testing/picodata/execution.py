"""One execution of one statement at one instance: permission, a place to run, the laws, the rows, the count.

Decides the order of these steps and how a forwarded error is wrapped. What the laws say is decided in
`laws`, what rows are stored in `rows`.

*Source*: `picodata-recorded.md` sections 1 and 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from picopyn.testing.picodata.cluster import Cluster
from picopyn.testing.picodata.ddl import Schema
from picopyn.testing.picodata.host import Host
from picopyn.testing.picodata.laws import Kind, Life, Need, Place, Verdict, decide
from picopyn.testing.picodata.planner import errors
from picopyn.testing.picodata.planner.errors import ServerError
from picopyn.testing.picodata.planner.statement import Statement
from picopyn.testing.picodata.portals import Result
from picopyn.testing.picodata.rows import Rows
from picopyn.testing.picodata.startup import StartUp

_NOTHING = frozenset({"begin", "commit", "rollback", "set", "schema", "empty"})
_ACCOUNTS = frozenset({"grant", "create_user", "alter_user", "drop_user", "alter_system"})
_FEW_OPCODES = 10

Options = Mapping[str, int | str | None]


class Execution:
    """Runs statements at one host. Owner: that host's backend."""

    def __init__(self, cluster: Cluster, host: Host, rows: Rows, schema: Schema) -> None:
        self._cluster = cluster
        self._host = host
        self._rows = rows
        self._schema = schema

    def start(self, statement: Statement, values: Sequence[Any], start: StartUp) -> asyncio.Task[Result]:
        """Begin; the task belongs to the host and ends only by itself, by its limit, or with the host."""
        task = asyncio.get_running_loop().create_task(self._counted(statement, values, start))
        self._host.running.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Result]) -> None:
        self._host.running.discard(task)
        self._host.sent.discard(task)

    async def _counted(self, statement: Statement, values: Sequence[Any], start: StartUp) -> Result:
        try:
            return await self._run(statement, values, start)
        except ServerError:
            self._host.tally.refused[statement.kind] += 1
            raise

    async def _run(self, statement: Statement, values: Sequence[Any], start: StartUp) -> Result:
        if statement.kind in _NOTHING:
            return Result((), 0)
        self._check_rights(statement, start.user)
        if statement.kind == "explain":
            lines = statement.explain_lines(values)
            self._host.tally.here["explain"] += 1
            return Result([(line,) for line in lines], len(lines))
        slots = self._host.slots
        deadline = asyncio.get_running_loop().time() + self._cluster.shape.statement_timeout
        try:
            if not slots.try_take():
                await self._hang(slots.take(), deadline)
            try:
                return await self._settled(statement, values, start, deadline)
            finally:
                slots.give()
        except TimeoutError:
            raise errors.sbroad("dql timeout exceeded") from None

    def _check_rights(self, statement: Statement, user: str) -> None:
        about = statement.explained or statement
        catalog = self._cluster.catalog
        for table in sorted(about.reads):
            self._cluster.users.check(user, "read", table, catalog)
        for table in sorted(about.writes):
            if about.kind in ("update", "delete"):
                self._cluster.users.check(user, "read", table, catalog)
            self._cluster.users.check(user, "write", table, catalog)
        for step in about.body:
            self._check_rights(step, user)

    async def _hang(self, waiting: Any, deadline: float) -> None:
        tally = self._host.tally
        tally.hanging += 1
        self._cluster.watch.changed()
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        finally:
            tally.hanging = max(0, tally.hanging - 1)
            self._cluster.watch.changed()

    async def _settled(self, statement: Statement, values: Sequence[Any], start: StartUp, deadline: float) -> Result:
        need = self._need(statement, values, start)
        self._check_faults(need)
        verdict = await self._wait(need, deadline)
        self._count(statement, verdict)
        target = self._target(need)
        if verdict.no_replica:
            raise errors.no_replica_to_read(target)
        try:
            self._check_switch(need)
            self._check_stale(statement)
            return await self._do(statement, values, start, need)
        except ServerError as error:
            if verdict.place is Place.FORWARDED and _wrappable(error):
                raise errors.forwarded(error, target) from None
            raise

    def _need(self, statement: Statement, values: Sequence[Any], start: StartUp) -> Need:
        if statement.tier is None:
            schema = statement.ddl is not None and statement.kind not in _ACCOUNTS
            return Need(Kind.SCHEMA if schema else Kind.ANYWHERE)
        buckets = statement.buckets(values)
        if buckets.scope == "any":
            return Need(Kind.ANYWHERE)
        numbers = None if buckets.scope == "unknown" else buckets.numbers
        owners = self._cluster.buckets[statement.tier].owners(numbers)
        options = statement.bound_options(values)
        preference = str(options.get("read_preference") or start.read_preference or "leader").lower()
        forward = str(options.get("forward") or start.forward or "on")
        if forward == "off" and preference == "replica":
            raise errors.forward_and_replicas()
        return Need(Kind.SHARDED, statement.tier, owners, statement.kind == "select", preference, forward)

    def _check_faults(self, need: Need) -> None:
        if need.kind is not Kind.SHARDED:
            return
        if not self._host.instance.routes:
            tier = need.tier
            text = f"box error: ProcLua: get_replicaset_from_bucket: no router found for tier '{tier}'"
            raise errors.sbroad(f"Failed to get replicaset from bucket 1: {text}")
        if self._host.faults:
            fault = self._host.faults[0]
            fault.times -= 1
            if fault.times <= 0:
                self._host.faults.pop(0)
            raise ServerError(fault.sqlstate, fault.message)

    async def _wait(self, need: Need, deadline: float) -> Verdict:
        """Wait as the laws say: for the very instances that were missing when the wait began."""
        while True:
            verdict = decide(self._cluster.scene(self._host.instance, need.tier), need)
            if verdict.refused:
                raise errors.forward_refused(need.forward, verdict.refused == "spread")
            if verdict.waits_connected:
                await self._hang(self._until_connected(verdict, need), deadline)
                continue
            if verdict.waits_answer:
                self._host.sent.add(asyncio.current_task())
                await self._hang(self._until_answered(verdict, need), deadline)
            return verdict

    async def _until_connected(self, verdict: Verdict, need: Need) -> None:
        life = self._cluster.life
        await self._cluster.watch.until(
            lambda: all(life(name).connected for name in self._still(verdict.waits_connected, need))
        )

    async def _until_answered(self, verdict: Verdict, need: Need) -> None:
        life = self._cluster.life
        await self._cluster.watch.until(
            lambda: all(life(name) is not Life.FROZEN for name in self._still(verdict.waits_answer, need))
        )
        for name in self._still(verdict.waits_answer, need):
            if not life(name).connected:
                home = self._cluster.replicasets[self._cluster.instances[name].replicaset]
                raise errors.replicaset_error("Peer closed", home.uuid)

    def _still(self, names: frozenset[str], need: Need) -> frozenset[str]:
        """Whom a statement still waits for: a schema change asks the masters of the moment, others do not."""
        if need.kind is not Kind.SCHEMA:
            return names
        return names & {home.current_master for home in self._cluster.of_tier(None)}

    def _count(self, statement: Statement, verdict: Verdict) -> None:
        tally = self._host.tally
        counter = {
            Place.OWNER: tally.direct,
            Place.FORWARDED: tally.forwarded,
            Place.REPLICA: tally.replica,
        }.get(verdict.place, tally.here)
        counter[statement.kind] += 1

    def _target(self, need: Need) -> str:
        """Uuid of the replicaset a forwarded error names: the first other one concerned."""
        own = self._host.instance.replicaset
        names = sorted(need.replicasets, key=lambda name: (name == own, name))
        return self._cluster.replicasets[names[0]].uuid if names else ""

    def _check_switch(self, need: Need) -> None:
        if need.reads or need.kind is not Kind.SHARDED:
            return
        if any(self._cluster.replicasets[name].read_only for name in need.replicasets):
            raise errors.read_only()

    def _check_stale(self, statement: Statement) -> None:
        """A plan whose table changed still reads and no longer writes; without its table it does neither."""
        tables = self._cluster.catalog.tables
        for name, version in statement.versions.items():
            table = tables.get(name)
            if table is None:
                raise errors.space_metadata_not_found(name)
            if table.version != version and name in statement.writes:
                raise errors.sbroad("storage schema version different from router")

    async def _do(self, statement: Statement, values: Sequence[Any], start: StartUp, need: Need) -> Result:
        if statement.ddl is not None:
            await self._schema.apply(statement.ddl, start.user)
            return Result((), 0)
        at = self._host.instance.name
        if statement.kind == "select":
            options = statement.bound_options(values)
            self._check_opcodes(options, start, need)
            found = await self._rows.select(at, statement, values)
            self._check_row_limit(options, start, need, len(found))
            return Result(found, len(found))
        count = await self._rows.write(at, statement, values)
        silent = statement.kind == "do" and self._cluster.accent.since_26_2  # recorded: DO 0
        return Result((), 0 if silent else count)

    def _check_opcodes(self, options: Options, start: StartUp, need: Need) -> None:
        """A limit of a few opcodes stops every SELECT on a sharded table where it executes."""
        if need.kind is not Kind.SHARDED:
            return
        limit = _option(options, "sql_vdbe_opcode_max", start.sql_vdbe_opcode_max)
        if limit is not None and 0 < limit < _FEW_OPCODES:
            raise errors.opcode_limit(limit)

    def _check_row_limit(self, options: Options, start: StartUp, need: Need, count: int) -> None:
        """Too many rows: noticed by a replicaset, or by the asked instance when each replicaset alone stays
        below.

        The model does not know which rows came from where and takes them as spread evenly.
        """
        limit = _option(options, "sql_motion_row_max", start.sql_motion_row_max)
        limit = self._cluster.settings.motion_row_max if limit is None else limit
        if need.kind is not Kind.SHARDED or not limit or count <= limit:
            return
        if -(-count // max(1, len(need.replicasets))) > limit and len(need.replicasets) > 1:
            raise errors.too_many_rows_at(limit, self._target(need), accent=self._cluster.accent)
        raise _OwnFaultError(errors.numbered(errors.too_many_rows(limit), self._cluster.accent))


class _OwnFaultError(ServerError):
    """An error of the asked instance itself, which is not wrapped."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.sqlstate, error.message)


def _wrappable(error: ServerError) -> bool:
    return not isinstance(error, _OwnFaultError) and "Error on replicaset" not in error.message


def _option(options: Options, name: str, connection: int | None) -> int | None:
    """OPTION in the text wins over the connection's option."""
    written = options.get(name)
    return int(written) if written is not None else connection
