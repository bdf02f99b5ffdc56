"""A world for the engine: nodes that answer as told, behind the one seam the asyncio runtime has (opening connections).

It replaces servers, not classes of ours: everything from the runtime upwards is the real thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import asyncpg

from picopyn.asynchronous.runtime import AsyncioRuntime
from picopyn.dialects.base import Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.engine.cluster import Cluster
from picopyn.engine.executor import Executor
from picopyn.engine.express import Express
from picopyn.engine.journal import Journal
from picopyn.engine.request import Request, make_request
from picopyn.engine.route_table import RouteTable
from picopyn.engine.row_acks import RowAcks
from picopyn.engine.runtime import Leftovers
from picopyn.engine.tallies import Tallies
from picopyn.observe import Event, Publisher
from picopyn.query_metadata import PreparedStatementMetadata
from picopyn.routing.plan import Role
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.settings import PoolSettings
from picopyn.stats import Counters
from picopyn.topology import Node, TopologySnapshot

#: A keyed read, a keyed write, and a scan, as the metadata service would have learned them.
READ = "SELECT v FROM t WHERE id = $1"
WRITE = "UPDATE t SET v = 1 WHERE id = $1"
SCAN = "SELECT v FROM t WHERE v = $1"
INT8 = 20


def server_error(sqlstate: str, message: str) -> asyncpg.PostgresError:
    """An error as asyncpg raises it for what a server says."""
    error = asyncpg.PostgresError.new({"S": "ERROR", "C": sqlstate, "M": message})
    assert isinstance(error, asyncpg.PostgresError)
    return error


def broken() -> asyncpg.PostgresError:
    """What asyncpg raises when the connection breaks under a call."""
    return asyncpg.exceptions.ConnectionDoesNotExistError("connection was closed in the middle of operation")


class Link:
    """A connection to one of the world's servers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.closed = False
        self.prepared_again = 0
        self.made = 0
        self.probes = False
        self.last_byte = asyncio.get_running_loop().time()
        self.lent = 0
        self._listeners: list[Callable[[Any], None]] = []
        self._at_once: list[Callable[[Any], None]] = []
        self._running: asyncio.Future[Any] | None = None

    def tell_when_lost(self, listener: Callable[[Any], None], at_once: Callable[[Any], None] | None = None) -> None:
        self._listeners.append(listener)
        self._at_once += [] if at_once is None else [at_once]

    def is_settled(self) -> bool:
        return True

    def lend(self) -> None:
        self.lent += 1

    def take_back(self) -> Leftovers:
        return Leftovers.NOTHING

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return False

    def is_idle(self) -> bool:
        return not self.closed

    def requests(self) -> int:
        return self.made

    def silence(self) -> float | None:
        return asyncio.get_running_loop().time() - self.last_byte if self.server.tells_bytes else None

    def forget_statements(self) -> None:
        self.prepared_again += 1

    def terminate(self) -> None:
        self.cut()

    abort = terminate

    async def close(self, *, timeout: float | None = None) -> None:
        self.cut()

    def cut(self) -> None:
        """The connection ends, whoever ended it."""
        if self.closed:
            return
        self.closed = True
        self.server.links.discard(self)
        for told in self._at_once:
            told(self)
        if self._running is not None and not self._running.done():
            self._running.set_exception(broken())
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(listener, self)

    def ask(self, method: str, query: str, args: Sequence[Any], deadline: float | None) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(self, method)(query, *args)  # the engine looks at the clock
        return answer

    def explained(self, error: Exception) -> Exception:
        return error

    def heed(self, error: BaseException, query: str) -> bool:
        return False

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        self.made += 1
        if query == PROBE:
            await self.server.answer_probe(self)
            return None
        self.server.calls.append((query, args))
        answer = self.server.answers.pop(0) if self.server.answers else self.server.default
        if callable(answer):
            answer = answer(self)
        if isinstance(answer, Exception):
            raise answer
        if answer is HANG or self.server.silent:
            return await self.hang(timeout)
        await asyncio.sleep(0)
        self.probes = False
        self.last_byte = asyncio.get_running_loop().time()
        return answer

    async def hang(self, timeout: float | None = None) -> Any:
        """Wait for an answer that only `reply` gives."""
        self._running = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                return await self._running
        except TimeoutError as error:
            raise TimeoutError from error

    @property
    def running(self) -> bool:
        """Whether a call hangs on it."""
        return self._running is not None and not self._running.done()

    def reply(self, answer: Any) -> None:
        """Answer the call that hangs on this connection."""
        self.probes = False
        self.last_byte = asyncio.get_running_loop().time()
        if self._running is not None and not self._running.done():
            self._running.set_result(answer)

    execute = fetchrow = fetch

    async def executemany_freshly(
        self, query: str, rows: Sequence[Any], acks: RowAcks, *, timeout: float | None = None
    ) -> Any:
        """Rows that take effect one by one: what answers may say so to the count."""
        self.acks = acks
        return await self.fetch(query, rows, timeout=timeout)

    def acknowledge(self, count: int) -> None:
        """So many rows have taken effect, as a server says it."""
        self.acks.feed(ACKNOWLEDGED * count)


