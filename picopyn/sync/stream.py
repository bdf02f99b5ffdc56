"""The socket under a connection that blocks: what asyncpg writes and reads, as a transport of asyncio's.

Writing never waits and never fails: bytes are kept until somebody waits for the server, and go out then, while what
comes in is read. So two sides that both write cannot block each other. Whoever produces a lot is held up: `flush` gives
one permission to write on (`resume_writing`) each time everything has been sent.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, Protocol

from picopyn.asynchronous.buffered import both
from picopyn.sync.duplex_socket import NOW, PATIENCE, READ, WRITE, DuplexSocket, is_handlers, wait
from picopyn.sync.tls_layer import TlsLayer

_NOTHING: Final = b""

#: How much is read at once (bytes).
READ_SIZE: Final = 65536


class Owner(Protocol):
    """Who waits for several streams."""

    def forget(self, stream: Stream) -> None:
        """It is closed."""
        ...

    def ask(self) -> Callable[[], Any]:
        """What asks for permission to write on."""
        ...

    def permit(self) -> None:
        """Everything has been sent."""
        ...

    def note(self, error: BaseException) -> None:
        """Who waits was interrupted, and asyncpg would keep that to itself."""
        ...


class Stream(asyncio.Transport):
    """The transport; see above. One thread at a time uses it; only `cut` may come from another one.

    Args:
        sock: Connected.
        protocol: Gets what arrives.
        owner: Told when the socket is closed.

    Attributes:
        owner: The same.
        state: Tells whether the other side has closed it; see `DuplexSocket.begin_watch`.
    """

    def __init__(self, sock: DuplexSocket, protocol: Any, owner: Owner) -> None:
        super().__init__()
        sock.begin()
        self._sock = sock
        self.owner = owner
        self._tls: TlsLayer | None = None
        self._unsent: deque[Any] = deque()
        self._rest: Any = _NOTHING
        self._closed = self._paused = False
        # asyncpg swallows a `KeyboardInterrupt` that falls into what it calls to write; so that is no function of ours.
        self.state = sock.begin_watch()
        self.write = self._unsent.append  # type: ignore[assignment, method-assign]
        self.writelines = _taking(self._unsent.extend, owner.note)  # type: ignore[assignment, method-assign]
        self.set_protocol(protocol)

    # what asyncpg asks of a transport

    def set_protocol(self, protocol: Any) -> None:
        """From now on what arrives goes there, and it may write on when everything before has been sent.

        Who sends rows waits for that in an event of asyncpg's. Its `wait` would be code of asyncio's, which finds the
        signals that have come while rows were encoded; and what their handlers raise there asyncpg takes for an error
        of its own. So it gets one without any code of Python's. The loop finds the signals then.
        """
        self._protocol = protocol
        self._feed = protocol.data_received
        if hasattr(protocol, "writing_allowed"):
            protocol.writing_allowed = SimpleNamespace(wait=self.owner.ask(), set=bool, clear=bool)

    def tap(self, listener: Callable[[bytes], None] | None) -> None:
        """Let somebody see what arrives, before it is handed on; None: nobody any more."""
        protocol = self._protocol
        self._feed = protocol.data_received if listener is None else both(listener, protocol)

    def get_protocol(self) -> Any:
        """Where what arrives goes."""
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, or `ssl_object`."""
        if name == "socket":
            return self._sock
        if name == "ssl_object" and self._tls is not None:
            return self._tls.ssl_object
        return default

    def pause_reading(self) -> None:
        """Leave what arrives to the socket."""
        self._paused = True

    def resume_reading(self) -> None:
        """Read on."""
        self._paused = False

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def close(self) -> None:
        """Close it; what has not been sent is sent as far as the socket takes it."""
        self.abort()

    def abort(self) -> None:
        """Close it at once."""
        if self._closed:
            return
        with suppress(ssl.SSLError):
            self.flush()
        if not self._closed:
            self._closed = True
            self._close()

    def cut(self) -> None:
        """Make whoever waits for the other side see its end. Safe from any thread."""
        self._sock.cut()

    def has_whole_request(self) -> bool:
        """Whether what is to be sent ends as a request does, with Sync or Flush: else nobody will answer.

        *Source*: PostgreSQL 18, "Message Formats": both are a letter and a length of 4.
        """
        return bool(self._unsent) and bytes(self._unsent[-1][-4:]) == b"\0\0\0\4"

    # waiting

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def awaited(self) -> int:
        """What it waits for."""
        unsent = self._rest or self._unsent
        return (0 if self._paused or self._closed else READ) | (WRITE if unsent else 0)

    def react(self, happened: int) -> None:
        """Send and receive without waiting."""
        if happened & WRITE:
            self.flush()
        if happened & READ and not self._paused:
            self._read()

    def exchange(self, answer: asyncio.Future[Any], deadline: float | None) -> bool:
        """Send what is to be sent, and hand on what arrives until the answer is there.

        What it raises is a signal handler's; then nobody knows what is still to be read.

        Args:
            answer: What is waited for.
            deadline: Until when (seconds on the monotonic clock), or None.

        Returns:
            Whether it was there in time.
        """
        receive, feed = self._sock.receive, self._feed  # functions that are no methods cost less by names of their own
        if self.flush():
            while not answer.done():
                try:
                    data = receive(READ_SIZE)
                except OSError as error:
                    self._failed(error)
                    break
                if data and self._tls is None:
                    feed(data)
                else:
                    self._arrived(data)
                if answer.done():
                    return True
                if self._rest or (deadline is not None and time.monotonic() >= deadline):
                    break
        while not answer.done():
            left = PATIENCE if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._duplex(left)
        return True

    def flush(self) -> bool:
        """Send what can be sent now; whether that is everything.

        What is being sent counts as sent, so that it is not sent once more where a signal's handler raises: the
        connection is dropped then, which may flush it.
        """
        unsent, data = self._unsent, self._rest
        try:
            while data or unsent:
                if data:
                    self._rest = _NOTHING
                else:
                    data = unsent.popleft()
                    if unsent or self._tls is not None:
                        data = self._gathered(data)
                sent = self._sock.send(data, NOW)
                data = self._rest = memoryview(data)[sent:] if sent < len(data) else _NOTHING
        except OSError as error:
            if is_handlers(error):
                raise
            if isinstance(error, BlockingIOError):
                self._rest = data
                return False
            self._end(error)
        return True

    def permit(self) -> None:
        """Everything has been sent: who waits to write may write on, once."""
        self.owner.permit()

    def read_what_is_there(self) -> None:
        """Hand on what has arrived already, its end included."""
        while not self._closed and not self._paused and self._read():
            pass

    def encrypt(self, context: Any, server_hostname: str, agreed: asyncio.Future[None]) -> None:
        """Begin the hand-shake; from now on everything is encrypted.

        Args:
            context: The `ssl.SSLContext`.
            server_hostname: Whom to ask for.
            agreed: Gets a result, or the error.
        """
        self._tls = TlsLayer(context, server_hostname, agreed)
        self._paused = False
        self._shake_hands(self._tls, b"")

    # inside

    def _duplex(self, seconds: float) -> None:
        """Wait for so long until something can be sent or received, and do so."""
        for events in wait({self.fileno(): self.awaited()}, seconds).values():
            self.react(events)

    def _gathered(self, data: Any) -> Any:
        """Bytes to send, put together with those that follow."""
        if self._unsent:
            data = b"".join([data, *self._unsent])
            self._unsent.clear()
        return data if self._tls is None else self._tls.sealed(data)

    def _read(self) -> bool:
        """Receive without waiting; whether something has arrived."""
        try:
            data = self._sock.recv(READ_SIZE, NOW)
        except OSError as error:
            return self._failed(error)
        self._arrived(data)
        return bool(data)

    def _failed(self, error: OSError) -> bool:
        """Receiving has failed, if only because there is nothing."""
        if is_handlers(error):
            raise error
        if not isinstance(error, BlockingIOError | TimeoutError) or error.errno == errno.ETIMEDOUT:
            self._end(error)
        return False

    def _arrived(self, data: bytes) -> None:
        if not data:
            self._end(None)
        elif self._tls is None:
            self._feed(data)
        else:
            self._read_sealed(self._tls, data)

    def _read_sealed(self, tls: TlsLayer, data: bytes) -> None:
        if not tls.is_ready:
            self._shake_hands(tls, data)
            return
        try:
            plain = tls.opened(data)
        except ssl.SSLError as error:
            self._end(error)
            return
        self._say(tls)
        if plain:
            self._feed(plain)
        if tls.finished:
            self._end(None)

    def _shake_hands(self, tls: TlsLayer, data: bytes) -> None:
        error: Exception | None = None
        try:
            tls.shake_hands(data)
        except (ssl.SSLError, ssl.CertificateError) as failed:
            error = failed
        self._say(tls)
        if tls.is_ready or error is not None:
            tls.settle(error)

    def _say(self, tls: TlsLayer) -> None:
        """Send what TLS itself has to say."""
        told = tls.unsaid()
        if told:
            self._rest = bytes(self._rest) + told
            self.flush()

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._close()
        if self._tls is not None:
            self._tls.settle(error or ConnectionResetError(errno.ECONNRESET, "closed during the hand-shake"))
        self._protocol.connection_lost(error)

    def _close(self) -> None:
        self._sock.close()
        self.write = self.writelines = _refuse  # type: ignore[assignment, method-assign]
        self.owner.forget(self)


def _taking(take: Callable[[Any], None], note: Callable[[BaseException], None]) -> Callable[[Any], None]:
    """What gets the pieces of an `executemany`, between making each of which and the next a signal may have come.

    The interpreter looks for it at the next step of Python's. That is here, inside `try`: a function of ours would
    begin outside, and whatever asyncpg comes to next would be interrupted where it swallows what is no `Exception`.
    """
    taker = _takes(take, note)
    next(taker)
    return taker.send


def _takes(take: Callable[[Any], None], note: Callable[[BaseException], None]) -> Generator[None, Any, None]:
    while True:
        try:
            while True:
                take((yield))
        except GeneratorExit:
            return
        except BaseException as error:
            note(error)


def _refuse(_: Any) -> None:
    raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
