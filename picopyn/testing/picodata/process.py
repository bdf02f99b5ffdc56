"""The server process of an embedded cluster: `python -m picopyn.testing.picodata.process <directory>`.

Reads its shape as one line of JSON from the input, prints one line of JSON when every instance answers, and
lives until its input
ends: when the one who started it is gone, however that happened, so are this process and its PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

from picopyn.testing.picodata.control import ControlRoom
from picopyn.testing.picodata.server import Server
from picopyn.testing.picodata.shape import Shape
from picopyn.testing.postgres import PostgresServer

SOCKET = "control"


async def serve(shape: Shape, directory: Path, postgres: PostgresServer) -> None:
    """Run until the input ends."""
    server = Server(shape, postgres)
    await server.start()
    room = await ControlRoom(server).listen(str(directory / SOCKET))
    print(json.dumps(await server.describe()), flush=True)
    await _input_ended()
    room.close()
    server.close()


async def _input_ended() -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    class Input(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            if not ended.done():
                ended.set_result(None)

    await loop.connect_read_pipe(Input, sys.stdin)
    await ended


def main() -> int:
    """Start, serve, clean up."""
    directory = Path(sys.argv[1])
    shape = Shape.from_json(sys.stdin.readline())
    with PostgresServer() as postgres:
        asyncio.run(serve(shape, directory, postgres))
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
