"""The sessions of a pool's connections for callers: set up when new, cleared between borrowers, cancelled when dropped.

It decides what is said on a connection that no caller asked for: the hook of the user, the reset, the CancelRequest. It
does not know when; the engine does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from picopyn.asynchronous.cancel_requests import CancelRequests
from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.service_connection import was_cancelled
from picopyn.asynchronous.transport import Dialer
from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.engine.first_connection import refuse_unknown
from picopyn.engine.node_pool import HookFailed
from picopyn.errors import AcquireTimeout, ConfigError
from picopyn.placement_settings import BalanceMode, balance_mode, problems_on_yugabyte, set_for_places
from picopyn.role_settings import about_replicas
from picopyn.routing.placement import Placement
from picopyn.settings import PoolSettings
from picopyn.topology import Node

_LOG = logging.getLogger(__name__)

#: What makes a session as good as new, one round trip together. Nothing in it ends prepared statements.
#:
#: *Source:* PostgreSQL documentation, DISCARD: what `DISCARD ALL` stands for, without `DEALLOCATE ALL` and
#: `DISCARD PLANS`.
RESET = (
    "CLOSE ALL",
    "SET SESSION AUTHORIZATION DEFAULT",
    "RESET ALL",
    "UNLISTEN *",
    "SELECT pg_advisory_unlock_all()",
    "DISCARD TEMP",
    "DISCARD SEQUENCES",
)

#: The same where several sessions may share a server process, and these texts would bind them to one of their own.
#:
#: *Source:* `yugabyte-smart-drivers.md` section 6.4: what makes a session of the connection manager sticky.
CAREFUL_RESET = ("CLOSE ALL", "RESET ALL", "UNLISTEN *", "SELECT pg_advisory_unlock_all()")
BOUND = "SELECT pg_my_temp_schema() <> 0 OR current_setting('role') <> 'none' OR session_user <> $1::text"

#: Classes of SQLSTATE by which a server says that it does not have, or not allow, a statement.
#:
#: *Source:* PostgreSQL documentation, Appendix A: 0A feature not supported, 42 syntax error or access rule violation,
#: 25006 read-only transaction. Servers that only resemble PostgreSQL say XX000.
_UNSUPPORTED = ("0A", "42", "25006", "XX000")


class Sessions:
    """Opens connections for callers and looks after their sessions. Owned by a pool.

    Args:
        settings: The hooks.
        dialer: Opens connections.
        reach: May have one that exists already.
        dialect: What clears a session.
    """

    def __init__(self, settings: PoolSettings, dialer: Dialer, reach: Reach, dialect: Dialect) -> None:
        self._discards = Capability.DISCARD in dialect.capabilities
        self.cancel_requests = CancelRequests()
        self._dialer = dialer
        self._reach = reach
        self._hook: Callable[[Any], Awaitable[None]] | None = settings.after_connect
        self._hook_timeout = settings.after_connect_timeout
        self._reset = settings.reset
        self._refused: set[str] = set()

    async def open(self, node: Node, purpose: Purpose) -> Connection:
        """Open a connection to a node and let the hook set it up.

        Raises:
            HookFailed: The hook failed; the connection is closed.
        """
        address = node.host, node.port
        if purpose is Purpose.PROBE:
            return await self._dialer.dial(address, purpose)
        introduced = self._reach.plain(address) if purpose is Purpose.PLAIN else None
        connection = introduced or await self._dialer.dial(address, purpose)
        connection.on_abandoned = self.cancel_requests.see_off
        connection.on_aborted = self.cancel_requests.tell
        if self._hook is not None:
            try:
                await self._set_up(connection, self._hook)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def restore(self, connection: Connection) -> None:
        """Bring a session back to the state in which callers find it first.

        Raises:
            Exception: It cannot be; the connection must not be used again.
        """
        connection.forget_callbacks()
        if callable(self._reset):
            await self._reset(connection)
            return
        await self.clear(connection)
        if self._hook is not None:
            await self._set_up(connection, self._hook)

    def terminate(self) -> None:
        """End what is under way at once."""
        self.cancel_requests.terminate()

    async def _set_up(self, connection: Connection, hook: Callable[[Any], Awaitable[None]]) -> None:
        own, task = asyncio.timeout(self._hook_timeout), asyncio.current_task()
        try:
            async with own:
                await hook(connection)
        except Exception as error:
            raise HookFailed from (too_slow(self._hook_timeout) if own.expired() else error)
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            raise HookFailed from RuntimeError(f"after_connect was cancelled from inside: {error!r}")
        except BaseException as error:
            if asyncio.current_task(connection._loop) is not task:  # nobody runs it any more: it is collected
                raise
            if isinstance(error, SystemExit | KeyboardInterrupt):  # ends the loop, as out of any task
                connection._loop.call_soon(_raise, error)
            raise HookFailed from as_exception(error)
        check_set_up(connection)

    async def clear(self, connection: Connection) -> None:
        """Say what makes a session as good as new, as far as the server knows it."""
        texts = RESET if self._discards or await self._is_bound(connection) else CAREFUL_RESET
        wanted = [text for text in texts if text not in self._refused]
        if not wanted:
            return
        try:
            await connection.execute("; ".join(wanted))
        except asyncpg.PostgresError as error:
            if connection.is_closed() or not _is_unsupported(error):
                raise
            await self._find_refused(connection, wanted)

    async def _is_bound(self, connection: Connection) -> bool:
        """Whether the borrower has bound the session to one server process already, so that nothing is lost by a reset
        that would.
        """
        return bool(await connection.fetchval(BOUND, self._dialer.user))

    async def _find_refused(self, connection: Connection, wanted: list[str]) -> None:
        """The server does not know some of it: find out what, and never say that again."""
        for text in wanted:
            try:
                await connection.execute(text)
            except asyncpg.PostgresError as error:
                if connection.is_closed() or not _is_unsupported(error):
                    raise
                self._refused.add(text)
                sqlstate = getattr(error, "sqlstate", None)
                _LOG.warning("the server refuses %r (%s); resets leave it out from now on", text, sqlstate)


def check_set_up(connection: Connection) -> None:
    """Look at a connection after its hook.

    Raises:
        HookFailed: It cannot be used.
    """
    if connection.is_closed():
        raise HookFailed from ConnectionError("the connection was lost in after_connect")
    if connection.is_in_transaction():
        raise HookFailed from RuntimeError("after_connect left a transaction open")


def as_exception(error: BaseException) -> Exception:
    """What a hook raised, for those who wait for its connection; `SystemExit` and its like are not for them."""
    if isinstance(error, Exception):
        return error
    told = RuntimeError(f"after_connect raised {error!r}")
    told.__cause__ = error
    return told


def _raise(error: BaseException) -> None:
    raise error


def too_slow(limit: float) -> AcquireTimeout:
    """What callers are told when the hook took longer than its limit (seconds)."""
    return AcquireTimeout(
        f"after_connect did not finish within {limit:g} s; nothing was sent. "
        "Make it faster, or raise after_connect_timeout"
    )


def refuse_unsupported(settings: PoolSettings, dialect: Dialect) -> None:
    """Refuse settings that this kind of server does not have.

    Where a YugabyteDB was meant and a PostgreSQL answers, that is only told: the same connection string may serve both.
    But where some nodes must not be used, none can be, because nobody tells which.

    Raises:
        ConfigError: It has no statement timeout, no places, no hosts with roles, or no way to refuse what it would have
            to send on.
        NoNodeAvailable: It cannot tell which nodes may be used.
    """
    if Capability.LISTED_SERVERS in dialect.capabilities:
        problems = list(problems_on_yugabyte(settings))
    elif Capability.SHARDED in dialect.capabilities:
        problems = [f"{name} is for plain PostgreSQL, not for {dialect.name}" for name in about_replicas(settings)]
    else:
        problems = []
    if problems:
        raise ConfigError(problems)
    if Capability.LISTED_SERVERS not in dialect.capabilities:
        said = set_for_places(settings)
        if Capability.SHARDED not in dialect.capabilities:
            placement = Placement.of(settings)
            refuse_unknown("the server is no YugabyteDB" if placement.forbids else "", placement.words)
            _tell_of_places(settings, said)
        elif said:
            raise ConfigError([f"{name} is for YugabyteDB, not for {dialect.name}" for name in said])
    if settings.statement_timeout is not None and Capability.STATEMENT_TIMEOUT not in dialect.capabilities:
        raise ConfigError(f"statement_timeout: {dialect.name} has none; use command_timeout")
    if settings.strict_routing and Capability.STRICT_CONNECTIONS not in dialect.capabilities:
        raise ConfigError(f"strict_routing: {dialect.name} sends no statement on, so there is nothing to refuse")


def _tell_of_places(settings: PoolSettings, said: list[str]) -> None:
    if said or balance_mode(settings.load_balance) is not BalanceMode.OFF:
        _LOG.info("the server is no YugabyteDB; it has no use for %s", ", ".join(said or ["load_balance"]))


def _is_unsupported(error: asyncpg.PostgresError) -> bool:
    return str(getattr(error, "sqlstate", "")).startswith(_UNSUPPORTED)
