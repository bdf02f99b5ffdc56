"""Hearing what a server says before a connection is ready, and standing before it while it asks for a password.

A connection of asyncpg's exists once the server is ready for queries; a notice that comes earlier is read by its
protocol and dropped, for there is no connection to hand it to. Here somebody stands in for the connection until then.
It is put there through the event loop that asyncpg is given, as TLS is (see [`tls`][picopyn.asynchronous.tls]); and so
is who stands at the [gate before the password][picopyn.asynchronous.password_gate].

What this file leans on in asyncpg is guarded by `tests/asynchronous/test_connection.py`: a protocol hands its notices
to `_process_log_message` of whatever `set_connection` named last, keeps only a weak reference to it, and has it
`_cleanup` when the link is lost, before it tells those who wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picopyn.asynchronous.password_gate import Doorkeeper, Entry


class ListeningLoop:
    """What asyncpg is given as its event loop for a connection whose first words count.

    Args:
        behind: The event loop, or what stands for it; everything else is its own.
        entry: The connection's way through the gate before the password.
        on_notice: Called with the text of every notice, from the first one on; None: by nobody.

    Attributes:
        behind: As given.
        on_notice: As given; the connection takes it over.
    """

    def __init__(self, behind: Any, entry: Entry, on_notice: Callable[[str], None] | None) -> None:
        self.behind = behind
        self.on_notice = on_notice
        self._entry = entry
        self._ear = None if on_notice is None else _Ear(on_notice)
        # What every call on a connection needs is at hand.
        self.create_future = behind.create_future
        self.call_later = behind.call_later
        self.time = behind.time

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self.behind == other)

    def __hash__(self) -> int:  # `asyncio.current_task` looks for the loop in a dict
        return hash(self.behind)

    async def create_connection(self, factory: Callable[[], Any], *where: Any, **more: Any) -> Any:
        """Connect with a protocol that tells us what it hears."""
        transport, protocol = await self.behind.create_connection(lambda: self._guarded(factory()), *where, **more)
        return transport, _asyncpgs_own(protocol)

    async def create_unix_connection(self, factory: Callable[[], Any], *where: Any, **more: Any) -> Any:
        """The same over a Unix socket."""
        transport, protocol = await self.behind.create_unix_connection(lambda: self._guarded(factory()), *where, **more)
        return transport, _asyncpgs_own(protocol)

    async def start_tls(self, *args: Any, **more: Any) -> Any:
        """Shake hands; asyncpg makes its protocol after that, before anything else happens."""
        transport = await self.behind.start_tls(*args, **more)
        transport.pause_reading()  # the question may come in this very turn of the loop
        self.behind.call_soon(self._guard, transport)
        return transport if self._ear is None else _Transport(transport, self._hear)

    def _hear(self, protocol: Any) -> Any:
        if self._ear is not None and hasattr(protocol, "set_connection"):
            protocol.set_connection(self._ear)
        return protocol

    def _guarded(self, protocol: Any) -> Any:
        """A protocol with the gate before it; not the one that only asks for TLS."""
        if not hasattr(protocol, "set_connection"):
            return protocol
        return Doorkeeper(self._hear(protocol), self._entry)

    def _guard(self, transport: Any) -> None:
        protocol = transport.get_protocol()
        if hasattr(protocol, "set_connection"):
            Doorkeeper(protocol, self._entry).stand_before(transport)
        transport.resume_reading()


def _asyncpgs_own(protocol: Any) -> Any:
    return protocol.behind if isinstance(protocol, Doorkeeper) else protocol


class _Ear:
    """Stands in for a connection that is not there yet."""

    def __init__(self, on_notice: Callable[[str], None]) -> None:
        self._on_notice = on_notice

    def _process_log_message(self, fields: dict[str, str], last_query: str | None) -> None:
        self._on_notice(fields.get("M", ""))

    def _cleanup(self) -> None:
        """The link was lost before there was a connection: there is nothing to clean up."""


class _Transport:
    """A transport that shows us the protocol it is given."""

    def __init__(self, transport: Any, seen: Callable[[Any], Any]) -> None:
        self._transport = transport
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def set_protocol(self, protocol: Any) -> None:
        """The protocol to serve from now on."""
        self._transport.set_protocol(self._seen(protocol))
