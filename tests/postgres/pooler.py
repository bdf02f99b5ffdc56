"""A tiny transaction-level pooler in front of a real PostgreSQL, and a recorder of what its clients say.

Each transaction of a client runs on the next of a few server sessions; between two transactions a session is wiped
(`DISCARD ALL`). Before that it is asked how many prepared statements it still has.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from contextlib import suppress
from types import TracebackType

_SSL_REQUEST = 80877103
_PROTOCOL = 196608


class Session:
    """One session with the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.lock = asyncio.Lock()
        self.greeting = b""

    async def start(self, start_up: bytes) -> None:
        self.writer.write(struct.pack("!II", len(start_up) + 8, _PROTOCOL) + start_up)
        while True:
            kind, raw = await read(self.reader)
            assert kind != b"E", raw
            self.greeting += raw
            if kind == b"Z":
                return

    async def ask(self, sql: str) -> list[bytes]:
        """The data rows of a simple query."""
        body = sql.encode() + b"\0"
        self.writer.write(b"Q" + struct.pack("!I", len(body) + 4) + body)
        rows = []
        while True:
            kind, raw = await read(self.reader)
            assert kind != b"E", raw
            if kind == b"D":
                rows.append(raw)
            if kind == b"Z":
                return rows


async def read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next message: its kind, and all its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


class Pooler:
    """The pooler; an async context.

    Args:
        host: The server.
        port: Its port.
        sessions: How many sessions clients share; None: each client has one of its own, which is never wiped.

    Attributes:
        texts: Every text that was prepared or executed, in order.
        names: Names under which texts were prepared.
        left: Most prepared statements found after a transaction.
    """

    def __init__(self, host: str, port: int, sessions: int | None = 2) -> None:
        self._to = (host, port)
        self._sessions = sessions
        self._shared: list[Session] = []
        self._turn = itertools.count()
        self._clients: set[asyncio.Task[None]] = set()
        self.port = 0
        self.texts: list[str] = []
        self.names: set[str] = set()
        self.left = 0

    async def __aenter__(self) -> Pooler:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for session in self._shared:
            session.writer.close()

    @property
    def dsn(self) -> str:
        """Where clients connect to."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start_up = await self._start_up(reader, writer)
        sessions = await self._open(start_up)
        writer.write(sessions[0].greeting)
        while True:
            first = await read(reader)
            if first[0] == b"X":
                break
            session = sessions[next(self._turn) % len(sessions)]
            async with session.lock:
                await self._transaction(first, reader, writer, session)
        if self._sessions is None:
            sessions[0].writer.close()

    async def _start_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        while True:
            length, code = struct.unpack("!II", await reader.readexactly(8))
            if code == _PROTOCOL:
                return await reader.readexactly(length - 8)
            writer.write(b"N" if code == _SSL_REQUEST else b"")

    async def _open(self, start_up: bytes) -> list[Session]:
        if self._sessions is not None and self._shared:
            return self._shared
        opened = []
        for _ in range(self._sessions or 1):
            session = Session(*await asyncio.open_connection(*self._to))
            await session.start(start_up)
            opened.append(session)
        if self._sessions is not None:
            self._shared = opened
        return opened

    async def _transaction(
        self, first: tuple[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        """Pass on until the server is idle and has answered everything."""
        message = first
        while True:
            kind, raw = message
            self._note(kind, raw)
            session.writer.write(raw)
            if kind == b"H":  # asyncpg flushes only after Describe
                await self._answer(session, writer, b"TnE")
            elif kind in b"SQ" and await self._answer(session, writer, b"Z") == b"I":
                break
            message = await read(reader)
        if self._sessions is not None:
            (row,) = await session.ask("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''")
            self.left = max(self.left, int(row[11:]))
            await session.ask("DISCARD ALL")

    async def _answer(self, session: Session, writer: asyncio.StreamWriter, until: bytes) -> bytes:
        """Pass the server's messages on, up to one of these kinds; returns its body."""
        while True:
            kind, raw = await read(session.reader)
            writer.write(raw)
            if kind in until:
                return raw[5:]

    def _note(self, kind: bytes, raw: bytes) -> None:
        if kind == b"P":
            name, text, _ = raw[5:].split(b"\0", 2)
            self.names.add(name.decode())
            self.texts.append(text.decode())
        elif kind == b"Q":
            self.texts.append(raw[5:-1].decode())
