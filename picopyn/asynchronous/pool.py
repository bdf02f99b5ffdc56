"""`Pool`: the public face on an event loop.

It decides nothing: calls go to the engine's executor, its life is looked after by the life cycle, and its parts are put
together by the assembly.
"""

from __future__ import annotations

import functools
import traceback
from asyncio import _get_running_loop
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from picopyn.asynchronous.acquired import AcquiredConnection, Acquiring
from picopyn.asynchronous.assembly import assemble
from picopyn.asynchronous.facade import CLOSE_GRACE, DRAIN_GRACE, PoolFacade, check_counts
from picopyn.asynchronous.household import Household
from picopyn.asynchronous.lifecycle import LAST_GRACE, Lifecycle
from picopyn.asynchronous.published_names import PublishedNames
from picopyn.asynchronous.row_sources import AwaitedRows
from picopyn.asynchronous.transaction import PoolTransaction, attempt
from picopyn.bulk_report import BulkReport
from picopyn.engine.place import ANYHOW, HowToExecute, Place, Where
from picopyn.engine.request import Request, check_text, make_request
from picopyn.engine.row_sources import GivenRows, checked
from picopyn.engine.runtime import status_of
from picopyn.engine.transaction import check_work
from picopyn.errors import UsageError
from picopyn.query_plan import QueryPlan
from picopyn.routing.explanation import RouteExplanation
from picopyn.routing.sharding import ShardingKey, ShardingKeyFactory
from picopyn.routing.transactions import RETRIES
from picopyn.settings import PoolSettings, check_grace, check_timeout
from picopyn.topology import TopologySnapshot

T = TypeVar("T")


