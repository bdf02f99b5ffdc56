"""What is measured: which clients, in which situations, how long."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

#: Names of the clients, as in `worker/clients.py`.
BARE = "bare"
OURS = "picopyn"
OURS_ROUTED = "picopyn, routed"
OURS_CONNECTION = "picopyn, connection only"
PUBLISHED = "picopyn 3.2.0"
PUBLISHED_ROUTED = "picopyn 3.2.0, routed"
ASYNCPG_POOL = "asyncpg.Pool"
ASYNCPG_POOL_NO_RESET = "asyncpg.Pool, no reset"
PSYCOPG_POOL = "psycopg_pool"
HASQL = "hasql"
PSYCOPG = "psycopg"
PSYCOPG_EXECUTE = "psycopg, connection.execute"
OURS_LIMITED = "picopyn, routed, with a deadline"
ALL = (
    BARE,
    OURS_ROUTED,
    OURS,
    ASYNCPG_POOL,
    ASYNCPG_POOL_NO_RESET,
    PSYCOPG_POOL,
    HASQL,
    PUBLISHED,
    PUBLISHED_ROUTED,
)
#: Who is compared where callers are threads.
THREADED = (PSYCOPG, PSYCOPG_EXECUTE, OURS_ROUTED, OURS_LIMITED, OURS, PSYCOPG_POOL)
EVERYBODY = (*ALL, *(name for name in THREADED if name not in ALL))
FEW = (BARE, OURS_CONNECTION, OURS_ROUTED, OURS, ASYNCPG_POOL_NO_RESET)

#: The two states of glibc's malloc that decide what a reply costs on asyncio's own loop, and how each is pinned.
#: `natural` is whatever a fresh process of a client comes to by itself.
MALLOC: dict[str, dict[str, str]] = {
    "natural": {},
    "mapped": {"MALLOC_MMAP_THRESHOLD_": "131072"},
    "kept": {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "134217728"},
}

#: Page faults per call from which a process is said to map a buffer for each reply.
MAPPED_FROM = 0.5


class Situation(msgspec.Struct, frozen=True):
    """One table of the result: everything but the client.

    Attributes:
        loop: `asyncio` or `uvloop`, or `threads` where callers are threads.
        operation: `read` (fetchrow by key) or `insert` (execute of a one-row INSERT).
        tasks: How many tasks or threads call at the same time, on `Size.connections` connections.
        placement: `own core` (server on one core, client on another) or `same core`, or `free` where nothing is pinned.
        malloc: A key of `MALLOC`.
    """

    loop: str
    operation: str
    tasks: int
    placement: str
    malloc: str = "natural"

    @property
    def threaded(self) -> bool:
        """Whether callers are threads."""
        return self.loop == "threads"

    @property
    def base(self) -> str:
        """The client that the others are compared with: bare connections."""
        return PSYCOPG if self.threaded else BARE

    @property
    def title(self) -> str:
        """One line for a person."""
        what = "fetchrow by key" if self.operation == "read" else "execute of an INSERT"
        who = "sequential" if self.tasks == 1 else f"{self.tasks} tasks"
        if self.threaded:
            return f"{what}, {self.tasks} thread{'s' * (self.tasks > 1)}, {self.placement}"
        malloc = "" if self.malloc == "natural" else f", malloc pinned: {self.malloc}"
        return f"{what}, {who}, {self.loop}, {self.placement}{malloc}"


class Size(msgspec.Struct, frozen=True):
    """How much is measured.

    Attributes:
        rounds: Blocks of each client, sequential.
        seconds: Length of such a block.
        busy_rounds: Blocks of each client with many tasks.
        busy_seconds: Length of such a block; calls that starve must have time to show it.
        warm_up: Length of the block before the first.
        patience: Seconds that repeated blocks may cost in all.
        tasks: Numbers of tasks beside one.
        threads: Numbers of threads beside one.
        connections: Connections of each client.
        foreign: Share of one core that others may use during a block.
        tries: How often a block is run at most.
    """

    rounds: int = 20
    seconds: float = 0.1
    busy_rounds: int = 10
    busy_seconds: float = 0.25
    warm_up: float = 0.3
    patience: float = 60.0
    tasks: tuple[int, ...] = (50, 200)
    connections: int = 10
    foreign: float = 0.06
    tries: int = 3
    threads: tuple[int, ...] = (8, 32)


SIZES = {
    "tiny": Size(3, 0.02, 3, 0.03, warm_up=0.05, patience=3.0, tasks=(50,), threads=(8,)),
    "standard": Size(),
    "full": Size(40, 0.15, 30, 0.4, patience=600.0),
}


def situations(size: Size, placements: tuple[str, ...], loops: tuple[str, ...]) -> Iterator[Situation]:
    """All situations of a run, the most telling first."""
    for loop in loops:
        for operation in ("read", "insert"):
            for placement in placements:
                yield Situation(loop, operation, 1, placement)
    for tasks in size.tasks:
        for loop in loops:
            for operation in ("read", "insert") if tasks == size.tasks[0] else ("read",):
                yield Situation(loop, operation, tasks, placements[0])
    if "asyncio" in loops:
        for malloc in ("mapped", "kept"):
            for placement in placements:
                yield Situation("asyncio", "read", 1, placement, malloc)


def thread_situations(size: Size, placements: tuple[str, ...]) -> Iterator[Situation]:
    """All situations in which callers are threads."""
    for placement in placements:
        yield Situation("threads", "read", 1, placement)
    for threads in size.threads:
        yield Situation("threads", "read", threads, placements[0])


def clients(situation: Situation, available: tuple[str, ...]) -> tuple[str, ...]:
    """Who is compared in a situation; the published picopyn routes INSERTs only."""
    if situation.threaded:
        alone = situation.tasks == 1
        return tuple(name for name in THREADED if name in available and (alone or name != PSYCOPG_EXECUTE))
    wanted = ALL if situation.malloc == "natural" else FEW
    without = PUBLISHED_ROUTED if situation.operation == "read" else ""
    return tuple(name for name in wanted if name in available and name != without)
