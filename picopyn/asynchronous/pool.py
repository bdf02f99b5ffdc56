"""`Pool`: the public face, and the place where everything is put together.

It decides the life cycle (new → open → closed) and nothing else: calls go to the engine's executor, facts come from the
tracker, routes from the metadata service.
"""

from __future__ import annotations

import functools
import os
import traceback
from asyncio import _get_running_loop
from collections.abc import Iterable, Sequence
from random import Random
from types import TracebackType
from typing import Any

from picopyn.asynchronous import tls
from picopyn.asynchronous.acquired import AcquiredConnection, Acquiring, no_transactions
from picopyn.asynchronous.config_files import PasswordFile, read_file
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.control_plane import ControlPlane
from picopyn.asynchronous.dialect_detection import introduce, named_dialect
from picopyn.asynchronous.household import Household
from picopyn.asynchronous.lifecycle import LAST_GRACE, Lifecycle
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.runtime import AsyncioRuntime
from picopyn.asynchronous.sessions import Sessions, refuse_unsupported
from picopyn.asynchronous.transaction import PoolTransaction
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Capability
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.explain import explain
from picopyn.engine.journal import Journal
from picopyn.engine.place import Place
from picopyn.engine.request import EXECUTEMANY, EXECUTEMANY_FRESHLY, Request
from picopyn.engine.route_table import RouteTable
from picopyn.engine.statistics import pool_stats
from picopyn.errors import ConfigError, NoNodeAvailable, NotSupported, UsageError
from picopyn.observe import Publisher
from picopyn.role_settings import role_problems
from picopyn.routing.credentials import Credentials
from picopyn.routing.explanation import RouteExplanation
from picopyn.routing.plan import Role
from picopyn.routing.sharding import ShardingKey
from picopyn.settings import PoolSettings, check_timeout
from picopyn.stats import Counters, PoolStats
from picopyn.topology import TopologySnapshot

#: How long `close` lets running calls finish when the caller does not say (seconds).
CLOSE_GRACE = 10.0


