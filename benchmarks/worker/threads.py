"""The same for callers that are threads: clients that block, and blocks of calls of several threads.

With one thread, that is the main one. What comes in over standard input and goes out is as in `__main__`.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from clients import KEYS, PATIENCE, TEXT, Target, versions
from measuring import Reading, costs

Call = Callable[[int], object]


@dataclass
class Opened:
    """An open client; see `clients.Opened`."""

    calls: list[Call]
    exclusive: bool = False
    note: str = ""
    counted: Callable[[], dict[str, int]] = field(default=dict)


@contextmanager
def psycopg_connections(target: Target) -> Iterator[Opened]:
    """`size` connections, each for one thread, with a cursor that is kept."""
    import psycopg

    with ExitStack() as stack:
        calls = []
        for _ in range(target.size):
            connection = stack.enter_context(
                psycopg.connect(target.dsn, autocommit=True, prepare_threshold=0)  # prepared at its first use
            )
            calls.append(_with_cursor(connection.cursor(), target))
        yield Opened(calls, exclusive=True)


def _with_cursor(cursor: Any, target: Target) -> Call:
    text = target.query.replace("$1", "%s").replace("$2", "%s")

    def read(number: int) -> object:
        cursor.execute(text, (KEYS[number & 4095],))
        return cursor.fetchone()

    def insert(number: int) -> object:
        return cursor.execute(text, (number, TEXT))

    return read if target.read else insert


@contextmanager
def psycopg_execute(target: Target) -> Iterator[Opened]:
    """One connection, called as psycopg's manual does: each call has a cursor of its own."""
    import psycopg

    text = target.query.replace("$1", "%s").replace("$2", "%s")
    with psycopg.connect(target.dsn, autocommit=True, prepare_threshold=0) as connection:

        def read(number: int) -> object:
            return connection.execute(text, (KEYS[number & 4095],)).fetchone()

        def insert(number: int) -> object:
            return connection.execute(text, (number, TEXT))

        yield Opened([read if target.read else insert], exclusive=True)


@contextmanager
def psycopg_pool(target: Target) -> Iterator[Opened]:
    from psycopg_pool import ConnectionPool

    text = target.query.replace("$1", "%s").replace("$2", "%s")
    options = {"autocommit": True, "prepare_threshold": 0}
    with ConnectionPool(
        target.dsn, min_size=target.size, max_size=target.size, open=True, timeout=PATIENCE, kwargs=options
    ) as pool:
        pool.wait()

        def read(number: int) -> object:
            with pool.connection() as connection:
                return connection.execute(text, (KEYS[number & 4095],)).fetchone()

        def insert(number: int) -> object:
            with pool.connection() as connection:
                return connection.execute(text, (number, TEXT))

        yield Opened([read if target.read else insert])


@contextmanager
def picopyn(target: Target, *, routed: bool, deadline: float | None = None) -> Iterator[Opened]:
    import this_picopyn

    from picopyn.sync import Pool

    options, note = this_picopyn.options(target, routed=routed)
    with Pool(target.dsn, command_timeout=deadline, **options) as pool:
        if routed or "topology_source" in options:
            learned = this_picopyn.route(keyed=routed)
            pool._control_thread.run(lambda: this_picopyn.inject(pool, target.query, learned))
            # Compiled there at the first call of a text; until then calls are not routed.
            pool._control_thread.call(lambda: pool._executor._router._routes.get(target.query))
        until = time.monotonic() + PATIENCE
        while pool.stats().idle < target.size and time.monotonic() < until:
            time.sleep(0.01)
        call = pool.fetchrow if target.read else pool.execute

        def read(number: int) -> object:
            return call(target.query, KEYS[number & 4095])

        def insert(number: int) -> object:
            return call(target.query, number, TEXT)

        note += "" if deadline is None else f", command_timeout {deadline:g} s"
        yield Opened([read if target.read else insert], note=note, counted=lambda: dict(pool.stats().calls))


#: By the name the coordinator uses.
CLIENTS: dict[str, Callable[[Target], AbstractContextManager[Opened]]] = {
    "psycopg": psycopg_connections,
    "psycopg, connection.execute": psycopg_execute,
    "psycopg_pool": psycopg_pool,
    "picopyn": lambda target: picopyn(target, routed=False),
    "picopyn, routed": lambda target: picopyn(target, routed=True),
    "picopyn, routed, with a deadline": lambda target: picopyn(target, routed=True, deadline=30.0),
}


def run_block(calls: Sequence[Call], threads: int, seconds: float, first: int) -> tuple[list[float], float]:
    """Let threads call one after the other, in a closed loop, for some time; see `measuring.run_block`."""
    clock = time.perf_counter
    held: list[list[float]] = [[] for _ in range(threads)]
    errors: list[BaseException] = []
    began = clock()
    end = began + seconds

    def one_thread(number: int) -> None:
        call, key, latencies = calls[number % len(calls)], first + number * 37, held[number]
        try:
            while (started := clock()) < end:
                call(key)
                latencies.append(clock() - started)
                key += 1
        except BaseException as error:
            errors.append(error)

    if threads == 1:
        one_thread(0)
    else:
        started = [threading.Thread(target=one_thread, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    if errors:
        raise errors[0]
    return [latency for latencies in held for latency in latencies], clock() - began


def measured(calls: Sequence[Call], threads: int, seconds: float, first: int, pids: Sequence[int]) -> dict[str, Any]:
    """Run one block and say what it cost; see `measuring.costs`."""
    before = Reading(pids)
    latencies, wall = run_block(calls, threads, seconds, first)
    return costs(before, Reading(pids), latencies, wall)


def answer(**what: Any) -> None:
    """Say something to whoever gives orders."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def serve(options: argparse.Namespace) -> None:
    """Open the clients and obey."""
    hosts = tuple(options.hosts.split(","))
    target = Target(options.dsn, options.size, options.operation == "read", hosts, options.port)
    with ExitStack() as stack:
        clients = [stack.enter_context(CLIENTS[name](target)) for name in options.client]
        notes = [client.note for client in clients]
        answer(ready=True, notes=notes, versions=versions(), python=platform.python_version())
        obey(clients)


def obey(clients: Sequence[Opened]) -> None:
    """Run blocks until there are no more orders."""
    key = 0
    frozen = False
    for line in sys.stdin:
        order = json.loads(line)
        if "warm" in order:
            frozen = False
        elif not frozen:
            gc.collect()
            gc.freeze()
            frozen = True
        client = clients[order["client"]]
        threads = min(order["tasks"], len(client.calls)) if client.exclusive else order["tasks"]
        result = measured(client.calls, threads, order["seconds"], key, order["pids"])
        key += result["calls"] + 1
        if order.get("counted"):
            result["counted"] = client.counted()
        answer(**result)
