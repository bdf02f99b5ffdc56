"""A socket that is read with patience and written without: what waiting costs, and what the system knows of it.

Two objects stand for the one socket of the system: one never waits, and one waits for a moment, which most answers come
within. That wait leaves its limit to the system (`SO_RCVTIMEO`), which is one call into it; with a limit of Python's it
would be two, since Python polls first, and lets the other threads run in between. But the system's limit begins anew
after a signal, so it is only a moment: whoever needs more waits with `wait`, whose limit no signal puts off.

*Source*: signal(7), "Interruption of system calls"; socket(7), `SO_RCVTIMEO`; PEP 475.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from picopyn.engine.interruptions import is_interruption

#: How long the socket waits by itself (seconds). A wait may end so much later than asked for.
MOMENT: Final = 0.01

#: The longest wait (seconds), as the system knows no end of all time.
PATIENCE: Final = 60.0

#: What is waited for.
READ: Final = 1
WRITE: Final = 2

#: The state of a connection on which both sides may still send.
#:
#: *Source*: Linux, `include/net/tcp_states.h`; it is the first byte of `struct tcp_info` (`include/uapi/linux/tcp.h`).
ESTABLISHED: Final = b"\x01"
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)

#: Makes one call not wait although the socket does; 0 where the system has no such thing.
NOW: Final = int(getattr(socket, "MSG_DONTWAIT", 0))

#: Seconds and microseconds as the system takes them; socket(7), `SO_RCVTIMEO`.
_TIMEVAL: Final = struct.Struct("@ll")


class DuplexSocket(socket.socket):
    """The socket; connect it without waiting, and say `begin` when it is connected.

    It is closed without complaint when it is forgotten: its connection complains.

    Attributes:
        receive: Waits for bytes, up to so many; nothing within a `MOMENT` is a `BlockingIOError` or a `TimeoutError`.
            It is called for every answer, so it is no function of ours.
    """

    def __init__(self, family: int, kind: int, number: int = 0) -> None:
        self._reader: _Reader | None = None
        self.receive: Callable[[int], bytes] = _not_begun
        self._closing = threading.Lock()
        super().__init__(family, kind, number)
        self.setblocking(False)

    def __del__(self) -> None:
        self.close()

    def begin(self) -> None:
        """It is connected."""
        self._reader = reader = _Reader(self.family, self.type, self.proto, self.fileno())
        self.receive = reader.recv
        if NOW:
            reader.settimeout(None)  # from now on the system's socket waits
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(0, int(MOMENT * 1e6)))
        else:
            reader.settimeout(MOMENT)

    def begin_watch(self) -> Callable[[], bytes]:
        """What tells whether the other side has closed it, as far as the system knows; nothing is read.

        Returns:
            Gives `ESTABLISHED` as long as it has not; else something else, or raises an `OSError`. It is called before
            every statement, so it is no function of ours where the system tells by itself.
        """
        if _TCP_INFO is not None and self.family != socket.AF_UNIX:
            return partial[Any](self.getsockopt, socket.IPPROTO_TCP, _TCP_INFO, 1)
        return self._peeked

    def _peeked(self) -> bytes:
        try:
            return ESTABLISHED if self.recv(1, socket.MSG_PEEK | NOW) else b""
        except BlockingIOError:
            return ESTABLISHED

    def cut(self) -> None:
        """Make whoever waits for the other side see its end. Safe from any thread."""
        with self._closing, suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; who waits for it has to have left before."""
        with self._closing:
            if self._reader is not None:
                self._reader.detach()
            super().close()


class _Reader(socket.socket):
    """Another object, which never closes what is not its own."""

    def __del__(self) -> None:
        self.detach()


def is_handlers(error: OSError) -> bool:
    """Whether the handler of a signal has raised it, and not the system: what the system says has a number.

    Where a socket cannot be told not to wait, it is Python that says that its time is over, without a number. That
    there is nothing to read is said so often that no further look is taken at it.
    """
    if error.errno is None:
        return bool(NOW) or not isinstance(error, TimeoutError)
    return not isinstance(error, BlockingIOError) and is_interruption(error)


def _not_begun(_: int) -> bytes:
    raise OSError("the socket is not connected")


def wait(awaited: Mapping[int, int], timeout: float | None) -> dict[int, int]:
    """Wait for one of several sockets.

    Args:
        awaited: Descriptor → `READ`, `WRITE` or both.
        timeout: How long (seconds), or None. Never longer than `PATIENCE`, as the system knows no end of all time.

    Returns:
        Descriptor → what has happened, for those to which something has.
    """
    timeout = None if timeout is None else min(timeout, PATIENCE)
    if not hasattr(select, "poll"):
        return _select(awaited, timeout)
    poll = select.poll()
    for descriptor, events in awaited.items():
        poll.register(descriptor, (select.POLLIN if events & READ else 0) | (select.POLLOUT if events & WRITE else 0))
    found = poll.poll(None if timeout is None else math.ceil(timeout * 1000))
    return {descriptor: _happened(flags) for descriptor, flags in found}


def _happened(flags: int) -> int:
    """An error or an end is found out by reading or writing."""
    if flags & ~(select.POLLIN | select.POLLOUT):
        return READ | WRITE
    return (READ if flags & select.POLLIN else 0) | (WRITE if flags & select.POLLOUT else 0)


def _select(awaited: Mapping[int, int], timeout: float | None) -> dict[int, int]:
    """The same where the system has no `poll`."""
    readers = [descriptor for descriptor, events in awaited.items() if events & READ]
    writers = [descriptor for descriptor, events in awaited.items() if events & WRITE]
    found: tuple[list[Any], ...] = select.select(readers, writers, [*awaited], timeout)
    readable, writable, broken = found
    happened = dict.fromkeys([*readable, *broken], READ)
    return happened | {descriptor: happened.get(descriptor, 0) | WRITE for descriptor in [*writable, *broken]}
