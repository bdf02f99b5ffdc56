"""Opening connections that block: the same steps as for asynchronous ones, run in the calling thread."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from random import Random
from typing import Any

from picopyn.asynchronous import tls
from picopyn.asynchronous.config_files import PasswordFile, read_file
from picopyn.asynchronous.placing import Placing
from picopyn.asynchronous.servers_source import first_address, is_address
from picopyn.asynchronous.service_connection import GOODBYE_SECONDS
from picopyn.asynchronous.transport import Address, Dialer
from picopyn.dialects.base import Dialect, Purpose
from picopyn.settings import PoolSettings
from picopyn.sync import supported
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.connection import Connection
from picopyn.sync.driving import drive
from picopyn.sync.wire import NamelessWire, Wire


class BlockingDialer:
    """Opens connections with the credentials of one pool; any thread may.

    Args:
        settings: Credentials, time limits, statement cache.
        dialect: The kind of server.
        passwords: Asked where the settings name no password.
        security: What is done about TLS; None: what the settings say.

    Raises:
        ConfigError: A file that TLS needs is missing, or cannot be what it should be.
        NotSupported: This asyncpg was not tried.
    """

    def __init__(
        self,
        settings: PoolSettings,
        dialect: Dialect,
        passwords: PasswordFile | None = None,
        security: tls.Security | None = None,
    ) -> None:
        supported.check()
        self._settings = settings
        self._dialect = dialect
        self._passwords = passwords or PasswordFile(settings.passfile)
        self._security = security or tls.prepare(settings)

    def dial(self, address: Address, purpose: Purpose) -> Wire:
        """Open a connection within the connect timeout.

        Raises:
            TimeoutError: The node did not complete the hand-shake in time.
            OSError: It could not be reached.
            asyncpg.PostgresError: It refused.
        """
        dialer = Dialer(self._settings, self._dialect, self._passwords, self._security, kinds=(Wire, NamelessWire))
        wire: Any = CallerLoop().run(dialer.dial(address, purpose))
        return wire  # type: ignore[no-any-return]


def connect(dsn: str | None = None, **options: Any) -> Connection:
    """Open one connection, without a pool.

    Of several hosts, the first that works is taken; on YugabyteDB with `load_balance` it leads where a pool would take
    one from, see [`picopyn.asynchronous.connect`][picopyn.asynchronous.connect].

    Args:
        dsn: Connection string: a URI or `key=value` text.
        **options: Settings by name; see [`PoolSettings`][picopyn.settings.PoolSettings].

    Raises:
        ConfigError: Something in the configuration cannot work; it names every problem.
        NoNodeAvailable: No host could be reached, or none that may be used.
        asyncpg.PostgresError: The server refused.
    """
    settings = PoolSettings.from_dsn(dsn or "", environment=os.environ, read_file=read_file, **options)
    wire: Wire = drive(Placing(settings, _Opener(settings), Random()).connect())
    return Connection(wire)


class _Opener:
    """Opens connections in the calling thread; nothing here suspends."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._passwords, self._security = PasswordFile(settings.passfile), tls.prepare(settings)

    async def dial(self, address: Address, dialect: Dialect, purpose: Purpose) -> Wire:
        return BlockingDialer(self._settings, dialect, self._passwords, self._security).dial(address, purpose)

    async def fetch(self, connection: Wire, query: str, timeout: float) -> Sequence[Any]:
        return Connection(connection).fetch(query, timeout=timeout)

    async def resolve(self, hosts: Sequence[str]) -> dict[str, str | None]:
        return {host: _address(host) for host in dict.fromkeys(hosts) if not is_address(host)}

    async def close(self, connection: Wire) -> None:
        try:
            Connection(connection).close(timeout=GOODBYE_SECONDS)
        except Exception:  # the peer's state is its own affair: we only want to be rid of the socket
            connection.terminate()


def _address(host: str) -> str | None:
    try:
        return first_address(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    except OSError:
        return None
