"""`connect`: one connection without a pool, on an event loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any

from picopyn.asynchronous import tls
from picopyn.asynchronous.config_files import PasswordFile, read_file
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.placing import Address, Placing
from picopyn.asynchronous.servers_source import look_up, look_up_all
from picopyn.asynchronous.service_connection import say_goodbye
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Dialect, Purpose
from picopyn.settings import PoolSettings


async def connect(dsn: str | None = None, **options: Any) -> Connection:
    """Open one connection, without a pool.

    Of several hosts, the first that works is taken; on PostgreSQL with a `role` (or `target_session_attrs`), the first
    that has it. On YugabyteDB with `role="replica"` the connection reads from followers. With `load_balance` there, the
    list of servers is asked for, at most once per `yb_servers_refresh_interval` and process, and the connection leads
    where a pool would take one from; those that are open count until they are closed.

    Args:
        dsn: Connection string: a URI or `key=value` text.
        **options: Settings by name; see [`PoolSettings`][picopyn.settings.PoolSettings]. Sizes and times of pools mean
            nothing here.

    Returns:
        A connection with asyncpg's whole surface; who opened it closes it.

    Raises:
        ConfigError: Something in the configuration cannot work; it names every problem.
        NoNodeAvailable: No host could be reached, or none that may be used.
        asyncpg.PostgresError: The server refused.
    """
    settings = PoolSettings.from_dsn(dsn or "", environment=os.environ, read_file=read_file, **options)
    connection: Connection = await Placing(settings, _Opener(settings), Random()).connect()
    return connection


class _Opener:
    """Opens connections of an event loop."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._passwords, self._security = PasswordFile(settings.passfile), tls.prepare(settings)

    async def dial(self, address: Address, dialect: Dialect, purpose: Purpose) -> Connection:
        dialer = Dialer(self._settings, dialect, self._passwords, self._security)
        try:
            return await dialer.dial(address, purpose)
        finally:
            dialer.stragglers.terminate()

    async def fetch(self, connection: Connection, query: str, timeout: float) -> Sequence[Any]:
        return await connection.fetch(query, timeout=timeout)  # type: ignore[no-any-return]

    async def resolve(self, hosts: Sequence[str]) -> dict[str, str | None]:
        return await look_up_all(hosts, look_up)

    async def close(self, connection: Connection) -> None:
        await say_goodbye(connection)