class Pool:
    """A pool of connections to a cluster that sends every statement where it belongs.

    ```
    async with Pool("postgresql://app:secret@n1:4327,n2:4327/db") as pool:
        await pool.execute("INSERT INTO orders VALUES ($1, $2)", 42, "eu")
    ```

    Args:
        dsn: Connection string: a URI or `key=value` text, with one host or several.
        settings: All settings as one value, instead of `dsn` and keywords.
        **options: Settings by name; see [`PoolSettings`][picopyn.settings.PoolSettings]. A keyword wins over the same
            word in the string.

    Raises:
        ConfigError: Something in the configuration cannot work; it names every problem. No socket was opened.
    """

    def __init__(self, dsn: str | None = None, *, settings: PoolSettings | None = None, **options: Any) -> None:
        if settings is not None and (dsn is not None or options):
            raise ConfigError("give either settings= or a connection string with keywords, not both")
        self._settings = settings or PoolSettings.from_dsn(
            dsn or "", environment=os.environ, read_file=read_file, **options
        )
        named = named_dialect(self._settings.dialect)
        if named is not None:
            refuse_unsupported(self._settings, named)
        self._security = tls.prepare(self._settings)
        self._default_role = Role(self._settings.role or "leader")
        self._command_timeout = self._settings.command_timeout
        self._is_atomic = False
        self._rng = Random()
        self._life = Lifecycle(f"<Pool {self._settings.dsn!r}>")
        self._credentials: Credentials
        self._control: ControlPlane
        self._journal: Journal
        self._cluster: Cluster
        self._executor: Executor

    def __repr__(self) -> str:
        return f"<Pool {self._settings.dsn!r} {self._life.state.value}>"

    def __del__(self) -> None:
        life: Lifecycle | None = getattr(self, "_life", None)
        if life is not None:
            life.forgotten()

    # life cycle

    async def open(self) -> Pool:
        """Connect: returns when one node answers, and goes on filling in the background. A second call does nothing.

        Cancelled or failed, it leaves nothing behind, and may be called again.

        Raises:
            AuthenticationFailed: A node refused the credentials; it was asked once, and no other node was.
            NoNodeAvailable: No seed answered; it lists each with its reason.
            PoolClosed: The pool was closed, before or meanwhile.
            UsageError: It is being opened already.
        """
        await self._life.open(self._connect)
        return self

    async def close(self, grace: float = CLOSE_GRACE) -> None:
        """Refuse new calls, wake waiting ones with `PoolClosed`, let running ones finish, then drop the rest.

        A second call waits for the first. Cancelled, it drops everything at once. It may be called at any time: while
        the pool is being opened, by who still holds a connection (he is waited for like anybody else), after the event
        loop of the pool was closed.

        Args:
            grace: How long running calls and borrowers may take (seconds), at least 0.

        Raises:
            ValueError: The grace is negative, or no number.
            UsageError: The pool belongs to another event loop, which is not closed.
        """
        if not grace >= 0:
            raise ValueError(f"grace must be a number of seconds of at least 0, not {grace!r}")
        await self._life.close(grace)

    def terminate(self) -> None:
        """Drop everything at once; calls in flight end with an error. Safe at any time and from any thread."""
        self._life.terminate()

    async def __aenter__(self) -> Pool:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(CLOSE_GRACE if kind is None or issubclass(kind, Exception) else LAST_GRACE)

    async def wait_ready(
        self, *, leaders: int | None = None, replicas: int | None = None, timeout: float | None = 10.0
    ) -> None:
        """Wait until nodes are known and connected: without any count, every Online node.

        With a count, only what is counted matters; the count that is not given is 0.

        Args:
            leaders: How many leaders at least.
            replicas: How many other nodes at least.
            timeout: Longest wait (seconds); None: no limit.

        Raises:
            TimeoutError: They were not there in time.
            ValueError: The timeout is not above 0, or no number.
        """
        self._check_open()
        check_timeout(timeout)
        cluster = self._cluster
        deadline = None if timeout is None else cluster.runtime.now() + timeout
        while not cluster.is_ready(leaders, replicas):
            try:
                await cluster.changes.wait(deadline)
            except TimeoutError:
                text = f"the pool was not ready within {timeout:g} s; without a connection: {cluster.unconnected()}"
                raise TimeoutError(text) from None
            self._check_open()

    async def ready(
        self, masters_count: int | None = None, replicas_count: int | None = None, timeout: float | None = 10.0
    ) -> None:
        """`wait_ready`, as hasql calls it: without counts, all hosts; with both, so many of each.

        Raises:
            ValueError: One count without the other, or a negative one.
            TimeoutError: They were not there in time.
        """
        if (masters_count is None) is not (replicas_count is None):
            raise ValueError("masters_count and replicas_count should both be either None or not None")
        for name, count in (("masters_count", masters_count), ("replicas_count", replicas_count)):
            if count is not None and count < 0:
                raise ValueError(f"{name} must be at least 0, not {count!r}")
        await self.wait_ready(leaders=masters_count, replicas=replicas_count, timeout=timeout)

    async def wait_masters_ready(self, masters_count: int) -> None:
        """Wait, without any limit, until so many leaders are connected."""
        await self.wait_ready(leaders=masters_count, timeout=None)

    @property
    def available_pool_count(self) -> int:
        """Nodes with a connection."""
        return sum(node.idle + node.in_use > 0 for node in self.stats().nodes.values())

    # calls

    async def execute(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> str:
        """Execute a statement.

        Args:
            query: Text with `$1`, `$2`, … for the arguments.
            *args: Arguments.
            timeout: Limit for the whole call: waiting, connecting, running (seconds). None: `command_timeout`.
            role: `"leader"`, or `"prefer_leader"`: when the leader is away, a replica may answer a read. On plain
                PostgreSQL also `"replica"`, `"prefer_replica"` and `"any"`, for every statement.
            idempotent: Your word on whether the statement may be sent twice after its connection broke.

        Returns:
            The server's status, like `"INSERT 0 1"`.

        Raises:
            AcquireTimeout: No connection became available in time; nothing was sent.
            CallTimeout: The deadline ended while the server had the statement; for one that is not repeatable it is an
                `OutcomeUnknown` too.
            OutcomeUnknown: The connection broke, and the statement may have taken effect.
            NoNodeAvailable: No node can be reached.
            PoolClosed: The pool is closed.
            asyncpg.PostgresError: What the server says about the statement.
        """
        request = self._request("execute", query, args, timeout, role, idempotent)
        result: str = await self._executor.run(request)
        return result

    async def fetch(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> list[Any]:
        """Run a query and return all rows; parameters and errors as for `execute`."""
        request = self._request("fetch", query, args, timeout, role, idempotent)
        result: list[Any] = await self._executor.run(request)
        return result

    async def fetchrow(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> Any:
        """Run a query and return its first row, or None; parameters and errors as for `execute`."""
        request = self._request("fetchrow", query, args, timeout, role, idempotent)
        return await self._executor.run(request)

    async def fetchval(
        self,
        query: str,
        *args: Any,
        column: int | str = 0,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> Any:
        """Run a query and return one value of its first row, or None; parameters and errors as for `execute`.

        Args:
            query: See `execute`.
            *args: See `execute`.
            column: Position or name of the value's column.
            timeout: See `execute`.
            role: See `execute`.
            idempotent: See `execute`.
        """
        request = self._request("fetchrow", query, args, timeout, role, idempotent)
        row = await self._executor.run(request)
        return None if row is None else row[column]

    async def executemany(
        self,
        query: str,
        args: Iterable[Sequence[Any]],
        *,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> None:
        """Execute a statement once for each row of arguments, in one go over one connection.

        On PostgreSQL all rows take effect or none. Picodata executes each row by itself: when one fails, those before
        it stay. The rows are not split by their owners yet: one node gets all of them, and forwards.

        Args:
            query: See `execute`.
            args: Rows of arguments; they are put into a list first.
            timeout: See `execute`; for all rows together.
            role: See `execute`.
            idempotent: See `execute`; about all rows together.

        Raises:
            OutcomeUnknown: Some rows may have taken effect.
            Exception: As for `execute`.
        """
        self._check_open()  # before the rows are taken
        rows = args if isinstance(args, list | tuple) else list(args)
        method = EXECUTEMANY if self._is_atomic else EXECUTEMANY_FRESHLY
        await self._executor.run(self._request(method, query, (rows,), timeout, role, idempotent))

    def acquire(
        self,
        *,
        timeout: float | None = None,
        role: str | None = None,
        node: str | None = None,
        key: ShardingKey | None = None,
        read_only: bool | None = None,
        fallback_master: bool | None = None,
        master_as_replica_weight: float | None = None,
    ) -> Acquiring:
        """Borrow a connection: `async with pool.acquire() as connection`, or `await` it and `release` it.

        What runs on it is not routed. Prefer the pool's own methods.

        Args:
            timeout: Longest wait (seconds); None: `acquire_timeout`.
            role: Which nodes will do, see `execute`; None: the pool's role if it was given one, else the primary where
                hosts have roles (PostgreSQL), and any node elsewhere. Among them the load decides.
            node: Name, uuid or address (`host:port`) of the one node.
            key: A key whose owner it shall lead to.
            read_only: hasql's word: True for `role="replica"`, False for `role="leader"`.
            fallback_master: For a connection to a replica, instead of what the settings say.
            master_as_replica_weight: The same.

        Raises:
            AcquireTimeout: None became available in time.
            ConfigError: A weight that is none, or without a replica; a role that is none.
            NoNodeAvailable: No node can be reached, or the topology knows no such node.
            PoolClosed: The pool is closed.
            UsageError: What was asked for contradicts itself, or the key cannot be hashed.
        """
        if read_only is not None:
            if role is not None:
                raise UsageError("role= already says whether a replica will do; leave read_only= out")
            role = "replica" if read_only else "leader"
        asked = role if role is not None or node is not None else self._settings.role
        place = Place(
            None if asked is None else self._role(asked), node, key, fallback_master, master_as_replica_weight
        )
        debug = self._settings.debug or (self._life.loop is not None and self._life.loop.get_debug())
        origin = traceback.StackSummary.from_list(traceback.extract_stack()[:-1]) if debug else None
        return Acquiring(functools.partial(self._acquire, timeout, place, origin))

    def acquire_master(self, timeout: float | None = None) -> Acquiring:
        """`acquire(role="leader")`, as hasql calls it."""
        return self.acquire(role="leader", timeout=timeout)

    def acquire_replica(
        self,
        fallback_master: bool | None = None,
        master_as_replica_weight: float | None = None,
        timeout: float | None = None,
    ) -> Acquiring:
        """`acquire(role="replica")`, as hasql calls it; see `acquire`."""
        return self.acquire(
            role="replica",
            timeout=timeout,
            fallback_master=fallback_master,
            master_as_replica_weight=master_as_replica_weight,
        )

    async def release(self, connection: AcquiredConnection, *, timeout: float | None = None) -> None:
        """Give back a connection that was acquired with `await`.

        Nothing is waited for. A transaction that is still open is rolled back, by closing the connection. Where
        sessions have a state, it is cleared in the background before somebody else gets the connection (see `reset` in
        the settings).

        Args:
            connection: What `acquire` gave.
            timeout: Taken for the sake of asyncpg's signature.

        Raises:
            UsageError: It was given back before, or belongs to another pool.
        """
        if not isinstance(connection, AcquiredConnection) or connection._pool is not self:
            raise UsageError(f"{type(connection).__name__} was not acquired from this pool")
        connection.release()

    def transaction(
        self,
        *,
        isolation: str | None = None,
        readonly: bool = False,
        deferrable: bool = False,
        timeout: float | None = None,
        role: str | None = None,
        node: str | None = None,
        key: ShardingKey | None = None,
    ) -> PoolTransaction:
        """A connection in a transaction: `async with pool.transaction() as connection`.

        It is committed at the end of the block, rolled back when the block ends with an error, and given back.

        Args:
            isolation: `"serializable"`, `"repeatable_read"`, `"read_uncommitted"` or `"read_committed"`.
            readonly: It only reads.
            deferrable: It may wait for a snapshot that needs no checks.
            timeout: As for `acquire`, like the rest.
            role: See `acquire`.
            node: See `acquire`.
            key: See `acquire`.

        Raises:
            NotSupported: The server has no transactions (Picodata).
        """
        self._check_open()
        if not self._is_atomic:
            raise NotSupported(no_transactions("transaction"))
        acquiring = self.acquire(timeout=timeout, role=role, node=node, key=key)
        return PoolTransaction(acquiring, {"isolation": isolation, "readonly": readonly, "deferrable": deferrable})

    # looking inside

    @property
    def settings(self) -> PoolSettings:
        """The settings the pool was made with."""
        return self._settings

    @property
    def topology(self) -> TopologySnapshot:
        """The cluster as last seen; immutable, so hold it as long as you like.

        Raises:
            UsageError: The pool was never open.
        """
        if not hasattr(self, "_executor"):
            raise UsageError("the pool is not open yet: use `async with pool` or `await pool.open()`")
        return self._cluster.snapshot

    def stats(self) -> PoolStats:
        """Gauges and counters, as of now; the value never changes afterwards."""
        if not hasattr(self, "_executor"):
            return Counters().snapshot()
        control = self._control
        return pool_stats(self._cluster, self._journal, control.tracker.stats(), control.metadata.stats())

    async def explain_route(self, query: str, *args: Any, role: str | None = None) -> RouteExplanation:
        """Where a call would go now, and why; learns the text first. Nothing is executed."""
        self._check_open()
        metadata = await self._control.learn(query)
        request = Request("explain", query, args, self._role(role))
        request.asked = True
        return explain(request, metadata, self._executor, self._cluster)

    async def expire_connections(self) -> None:
        """Replace every connection, without disturbing anybody: after a new password, or a change of server settings.

        Idle ones are closed now, those in use when they are given back, those that are being opened on arrival. Nothing
        is waited for. A password that a server has refused is tried again at once.
        """
        self._check_open()
        self._credentials.forgive()
        self._cluster.expire_connections()

    def update_topology_interval(self, seconds: float) -> None:
        """Change how often the topology is refreshed; takes effect at once.

        Args:
            seconds: The new interval, at least 1.

        Raises:
            ValueError: The interval is too short.
            RuntimeError: Periodic tracking is off.
        """
        self._check_open()
        self._control.tracker.update_interval(seconds)

    async def refresh_topology(self) -> TopologySnapshot:
        """Look at the cluster now; what is returned is not older than the call.

        Raises:
            NoNodeAvailable: The topology could not be read; `topology` still has what was known.
            PoolClosed: The pool is closed, or was closed meanwhile.
        """
        self._check_open()
        await self._control.look_now()
        self._check_open()
        return self._cluster.snapshot

    # inside

    def _request(
        self,
        method: str,
        query: str,
        args: tuple[Any, ...],
        timeout: float | None,
        role: str | None,
        idempotent: bool | None,
    ) -> Request:
        if _get_running_loop() is not self._life.home:
            self._check_open()
        request = Request(method, query, args, self._default_role if role is None else self._role(role), idempotent)
        if timeout is not None:
            self._limit(request, timeout)
        elif self._command_timeout is not None:
            request.limit(self._command_timeout, self._cluster.runtime.now(), own=False)
        return request

    async def _acquire(
        self, timeout: float | None, place: Place, origin: traceback.StackSummary | None
    ) -> AcquiredConnection:
        self._check_open()
        request = Request("acquire", "", (), place.role or self._default_role)
        if timeout is not None:
            self._limit(request, timeout)
        return AcquiredConnection(await self._executor.acquire(request, place), self, origin)

    def _limit(self, request: Request, timeout: float) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        request.limit(timeout, self._cluster.runtime.now())

    def _role(self, role: str | None) -> Role:
        if role is None:
            return self._default_role
        problems = role_problems(role)
        if problems:
            raise ConfigError(problems)
        asked = Role(role)
        if self._life.home is not None:  # else the call is refused anyway
            self._control.check_role(asked)
        return asked

    def _check_open(self) -> None:
        self._life.check_open()

    async def _connect(self) -> None:
        settings, rng = self._settings, self._rng
        passwords = PasswordFile(settings.passfile)
        make_dialer = functools.partial(Dialer, settings, passwords=passwords, security=self._security)
        first = await introduce(settings, make_dialer, rng)
        dialer, dialect = first.dialer, first.dialect
        self._is_atomic = Capability.TRANSACTIONS in dialect.capabilities
        seeds, timeout = [(endpoint.host, endpoint.port or 0) for endpoint in first.endpoints], settings.connect_timeout
        reach = Reach(dialer, dialect, seeds, timeout, lambda: control.snapshot, rng, first.connection)
        self._credentials = dialer.credentials
        self._life.belongings = household = Household(dialer=dialer, reach=reach)
        if first.connection is not None:
            dialer.adopt(first.connection)
        refuse_unsupported(settings, dialect)
        household.sessions = sessions = Sessions(settings, dialer, reach)
        runtime = AsyncioRuntime(sessions.open, sessions.restore)
        self._journal = journal = Journal(Counters(), Publisher(settings.on_event), runtime.now)
        self._control = household.control = control = ControlPlane(
            settings, dialect, reach, journal.publisher, runtime.now, rng
        )
        self._cluster = cluster = Cluster(
            runtime, dialect, settings, control.snapshot, journal, control.look_again, rng, control.hosts
        )
        household.cluster = cluster
        routes = RouteTable(control.metadata, dialect.key_hash, lambda: cluster.snapshot.bucket_counts)
        self._executor = household.executor = Executor(cluster, routes, control.metadata, dialect, journal)
        await control.start(cluster, self._executor)
        await self._first_connection(cluster, first.connection)

    async def _first_connection(self, cluster: Cluster, introduced: Connection | None) -> None:
        """Wait for one connection of the node pools; the rest are made in the background."""
        deadline = cluster.runtime.now() + self._settings.connect_timeout
        for pool in cluster.pools:  # without a min_size nothing is being opened yet
            if introduced is None or introduced.endpoint == (pool.node.host, pool.node.port):
                pool.warm(1)
        while not any(pool.slots.size for pool in cluster.pools):
            try:
                await cluster.changes.wait(deadline)
            except TimeoutError:
                reasons = {pool.node.address: pool.trouble or "no answer yet" for pool in cluster.pools}
                what = "no node of the cluster can be connected to" if reasons else "the topology lists no usable node"
                raise NoNodeAvailable(what, reasons) from None
