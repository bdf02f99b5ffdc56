"""What asyncpg really sends for an argument: a server that only records, and nothing of PostgreSQL behind it.

`SentBytes` answers Parse and Describe with the parameter types that the statement text names (`"20"`, `"25"`,
…) and keeps the parameter of the Bind. It knows nothing about hashing.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import asyncpg


class SentBytes:
    """A recording server and one asyncpg connection to it, usable from synchronous tests.

    Owns its event loop; `close` ends server, connection and loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._bound: bytes | None = None
        self._loop.run_until_complete(self._start())

    def of(self, oid: int, value: Any) -> bytes | None:
        """The binary value that asyncpg binds for `value` as a parameter of type `oid`; None for NULL.

        Raises:
            asyncpg.DataError: asyncpg refuses the value.
        """
        self._bound = b"nothing was bound"
        self._loop.run_until_complete(self._connection.execute(str(oid), value))
        return self._bound

    def close(self) -> None:
        """End everything."""
        self._connection.terminate()
        self._server.close()
        self._loop.run_until_complete(self._server.wait_closed())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._connection = await asyncpg.connect(host="127.0.0.1", port=port, user="u", database="d", ssl=False)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._start_up(reader, writer)
            while True:
                kind = await reader.readexactly(1)
                writer.write(self._answer(kind, await _body(reader)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _start_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _body(reader)
        settings = {"client_encoding": "UTF8", "server_version": "16.0", "integer_datetimes": "on"}
        writer.write(_message(b"R", struct.pack(">i", 0)))
        for name, value in settings.items():
            writer.write(_message(b"S", f"{name}\0{value}\0".encode()))
        writer.write(_READY)

    def _answer(self, kind: bytes, body: bytes) -> bytes:
        if kind == b"P":
            self._oid = int(body.split(b"\0")[1])
            return _message(b"1", b"")
        if kind == b"D":
            return _message(b"t", struct.pack(">hi", 1, self._oid)) + _message(b"n", b"")
        if kind == b"B":
            self._bound = _first_parameter(body)
            return _message(b"2", b"")
        if kind == b"E":
            return _message(b"C", b"SELECT 0\0")
        if kind == b"C":
            return _message(b"3", b"")
        return _READY if kind == b"S" else b""


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


_READY = _message(b"Z", b"I")


async def _body(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length - 4)


def _first_parameter(bind: bytes) -> bytes | None:
    """Portal and statement name, formats (one: all binary), then the parameters."""
    rest = bind.split(b"\0", 2)[2]
    (formats,) = struct.unpack_from(">h", rest)
    offset = 2 + 2 * formats
    assert rest[2:offset] == b"\0\1" * formats, "asyncpg binds in binary format"
    count, size = struct.unpack_from(">hi", rest, offset)
    assert count == 1
    return None if size < 0 else rest[offset + 6 : offset + 6 + size]
