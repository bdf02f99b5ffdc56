"""Forwards connections and notes what clients send: statement names, and password messages."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from contextlib import suppress
from types import TracebackType

_SSL_REQUEST = 80877103


class Tap:
    """In front of one address; use with `async with`.

    Attributes:
        names: Statement name → how many times it was prepared.
        passwords: Password messages that passed.
    """

    def __init__(self, host: str, port: int, names: Counter[str] | None = None) -> None:
        self.names = Counter() if names is None else names
        self.passwords = 0
        self._to = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def __aenter__(self) -> Tap:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection(*self._to)
        answers = asyncio.create_task(_pump(there, writer))
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._listen(reader, back)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            back.transport.abort()
            writer.transport.abort()
            self._tasks.discard(task)

    async def _listen(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        code = _SSL_REQUEST
        while code == _SSL_REQUEST:
            head = await reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            back.write(head + await reader.readexactly(length - 8))
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] == b"P":
                self.names[body.partition(b"\0")[0].decode()] += 1
            self.passwords += head[:1] == b"p"
            back.write(head + body)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
