"""Which kind of server is behind a connection string: the first connection of a pool, and what it tells.

This file decides where a pool knocks first, and how `dialect="auto"` tells the servers apart. Most say what they are
while they greet, which costs nothing; only a greeting that fits no kind costs one question, which every server
understands or refuses without a trace in its log that would alarm anybody.

*Source*: PostgreSQL 18 documentation, section 54.2.1 (BackendKeyData) and 54.2.8 (the parameters every server reports);
Picodata, `src/pgproto/client/startup.rs` (25.6 to 26.2: no BackendKeyData, six parameters, none about the session);
YugabyteDB, `yugabyte-smart-drivers.md` section 6 (`-YB-` in every version). The order is argued in
`docs/adr/0006-telling-servers-apart.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import asyncpg

from picopyn.asynchronous.connection import Connection
from picopyn.asynchronous.reach import Reach
from picopyn.asynchronous.transport import Address, Dialer
from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.dsn import Endpoint
from picopyn.settings import PoolSettings
from picopyn.topology import TopologySnapshot

_YUGABYTE: Final = "-YB-"


@dataclass(frozen=True, slots=True)
class Introduction:
    """The first connection of a pool.

    Attributes:
        dialect: What the server is, or what the user said it is.
        dialer: Opens connections to such servers.
        endpoints: The hosts of the connection string with the ports they have by that.
        connection: The connection, for whoever has a use for it; None when none was needed to know all this.
    """

    dialect: Dialect
    dialer: Dialer
    endpoints: tuple[Endpoint, ...]
    connection: Connection | None


async def introduce(settings: PoolSettings, make_dialer: Callable[[Dialect], Dialer], rng: Random) -> Introduction:
    """Make the first connection of a pool, to whichever host answers first.

    Args:
        settings: The hosts, the dialect's name, the time limit.
        make_dialer: Makes what opens connections for a dialect.
        rng: Source of randomness for the order of hosts.

    Raises:
        AuthenticationFailed: A host refused the credentials; no other one was asked.
        NoNodeAvailable: No host answered; it lists the reason of each.
    """
    named = named_dialect(settings.dialect)
    if named is not None and settings.topology_source is not None:
        return Introduction(named, make_dialer(named), _with_ports(settings, named.default_port), None)
    first = named or _NEUTRAL
    groups = [_with_ports(settings, port) for port in _ports(named)]
    asking = make_dialer(first)
    reach = Reach(asking, first, [], settings.connect_timeout, TopologySnapshot, rng)
    try:
        connection = await reach.introduce(_first_purpose(first), [list(map(_address, group)) for group in groups])
    finally:
        asking.stragglers.terminate()
    try:
        dialect = named or await tell_dialect(connection)
        dialer = make_dialer(dialect)
    except BaseException:
        connection.terminate()
        raise
    return Introduction(dialect, dialer, _with_ports(settings, dialect.default_port), connection)


def named_dialect(named: Any) -> Dialect | None:
    """The dialect that a setting names; None for `"auto"`."""
    if not isinstance(named, str):
        dialect: Dialect = named
        return dialect
    known: dict[str, Callable[[], Dialect]] = {
        "postgres": PostgresDialect,
        "picodata": PicodataDialect,
        "yugabyte": YugabyteDialect,
    }
    return known[named]() if named in known else None


async def tell_dialect(connection: Connection) -> Dialect:
    """What the server behind a new connection is; asks only when its greeting leaves that open."""
    return greeted_dialect(connection) or await _ask(connection, can_cancel=bool(connection.get_server_pid()))


def greeted_dialect(connection: Any) -> Dialect | None:
    """What the server behind a new connection says it is; None when its greeting leaves that open."""
    greeting = connection.get_settings()
    if _YUGABYTE in getattr(greeting, "server_version", ""):
        return YugabyteDialect()
    can_cancel = bool(connection.get_server_pid())
    has_session = hasattr(greeting, "session_authorization")
    if can_cancel and has_session:
        return PostgresDialect()
    if not can_cancel and not has_session:
        return PicodataDialect()
    return None


async def _ask(connection: Connection, *, can_cancel: bool) -> Dialect:
    try:
        version = str(await connection.fetchval("SELECT version()"))
    except asyncpg.PostgresError:
        version = ""
    if _YUGABYTE in version:
        return YugabyteDialect()
    if version.startswith("picodata ") or not (can_cancel or version.startswith("PostgreSQL ")):
        return PicodataDialect()
    return PostgresDialect()


#: Speaks to a server of unknown kind: no start-up option of its own, and SQLSTATEs all kinds share.
_NEUTRAL: Final = PostgresDialect()


def _first_purpose(dialect: Dialect) -> Purpose:
    """What the first connection is used for once the dialect is known."""
    return Purpose.TOPOLOGY if Capability.SHARDED in dialect.capabilities else Purpose.PLAIN


def _ports(named: Dialect | None) -> Sequence[int]:
    """Ports for hosts without one; where the dialect is open, each is tried a little later than the one before."""
    if named is not None:
        return (named.default_port,)
    return tuple(dialect.default_port for dialect in (PostgresDialect(), PicodataDialect(), YugabyteDialect()))


def _with_ports(settings: PoolSettings, port: int) -> tuple[Endpoint, ...]:
    return tuple(endpoint.with_default_port(port) for endpoint in settings.endpoints)


def _address(endpoint: Endpoint) -> Address:
    return endpoint.host, endpoint.port or 0
