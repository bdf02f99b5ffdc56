"""Seeing what a server answers, on its way to asyncpg, for as long as one call takes.

Where something of ours stands between the socket and asyncpg's protocol, it shows what arrives; elsewhere (uvloop) a
front is put there for the time of the call, through the public `Transport.set_protocol`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from picopyn.asynchronous.buffered import both


@contextmanager
def tapped(transport: Any, listener: Callable[[bytes], None]) -> Iterator[None]:
    """Show everything that arrives on a transport to a listener, before asyncpg sees it."""
    protocol = transport.get_protocol()
    taps = next((place for place in (transport, protocol) if hasattr(place, "tap")), None)
    if taps is None:
        transport.set_protocol(Front(protocol, listener))
    else:
        taps.tap(listener)
    try:
        yield
    finally:
        if taps is None:
            transport.set_protocol(protocol)
        else:
            taps.tap(None)


class Front(asyncio.Protocol):
    """Shows what arrives, and hands it on.

    Args:
        behind: The protocol that gets everything.
        listener: Sees the bytes.
    """

    def __init__(self, behind: Any, listener: Callable[[bytes], None]) -> None:
        self.data_received = both(listener, behind)  # type: ignore[method-assign, assignment]
        self.eof_received = behind.eof_received  # type: ignore[method-assign]
        self.connection_lost = behind.connection_lost  # type: ignore[method-assign]
        self.pause_writing = behind.pause_writing  # type: ignore[method-assign]
        self.resume_writing = behind.resume_writing  # type: ignore[method-assign]