HANG = object()
#: What a server answers for one row.
ACKNOWLEDGED = b"2\x00\x00\x00\x04C\x00\x00\x00\x0fINSERT 0 1\x00"
PROBE = PicodataDialect().probe_question


@dataclass
class Server:
    """One node: what it answers, and whether it lets anybody in."""

    node: Node
    refuses: BaseException | None = None
    refuses_replica_reads: BaseException | None = None
    silent: bool = False
    deaf_to_probes: bool = False
    tells_bytes: bool = False
    answers: list[Any] = field(default_factory=list)
    default: Any = None
    links: set[Link] = field(default_factory=set)
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    dialled: int = 0
    opened: int = 0
    probed: int = 0
    thawed: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer_probe(self, link: Link) -> None:
        """Answer the question whether it is alive, or not."""
        self.probed += 1
        if self.silent or self.deaf_to_probes:
            await link.hang()
        await asyncio.sleep(0)

    def freeze(self) -> None:
        """Accept everything and say nothing, from now on."""
        self.silent = True
        self.thawed.clear()

    def thaw(self) -> None:
        """Go on, with what came meanwhile too."""
        self.silent = False
        self.thawed.set()
        for link in list(self.links):
            link.reply(self.default)

    @property
    def for_callers(self) -> set[Link]:
        """Connections that are not probes."""
        return {link for link in self.links if not link.probes}

    def kill(self) -> None:
        """Every connection breaks and none can be made."""
        self.refuses = ConnectionRefusedError("connection refused")
        for link in list(self.links):
            link.cut()


class Knowledge:
    """What is known of the texts: a metadata source and learner whose answers are given."""

    def __init__(self) -> None:
        key = (KeyPart(0, INT8),)
        keyed = StatementRoute(RouteKind.KEYED, "default", (key,))
        self.known: dict[str, PreparedStatementMetadata] = {
            READ: PreparedStatementMetadata(READ, "default", (), (INT8,), keyed),
            WRITE: PreparedStatementMetadata(WRITE, "default", (), (INT8,), keyed),
            SCAN: PreparedStatementMetadata(
                SCAN, "default", (), (INT8,), StatementRoute(RouteKind.NOT_KEYED, "default", reason="no key")
            ),
        }
        self.later: dict[str, PreparedStatementMetadata] = {}
        self.evicted: list[str] = []
        self.checked: list[str] = []
        self.asked: list[str] = []

    def tell_forgotten(self, listener: Callable[[str | None], None], in_use: Callable[[str], bool]) -> None:
        self.forgotten = listener

    def request_if_missing(self, query: str) -> PreparedStatementMetadata | None:
        return self.known.get(query)

    async def get_query_metadata(self, query: str) -> PreparedStatementMetadata | None:
        self.asked.append(query)
        if query in self.later:
            self.known[query] = self.later[query]
        return self.known.get(query)

    def evict(self, query: str) -> None:
        self.evicted.append(query)

    def check_later(self, query: str, args: Sequence[Any]) -> int:
        self.check(query, args)
        return 1 if len(self.checked) < 20 else 1000

    def check(self, query: str, args: Sequence[Any]) -> None:
        self.checked.append(query)


