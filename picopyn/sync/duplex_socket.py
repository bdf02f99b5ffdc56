"""A socket that is read with patience and written without: what waiting costs, and what the system knows of it.

Two objects stand for the one socket of the system: one never waits, the other one waits as long as it was told last. So
the usual wait costs one call into the system's library, and telling it how long is seldom needed. A signal that falls
into a wait does not make it longer.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final

#: How long the socket waits before it is looked whether to wait on (seconds).
PATIENCE: Final = 60.0

#: How much later than asked for a wait may end, so that the socket is not told anew for each call (seconds).
SLACK: Final = 0.02

#: What is waited for.
READ: Final = 1
WRITE: Final = 2

#: A TCP connection on which both sides may still send.
#:
#: *Source*: Linux, `include/net/tcp_states.h`; it is the first byte of `struct tcp_info` (`include/uapi/linux/tcp.h`).
_ESTABLISHED: Final = b"\x01"
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class DuplexSocket(socket.socket):
    """The socket; connect it without waiting, and say `begin` when it is connected.

    It is closed without complaint when it is forgotten: its connection complains.
    """

    def __init__(self, family: int, kind: int, number: int = 0) -> None:
        self._reader: _Reader | None = None
        self._told = PATIENCE
        self._closing = Lock()
        super().__init__(family, kind, number)
        self.setblocking(False)

    def __del__(self) -> None:
        self.close()

    def begin(self) -> None:
        """It is connected."""
        self._reader = _Reader(self.family, self.type, self.proto, self.fileno())
        self._reader.settimeout(self._told)

    def recv_within(self, size: int, seconds: float) -> bytes:
        """Wait for bytes, at most so long or a little longer; up to `size` of them.

        Raises:
            TimeoutError: Nothing has come, within that time or within `PATIENCE`.
            OSError: It is broken, or not begun.
        """
        reader = self._reader
        if reader is None:
            raise OSError("the socket is not connected")
        if self._told > seconds + SLACK or self._told < min(seconds, PATIENCE) / 2:
            self._told = min(seconds, PATIENCE)
            reader.settimeout(self._told)
        return reader.recv(size)

    def has_ended(self) -> bool:
        """Whether the other side has closed it, as far as the system knows; nothing is read."""
        try:
            if _TCP_INFO is not None and self.family != socket.AF_UNIX:
                return self.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1) != _ESTABLISHED
            return not self.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

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
    """The other object, which never closes what is not its own."""

    def __del__(self) -> None:
        self.detach()


def wait(awaited: Mapping[int, int], timeout: float | None) -> dict[int, int]:
    """Wait for one of several sockets.

    Args:
        awaited: Descriptor → `READ`, `WRITE` or both.
        timeout: How long (seconds), or None.

    Returns:
        Descriptor → what has happened, for those to which something has.
    """
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
