"""The control room: takes orders on a local socket, one JSON line each, and has the server carry them out.

Decides what an order looks like. Each order comes on a connection of its own, so orders from several threads
do not wait for each other.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from picopyn.testing.picodata.planner.errors import ServerError
from picopyn.testing.picodata.server import ControlError, Server

ORDERS = frozenset(
    {
        "describe",
        "states",
        "kill",
        "stop",
        "freeze",
        "thaw",
        "restart",
        "promote",
        "add_instance",
        "expel",
        "move_buckets",
        "wait_views",
        "wait_hanging",
        "wait_leader",
        "set_view_lag",
        "lose_bucket",
        "inject_error",
        "mute_notices",
        "set_notices",
        "advertise",
        "execute",
        "create_user",
        "deny",
        "allow",
        "counters",
        "reset_counters",
        "sessions",
        "bucket_of",
        "owner_of",
    }
)


class ControlRoom:
    """Owner: the server process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def listen(self, path: str) -> asyncio.Server:
        """Start to take orders at a Unix socket only this user can open."""
        before = os.umask(0o077)
        try:
            return await asyncio.start_unix_server(self._serve, path, limit=1 << 24)
        finally:
            os.umask(before)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line:
                answer = await self._carry_out(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        name = order["do"]
        if name not in ORDERS:
            return {"error": f"unknown order {name!r}"}
        try:
            return {"ok": await getattr(self._server, name)(**order["arguments"])}
        except ServerError as error:
            return {"error": error.message, "sqlstate": error.sqlstate}
        except (ControlError, TypeError) as error:
            return {"error": str(error)}
        except TimeoutError:
            return {"error": f"{name} did not come to its end in time"}
