"""The pool of threads behind the names of the asynchronous one, so that the same test bodies run over both.

Every call is made in a thread of its own and awaited. Nothing is added: arguments, results and errors pass through.
A body runs over both with `@pytest.mark.parametrize("facade", FACADES, indirect=True)`; where it has many cases of
which a few tell all that is different about threads, with `over_both`.

What runs over the asynchronous pool only, and why:

- Bodies that cancel a task (`cancel` in their names or in the name of the way): a thread cannot be cancelled. It can be
  interrupted: `tests/sync/test_interruptions.py`, `test_pool_interruptions.py`, `test_conservation.py`.
- `engine/`, `asynchronous/test_conservation.py`: the engine itself, over a world of the tests with its own clock.
- The rest of `asynchronous/` (tracker, sources, metadata service, control plane, leader finder, …): the same objects
  serve both pools.
- The order in which a thousand answers are noted: threads note them as they are scheduled.
- Two tasks on one connection, one that is given back during a call: which comes first is a matter of ticks. With
  threads: `tests/sync/test_threads.py`.
- Other, stopped and closed event loops; a client that blocks its loop: there is none to belong to, and none to block.
- Programs that end, pools that are forgotten: `tests/sync/test_pool_fork.py`. Forks: there, `test_fork.py` and
  `test_gunicorn.py`.
- Held connections that are forgotten, foreign, or hear notifications: `tests/sync/test_pool_threads.py`. So are
  observers that call back: they run on the pool's own thread.
- Hooks without end, and such that cancel themselves: nobody can stop a plain function between two statements.
- Closing in the moment in which a reset is sent: a CancelRequest of a thread may overtake it, and the server goes on.
- A thousand idle waiters, a noise of stale ones: a thousand threads measure the system.
- `postgres/test_short_way.py`: asyncpg's calls without a task; `sync/wire.py` has a way of its own:
  `tests/sync/test_contract.py`, `test_connection.py`, `test_faults.py`.
- Roles of hosts, passwords and words of a connection string, in part: what follows roles, and what reads strings, are
  the same objects.
- Connections dialled by hand (`tls/test_connections.py`, `tls/test_scenarios.py`): `tests/sync/test_tls.py`.
- `contract/test_leftovers.py`: tasks; threads that are left are looked for after every test of `tests/sync`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any

import pytest

from picopyn import sync

#: Names of the two facades, for `pytest.mark.parametrize("facade", FACADES, indirect=True)`.
FACADES = ("asynchronous", "sync")


def over_both(name: str, values: Iterable[Any], *, sync: Iterable[Any]) -> pytest.MarkDecorator:
    """A body that runs over the asynchronous pool with all values of a parameter, over that of threads with some."""
    pairs = [*(("asynchronous", value) for value in values), *(("sync", value) for value in sync)]
    return pytest.mark.parametrize(("facade", name), pairs, indirect=["facade"])


#: What neither facade waits for.
_AT_ONCE = {
    "stats",
    "terminate",
    "undrain",
    "update_topology_interval",
    "is_closed",
    "is_in_transaction",
    "is_released",
    "release",
    "get_server_pid",
    "get_server_version",
    "get_settings",
    "get_reset_query",
    "get_name",
    "get_query",
    "get_statusmsg",
    "get_parameters",
    "get_attributes",
    "query_logger",
    *(f"{verb}_{what}" for verb in ("add", "remove") for what in ("log_listener", "termination_listener")),
    *(f"{verb}_query_logger" for verb in ("add", "remove")),
}

_END = object()


class _Threads:
    """Makes calls, each in a thread; as many at the same time as a test may want."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(256, "test caller")

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()

        def outcome() -> tuple[Any, BaseException | None]:
            try:
                return contextvars.copy_context().run(function, *args, **kwargs), None
            except BaseException as error:  # a future would raise some of them anew
                return None, error

        result, error = await loop.run_in_executor(self._executor, outcome)
        if error is not None:
            try:
                raise error
            finally:
                del error
        return result


class _Awaited:
    """Something that blocks, with methods that are awaited."""

    def __init__(self, threads: _Threads, inner: Any) -> None:
        self._threads = threads
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute) or name in _AT_ONCE:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._threads.call(attribute, *args, **kwargs)

        return call