class World:
    """Servers for every node of a snapshot, and the engine over them."""

    opens_the_short_way = False

    def __init__(self, snapshot: TopologySnapshot, **settings: Any) -> None:
        self.servers = {node.uuid: Server(node) for node in snapshot.all_nodes()}
        for uuid, server in self.servers.items():
            server.default = uuid
        self.knowledge = Knowledge()
        self.events: list[Event] = []
        self.refreshes_asked = 0
        self.can_be_looked_at = True
        self.look_again: Callable[[Node | None], int | None] | None = None
        self.purposes: list[tuple[str, Purpose]] = []
        self.settings = PoolSettings.from_dsn("postgresql://u@h:1/", **{"acquire_timeout": 2.0, **settings})
        runtime = AsyncioRuntime(self._open)
        self.counters = Counters()
        dialect = PicodataDialect()
        journal = Journal(self.counters, Publisher(self.events.append), runtime.now)
        self.cluster = Cluster(
            runtime,
            dialect,
            self.settings,
            TopologySnapshot(),
            journal,
            self._refresh,
            Random(1),
        )
        self.routes = routes = RouteTable(
            self.knowledge,
            dialect.key_hash,
            lambda: self.cluster.snapshot.bucket_counts,
            Tallies(runtime.lock(), 100),
            self.counters.calls,
        )
        self.executor = Executor(self.cluster, routes, self.knowledge, dialect, journal)
        self.cluster.adopt(snapshot)

    async def _open(self, node: Node, purpose: Purpose) -> Link:
        server = self.servers[node.uuid]
        server.dialled += 1
        await asyncio.sleep(0)
        while server.silent:
            await server.thawed.wait()
        if server.refuses is not None:
            raise server.refuses
        if purpose is Purpose.REPLICA_READ and server.refuses_replica_reads is not None:
            raise server.refuses_replica_reads
        self.purposes.append((node.uuid, purpose))
        server.opened += 1
        link = Link(server)
        link.probes = purpose is Purpose.PROBE
        server.links.add(link)
        return link

    def _refresh(self, doubtful: Node | None) -> int | None:
        self.refreshes_asked += 1
        if self.look_again is not None:
            return self.look_again(doubtful)
        return self.refreshes_asked if self.can_be_looked_at else None

    async def warm(self) -> None:
        """Wait until every node that can be reached is connected."""
        reachable = [uuid for uuid, server in self.servers.items() if server.refuses is None]
        while not all(self.servers[uuid].for_callers for uuid in reachable):
            await settle()
        await settle()
        if self.opens_the_short_way:
            self.open_the_short_way()

    @property
    def express(self) -> Express:
        """The short way."""
        return self.executor._router.express

    def open_the_short_way(self) -> None:
        """As if a call of each text had been planned just now."""
        for query in self.knowledge.known:
            route = self.routes.get(query)
            if route is not None and route.limit:
                self.express.admit(query, route)

    def call(
        self,
        query: str,
        *args: Any,
        role: Role = Role.LEADER,
        timeout: float | None = None,
        idempotent: bool | None = None,
    ) -> asyncio.Task[Any]:
        """Start a call in a task of its own."""
        request = self.request(query, *args, role=role, timeout=timeout, idempotent=idempotent)
        return asyncio.create_task(self.run(request))

    async def run(self, request: Request) -> Any:
        """Run a call, and give its answer."""
        await self.executor.run(request)
        return request.answer

    def calls(self) -> Mapping[str, int]:
        """What was counted of all calls, by reason."""
        self.executor.tallies.book()
        return self.counters.calls

    def request(
        self,
        query: str,
        *args: Any,
        role: Role = Role.LEADER,
        timeout: float | None = None,
        idempotent: bool | None = None,
        method: str = "fetch",
    ) -> Request:
        """A call that is not started yet."""
        request = make_request(method, query, args, role, idempotent)
        if timeout is not None:
            request.limit(timeout, self.cluster.runtime.now())
        return request


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)
