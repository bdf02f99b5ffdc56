"""No object of 256 KiB for each reply, on asyncio's own event loop.

asyncio reads every reply of a plain protocol into a new object of 256 KiB and shrinks it. With glibc that is an mmap,
an mremap and an munmap for each reply, about 28 µs, unless something else has raised malloc's threshold before
(`measurements.md` section 1, finding 1). The transport of a socket keeps that size in an attribute, `max_size`: with 64
KiB the memory comes from the heap, and nothing stands between the transport and asyncpg.

A transport without it (that of TLS) gets a `BufferedProtocol`, which says where to read to: a buffer that all
connections of an event loop share, since reading and handing over are one step there. It costs about 1 µs a reply.

Both are done after the hand-shake, the second through the public `Transport.set_protocol`. uvloop has a buffer of its
own and is left alone. If a release of asyncpg or Python hides what is needed, connections work without it, and one
warning says so; `tests/asynchronous/test_buffered.py` finds that release first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

_LOG = logging.getLogger(__name__)

#: Bytes read at once.
BUFFER_SIZE: Final = 65536

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
_complained: list[bool] = []


class BufferedFront(asyncio.BufferedProtocol):
    """Reads into a kept buffer and hands the bytes on.

    Args:
        behind: The protocol that gets them, and everything else.
        buffer: Where to read to. A memoryview: with a bytearray TLS was seen to hang on Python 3.11.
    """

    __slots__ = ("_buffer", "_data_received", "behind")

    def __init__(self, behind: Any, buffer: memoryview) -> None:
        self.behind = behind
        self._buffer = buffer
        self._data_received = behind.data_received

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much has arrived."""
        data_received = self._data_received  # a function that is no method costs less by a name of its own
        data_received(bytes(self._buffer[:nbytes]))

    def tap(self, listener: Callable[[bytes], None] | None) -> None:
        """Let somebody see what arrives, before it is handed on; None: nobody any more."""
        self._data_received = self.behind.data_received if listener is None else both(listener, self.behind)

    def eof_received(self) -> bool | None:
        """The other side has finished."""
        result: bool | None = self.behind.eof_received()
        return result

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.behind.connection_lost(exc)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.behind.pause_writing()

    def resume_writing(self) -> None:
        """It has room again."""
        self.behind.resume_writing()


def both(listener: Callable[[bytes], None], behind: Any) -> Callable[[bytes], None]:
    """What shows bytes to a listener and hands them to a protocol."""
    receive = behind.data_received

    def received(data: bytes) -> None:
        listener(data)
        receive(data)

    return received


def read_less_at_once(transport: Any, protocol: Any) -> bool:
    """Let a protocol whose hand-shake is done read into less than asyncio would make, if its loop is asyncio's own.

    Returns:
        Whether it does from now on.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.SelectorEventLoop):
        return False
    try:
        if transport.get_protocol() is not protocol:
            raise TypeError("the transport belongs to another protocol")
        if hasattr(transport, "max_size"):
            transport.max_size = BUFFER_SIZE
            return True
        buffer = _buffers.get(loop)
        if buffer is None:
            buffer = _buffers[loop] = memoryview(bytearray(BUFFER_SIZE))
        transport.set_protocol(BufferedFront(protocol, buffer))
    except (AttributeError, TypeError) as error:
        _complain(error)
        return False
    return True


def _complain(error: Exception) -> None:
    if not _complained:
        _complained.append(True)
        _LOG.warning("this asyncpg works without our read buffer, so replies cost more CPU: %s", error)
