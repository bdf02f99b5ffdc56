"""What both pools, of event loops and of threads, show and do without waiting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from picopyn.asynchronous import tls
from picopyn.asynchronous.config_files import read_file
from picopyn.asynchronous.control_plane import ControlPlane
from picopyn.asynchronous.dialect_detection import named_dialect
from picopyn.asynchronous.household import Household
from picopyn.asynchronous.lifecycle import State
from picopyn.asynchronous.sessions import refuse_unsupported
from picopyn.bulk_report import BulkReport
from picopyn.dialects.base import Capability
from picopyn.engine.bulk import CHUNK_SIZE, BulkLoad, BulkOptions, check_progress, check_resume
from picopyn.engine.bulk_rows import Machinery
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.explain import explain
from picopyn.engine.journal import Journal
from picopyn.engine.key_factories import make_factory
from picopyn.engine.key_fetch import FetchOptions, KeyFetch
from picopyn.engine.loan import no_transactions
from picopyn.engine.place import Place, Where, find, place_of
from picopyn.engine.request import Request, check_text, make_request
from picopyn.engine.resolution import Resolution
from picopyn.engine.row_sources import GivenRows, RowSource
from picopyn.engine.statistics import pool_stats
from picopyn.engine.transaction import TransactionRun, new_request
from picopyn.errors import ConfigError, NotSupported, UsageError
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.role_settings import role_problems
from picopyn.routing.explanation import RouteExplanation
from picopyn.routing.key_texts import split_values
from picopyn.routing.plan import Role
from picopyn.routing.sharding import ShardingKey, ShardingKeyFactory
from picopyn.settings import PoolSettings, check_timeout
from picopyn.stats import Counters, PoolStats
from picopyn.topology import TopologySnapshot

T = TypeVar("T")

#: How long `close` lets running calls finish when the caller does not say (seconds).
CLOSE_GRACE = 10.0
#: The same for `drain`.
DRAIN_GRACE = 30.0


class Life(Protocol):
    """The state of a pool."""

    @property
    def state(self) -> State:
        """Where in its life it is."""
        ...

    def forgotten(self) -> None:
        """Nobody has the pool any more."""
        ...

    def check_open(self) -> None:
        """Refuse calls before the opening, after the end, and where the pool does not belong."""
        ...


L = TypeVar("L", bound=Life)


class PoolFacade(Generic[L]):
    """A pool, but for its calls; `L` is its life.

    Args:
        dsn: Connection string.
        settings: All settings as one value, instead of `dsn` and keywords.
        **options: Settings by name.

    Raises:
        ConfigError: Something in the configuration cannot work; it names every problem. No socket was opened.
    """

    _how_to_open = "use `async with pool` or `await pool.open()`"
    _life: L
    _household: Household
    _control: ControlPlane
    _journal: Journal
    _cluster: Cluster
    _executor: Executor

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

    def __repr__(self) -> str:
        return f"<Pool {self._settings.dsn!r} {self._life.state.value}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise UsageError("a pool can be neither copied nor sent to another process; make and open one there")

    def __del__(self) -> None:
        life: L | None = getattr(self, "_life", None)
        if life is not None:
            life.forgotten()

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
            raise UsageError(f"the pool is not open yet: {self._how_to_open}")
        return self._cluster.snapshot

    def stats(self) -> PoolStats:
        """Gauges and counters, as of now; the value never changes afterwards."""
        if not hasattr(self, "_executor"):
            return Counters().snapshot()
        control = self._control
        tallies = self._executor.tallies
        return pool_stats(self._cluster, self._journal, control.tracker.stats(), control.metadata.stats(), tallies)

    @property
    def available_pool_count(self) -> int:
        """Nodes with a connection."""
        return sum(node.idle + node.in_use > 0 for node in self.stats().nodes.values())

    def update_topology_interval(self, seconds: float) -> None:
        """Change how often the topology is refreshed; takes effect at once.

        Args:
            seconds: The new interval, at least 1.

        Raises:
            ValueError: The interval is too short.
            RuntimeError: Periodic tracking is off.
        """
        self._check_open()
        self._there(lambda: self._control.tracker.update_interval(seconds))

    def undrain(self, node: str) -> None:
        """Use a node again that was drained; it is connected to before it gets calls. Nothing happens to another one.

        One that has left meanwhile is used when it comes back.

        Args:
            node: Name, uuid or address (`host:port`).

        Raises:
            NoNodeAvailable: The topology knows no such node, and none of this name was drained.
            UsageError: The node is no text, or an empty one.
        """
        self._check_open()
        cluster = self._cluster
        self._there(lambda: cluster.undrain(find(node, cluster.snapshot, cluster.drained)))

    # inside

    async def _drain(self, wanted: str, grace: float) -> None:
        cluster = self._cluster
        node = find(wanted, cluster.snapshot)
        cluster.drain(node, grace)
        self._control.leave(node)
        await cluster.vacated(node.uuid)

    def _check_open(self) -> None:
        self._life.check_open()

    def _there(self, step: Callable[[], T]) -> T:
        """Take a step where the state of the cluster lives, and give its result."""
        return step()

    def _move_in(self, household: Household) -> None:
        """The pool is put together."""
        assert household.control is not None
        assert household.journal is not None
        assert household.cluster is not None
        assert household.executor is not None
        self._is_atomic = Capability.TRANSACTIONS in household.dialect.capabilities
        self._household = household
        self._control, self._journal = household.control, household.journal
        self._cluster, self._executor = household.cluster, household.executor

    def _is_load(self, chunk_size: int | None, resume: BulkReport | None, progress: object) -> bool:
        """Whether rows are sent in chunks, rather than all together, which then take effect together."""
        self._check_open()  # before the rows are taken
        check_progress(progress)
        return not self._is_atomic or chunk_size is not None or resume is not None

    async def _load(
        self,
        query: str,
        source: RowSource,
        timeout: float | None,
        role: str | None,
        idempotent: bool | None,
        chunk_size: int | None,
        progress: Callable[[int], object] | None,
        resume: BulkReport | None,
    ) -> int:
        check_timeout(timeout)
        check_text(query, "executemany")
        if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
            raise UsageError("chunk_size= takes a number of rows of at least 1")
        if resume is not None:
            check_resume(resume, query, idempotent)
        options = BulkOptions(
            chunk_size=chunk_size or CHUNK_SIZE,
            one_by_one=not self._is_atomic,
            timeout=timeout,
            chunk_timeout=self._command_timeout,
            role=self._role(role),
            idempotent=idempotent,
            resume=resume,
            progress=progress,
        )
        return await BulkLoad(self._machinery, query, source, options).run()

    @property
    def _machinery(self) -> Machinery:
        return Machinery(self._executor, self._cluster, self._household.dialect.key_hash)

    async def _split(
        self,
        query: str,
        args: tuple[Any, ...],
        timeout: float | None,
        role: str | None,
        idempotent: bool | None,
        where: Mapping[str, Any],
    ) -> str:
        """Insert rows of VALUES at all their owners at once.

        Args:
            query: The statement.
            args: Its arguments.
            timeout: See `execute`.
            role: See `execute`.
            idempotent: See `execute`.
            where: What the caller said besides.
        """
        if place_of(where, None, "execute") != Place():
            raise UsageError("splittable= sends each row to its owner; leave key=, tier=, bucket= and node= out")
        one, rows = split_values(query, args)
        count = await self._load(
            one, GivenRows(rows, self._cluster.runtime.now), timeout, role, idempotent, None, None, None
        )
        return f"INSERT 0 {count}"

    def _fetch_by_keys(
        self,
        query: str,
        keys: Iterable[Any],
        others: tuple[Any, ...],
        order_by: str | Sequence[str] | None,
        timeout: float | None,
        role: str | None,
        idempotent: bool | None,
    ) -> KeyFetch:
        self._check_open()
        check_timeout(timeout)
        check_text(query, "fetch_by_keys")
        if order_by is not None and not isinstance(order_by, str | Sequence):
            raise UsageError(f"order_by= takes the name of a column, or names, not {type(order_by).__name__}")
        columns = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
        own = timeout is not None
        options = FetchOptions(
            order_by=columns,
            timeout=timeout if own else self._command_timeout,
            own_timeout=own,
            role=self._role(role),
            idempotent=idempotent,
        )
        return KeyFetch(self._machinery, query, keys, others, options)

    def _time_to_copy(self, timeout: float | None) -> Callable[[], float | None]:
        """Refuse COPY where there is none; what tells how much of its time is left, a moment at least."""
        self._check_open()
        check_timeout(timeout)
        if not self._is_atomic:
            raise NotSupported("copy_records() needs COPY, which this server does not have; use executemany()")
        now = self._cluster.runtime.now
        end = None if timeout is None else now() + timeout
        return lambda: None if end is None else max(end - now(), 0.001)

    def _limit(self, request: Request, timeout: float | None) -> None:
        """Give a call its limit: the caller's own, else the pool's `command_timeout`, which there is."""
        if timeout is not None:
            check_timeout(timeout)
            request.limit(timeout, self._cluster.runtime.now())
        elif self._command_timeout is not None:
            request.limit(self._command_timeout, self._cluster.runtime.now(), False)

    def _role(self, role: str | None) -> Role:
        if role is None:
            return self._default_role
        problems = role_problems(role)
        if problems:
            raise ConfigError(problems)
        asked = Role(role)
        if self._life.state is State.OPEN:  # else the call is refused anyway
            self._control.check_role(asked)
        return asked

    def _place(
        self,
        role: str | None,
        node: str | None,
        key: ShardingKey | None,
        read_only: bool | None = None,
        fallback_master: bool | None = None,
        master_as_replica_weight: float | None = None,
        tier: str | None = None,
        bucket: int | None = None,
    ) -> Place:
        if read_only is not None:
            if role is not None:
                raise UsageError("role= already says whether a replica will do; leave read_only= out")
            role = "replica" if read_only else "leader"
        asked = role if role is not None or node is not None else self._settings.role
        known = None if asked is None else self._role(asked)
        return Place(known, node, key, fallback_master, master_as_replica_weight, tier, bucket)

    def _send_to(self, request: Request, role: str | None, where: Mapping[str, Any]) -> None:
        """The caller said where a call goes."""
        if any(value is not None for value in where.values()) or not where.keys() <= Where.__annotations__.keys():
            request.place = place_of(where, None if role is None else request.role, request.called)

    async def _make_factory(
        self, table: str, tier: str | None, columns: Mapping[str, str | int] | None
    ) -> ShardingKeyFactory:
        self._check_open()
        return await make_factory(self._executor, self._household.dialect, self._cluster.snapshot, table, tier, columns)

    def _loan_request(self, timeout: float | None, place: Place) -> Request:
        self._check_open()
        request = make_request("acquire", "", (), place.role or self._default_role)
        if timeout is not None:
            self._limit(request, timeout)
        return request

    def _explain(
        self,
        query: str,
        args: tuple[Any, ...],
        role: str | None,
        where: Mapping[str, Any],
        known: PreparedStatementMetadata | None,
    ) -> RouteExplanation:
        request = make_request("explain_route", query, args, self._role(role))
        self._send_to(request, role, where)
        request.asked = True
        return self._there(lambda: explain(request, known, self._executor, self._cluster))

    def _plan_question(self, query: str) -> str:
        """The text that asks for the plan of a statement."""
        self._check_open()
        check_text(query, "explain")
        words = query.split(None, 1)
        if words and words[0].upper() == "EXPLAIN":
            raise UsageError("explain() writes EXPLAIN itself: give it the statement that is to be explained")
        return self._household.dialect.plan_question(query)

    async def _until_ready(self, leaders: int | None, replicas: int | None, timeout: float | None) -> None:
        cluster = self._cluster
        deadline = None if timeout is None else cluster.runtime.now() + timeout
        while not cluster.is_ready(leaders, replicas):
            try:
                await cluster.changes.wait(deadline)
            except TimeoutError:
                text = f"the pool was not ready within {timeout:g} s; without a connection: {cluster.unconnected()}"
                raise TimeoutError(text) from None
            self._check_open()

    def _transaction_run(
        self, retries: int, timeout: float | None, role: str | None, *, readonly: bool, resolve: bool
    ) -> tuple[TransactionRun, Place]:
        self._check_atomic("run_transaction")
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ValueError(f"retries must be a whole number of at least 0, not {retries!r}")
        place = self._place(role, None, None)
        asked = place.role or self._default_role
        request = new_request(asked)
        if timeout is not None:
            self._limit(request, timeout)
        only_reads = readonly or asked is Role.REPLICA
        run = TransactionRun(
            self._executor,
            self._cluster,
            self._journal,
            self._rng,
            request,
            retries,
            only_reads=only_reads,
            resolution=self._resolution() if resolve else None,
        )
        return run, place

    def _resolution(self) -> Resolution:
        questions = self._household.dialect.outcome_questions
        if questions is None:
            name = self._household.dialect.name
            raise NotSupported(f"resolve=True: {name} cannot tell what became of a transaction; nothing was sent")
        return Resolution(self._executor, self._cluster, questions)

    def _check_atomic(self, name: str) -> None:
        """Refuse what needs transactions where there are none."""
        self._check_open()
        if not self._is_atomic:
            raise NotSupported(no_transactions(name))

    def _expire(self) -> None:
        self._household.dialer.credentials.forgive()
        self._cluster.expire_connections()


def check_counts(masters: int | None, replicas: int | None) -> None:
    """Hasql's rule for the counts of `ready`.

    Raises:
        ValueError: One without the other, or a negative one.
    """
    if (masters is None) is not (replicas is None):
        raise ValueError("masters_count and replicas_count should both be either None or not None")
    for name, count in (("masters_count", masters), ("replicas_count", replicas)):
        if count is not None and count < 0:
            raise ValueError(f"{name} must be at least 0, not {count!r}")
