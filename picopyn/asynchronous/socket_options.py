"""What the system is told about a connection: whether and when to ask a silent peer if it is still there.

*Source*: PostgreSQL 18 documentation, section 32.1.2, `keepalives` to `tcp_user_timeout`: what a system does not have,
and sockets that are not TCP, are left alone. Linux `tcp(7)`; macOS calls `TCP_KEEPIDLE` `TCP_KEEPALIVE`.
"""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from picopyn.settings import PoolSettings

#: Setting → (names of the socket option, what a second or a question counts there).
_OPTIONS: Final = {
    "keepalives_idle": (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), 1),
    "keepalives_interval": (("TCP_KEEPINTVL",), 1),
    "keepalives_count": (("TCP_KEEPCNT",), 1),
    "tcp_user_timeout": (("TCP_USER_TIMEOUT",), 1000),
}


def set_options(sock: Any, settings: PoolSettings) -> None:
    """Apply the settings to a connected socket.

    Raises:
        ConnectionResetError: It was closed in the meantime.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if sock.fileno() < 0:
        raise ConnectionResetError(errno.ECONNRESET, "the connection was closed as soon as it was open")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(settings.keepalives))
    for name, (options, unit) in _OPTIONS.items():
        value = getattr(settings, name)
        number = next((getattr(socket, option) for option in options if hasattr(socket, option)), None)
        if value is not None and number is not None and (settings.keepalives or name == "tcp_user_timeout"):
            sock.setsockopt(socket.IPPROTO_TCP, number, max(1, round(value * unit)))
