"""One session with a local PostgreSQL, for those who control it: blocking, through its Unix socket, as the superuser.

Decides how a text is sent and its rows are read. Needs no driver, so a cluster is controlled alike from blocking code
and under any event loop.

*Source*: PostgreSQL documentation, chapter "Frontend/Backend Protocol", sections "Start-up" and "Simple Query".
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from picopyn.testing.postgres_binaries import PostgresFailed

Row = tuple[str | None, ...]


class Session:
    """Owner: whoever opens it; ends with `with` or `close`.

    Args:
        path: The Unix socket itself.
        timeout: Seconds for each answer.

    Raises:
        OSError: Nobody listens there, or nobody answers in time.
        PostgresFailed: The server does not let us in.
    """

    def __init__(self, path: Path, timeout: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(str(path))
            self._socket.sendall(_start_up_packet())
            self._received = self._socket.makefile("rb")
            self._until_ready()
        except BaseException:
            self._socket.close()
            raise

    def rows(self, sql: str) -> list[Row]:
        """Run a text; gives the rows of all its statements, every value as text.

        Raises:
            OSError: The connection broke, or the answer did not come in time.
            PostgresFailed: The server refused it.
        """
        self._socket.sendall(_message(b"Q", sql.encode() + b"\0"))
        return self._until_ready()

    def close(self) -> None:
        """Leave."""
        self._received.close()
        self._socket.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until_ready(self) -> list[Row]:
        rows: list[Row] = []
        refusal = ""
        for kind, body in self._messages():
            if kind == b"D":
                rows.append(_row(body))
            elif kind == b"E":
                refusal = _refusal(body)
        if refusal:
            raise PostgresFailed(refusal)
        return rows

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Up to ReadyForQuery, or to the error with which the server hangs up."""
        kind = b""
        while kind != b"Z":
            last, head = kind, self._received.read(5)
            if len(head) < 5 and last == b"E":
                return
            if len(head) < 5:
                raise ConnectionResetError("the server hung up")
            kind = head[:1]
            yield kind, self._received.read(int.from_bytes(head[1:], "big") - 4)


def accepts(path: Path) -> bool:
    """Whether the server lets somebody in through its Unix socket."""
    try:
        Session(path, timeout=2.0).close()
    except (OSError, PostgresFailed):
        return False
    return True


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _start_up_packet() -> bytes:
    return _message(b"", struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0")


def _row(body: bytes) -> Row:
    values: list[str | None] = []
    place = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        (length,) = struct.unpack_from("!i", body, place)
        place += 4
        values.append(None if length < 0 else body[place : place + length].decode())
        place += max(length, 0)
    return tuple(values)


def _refusal(body: bytes) -> str:
    fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
    return f"{fields.get(b'C', '')}: {fields.get(b'M', '')}"
