"""Opening connections that block: the same steps as for asynchronous ones, run in the calling thread."""

from __future__ import annotations

import os
from typing import Any

from picopyn.asynchronous import tls
from picopyn.asynchronous.config_files import PasswordFile, read_file
from picopyn.asynchronous.dialect_detection import named_dialect
from picopyn.asynchronous.transport import Address, Dialer
from picopyn.dialects.base import Dialect, Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.errors import NoNodeAvailable
from picopyn.settings import PoolSettings
from picopyn.sync import supported
from picopyn.sync.caller_loop import CallerLoop
from picopyn.sync.connection import Connection
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

    Args:
        dsn: Connection string: a URI or `key=value` text. Of several hosts, the first that can be reached is taken.
        **options: Settings by name; see [`PoolSettings`][picopyn.settings.PoolSettings].

    Raises:
        ConfigError: Something in the configuration cannot work; it names every problem.
        NoNodeAvailable: No host could be reached.
        asyncpg.PostgresError: The server refused.
    """
    settings = PoolSettings.from_dsn(dsn or "", environment=os.environ, read_file=read_file, **options)
    dialect = named_dialect(settings.dialect) or PostgresDialect()
    dialer = BlockingDialer(settings, dialect)
    reasons: dict[str, str] = {}
    last: OSError | None = None
    for endpoint in settings.endpoints:
        address = (endpoint.host, endpoint.port or dialect.default_port)
        try:
            return Connection(dialer.dial(address, Purpose.PLAIN))
        except OSError as error:
            reasons[f"{address[0]}:{address[1]}"] = str(error) or f"no answer within {settings.connect_timeout:g} s"
            last = error
    raise NoNodeAvailable("no host can be reached", reasons) from last
