"""The listening socket of one instance: open, open but unattended, or closed.

Decides what a client sees that knocks. Must not know what is said inside.

An unattended door is what a frozen or just started process shows: the kernel completes the handshake, nobody
answers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

_BACKLOG = 256


class Door:
    """One address. Owner: one host.

    Args:
        host: Address to listen on.
        port: 0 takes any free port the first time; later the same one.
        admit: Makes the protocol for a new connection.
    """

    def __init__(self, host: str, port: int, admit: Callable[[], asyncio.Protocol]) -> None:
        self.host = host
        self.port = port
        self._admit = admit
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    def listen(self) -> None:
        """Take the address; connections are completed by the kernel but nobody attends to them yet."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self.port = int(listener.getsockname()[1])
        self._socket = listener

    def attend(self) -> None:
        """Accept who knocks, those who already did first."""
        self.listen()
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def leave(self) -> None:
        """Go on listening without accepting."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)

    def close(self) -> None:
        """Refuse from now on; those not yet accepted are reset."""
        if self._socket is not None:
            self.leave()
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        if self._socket is None:
            return
        with suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            while True:
                connection, _ = self._socket.accept()
                connection.setblocking(False)
                with suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                loop = asyncio.get_running_loop()
                task: asyncio.Task[object] = loop.create_task(self._admit_one(loop, connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _admit_one(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        with suppress(OSError):
            await loop.connect_accepted_socket(self._admit, connection)
