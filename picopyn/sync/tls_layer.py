"""TLS as a layer over bytes: what is to be sent is sealed, what has arrived is opened; it touches no socket."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

#: How much is opened at once (bytes); no more than a record holds.
_RECORD: Final = 16384


class TlsLayer:
    """The client's side of one encrypted connection.

    Args:
        context: With what.
        server_hostname: Whom to ask for.
        agreed: Gets a result when the hand-shake is done, or the error.

    Attributes:
        ssl_object: What knows about certificates and ciphers.
        is_ready: The hand-shake is done.
        finished: The other side has said that nothing more follows.
    """

    def __init__(self, context: ssl.SSLContext, server_hostname: str, agreed: asyncio.Future[None]) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._agreed = agreed
        self.is_ready = False
        self.finished = False

    def shake_hands(self, received: bytes) -> None:
        """Go on with the hand-shake; afterwards there may be something to send (`unsaid`).

        Raises:
            ssl.SSLError: It failed.
        """
        self._incoming.write(received)
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_ready = True

    def settle(self, error: Exception | None) -> None:
        """The hand-shake is over; who waits for it is told, once."""
        if self._agreed.done():
            return
        if error is None:
            self._agreed.set_result(None)
        else:
            self._agreed.set_exception(error)

    def unsaid(self) -> bytes:
        """What TLS itself has to send."""
        return self._outgoing.read()

    def sealed(self, plain: Any) -> bytes:
        """What to send so that the other side gets these bytes."""
        view = memoryview(plain)
        while view:
            view = view[self.ssl_object.write(view) :]
        return self._outgoing.read()

    def opened(self, received: bytes) -> bytes:
        """What the other side has sent, as far as it is complete.

        Raises:
            ssl.SSLError: It is no TLS, or was tampered with.
        """
        self._incoming.write(received)
        parts: list[bytes] = []
        try:
            while part := self.ssl_object.read(_RECORD):
                parts.append(part)
            self.finished = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.finished = True
        return b"".join(parts)
