"""`TlsFront`: how a `FaultProxy` meets its clients when it ends their TLS in front of a server that has none.

Decides what a client's first words are answered with: the question for TLS, the start-up packet. Knows no more of the
protocol than these; must not know a socket.

*Source*: PostgreSQL 18 documentation, sections 54.2.11 (SSL session encryption) and 54.7 (message formats).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Literal

_REQUESTS = {80877102: "CancelRequest", 80877103: "SSLRequest", 80877104: "GSSENCRequest"}

#: Told whether the connection is encrypted, and the keys of the start-up packet; returns why it is refused, or None.
Refusal = Callable[[bool, Mapping[str, str]], str | None]


def tls_only(encrypted: bool, keys: Mapping[str, str]) -> str | None:
    """A refusal for `TlsFront`: what Picodata with TLS turned on says to a plain start-up packet.

    *Source*: `picodata-protocol.md` sections 8 and 9.
    """
    return None if encrypted else "this server requires the client to use ssl"


class TlsFront:
    """The first words of a proxy, and a record of those of its clients.

    Owner: one proxy. The record may be read from any thread.

    Args:
        context: The server's side of TLS, with its certificate; None: there is no TLS, and clients are told.
        refuse: Turns start-up packets away, with 28000; None: takes all.
        answer: What the question for TLS is answered with instead of `S` or `N`; `b""` closes the connection.
        stall: Where the proxy falls silent for ever: before its `"answer"`, or in the `"handshake"` after it.

    Attributes:
        openings: What clients began with, in order: `"SSLRequest"`, `"GSSENCRequest"`, `"CancelRequest"`, and
            `"StartupMessage"` in plain text or `"encrypted StartupMessage"`.
        server_names: The name that each hand-shake asked for (SNI), or None.
        clients: The common name in the certificate of each client, or None.
        failures: Why hand-shakes failed, as OpenSSL names it.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        *,
        refuse: Refusal | None = None,
        answer: bytes | None = None,
        stall: Literal["answer", "handshake"] | None = None,
    ) -> None:
        self.context = context
        self.refuse = refuse
        self.answer = (b"N" if context is None else b"S") if answer is None else answer
        self.stall = stall
        self.openings: list[str] = []
        self.server_names: list[str | None] = []
        self.clients: list[str | None] = []
        self.failures: list[str] = []
        if context is not None:
            context.sni_callback = self._asked_for

    def _asked_for(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        self.server_names.append(name)

    def shook_hands(self, connection: ssl.SSLObject) -> None:
        """A hand-shake is done."""
        subject: Any = (connection.getpeercert() or {}).get("subject", ())
        names = [value for part in subject for name, value in part if name == "commonName"]
        self.clients.append(names[0] if names else None)

    def opening(self, packet: bytes, *, encrypted: bool) -> str:
        """Put the first packet of a client, without its length, on record; return what it is."""
        what = _REQUESTS.get(int.from_bytes(packet[:4], "big"), "StartupMessage")
        what = f"encrypted {what}" if encrypted else what
        self.openings.append(what)
        return what

    def refusal(self, packet: bytes, *, encrypted: bool) -> bytes | None:
        """The error that a start-up packet is turned away with, or None."""
        if self.refuse is None or int.from_bytes(packet[:4], "big") in _REQUESTS:
            return None
        words = packet[4:].decode(errors="replace").split("\0")
        reason = self.refuse(encrypted, dict(zip(words[::2], words[1::2], strict=False)))
        return None if reason is None else _error("28000", reason)


class TlsSession:
    """The server's side of one encrypted connection, from bytes to bytes.

    asyncio's own closes the connection of a client that it does not accept without a word; real servers send an alert.

    Args:
        front: Keeps the record.
        context: The server's side of TLS.
        send: Sends bytes to the client.
    """

    def __init__(self, front: TlsFront, context: ssl.SSLContext, send: Callable[[bytes], None]) -> None:
        self._front = front
        self._send = send
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False

    def feed(self, data: bytes) -> bytes:
        """Take what has arrived, and return what it says.

        Raises:
            ssl.SSLError: The client is not accepted, or does not accept the server.
        """
        self._incoming.write(data)
        said: list[bytes] = []
        try:
            if not self._ready:
                self._object.do_handshake()
                self._ready = True
                self._front.shook_hands(self._object)
            while piece := self._object.read(65536):
                said.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._front.failures.append(error.reason or type(error).__name__)
            raise
        finally:
            self._flush()
        return b"".join(said)

    def write(self, data: bytes) -> None:
        """Say something to the client."""
        self._object.write(data)
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._send(self._outgoing.read())


def _error(sqlstate: str, message: str) -> bytes:
    fields = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": message}
    body = b"".join(name.encode() + text.encode() + b"\0" for name, text in fields.items()) + b"\0"
    return b"E" + (len(body) + 4).to_bytes(4, "big") + body


def first_packet(received: bytes) -> bytes | None:
    """The first packet in what was received, without its length; None when it is not there yet."""
    length = int.from_bytes(received[:4], "big")
    return received[4:length] if len(received) >= 4 and len(received) >= length else None
