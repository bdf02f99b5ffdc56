"""`FaultProxy`: a TCP proxy that fails on request; `BlackHole`: an address whose SYNs are dropped.

Decides what happens to bytes on their way. Must not know what they mean; how to end a client's TLS is told by a
`TlsFront`. The proxy runs in a thread of its own and is controlled synchronously, so it serves blocking clients and
clients on any event loop.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from picopyn.testing.tls_front import TlsFront, TlsSession, first_packet

T = TypeVar("T")

#: Turns each piece of one side of a conversation into what the other side gets.
Change = Callable[[bytes], bytes]


@dataclass(slots=True)
class _Weather:
    """What happens to bytes right now."""

    mute: bool = False
    frozen: bool = False
    delay: float = 0.0
    cut_after: int | None = None
    cut_at: bytes | None = None
    cut_at_answered: int | None = None


class _End(asyncio.Protocol):
    """One of the two ends of a link; what it receives goes to `other`."""

    def __init__(self, link: _Link, answers: bool) -> None:
        self._link = link
        self._answers = answers
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._link.ready(self)

    def data_received(self, data: bytes) -> None:
        self._link.carry(self, data, self._answers)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._link.lost(self)


class _Door(asyncio.Protocol):
    """A client whose first words are awaited; then it is let in, and what it says goes to a link. Owner: the
    proxy's loop.
    """

    def __init__(self, proxy: FaultProxy, front: TlsFront) -> None:
        self._proxy = proxy
        self._front = front
        self._received = b""
        self._session: TlsSession | None = None
        self._inside: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._proxy.knocked(self)
        self.hold(self._proxy.weather.frozen)

    def data_received(self, data: bytes) -> None:
        weather = self._proxy.weather
        if self._inside is not None or not (weather.mute or weather.delay):
            self._hear(data)
        elif not weather.mute:
            asyncio.get_running_loop().call_later(weather.delay, self._hear, data)

    def _hear(self, data: bytes) -> None:
        if self._session is not None:
            data = self._decrypted(self._session, data)
        if self._inside is not None:
            self._inside.data_received(data)
        else:
            self._received += data
            self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._proxy.left(self)
        if self._inside is not None:
            self._inside.connection_lost(exc)

    def _decrypted(self, session: TlsSession, data: bytes) -> bytes:
        try:
            return session.feed(data)
        except ssl.SSLError:
            if self.transport is not None:  # with an alert on its way
                self.transport.close()
            return b""

    def _listen(self) -> None:
        encrypted = self._session is not None
        packet = first_packet(self._received)
        if packet is None or self.transport is None:
            return
        opening = self._front.opening(packet, encrypted=encrypted)
        refusal = self._front.refusal(packet, encrypted=encrypted)
        if refusal is not None:
            self._outward().write(refusal)
            asyncio.get_running_loop().call_later(self._proxy.weather.delay, self.transport.close)
        elif opening != "SSLRequest":
            self._let_in()
        elif self._front.stall != "answer":
            self._received = b""
            self._answer(self.transport, self._front.answer)

    def _answer(self, transport: asyncio.Transport, word: bytes) -> None:
        if not word:
            transport.close()
            return
        self._say(word)
        if word == b"S" and self._front.context is not None and self._front.stall is None:
            self._session = TlsSession(self._front, self._front.context, self._say)

    def _say(self, data: bytes) -> None:
        delay = self._proxy.weather.delay
        if self._inside is None and delay:
            asyncio.get_running_loop().call_later(delay, self._write, data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _let_in(self) -> None:
        self._proxy.left(self)
        self._inside = _Link(self._proxy).client
        self._inside.connection_made(self._outward())
        self._inside.data_received(self._received)

    def _outward(self) -> asyncio.Transport:
        assert self.transport is not None
        if self._session is None:
            return self.transport
        return cast(asyncio.Transport, _Encrypting(self.transport, self._session))

    def hold(self, frozen: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            (self.transport.pause_reading if frozen else self.transport.resume_reading)()

    def cut(self) -> None:
        if self.transport is not None:
            _reset_on_close(self.transport.get_extra_info("socket"))
            self.transport.abort()


class _Encrypting:
    """A transport that encrypts what is written; all else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, session: TlsSession) -> None:
        self._transport = transport
        self.write = session.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Link:
    """A client's connection and ours to the target. Owner: the proxy's loop."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.client = _End(self, answers=False)
        self.target = _End(self, answers=True)
        self._early: list[bytes] = []
        self._answered = 0
        self._limit: int | None = None
        changes: tuple[Change | None, Change | None] = (None, None) if proxy.reword is None else proxy.reword()
        self._ask, self._answer = changes

    def ready(self, end: _End) -> None:
        if self._proxy.weather.frozen and end.transport is not None:
            end.transport.pause_reading()
        if end is self.client:
            self._proxy.began(self)
        elif self.client.transport is None and end.transport is not None:
            end.transport.abort()  # the client left while we dialled
        else:
            early, self._early = self._early, []
            for data in early:
                self._write(end, data)

    def carry(self, end: _End, data: bytes, answers: bool) -> None:
        weather = self._proxy.weather
        change = self._answer if answers else self._ask
        if change is not None:
            data = change(data)
        if weather.mute:
            return
        if weather.delay > 0:
            asyncio.get_running_loop().call_later(weather.delay, self._pass_on, end, data, answers)
        else:
            self._pass_on(end, data, answers)

    def _pass_on(self, end: _End, data: bytes, answers: bool) -> None:
        weather = self._proxy.weather
        if not answers and weather.cut_at is not None and weather.cut_at in data:
            weather.cut_at = None  # this once
            if weather.cut_at_answered is None:
                self.cut()
                return
            self._answered, self._limit = 0, weather.cut_at_answered
        limit = weather.cut_after if self._limit is None else self._limit
        if answers and limit is not None and self._answered + len(data) >= limit:
            self._write(self.client, data[: max(0, limit - self._answered)])
            asyncio.get_running_loop().call_soon(self.cut)
            return
        if answers:
            self._answered += len(data)
            self._write(self.client, data)
        elif self.target.transport is None:
            self._early.append(data)
        else:
            self._write(self.target, data)

    def _write(self, end: _End, data: bytes) -> None:
        if end.transport is not None and not end.transport.is_closing():
            end.transport.write(data)

    def hold(self, frozen: bool) -> None:
        for end in (self.client, self.target):
            if end.transport is not None and not end.transport.is_closing():
                (end.transport.pause_reading if frozen else end.transport.resume_reading)()

    def count_anew(self) -> None:
        self._answered = 0

    def cut(self) -> None:
        for end in (self.client, self.target):
            if end.transport is not None:
                _reset_on_close(end.transport.get_extra_info("socket"))
                end.transport.abort()

    def lost(self, end: _End) -> None:
        other = self.target if end is self.client else self.client
        if other.transport is not None:
            other.transport.close()
        self._proxy.ended(self)


def _reset_on_close(connection: socket.socket | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class FaultProxy:
    """A proxy in front of one address. Owner: whoever starts it; ends with `with` or `close`.

    Args:
        host: Where to pass connections on to.
        port: Its port.
        listen: Own address.
        own_port: Own port; 0: free choice, known as `port` after `start`.
        tls: How to meet clients where the proxy ends their TLS; a context is short for `TlsFront(context)`. None:
            their bytes are passed on as they are.
        origin: Address from which connections are passed on; None: the system's choice.
        reword: Called for every connection; what it gives turns each piece of what the client says into what the target
            gets, and each piece of the answers into what the client gets.

    Faults add up until `let_pass` clears them all. Open connections feel a fault as well as new ones, except
    `refuse`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen: str = "127.0.0.1",
        own_port: int = 0,
        tls: TlsFront | ssl.SSLContext | None = None,
        origin: str | None = None,
        reword: Callable[[], tuple[Change, Change]] | None = None,
    ) -> None:
        self._dial_to = partial(_dial, host, port, None if origin is None else (origin, 0))
        self.host = listen
        self.port = own_port
        self.reword = reword
        self.weather = _Weather()
        self.front = TlsFront(tls) if isinstance(tls, ssl.SSLContext) else tls
        self._links: set[_Link | _Door] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._accepted = 0
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # life

    def start(self) -> FaultProxy:
        """Start to listen.

        Raises:
            OSError: The address cannot be taken.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="picopyn-fault-proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())
        return self

    def close(self) -> None:
        """End every connection and the thread; does nothing when it is not running."""
        if self._loop is None or self._thread is None:
            return
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # faults

    def let_pass(self) -> None:
        """Clear every fault: listen again, deliver what a freeze held back."""
        self._do(self._clear())

    def refuse(self) -> None:
        """Refuse new connections; open ones live on."""
        self._do(self._unlisten())

    def mute(self) -> None:
        """Accept and read everything, pass nothing on: what is sent now is lost."""
        self._set(mute=True)

    def freeze(self) -> None:
        """Read nothing: what is sent now arrives after `let_pass`."""
        self._set(frozen=True)

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later, in both directions."""
        self._set(delay=seconds)

    def cut(self) -> None:
        """Reset every open connection once; new ones pass."""
        self._do(self._each(lambda link: link.cut()))

    def cut_after(self, answered: int) -> None:
        """Reset each connection once so many more bytes of answers have passed, even inside a message."""
        self._set(cut_after=answered)

    def cut_at(self, words: bytes, *, answered: int | None = None) -> None:
        """Reset the first connection on which a client sends these bytes in one piece.

        Args:
            words: The bytes.
            answered: They are passed on, and so many bytes of what is answered, before the connection is reset; at
                least as many have to come. None: nothing of it is passed on.
        """
        self._set(cut_at=words, cut_at_answered=answered)

    # counts

    @property
    def accepted(self) -> int:
        """Connections accepted since the start."""
        return self._accepted

    @property
    def open(self) -> int:
        """Connections open right now."""
        return len(self._links)

    # inside the loop

    def knocked(self, door: _Door) -> None:
        """A client connected, and has to say what it wants."""
        self._accepted += 1
        self._links.add(door)

    def left(self, door: _Door) -> None:
        """A client has gone, or is let in."""
        self._links.discard(door)

    def began(self, link: _Link) -> None:
        """A client connected, or was let in."""
        self._accepted += self.front is None
        self._links.add(link)
        task = asyncio.get_running_loop().create_task(self._dial(link))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def ended(self, link: _Link) -> None:
        """One end of a link is gone."""
        self._links.discard(link)

    async def _dial(self, link: _Link) -> None:
        try:
            await self._dial_to(link.target)
        except OSError:
            link.cut()

    async def _listen(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._meet, self.host, self.port)
            self.port = int(self._server.sockets[0].getsockname()[1])

    def _meet(self) -> asyncio.Protocol:
        return _Link(self).client if self.front is None else _Door(self, self.front)

    async def _unlisten(self) -> None:
        """Listen no more; what was accepted just now begins first: asyncio loses connections that find no server."""
        server, self._server = self._server, None
        if server is not None:
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
            await _turns()
            server.close()

    async def _clear(self) -> None:
        self.weather = _Weather()
        for link in list(self._links):
            link.hold(frozen=False)
        await self._listen()

    async def _shut(self) -> None:
        await self._unlisten()
        for task in self._dials:
            task.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        await self._each(lambda link: link.cut())
        await _turns()

    async def _each(self, action: Callable[[_Link | _Door], None]) -> None:
        for link in list(self._links):
            action(link)

    def _set(self, **changes: Any) -> None:
        async def apply() -> None:
            for name, value in changes.items():
                setattr(self.weather, name, value)
            for link in list(self._links):
                if isinstance(link, _Link):
                    link.count_anew()
                link.hold(self.weather.frozen)

        self._do(apply())

    def _do(self, step: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            step.close()
            raise RuntimeError("the proxy is not started")
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()


async def _dial(host: str, port: int, origin: tuple[str, int] | None, end: _End) -> None:
    await asyncio.get_running_loop().create_connection(lambda: end, host, port, local_addr=origin)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class BlackHole:
    """An address on which connecting never completes: its backlog is full, so further SYNs are dropped
    (Linux).

    Owner: whoever opens it; ends with `with` or `close`.
    """

    def __init__(self, listen: str = "127.0.0.1") -> None:
        self.host = listen
        self._listener = socket.socket()
        self._listener.bind((listen, 0))
        self._listener.listen(0)
        self.port = int(self._listener.getsockname()[1])
        self._fillers: list[socket.socket] = []
        while len(self._fillers) < 16 and self._fill():
            pass

    def _fill(self) -> bool:
        filler = socket.socket()
        self._fillers.append(filler)
        filler.setblocking(False)
        with suppress(BlockingIOError):
            filler.connect((self.host, self.port))
        return bool(select.select([], [filler], [], 0.05)[1])

    def close(self) -> None:
        """Let go of the address; who still knocks is refused."""
        for filler in self._fillers:
            filler.close()
        self._listener.close()

    def __enter__(self) -> BlackHole:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def black_hole(listen: str = "127.0.0.1") -> BlackHole:
    """An address on which connecting never completes."""
    return BlackHole(listen)
