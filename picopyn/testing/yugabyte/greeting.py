"""What a server says while it greets, with another version in it.

Decides which bytes of a conversation change: the one message that tells the version, and nothing after the greeting.

*Source*: PostgreSQL documentation, sections "Start-up" (the answers to SSLRequest and GSSENCRequest are single bytes)
and "Message Formats" (ParameterStatus, ReadyForQuery).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: The first letters of the messages with which a greeting can begin; what stands before is an answer to a request.
_FIRST: Final = b"REv"


class Greeting:
    """Changes the version in the greeting of one connection.

    Args:
        version: What the server shall say.
    """

    def __init__(self, version: str) -> None:
        self._status = _status("server_version", version)
        self._held = b""
        self._begun = False
        self._over = False

    def __call__(self, data: bytes) -> bytes:
        """A piece of what the server says → what the client gets; what is not whole yet is held back."""
        if self._over:
            return data
        self._held += data
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        while self._held and not self._begun:
            self._begun = self._held[:1] in (bytes([letter]) for letter in _FIRST)
            if not self._begun:
                yield self._cut(1)
        while not self._over and len(self._held) >= 5:
            length = 1 + int.from_bytes(self._held[1:5], "big")
            if len(self._held) < length:
                return
            message = self._cut(length)
            self._over = message[:1] in (b"Z", b"E")
            yield self._status if message.startswith(b"S") and message[5:].startswith(b"server_version\0") else message
        if self._over:
            yield self._cut(len(self._held))

    def _cut(self, length: int) -> bytes:
        piece, self._held = self._held[:length], self._held[length:]
        return piece


def _status(name: str, value: str) -> bytes:
    body = name.encode() + b"\0" + value.encode() + b"\0"
    return b"S" + (len(body) + 4).to_bytes(4, "big") + body