class _Block(_Awaited):
    """What is used with `async with`, or awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._take().__await__()

    async def _take(self) -> Any:
        return _Connection(self._threads, await self._threads.call(self._inner.take))

    async def __aenter__(self) -> Any:
        return _Connection(self._threads, await self._threads.call(self._inner.__enter__))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.call(self._inner.__exit__, kind, error, trace)


class _Transaction(_Awaited):
    """A transaction, awaited."""

    async def __aenter__(self) -> Any:
        return await self._threads.call(self._inner.__enter__)

    async def __aexit__(self, *how: Any) -> None:
        await self._threads.call(self._inner.__exit__, *how)


class _Cursor(_Awaited):
    """A cursor, awaited or iterated over."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._opened().__await__()

    async def _opened(self) -> _Cursor:
        iter(self._inner)  # refuses where there is none; the cursor is opened by its first use
        return self

    def __aiter__(self) -> _Rows:
        return _Rows(self._threads, iter(self._inner))


class _Rows(_Awaited):
    """The rows of a cursor."""

    def __aiter__(self) -> _Rows:
        return self

    async def __anext__(self) -> Any:
        row = await self._threads.call(next, self._inner, _END)
        if row is _END:
            raise StopAsyncIteration
        return row


class _Statement(_Awaited):
    """A prepared statement, awaited."""

    def cursor(self, *args: Any, **options: Any) -> _Cursor:
        return _Cursor(self._threads, self._inner.cursor(*args, **options))


class _Connection(_Awaited):
    """A connection on loan, awaited."""

    def __eq__(self, other: object) -> bool:
        """Callbacks get the connection itself."""
        return self._inner is getattr(other, "_inner", other)

    def __hash__(self) -> int:
        return hash(self._inner)

    def transaction(self, **options: Any) -> _Transaction:
        return _Transaction(self._threads, self._inner.transaction(**options))

    def cursor(self, query: str, *args: Any, **options: Any) -> _Cursor:
        return _Cursor(self._threads, self._inner.cursor(query, *args, **options))

    async def copy_to_table(self, table: str, *, source: Any, **options: Any) -> Any:
        source = _stepwise(source, asyncio.get_running_loop()) if inspect.isasyncgen(source) else source
        return await self._threads.call(self._inner.copy_to_table, table, source=source, **options)

    async def copy_from_query(self, query: str, *args: Any, output: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        sink = partial(_here, loop, output) if inspect.iscoroutinefunction(output) else output
        return await self._threads.call(self._inner.copy_from_query, query, *args, output=sink, **options)

    async def prepare(self, *args: Any, **options: Any) -> _Statement:
        return _Statement(self._threads, await self._threads.call(self._inner.prepare, *args, **options))


def _here(loop: asyncio.AbstractEventLoop, step: Callable[..., Any], *args: Any) -> Any:
    """From a thread: take a step of the test's in the test's own loop, and wait for it."""
    return asyncio.run_coroutine_threadsafe(step(*args), loop).result()


def _stepwise(source: Any, loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """What an asynchronous generator of the test yields, for a thread."""

    async def step() -> Any:
        return await anext(source, _END)

    while (item := _here(loop, step)) is not _END:
        yield item


def _plain(threads: _Threads, hook: Callable[..., Any]) -> Callable[[Any], Any]:
    """A hook for threads out of one that is awaited: it runs in an event loop of its own."""
    return lambda connection: asyncio.run(hook(_Connection(threads, connection)))


class Pool(_Awaited):
    """`picopyn.sync.Pool`, awaited."""

    def __init__(self, dsn: str | None = None, **options: Any) -> None:
        threads = _Threads()
        for name in ("after_connect", "init", "reset"):
            if inspect.iscoroutinefunction(options.get(name)):
                options[name] = _plain(threads, options[name])
        super().__init__(threads, sync.Pool(dsn, **options))

    async def open(self) -> Pool:
        await self._threads.call(self._inner.open)
        return self

    async def close(self, grace: float = 10.0) -> None:
        await self._threads.call(self._inner.close, grace)

    async def __aenter__(self) -> Pool:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def acquire(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire(**options))

    def acquire_master(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire_master(**options))

    def acquire_replica(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire_replica(**options))

    def acquire_by_sharding_key(self, *args: Any, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire_by_sharding_key(*args, **options))

    def acquire_by_tier_and_bucket_id(self, *args: Any, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire_by_tier_and_bucket_id(*args, **options))

    def acquire_by_instance_uuid(self, *args: Any, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.acquire_by_instance_uuid(*args, **options))

    def transaction(self, **options: Any) -> _Block:
        return _Block(self._threads, self._inner.transaction(**options))

    async def run_transaction(self, work: Callable[[Any], Any], **options: Any) -> Any:
        """The work runs in an event loop of its own, like a hook."""
        return await self._threads.call(self._inner.run_transaction, _plain(self._threads, work), **options)

    async def release(self, connection: Any) -> None:
        await self._threads.call(self._inner.release, getattr(connection, "_inner", connection))
