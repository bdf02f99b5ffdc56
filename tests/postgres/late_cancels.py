"""A way to a server on which requests to cancel something take long: they arrive when the test says so."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

#: *Source*: PostgreSQL documentation, "Message Formats", CancelRequest.
_CANCEL_REQUEST = struct.pack("!ii", 16, 80877102)


class LateCancels:
    """Passes everything on at once, but requests to cancel only after `deliver`, also those that were given up.

    Args:
        host: Of the server.
        port: Of the server.

    Attributes:
        port: Where it listens.
        held: Requests that have come and were not delivered.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.held = threading.Semaphore(0)
        self._late: list[tuple[bytes, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def deliver(self) -> None:
        """Let them arrive; returns when the server has taken each."""
        while self._late:
            request, client = self._late.pop()
            with socket.create_connection(self._target) as server, contextlib.suppress(OSError):
                server.sendall(request)
                server.recv(1)
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take in nobody any more."""
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._door.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            first = client.recv(65536)
            if first.startswith(_CANCEL_REQUEST):
                self._late.append((first, client))
                self.held.release()
                client.recv(1)
                return
            with socket.create_connection(self._target) as server:
                server.sendall(first)
                threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
                self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
