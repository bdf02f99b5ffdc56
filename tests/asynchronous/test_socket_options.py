"""What is told to the system about a socket."""

from __future__ import annotations

import socket

import pytest

from picopyn.asynchronous.socket_options import set_options
from picopyn.settings import PoolSettings


def test_a_socket_that_was_closed_meanwhile_is_told_as_a_lost_connection() -> None:
    """A link that is cut at the end of the hand-shake is told as that, never as a bad file descriptor."""
    sock = socket.socket()
    sock.close()
    with pytest.raises(ConnectionResetError, match="closed as soon as it was open"):
        set_options(sock, PoolSettings.from_dsn("postgresql://h/"))
