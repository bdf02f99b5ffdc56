"""Finding a host and connecting to it, as long as nobody is waited for."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import Any

from picopyn.sync.duplex_socket import WRITE


class LookUp:
    """A question for the addresses of a host; asked at once.

    Asking cannot be interrupted, so another thread does it, unless the host is an address itself.

    Args:
        host: A name or an address.
        port: A port.

    Attributes:
        finished: Set when it is answered.
        found: What `socket.getaddrinfo` gives.
        error: Why it gives nothing, or None.
    """

    def __init__(self, host: str, port: int) -> None:
        self.finished = threading.Event()
        self.found: list[Any] = []
        self.error: OSError | None = None
        try:
            self.found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            self.finished.set()
        except OSError:
            threading.Thread(target=self._ask, args=(host, port), name="picopyn name look-up", daemon=True).start()

    def _ask(self, host: str, port: int) -> None:
        try:
            self.found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.error = error
        finally:
            self.finished.set()


class Attempt:
    """A socket that is being connected.

    Args:
        sock: Which one.
        connected: Gets a result, or the error.
    """

    def __init__(self, sock: socket.socket, connected: asyncio.Future[None]) -> None:
        self._sock = sock
        self.connected = connected

    def fileno(self) -> int:
        """Its descriptor."""
        return self._sock.fileno()

    def awaited(self) -> int:
        """What it waits for."""
        return WRITE

    def flush(self) -> bool:
        """There is nothing to send."""
        return False

    def permit(self) -> None:
        """Nobody writes."""

    def react(self, happened: int) -> None:
        """It is connected, or has failed."""
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if self.connected.done():
            return
        if number:
            self.connected.set_exception(OSError(number, os.strerror(number)))
        else:
            self.connected.set_result(None)
