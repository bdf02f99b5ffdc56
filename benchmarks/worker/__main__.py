"""Open clients, run blocks when told, over lines of JSON: orders on standard input, answers on standard output."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
from contextlib import AsyncExitStack
from typing import Any

import threads
from clients import CLIENTS, Opened, Target, versions
from measuring import measured


class Orders:
    """Lines of standard input, without a thread and without buffers of asyncio's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        os.set_blocking(0, False)
        self._loop.add_reader(0, self._read)

    def _read(self) -> None:
        data = os.read(0, 4096)
        if not data:
            self._loop.remove_reader(0)
            self._lines.put_nowait(b"")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line)

    async def next(self) -> dict[str, Any] | None:
        """The next order; None when there will be none."""
        line = await self._lines.get()
        return json.loads(line) if line else None


def answer(**what: Any) -> None:
    """Say something to whoever gives orders."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def serve(options: argparse.Namespace) -> None:
    """Open the clients and obey."""
    hosts = tuple(options.hosts.split(","))
    target = Target(options.dsn, options.size, options.operation == "read", hosts, options.port)
    orders = Orders()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(CLIENTS[name](target)) for name in options.client]
        notes = [client.note for client in clients]
        answer(ready=True, notes=notes, versions=versions(), python=platform.python_version())
        await obey(orders, clients)


async def obey(orders: Orders, clients: list[Opened]) -> None:
    """Run blocks until there are no more orders."""
    key = 0
    frozen = False
    while (order := await orders.next()) is not None:
        if "warm" in order:
            frozen = False
        elif not frozen:
            gc.collect()
            gc.freeze()
            frozen = True
        client = clients[order["client"]]
        tasks = min(order["tasks"], len(client.calls)) if client.exclusive else order["tasks"]
        result = await measured(client.calls, tasks, order["seconds"], key, order["pids"])
        key += result["calls"] + 1
        if order.get("counted"):
            result["counted"] = client.counted()
        answer(**result)


def main() -> None:
    """Parse the command line, choose the event loop or none, run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", action="append", required=True, choices=[*CLIENTS, *threads.CLIENTS])
    parser.add_argument("--loop", choices=("asyncio", "uvloop", "threads"), default="asyncio")
    parser.add_argument("--operation", choices=("read", "insert"), default="read")
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if options.loop == "threads":
        threads.serve(options)
    elif options.loop == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
    else:
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
