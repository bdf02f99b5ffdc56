"""When the last byte of a TCP connection came, as the kernel knows.

The kernel notes it anyway, so knowing costs nothing per call; it works on every event loop and under TLS, and it is
true although our own loop is late. Where the kernel does not tell (other systems than Linux, Unix sockets) it is not
known: then a node is asked a question more than needed.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

#: Size of the part of `struct tcp_info` that is read, and where `tcpi_last_data_recv` stands in it (milliseconds).
#:
#: *Source*: Linux, `include/uapi/linux/tcp.h`, `struct tcp_info`; the layout is part of the kernel's ABI.
_SIZE: Final = 56
_LAST_DATA_RECV: Final = struct.Struct("=52xI")
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


def seconds_since_last_byte(transport: Any) -> float | None:
    """Seconds since the last byte from the other side, or None when the kernel does not tell."""
    own: Any = transport.get_extra_info("socket")
    if own is None or _TCP_INFO is None or own.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        told: bytes = own.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)
    except OSError:
        return None
    if len(told) < _SIZE:
        return None
    milliseconds: int = _LAST_DATA_RECV.unpack(told)[0]
    return milliseconds / 1000
