"""The routed call: plan, take a connection, send, and decide what to do when that fails.

One loop serves every call. A statement whose key is not known is not another path, only a longer list of candidates and
another counted reason. On any `BaseException` a connection that is not known to be idle is dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn

from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.engine import failures
from picopyn.engine.call_router import CallRouter, Learner
from picopyn.engine.cluster import Cluster
from picopyn.engine.interruptions import is_interruption
from picopyn.engine.journal import Journal
from picopyn.engine.loan import Lender, Loan
from picopyn.engine.node_pool import NodePool
from picopyn.engine.place import Place
from picopyn.engine.refused_arguments import hide_value
from picopyn.engine.request import Request
from picopyn.engine.retries import Retries, is_goodbye
from picopyn.engine.route_table import CompiledRoute, RouteTable
from picopyn.engine.runtime import BlockingLink, Link, Waiter
from picopyn.engine.tallies import Count, Tallies
from picopyn.engine.waits import Waits
from picopyn.errors import AuthenticationFailed, ConnectionLost, Fault, PoolClosed
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Candidate, Plan, Wait
from picopyn.routing.retry import Action
from picopyn.topology import Node


class _Verdict(Enum):
    """What the loop does after a failed attempt."""

    ANSWERED = "there is a result after all"
    NEXT_CANDIDATE = "try the next candidate"
    PLAN_AGAIN = "make a new plan"


#: A name costs a call less than the member of an enumeration.
_ANSWERED: Final = _Verdict.ANSWERED


class Executor:
    """Runs calls on a cluster.

    Args:
        cluster: Node pools, snapshot, reachability.
        routes: Compiled routes by text.
        learner: Learns about texts.
        dialect: The kind of server.
        journal: Where calls are counted and told.

    Attributes:
        now: The clock that deadlines are on.
    """

    def __init__(
        self, cluster: Cluster, routes: RouteTable, learner: Learner, dialect: Dialect, journal: Journal
    ) -> None:
        self._alarm = cluster.flights.alarm
        self._changes = cluster.changes
        self._cluster = cluster
        sharded = Capability.SHARDED in dialect.capabilities
        self._retries = Retries(cluster, journal.counters, routes.tallies, leaders_switch=sharded)
        self._router = CallRouter(cluster, routes, learner, dialect, journal.counters.calls, self._retries)
        self._dialect = dialect
        self._express = self._router.express
        self._journal = journal
        self.now = cluster.runtime.now
        self._lender = Lender(cluster, dialect, journal)
        self._waits = Waits(cluster, self._router, journal)

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return self._router.closed

    @property
    def tallies(self) -> Tallies:
        """The calls of each text."""
        return self._router.tallies

    @property
    def waits(self) -> Waits:
        """Where calls wait."""
        return self._waits

    def plan(self, request: Request) -> Plan:
        """Plan a call as of now, and send nothing; see `CallRouter.plan`."""
        return self._router.plan(request)

    def refuse(self) -> None:
        """The pool closes: refuse calls from now on."""
        self._router.refuse()

    async def acquire(self, request: Request, place: Place) -> Loan:
        """Take a connection for longer than one call.

        Raises:
            AcquireTimeout: None became available in time.
            NoNodeAvailable: No node can be reached, or the topology knows no such node.
            UsageError: A key that cannot be computed.
        """
        rounds = 0
        while True:
            if self.closed:
                raise PoolClosed("the pool is closed")
            version = self._changes.version
            with self._lender.choosing:
                plan = place.plan(self._cluster.planner, self._dialect, read=True)
                first = self._queue_for(request, plan)
            if plan.wait not in (None, Wait.NODES):
                await self._waits.for_change(request, plan, version)
                continue
            for candidate in plan.candidates:
                if first is None and version != self._changes.version:
                    break
                pool, turn = first or (self._cluster.pool(candidate), None)
                first = None
                request.elsewhere = candidate is not plan.candidates[-1]
                link = await self._waits.for_link(request, pool, turn=turn)
                if link is not None:
                    return Loan(self._lender, pool, link, request)
            else:
                rounds += 1
                await self._waits.pause(request, rounds, version)

    def _queue_for(self, request: Request, plan: Plan) -> tuple[NodePool, Waiter[Link]] | None:
        """Take a place in the queue of the first candidate, so that who chooses next sees what was chosen.

        Returns:
            The node pool, which may not be that of the node any more when the place is used, and the place.
        """
        if not plan.candidates:
            return None
        request.elsewhere = len(plan.candidates) > 1
        pool = self._cluster.pool(plan.candidates[0])
        return pool, pool.queue(request)

    def route(self, query: str) -> CompiledRoute | None:
        """What is compiled for a text that was learned."""
        return self._router.known(query)

    async def learned(
        self, query: str, deadline: float | None = None, *, anew: bool = False
    ) -> PreparedStatementMetadata | None:
        """What is known of a text, asked for now if need be; None where statements have no owners, or nothing is said.

        Args:
            query: The text.
            deadline: Until when to wait, on the runtime's clock; None: `acquire_timeout`.
            anew: What is known may be outdated: forget it, and ask again.
        """
        if self.closed:
            raise PoolClosed("the pool is closed")
        if Capability.SHARDED not in self._dialect.capabilities:
            return None
        if deadline is None:
            limit = self._cluster.settings.acquire_timeout
            deadline = None if limit is None else self.now() + limit
        if anew:
            self._router.forget(query)
        try:
            return await self._router.learned(query, deadline)
        except TimeoutError:
            return None

    def forfeit(self, request: Request) -> None:
        """A call was interrupted, wherever it was (`KeyboardInterrupt`): nothing stays with it."""
        self._cluster.runtime.post(partial(self._cluster.forfeit, request))

    def withdraw(self, requests: Sequence[Request]) -> None:
        """Calls that run beside their caller lose him: what they hold is dropped, and all plan anew."""
        self._cluster.runtime.post(partial(self._forfeit_all, requests))

    def _forfeit_all(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._cluster.forfeit(request)
        self._changes.ring()

    def leaders_moved(self, replicasets: frozenset[str]) -> None:
        """Leaders have changed: what that may have left hanging is ended after a short grace."""
        suspects = self._cluster.stuck(replicasets)
        if suspects:
            self._cluster.jobs.spawn(self._cluster.flights.end_if_stuck(suspects), "picopyn stuck calls")

    # running

    async def run(self, request: Request, known: tuple[Count, NodePool] | None = None, version: int = 0) -> None:
        """Run a call, the short way where that is open to it; its `answer` is there afterwards.

        It is not what is returned: a coroutine's end without a value needs no exception that carries it.

        Args:
            request: The call.
            known: What `Express.way` says of it, where it was asked already.
            version: Of the cluster's changes, as of before that.

        Raises:
            PoolClosed: The pool was closed meanwhile.
            AcquireTimeout: No connection became available in time; nothing was sent.
            TooManyWaiting: As many calls as may wait for the node wait already.
            NoNodeAvailable: No connection became available in time, and no node can be reached at all.
            CallTimeout: The deadline ended while the server had the statement.
            OutcomeUnknown: It may have happened, and nobody can tell.
            asyncpg.PostgresError: The server's own error.
        """
        if known is None:
            version = self._changes.version
            known = self._express.way(request)
            if known is None:
                await self._run(request)
                return
        route, pool = known
        try_take, settle = pool.try_take, pool.settle  # functions that are no methods cost less by names of their own
        link = try_take(request) or await self._waits.for_link(request, pool, version)
        if link is None:
            await self._try_again(request, version)
            return
        request.node = pool.node
        request.link = link
        alarm, deadline = self._alarm, request.deadline
        try:
            if deadline is not None and deadline < alarm.rings_at:
                alarm.ring_at(deadline)
            request.answer = await link.ask(request.method, request.query, request.args, deadline)
        except BaseException as error:
            await self._go_on(request, (route, pool, link, error), version)
            return
        if not settle(link):
            pool.pass_on(link)
        route.calls = calls = route.calls + 1
        if calls >= route.check_at:
            self._router.look_closer(route, request)

    def start(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """The same where connections block: no coroutine is needed for as long as nothing is in the way.

        The two agree but for the alarm; a function for what they share would cost every call of both facades.

        Returns:
            What is left to be run; None: nothing, there is an answer.
        """
        version = self._changes.version
        known = self._express.way(request)
        if known is None:
            return self._run(request)
        route, pool = known
        try_take, settle = pool.try_take, pool.settle
        link: BlockingLink | None = try_take(request)  # type: ignore[assignment]
        if link is None:
            return self.run(request, known, version)
        request.node = pool.node
        request.link = link
        try:
            request.answer = link.ask_now(request.method, request.query, request.args, request.deadline)
        except BaseException as error:
            return self._go_on(request, (route, pool, link, error), version)
        if not settle(link):
            pool.pass_on(link)
        route.calls = calls = route.calls + 1
        if calls >= route.check_at:
            self._router.look_closer(route, request)
        return None

    async def _go_on(
        self, request: Request, failure: tuple[Count, NodePool, Link, BaseException], version: int
    ) -> None:
        """The only candidate of a call's plan has failed it."""
        route, pool, link, error = failure
        if isinstance(route, CompiledRoute):
            request.route = route
        plan = request.plan
        assert plan is not None, "the short way notes it"
        verdict = await self._recover(request, pool, link, error)
        if verdict is _ANSWERED:
            pool.give(link)
            self._router.answered(request, plan)
            return
        request.sent_after = None
        if verdict is _Verdict.PLAN_AGAIN:
            await self._run(request)
            return
        await self._try_again(request, version)

    async def _try_again(self, request: Request, version: int) -> None:
        """The only candidate was tried in vain: wait for a change, but not for long, and make a plan."""
        if version != self._changes.version:
            await self._run(request)
            return
        await self._waits.pause(request, 1, version)
        await self._run(request, rounds=1)

    async def _run(self, request: Request, rounds: int = 0) -> None:
        """Run a call that may have to wait, to ask, or to try several nodes.

        Args:
            request: The call.
            rounds: How often all candidates were tried in vain.
        """
        while True:
            version = self._changes.version
            plan = self._router.plan(request)
            if plan.wait is not None:
                await self._waits.for_change(request, plan, version)
                continue
            candidates: Sequence[Candidate] = plan.candidates
            if request.losses:
                candidates = self._cluster.without_doubtful(candidates)
            for candidate in candidates:
                pool = self._cluster.pools_by_key.get(candidate.key) or self._cluster.pool(candidate)
                request.elsewhere = candidate is not candidates[-1]
                link = pool.try_take(request) or await self._waits.for_link(request, pool, version)
                if link is not None:
                    request.node = pool.node
                    request.link = link
                    verdict = _ANSWERED
                    try:
                        request.answer = await self._send(request, link)
                    except BaseException as error:
                        verdict = await self._recover(request, pool, link, error)
                    if verdict is _ANSWERED:
                        pool.give(link)
                        self._router.answered(request, plan)
                        return
                    request.sent_after = None
                    if verdict is _Verdict.PLAN_AGAIN:
                        break
                if version != self._changes.version:
                    break  # what is next may be away by now, or hang
            else:
                rounds += 1
                await self._waits.pause(request, rounds, version)

    def _send(self, request: Request, link: Link) -> Awaitable[Any]:
        alarm, deadline = self._alarm, request.deadline
        if deadline is not None and deadline < alarm.rings_at:
            alarm.ring_at(deadline)
        return link.ask(request.method, request.query, request.args, deadline)

    # failures

    async def _recover(self, request: Request, pool: NodePool, link: Link, error: BaseException) -> _Verdict:
        """Decide about a failed attempt.

        Returns:
            What the loop does next. Otherwise it raises the caller's error.
        """
        request.go_on()
        hide_value(error)
        outdated = link.heed(error, request.query)
        if isinstance(error, Exception) and not request.prepared_again:
            stale = self._cluster.fault(error) is Fault.STALE_PLAN
            if stale or outdated:
                return await self._prepare_again(request, pool, link, stale=stale)
        self._retries.landed(request)
        ended, request.end_reason = request.end_reason, None
        if not isinstance(error, Exception) or is_interruption(error):
            request.broke = True
            pool.drop(link, "state_unknown")
            raise error
        if self._is_late(request, error):
            pool.drop(link, "timeout")
            self._cluster.suspect(pool.node, "a call timed out")
            repeatable = self._repeatable(request)
            request.tried(pool.node, "sent", "no answer by the deadline")
            if not repeatable:
                self._journal.outcome_lost(pool.node, "timeout")
            cause = None if request.overdue else error
            raise failures.timed_out(request, pool.node, repeatable=repeatable) from cause
        fault = self._cluster.fault(error)
        if self._cluster.runtime.fault(error) is None:
            pool.give(link)
        elif ended is None:
            pool.drop(link, "broken")
        if fault is Fault.MISROUTED and pool.purpose is Purpose.STRICT:
            return await self._look_again(request, pool.node, error)
        if self._router.turns_to_leader(request, pool.purpose, error):
            self._journal.retried(pool.node, Fault.NOT_LEADER, request.sent)
            return _Verdict.PLAN_AGAIN
        return await self._act(request, pool.node, error, fault, ended)

    def _is_late(self, request: Request, error: Exception) -> bool:
        """Whether a call failed because its time was over; what the server says of it in the last moment counts."""
        if request.overdue:
            return self._cluster.runtime.fault(error) is not None
        return isinstance(error, TimeoutError) and error.errno is None

    async def _prepare_again(self, request: Request, pool: NodePool, link: Link, *, stale: bool) -> _Verdict:
        """The statement was prepared before the schema changed, and nothing was done: once more, freshly prepared.

        What the server calls stale may be so of every statement, and of the route; else the connection knows which one.
        """
        request.prepared_again = True
        if stale:
            link.forget_statements()
            self._router.forget(request.query)
        self._journal.retried(pool.node, Fault.STALE_PLAN, request.sent + 1)
        try:
            request.answer = await self._send(request, link)
        except BaseException as error:
            return await self._recover(request, pool, link, error)
        return _Verdict.ANSWERED

    async def _look_again(self, request: Request, node: Node, error: Exception) -> _Verdict:
        """A node refused to send a keyed call on: the map is outdated, or the route is wrong. Nothing was done.

        Servers themselves learn of moved buckets after a while (`picodata-recorded.md` section 4), so it is tried again
        as long as the call may wait; such an attempt is none of those that are counted.
        """
        request.refusals += 1
        request.tried(node, failures.how_far(Fault.MISROUTED), failures.why(Fault.MISROUTED, error, None))
        self._journal.retried(node, Fault.MISROUTED, request.refusals)
        self._router.doubt(request)
        patience, now = self._waits.patience(request), self.now()
        if patience is not None and now >= patience:
            raise request.annotate(error)
        version = self._changes.version
        await self._cluster.next_look(node)
        await self._waits.for_a_while(request, request.refusals, version)
        return _Verdict.PLAN_AGAIN

    async def _act(
        self, request: Request, node: Node, error: Exception, fault: Fault, ended: str | None = None
    ) -> _Verdict:
        if request.patience != request.deadline:  # it came from `acquire_timeout`: the next wait is a new one
            request.patience = None
        request.broke = request.broke or fault is Fault.LOST
        where = node.uuid, self._cluster.health.life(node.uuid)
        action = self._retries.decide(request, where, error, fault, repeatable=self._repeatable(request))
        request.tried(node, failures.how_far(fault), failures.why(fault, error, ended))
        if action is Action.RAISE:
            self._raise(request, node, error, fault, ended)
        if action is Action.OUTCOME_UNKNOWN or self._is_half_done(request, error, fault):
            self._journal.outcome_lost(node, "connection lost" if fault is Fault.LOST else "refused in part")
            broke = Fault.LOST if is_goodbye(error) else self._cluster.runtime.fault(error)
            raise failures.outcome_unknown(request, node, error, broke, ended) from error
        self._journal.retried(node, fault, len(request.attempts))
        if fault is Fault.NOT_LEADER:
            self._router.needs_leader(request)
        if fault is Fault.LOST and ended is None:
            await self._doubt(node, error)
        if action is Action.AWAIT_REFRESH and await self._waits.for_look(request, node):
            return _Verdict.PLAN_AGAIN
        if action is Action.BACK_OFF:
            await self._waits.pause(request, request.sent)
            return _Verdict.PLAN_AGAIN
        return _Verdict.NEXT_CANDIDATE

    async def _doubt(self, node: Node, error: Exception) -> None:
        """A connection broke: its node may be dying with all it has, and is asked before the call goes there again."""
        if is_goodbye(error) or self._cluster.runtime.fault(error) is not None:
            await self._cluster.in_doubt(node)

    def _raise(self, request: Request, node: Node, error: Exception, fault: Fault, ended: str | None) -> NoReturn:
        if fault is Fault.STATEMENT and not self._repeatable(request) and self._leaves_open(error):
            self._journal.outcome_lost(node, "internal error")
            raise failures.outcome_unknown(request, node, error, None) from error
        request.annotate(error)
        if fault is Fault.AUTH:
            raise request.annotate(AuthenticationFailed(failures.first_line(error))) from error
        broke = self._cluster.runtime.fault(error)
        if fault is Fault.LOST and broke is not None:
            if not self._dialect.is_read(request.query):  # it may be repeated, but not for ever
                self._journal.outcome_lost(node, "connection lost")
                raise failures.outcome_unknown(request, node, error, broke, ended) from error
            raise request.annotate(ConnectionLost(f"{node.address}: {ended or failures.first_line(error)}")) from error
        raise error

    def _is_half_done(self, request: Request, error: Exception, fault: Fault) -> bool:
        """Whether a write over several replicasets may have happened in part."""
        if fault in (Fault.NOT_SENT, Fault.LOST) or self._repeatable(request):
            return False
        plan = request.plan
        spread = plan is not None and not (plan.direct or plan.one_owner)
        return spread and self._dialect.is_partial(getattr(error, "sqlstate", None), str(error))

    def _leaves_open(self, error: Exception) -> bool:
        """Whether a server's error leaves open if the statement took effect at all."""
        return self._dialect.leaves_open(getattr(error, "sqlstate", None), str(error), commit=False)

    def _repeatable(self, request: Request) -> bool:
        if request.idempotent is not None:
            return request.idempotent
        selects_repeatable = Capability.SELECTS_HAVE_NO_EFFECT in self._dialect.capabilities
        return selects_repeatable and self._dialect.is_read(request.query)