class Pool(PoolFacade[Lifecycle], PublishedNames):
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
        super().__init__(dsn, settings=settings, **options)
        self._life = Lifecycle(f"<Pool {self._settings.dsn!r}>")

    # life cycle

    async def open(self) -> Pool:
        """Connect: returns when one node answers, and goes on filling in the background. A second call does nothing.

        Cancelled or failed, it leaves nothing behind, and may be called again.

        Raises:
            AuthenticationFailed: A node refused the credentials; it was asked once, and no other node was.
            NoNodeAvailable: No seed answered; it lists each with its reason.
            PoolClosed: The pool was closed, before or meanwhile.
            UsageError: It is being opened already.
            Exception: What `after_connect` raised, when it failed at every node that could be connected to.
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
        check_grace(grace)
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
        await self._until_ready(leaders, replicas, timeout)

    async def ready(
        self, masters_count: int | None = None, replicas_count: int | None = None, timeout: float | None = 10.0
    ) -> None:
        """`wait_ready`, as hasql calls it: without counts, all hosts; with both, so many of each.

        Raises:
            ValueError: One count without the other, or a negative one.
            TimeoutError: They were not there in time.
        """
        check_counts(masters_count, replicas_count)
        await self.wait_ready(leaders=masters_count, replicas=replicas_count, timeout=timeout)

    async def wait_masters_ready(self, masters_count: int) -> None:
        """Wait, without any limit, until so many leaders are connected."""
        await self.wait_ready(leaders=masters_count, timeout=None)

    # calls

    async def execute(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
        **where: Unpack[HowToExecute],
    ) -> str:
        """Execute a statement.

        Args:
            query: Text with `$1`, `$2`, … for the arguments.
            *args: Arguments.
            timeout: Limit for the whole call: waiting, connecting, running (seconds). None: `command_timeout`.
            role: Who may answer a read: `"leader"`, `"prefer_leader"` (it is away: a replica), `"replica"`,
                `"prefer_replica"` or `"any"`. None: the pool's.
            idempotent: Your word on whether the statement may be sent twice after its connection broke.
            **where: Where to send it, instead of where its own route leads: `key=`, `tier=` and `bucket=`, or `node=`;
                see [`Where`][picopyn.engine.place.Where]. `splittable=True`: the rows of an `INSERT … VALUES` may take
                effect one by one, so they are sent to all their owners at once, as by `executemany`.

        Returns:
            The server's status, like `"INSERT 0 1"`.

        Raises:
            AcquireTimeout: No connection became available in time; nothing was sent.
            CallTimeout: The deadline ended while the server had the statement; for one that is not repeatable it is an
                `OutcomeUnknown` too.
            OutcomeUnknown: The connection broke, and the statement may have taken effect.
            NoNodeAvailable: No node can be reached.
            PoolClosed: The pool is closed.
            BulkError: With `splittable=True`: as for `executemany`.
            asyncpg.PostgresError: What the server says about the statement.
        """
        request = self._request("execute", query, args, timeout, role, idempotent)
        if where:
            if where.pop("splittable", False) and not self._is_atomic:
                return await self._split(query, args, timeout, role, idempotent, where)
            self._send_to(request, role, where)
        run = self._executor.run
        await run(request)
        return status_of(request.answer)

    async def fetch(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
        **where: Unpack[Where],
    ) -> list[Any]:
        """Run a query and return all rows; parameters and errors as for `execute`."""
        request = self._request("fetch", query, args, timeout, role, idempotent)
        if where:
            self._send_to(request, role, where)
        run = self._executor.run
        await run(request)
        result: list[Any] = request.answer
        return result

    async def fetchrow(
        self,
        query: str,
        *args: Any,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
        **where: Unpack[Where],
    ) -> Any:
        """Run a query and return its first row, or None; parameters and errors as for `execute`."""
        request = self._request("fetchrow", query, args, timeout, role, idempotent)
        if where:
            self._send_to(request, role, where)
        run = self._executor.run
        await run(request)
        rows = request.answer
        return rows[0] if rows else None

    async def fetchval(
        self,
        query: str,
        *args: Any,
        column: int | str = 0,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
        **where: Unpack[Where],
    ) -> Any:
        """Run a query and return one value of its first row, or None; parameters and errors as for `execute`.

        Args:
            query: See `execute`.
            *args: See `execute`.
            column: Position or name of the value's column.
            timeout: See `execute`.
            role: See `execute`.
            idempotent: See `execute`.
            **where: See `execute`.
        """
        request = self._request("fetchrow", query, args, timeout, role, idempotent)
        request.word = "fetchval"
        if where:
            self._send_to(request, role, where)
        run = self._executor.run
        await run(request)
        rows = request.answer
        return rows[0][column] if rows else None

    async def executemany(
        self,
        query: str,
        args: Iterable[Sequence[Any]] | AsyncIterable[Sequence[Any]],
        *,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
        chunk_size: int | None = None,
        progress: Callable[[int], object] | None = None,
        resume: BulkReport | None = None,
    ) -> None:
        """Execute a statement once for each row of arguments.

        On Picodata the rows are sorted by the owners of their keys and sent to all of them at the same time, in chunks,
        and each row takes effect by itself. Rows of one owner are executed in the order given.

        On PostgreSQL they go over one connection, and all of them take effect or none. With `chunk_size=` each chunk
        takes effect as a whole, and rows are taken as they are needed.

        Args:
            query: See `execute`.
            args: Rows of arguments, from any iterable, also an asynchronous one. In chunks, a bounded number of them is
                held at a time.
            timeout: See `execute`; for all rows together. Without it, `command_timeout` is the limit of each chunk.
            role: See `execute`.
            idempotent: See `execute`; your word on each row.
            chunk_size: Most rows of a chunk. None: 1000 on Picodata; all of them on PostgreSQL.
            progress: Called with the number of rows acknowledged so far, now and then, in your own task.
            resume: The report of a load that stopped; give the same rows again, what was acknowledged is skipped.

        Raises:
            BulkError: In chunks: it stopped, and its report says what became of each row. It is an `OutcomeUnknown` too
                when nobody knows about some of them. What stopped it first is its cause. Whatever interrupts a load
                carries the same report, see [`BulkReport.of`][picopyn.bulk_report.BulkReport.of].
            UsageError: No rows, a report that cannot be gone on with, or a chunk size that is none.
            OutcomeUnknown: All together: they may have taken effect.
            Exception: As for `execute`.
        """
        if self._is_load(chunk_size, resume, progress):
            now = self._cluster.runtime.now
            source = AwaitedRows(args, now) if isinstance(args, AsyncIterable) else GivenRows(args, now)
            await self._load(query, source, timeout, role, idempotent, chunk_size, progress, resume)
            return
        rows = [row async for row in args] if isinstance(args, AsyncIterable) else args
        rows = rows if isinstance(rows, list | tuple) else list(checked(rows))
        request = self._request("executemany", query, (rows,), timeout, role, idempotent)
        request.place = ANYHOW
        await self._executor.run(request)
        if progress is not None:
            progress(len(rows))

    async def fetch_by_keys(
        self,
        query: str,
        keys: Iterable[Any],
        *args: Any,
        order_by: str | Sequence[str] | None = None,
        timeout: float | None = None,
        role: str | None = None,
        idempotent: bool | None = None,
    ) -> list[Any]:
        """Run a query for many keys: one statement for the keys of each owner, all owners at once, results merged.

        ```
        rows = await pool.fetch_by_keys("SELECT * FROM orders WHERE id IN ($1)", ids, order_by="id")
        ```

        Args:
            query: Text for one key, whose parameters are the first ones, in parentheses of their own: `id IN ($1)`, or
                `(a = $1 AND b = $2)` for a key of two columns. It is repeated for more keys, 50 at most in one text.
            keys: The keys: values, or tuples of values. Each is asked for once.
            *args: Arguments behind those of the key.
            order_by: Name of the result's column that is the key, or names: rows come in the order of the keys. None:
                in no order.
            timeout: See `execute`; for all of it.
            role: See `execute`.
            idempotent: See `execute`.

        Raises:
            FetchIncomplete: Some of the owners did not answer; it has the rows of the others, and the keys without.
            UsageError: A text or keys that do not fit.
            Exception: As for `execute`, when none of the owners answered.
        """
        fetch = self._fetch_by_keys(query, keys, args, order_by, timeout, role, idempotent)
        return await fetch.run()

    async def copy_records(
        self,
        table: str,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        columns: Sequence[str] | None = None,
        schema_name: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Copy rows into a table of PostgreSQL: the fastest way there is. All of them take effect or none.

        Args:
            table: Its name.
            records: Rows of values, from any iterable, also an asynchronous one; they are taken as they are needed.
            columns: Names of the values' columns; None: all of the table's.
            schema_name: The table's schema.
            timeout: Limit for all of it (seconds). None: `acquire_timeout` for the waiting, `command_timeout` for the
                copying.

        Returns:
            The server's status, like `"COPY 3"`.

        Raises:
            NotSupported: The server has no COPY (Picodata).
            UsageError: A row has more or fewer values than columns; it names the row's position, counted from 0.
            Exception: As for a call on a connection of `acquire`.
        """
        left = self._time_to_copy(timeout)
        options: dict[str, Any] = {"columns": columns, "schema_name": schema_name}
        async with self.acquire(role="leader", timeout=timeout) as connection:
            options["timeout"] = left()
            return str(await connection.copy_records_to_table(table, records=records, **options))

    def acquire(
        self,
        *,
        timeout: float | None = None,
        role: str | None = None,
        node: str | None = None,
        key: ShardingKey | None = None,
        tier: str | None = None,
        bucket: int | None = None,
        read_only: bool | None = None,
        fallback_master: bool | None = None,
        master_as_replica_weight: float | None = None,
    ) -> Acquiring:
        """Borrow a connection: `async with pool.acquire() as connection`, or `await` it and `release` it.

        What runs on it is not routed. Prefer the pool's own methods.

        Args:
            timeout: Longest wait (seconds); None: `acquire_timeout`.
            role: Which nodes will do, or come first; one that does not lead is for reads. None: the pool's role if it
                was given one, else any node. Among them the load decides.
            node: Name, uuid or address (`host:port`) of the one node.
            key: A key whose owner it shall lead to; see `sharding_key_factory`.
            tier: A leader of this tier; with `bucket`, the tier the bucket belongs to.
            bucket: A bucket whose owner it shall lead to; without `tier`, the only tier that has buckets is meant.
            read_only: hasql's word: True for `role="replica"`, False for `role="leader"`.
            fallback_master: For a connection to a replica, instead of what the settings say.
            master_as_replica_weight: The same.

        Raises:
            AcquireTimeout: None became available in time.
            ConfigError: A weight that is none, or without a replica; a role that is none.
            NoNodeAvailable: No node can be reached, or the topology knows no such node.
            PoolClosed: The pool is closed.
            NotSupported: A key, a tier or a bucket where tables have none.
            UsageError: What was asked for contradicts itself, the tier is not known, the bucket out of range, or the
                key cannot be hashed.
        """
        place = self._place(role, node, key, read_only, fallback_master, master_as_replica_weight, tier, bucket)
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
        wishes = {"fallback_master": fallback_master, "master_as_replica_weight": master_as_replica_weight}
        return self.acquire(role="replica", timeout=timeout, **wishes)  # type: ignore[arg-type]

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
        self._check_atomic("transaction")
        acquiring = self.acquire(timeout=timeout, role=role, node=node, key=key)
        return PoolTransaction(acquiring, {"isolation": isolation, "readonly": readonly, "deferrable": deferrable})

    async def run_transaction(
        self,
        work: Callable[[AcquiredConnection], Awaitable[T]],
        *,
        retries: int = RETRIES,
        isolation: str | None = None,
        readonly: bool = False,
        deferrable: bool = False,
        role: str | None = None,
        timeout: float | None = None,
        resolve: bool = False,
    ) -> T:
        """Run `work(connection)` in a transaction, and all of it again when it lost against another one.

        It is run again after a serialization failure or a deadlock (40001, 40P01), when the connection broke before
        COMMIT was sent, and when the host turned out not to be the primary; each time on a connection of its own, after
        a random pause that grows. So `work` must do nothing outside of the transaction that may not happen twice.
        `connection.transaction()` inside of it is a savepoint. BEGIN, COMMIT and ROLLBACK are the pool's: as statements
        of `work` they are refused.

        Every other error, and one that did not come over this connection, rolls back and is the answer.

        Args:
            work: A coroutine function; it gets the connection.
            retries: How often it is run again at most; a connection that broke counts too, and ends it the second time.
            isolation: See `transaction`.
            readonly: See `transaction`.
            deferrable: See `transaction`.
            role: See `acquire`.
            timeout: Limit for all attempts and pauses together (seconds). None: none; `acquire_timeout` limits the
                waiting for each connection.
            resolve: When no answer to COMMIT comes, ask the server what became of the transaction (PostgreSQL 13 and
                newer). What it committed is committed, what it rolled back is run again; what it cannot tell stays
                unknown. It costs one more round trip before each COMMIT.

        Returns:
            What `work` returned in the attempt that was committed.

        Raises:
            OutcomeUnknown: COMMIT was sent, and no answer came: it may have taken effect. It is not run again.
            CallTimeout: The limit was reached; an `OutcomeUnknown` too, where COMMIT was on its way.
            ConnectionLost: The connection broke before COMMIT, twice; nothing took effect.
            NotSupported: The server has no transactions (Picodata), or cannot tell what became of one (`resolve` on
                YugabyteDB); nothing was sent.
            TypeError: `work` is no function, or a generator function; nothing was sent. Or it gave nothing to await;
                that is rolled back.
            UsageError: `work` executed a statement that ends the transaction; see `AcquiredConnection.transaction`.
            ValueError: The retries or the limit are none.
            Exception: What `work` raised; it was rolled back.
        """
        check_work(work, awaited=True)
        run, place = self._transaction_run(retries, timeout, role, readonly=readonly, resolve=resolve)
        options = {"isolation": isolation, "readonly": readonly, "deferrable": deferrable}

        def take() -> Coroutine[Any, Any, AcquiredConnection]:
            return self._acquire(run.remaining, place, None)

        return await run.run(lambda: attempt(run, take, work, options))

    # keys

    async def sharding_key_factory(
        self, table: str, *, tier: str | None = None, columns: Mapping[str, str | int] | None = None
    ) -> ShardingKeyFactory:
        """What makes the keys of one table's rows, for `key=`; nothing is asked again when keys are made.

        The key is read from `_pico_table`. For a user who may not read that it is learned from EXPLAIN, as the route of
        any statement, which takes the right to read the table itself. Or you tell it.

        ```
        orders = await pool.sharding_key_factory("orders")
        await pool.execute("DELETE FROM orders WHERE id = $1 + 0", 42, key=orders.key(42))
        ```

        Args:
            table: Its name as the server keeps it: unquoted names are kept in small letters.
            tier: The tier it lives in, if you tell the key and there are several.
            columns: You tell the key: its columns in the order of `DISTRIBUTED BY`, each with its type (`"int"`, …).

        Raises:
            NotSupported: Tables have no keys here.
            UsageError: There is no such table, it has no owner, or its key cannot be learned.
            asyncpg.PostgresError: The table may not be read either.
        """
        return await self._make_factory(table, tier, columns)

    # looking inside

    async def explain(self, query: str, *args: Any, timeout: float | None = None) -> QueryPlan:
        """The server's plan for a statement with these arguments, as an object. Nothing is executed.

        It needs the rights of the statement itself, and is answered while a leader is away. The plan shows the
        arguments.

        Args:
            query: The statement, without EXPLAIN.
            *args: Its arguments.
            timeout: See `execute`.

        Returns:
            The steps, the buckets, the options; what this version of the server writes otherwise stays as text.

        Raises:
            NotSupported: The server is no Picodata; there, `fetch` an EXPLAIN of its own.
            UsageError: The text is an EXPLAIN already.
            asyncpg.PostgresError: What the server says about the statement.
        """
        question = self._plan_question(query)
        return self._household.dialect.read_plan(await self.fetch(question, *args, timeout=timeout))

    async def explain_route(
        self, query: str, *args: Any, role: str | None = None, **where: Unpack[Where]
    ) -> RouteExplanation:
        """Where a call would go now, and why; learns the text first. Nothing is executed.

        Args:
            query: See `execute`.
            *args: See `execute`.
            role: See `execute`.
            **where: See `execute`.
        """
        self._check_open()
        check_text(query, "explain_route")
        return self._explain(query, args, role, where, await self._control.learn(query))

    async def expire_connections(self) -> None:
        """Replace every connection, without disturbing anybody: after a new password, or a change of server settings.

        Idle ones are closed now, those in use when they are given back, those that are being opened on arrival. Nothing
        is waited for. A password that a server has refused is tried again at once.
        """
        self._check_open()
        self._expire()

    async def drain(self, node: str, *, grace: float = DRAIN_GRACE) -> None:
        """Take a node out of use before it is stopped, without disturbing anybody; `undrain` takes it back.

        From now on no call is sent there and no connection opened. Idle connections are closed at once, those in use
        when they are given back, and what is left after the grace is dropped. Returns when callers have none there any
        more; cancelled, it goes on by itself. Connections of the pool's own, by which it looks at the cluster, stay.

        Where the node leads: a Picodata forwards its share through other nodes. Of PostgreSQL hosts none else takes
        writes, so calls for the primary wait until another host is it, or for `undrain`.

        Args:
            node: Name, uuid or address (`host:port`).
            grace: How long calls under way and borrowers may take (seconds), at least 0.

        Raises:
            NoNodeAvailable: The topology knows no such node.
            UsageError: The node is no text, or an empty one.
            ValueError: The grace is negative, or no number.
        """
        self._check_open()
        check_grace(grace)
        await self._drain(node, grace)

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
        wanted = self._default_role if role is None else self._role(role)
        request = make_request(method, query, args, wanted, idempotent)
        if timeout is not None:
            self._limit(request, timeout)
        elif self._command_timeout is not None:  # what `_limit` does as well: two calls less for every call
            now = self._executor.now
            request.timeout = limit = self._command_timeout
            request.deadline = now() + limit
        return request

    async def _acquire(
        self, timeout: float | None, place: Place, origin: traceback.StackSummary | None
    ) -> AcquiredConnection:
        request = self._loan_request(timeout, place)
        return AcquiredConnection(await self._executor.acquire(request, place), self, origin)

    async def _connect(self) -> None:
        def keep(household: Household) -> None:
            self._life.belongings = self._household = household

        await assemble(self._settings, self._security, self._rng, keep)
        self._move_in(self._household)
