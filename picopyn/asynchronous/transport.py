"""Dialling: from an address and a purpose to an authenticated connection, and asking seeds who is awake.

A node that hangs accepts TCP and says nothing, so the first word decides: seeds are asked in parallel with the one
question every PostgreSQL-protocol server answers before it knows who asks (`SSLRequest`: one byte, `S` or `N`;
`picodata-protocol.md` section 8 for Picodata). No password is sent by that, so a wrong one reaches one node only.
Whoever wants no TLS is not asked for it: `GSSENCRequest` is the other such question, and Picodata answers it by closing
the connection, which says as much.
"""

from __future__ import annotations

import asyncio
import functools
import getpass
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from picopyn.asynchronous import tls
from picopyn.asynchronous.asked_password import ask_for_password
from picopyn.asynchronous.background import unlamented
from picopyn.asynchronous.config_files import PasswordFile
from picopyn.asynchronous.connection import Connection, NamelessConnection
from picopyn.asynchronous.early_notices import ListeningLoop
from picopyn.asynchronous.name_seeds import first_to_answer
from picopyn.asynchronous.pace import Pace
from picopyn.asynchronous.password_gate import Entry, PasswordGate
from picopyn.asynchronous.socket_options import set_options
from picopyn.asynchronous.stragglers import Stragglers
from picopyn.dialects.base import Capability, Dialect, Purpose
from picopyn.errors import AuthenticationFailed, Fault
from picopyn.routing.credentials import PAUSE, Credentials
from picopyn.settings import PoolSettings
from picopyn.tls import Attempt

_LOG = logging.getLogger("picopyn.asynchronous.transport")

Address = tuple[str, int]
#: Called with the text of every notice of a connection.
OnNotice = Callable[[str], None]

#: Connections that run callers' statements.
_FOR_CALLERS = (Purpose.PLAIN, Purpose.REPLICA_READ, Purpose.STRICT)

#: How much later a less preferred group of addresses is asked (seconds).
STAGGER = 0.1


@dataclass(frozen=True, slots=True)
class _Way:
    """Where a connection leads, what for, and who hears its notices."""

    address: Address
    purpose: Purpose
    on_notice: OnNotice | None
    entry: Entry


class Dialer:
    """Opens connections with the credentials of one pool.

    Args:
        settings: Credentials, time limits, statement cache.
        dialect: The kind of server: decides the start-up options of each purpose.
        passwords: Asked where the settings name no password; None: the file that the settings name.
        security: What the pool does about TLS; None: what the settings say.
        kinds: What connections are: with a statement cache, and without.

    Attributes:
        gate: Where passwords wait for their turn.
        stragglers: Attempts that nobody waits for any more; whoever owns the dialer ends them.

    Raises:
        ConfigError: A file that TLS needs is missing, or cannot be what it should be.
    """

    def __init__(
        self,
        settings: PoolSettings,
        dialect: Dialect,
        passwords: PasswordFile | None = None,
        security: tls.Security | None = None,
        kinds: tuple[type[Connection], type[Connection]] = (Connection, NamelessConnection),
    ) -> None:
        self._settings = settings
        self._kinds = kinds
        self._dialect = dialect
        self._passwords = passwords or PasswordFile(settings.passfile)
        self._user = settings.user or _system_user()
        self._database = settings.database or self._user
        self._security = security or tls.prepare(settings)
        self._made: set[Connection] = set()
        self.gate = PasswordGate()
        self.stragglers = Stragglers()
        self._pace = Pace()
        self._is_dear = self._security.plan.may_encrypt or settings.password is not None

    def of_kinds(self, kinds: tuple[type[Connection], type[Connection]]) -> Dialer:
        """One that opens connections of other kinds, with the same credentials."""
        other = Dialer(self._settings, self._dialect, self._passwords, self._security, kinds)
        other.gate = self.gate
        return other

    @property
    def credentials(self) -> Credentials:
        """What the servers think of them."""
        return self.gate.credentials

    @property
    def user(self) -> str:
        """Who logs in."""
        return self._user

    @property
    def knock(self) -> Knock:
        """How to ask these servers for a first word."""
        if not self._security.plan.may_encrypt:
            return Knock(tls.GSS_REQUEST, closing_counts=True)
        return Knock(tls.SSL_REQUEST, closing_counts=self._security.plan.attempts[0] is Attempt.PLAIN)

    @property
    def names(self) -> dict[Address, str]:
        """The name under which an address was found, for what goes by names."""
        return self._security.plan.names

    async def dial(self, address: Address, purpose: Purpose, on_notice: OnNotice | None = None) -> Connection:
        """Open one connection within the connect timeout; a notice is heard from the first word of the server on.

        While the credentials are held back, it is only found out whether the node lives. Where several nodes are
        dialled at once, one is sent the password, and the others when that one has accepted it. What a node says to it
        counts also when the caller has gone meanwhile.

        Raises:
            TimeoutError: The node did not complete the hand-shake in time.
            OSError: It could not be reached.
            AuthenticationFailed: It lives, but the credentials were refused before, and are not sent again yet.
            asyncpg.PostgresError: It refused.
        """
        again = await self._check_credentials(address)
        entry = self.gate.entry(address, self._settings.connect_timeout, again=again)
        connection = await self._dial(_Way(address, purpose, on_notice, entry))
        self.adopt(connection)
        connection.read_less_at_once()
        connection.watch_sending()
        connection.on_notice = on_notice
        connection.endpoint = address
        connection.has_catalog = Capability.CATALOG in self._dialect.capabilities
        return connection

    async def _dial(self, way: _Way) -> Connection:
        dialling = asyncio.create_task(self._admitted(way), name=f"picopyn dial {way.address[0]}")
        connecting = unlamented(dialling)
        try:
            await asyncio.wait({connecting})
        except asyncio.CancelledError:
            await self.stragglers.give_up(connecting, way.entry)
            raise
        return connecting.result()  # type: ignore[no-any-return]

    async def _admitted(self, way: _Way) -> Any:
        """Connect, and learn from the answer to the password."""
        try:
            connection = await self._connect(way)
            if self.gate.accepted(way.entry):
                _LOG.info("the credentials are accepted again")
            return connection
        except Exception as error:
            if way.entry.turned_away:
                raise self._held_back(way.address) from None
            self._refused(way.entry, error)
            raise
        finally:
            way.entry.leave()

    async def _check_credentials(self, address: Address) -> bool:
        """Refuse to send credentials that a server has refused, until it is time to try them once more.

        Returns:
            Whether it is.
        """
        if self.credentials.wait(address, _now()) is None:
            return False
        await _first_word(address, self._settings.connect_timeout, self.knock)
        if not self.gate.try_again(address, _now()):
            raise self._held_back(address)
        return True

    def _held_back(self, address: Address) -> AuthenticationFailed:
        wait = self.credentials.wait(address, _now()) or 0.0
        return AuthenticationFailed(f"{self.credentials.refusal}; the credentials are sent again in {wait:.0f} s")

    def _refused(self, entry: Entry, error: Exception) -> None:
        """Remember that credentials were refused; a pool that never had a connection tells its caller, nobody else."""
        sqlstate, words = getattr(error, "sqlstate", None), str(error)
        if sqlstate is None or self._dialect.fault(sqlstate, words) is not Fault.AUTH:
            return
        if self.gate.refused(entry, words) and self._made:
            host, port = entry.address
            _LOG.warning("%s:%d refused the credentials; they are sent again every %g s: %s", host, port, PAUSE, words)

    def adopt(self, connection: Connection) -> None:
        """Look after a connection that exists like after those made here: its socket's options, its end."""
        connection.settle_in(lambda sock: set_options(sock, self._settings))
        self._made = {made for made in self._made if not made.is_closed()}
        self._made.add(connection)

    def abandon(self) -> None:
        """The event loop of the connections is closed: close their sockets without it."""
        for connection in self._made:
            connection.abandon()

    async def _connect(self, way: _Way) -> Any:
        """Try the ways that `sslmode` leaves, one limit for all of them."""
        refused: asyncpg.PostgresError | None = None
        if self._is_dear and way.purpose in _FOR_CALLERS:  # questions about nodes are few, and wait for nobody
            await self._pace.turn()
        async with asyncio.timeout(self._settings.connect_timeout):
            *first, last = self._security.plan.attempts_at(way.address[0])
            for attempt in first:
                try:
                    return await self._attempt(way, attempt)
                except asyncpg.InvalidAuthorizationSpecificationError as error:
                    if error.sqlstate != "28000":  # a wrong password is wrong with TLS, too, and it is counted
                        raise
                    refused = error
            try:
                return await self._attempt(way, last)
            except tls.NotOffered:
                if refused is None:
                    raise
                raise refused from None

    async def _attempt(self, way: _Way, attempt: Attempt) -> Any:
        doorway, address = self._doorway(attempt), way.address
        try:
            connection = await self._open(way, doorway, encrypted=attempt is Attempt.TLS)
        except BaseException as error:
            if doorway is not None:
                doorway.drop()
            if not isinstance(error, Exception):
                raise
            told = tls.explained(error, self._security.plan, doorway, address)
            self._warn_once(told, address)
            if told is error:
                raise
            raise told from error
        self._security.not_accepted.discard(address)
        return connection

    def _doorway(self, attempt: Attempt) -> tls.Doorway | None:
        if attempt is Attempt.PLAIN or self._security.context is None:
            return None
        loop = asyncio.get_running_loop()
        return tls.Doorway(loop, self._security.plan, attempt, self._security.context, self._settings.connect_timeout)

    async def _open(self, way: _Way, doorway: tls.Doorway | None, *, encrypted: bool) -> Any:
        settings, address, purpose = self._settings, way.address, way.purpose
        loop = ListeningLoop(doorway or asyncio.get_running_loop(), way.entry, way.on_notice)
        # asyncpg takes these, but its types say otherwise.
        arguments: dict[str, Any] = {"timeout": None, "loop": loop}
        return await asyncpg.connect(
            host=address[0],
            port=address[1],
            user=self._user,
            password=self._password(address),
            database=self._database,
            ssl=self._security.context if encrypted else False,
            direct_tls=False,
            target_session_attrs="any",  # else asyncpg looks into the environment
            statement_cache_size=settings.statement_cache_size,
            server_settings=self._start_up(purpose),
            connection_class=self._kinds[not settings.statement_cache_size],
            **arguments,
            **self._for_callers(purpose),
        )

    def _warn_once(self, error: Exception, address: Address) -> None:
        """A node whose certificate is not accepted is left out, which should not go unnoticed."""
        if isinstance(error.__cause__, ssl.SSLCertVerificationError) and address not in self._security.not_accepted:
            self._security.not_accepted.add(address)
            _LOG.warning("a node is not used: %s", error)

    def _for_callers(self, purpose: Purpose) -> dict[str, Any]:
        """What only connections get that callers use."""
        settings, options = self._settings, dict[str, Any]()
        if purpose in _FOR_CALLERS:
            options["command_timeout"] = settings.command_timeout
            if settings.record_class is not None:
                options["record_class"] = settings.record_class
        return options

    def _password(self, address: Address) -> str | Callable[[], Any]:
        """What asyncpg is given: never None, for then it would look into the environment and files by itself."""
        password = self._settings.password
        if password is not None:
            return password if isinstance(password, str) else functools.partial(ask_for_password, password)
        host, port = address
        return functools.partial(self._passwords.find, self.names.get(address, host), port, self._database, self._user)

    def _start_up(self, purpose: Purpose) -> dict[str, str]:
        settings = self._settings
        keys = {**settings.server_settings, **self._dialect.startup_options(purpose)}
        if settings.statement_timeout is not None and purpose in _FOR_CALLERS:
            keys["statement_timeout"] = str(max(round(settings.statement_timeout * 1000), 1))  # milliseconds
        if purpose is Purpose.REPLICA_READ and Capability.LISTED_SERVERS in self._dialect.capabilities:
            keys["yb_follower_read_staleness_ms"] = str(settings.yb_follower_read_staleness_ms)
        options = [settings.options, settings.server_settings.get("options"), keys.get("options")]
        if joined := ",".join(dict.fromkeys(option for option in options if option)):
            keys["options"] = joined
        if settings.application_name is not None:
            keys.setdefault("application_name", settings.application_name)
        return keys


def _now() -> float:
    return asyncio.get_running_loop().time()


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""


@dataclass(frozen=True, slots=True)
class Knock:
    """A question to which every server has an answer.

    Attributes:
        question: What is sent.
        closing_counts: Whether closing the connection is an answer, too.
    """

    question: bytes
    closing_counts: bool


_KNOCK = Knock(tls.SSL_REQUEST, closing_counts=False)


async def awake(
    groups: Sequence[Sequence[Address]],
    timeout: float,
    failed: dict[Address, str],
    names: MutableMapping[Address, str],
    knock: Knock = _KNOCK,
) -> AsyncGenerator[Address, None]:
    """Ask addresses in parallel whether somebody answers; yield those that do, in the order of their answers.

    Of a name with several addresses, the first one that answers is yielded.

    Args:
        groups: Whom to ask; each group is asked `STAGGER` seconds after the one before it.
        timeout: Limit for each answer (seconds).
        failed: Receives the reason for every address that did not answer.
        names: Receives the name under which an address was found.
        knock: How to ask.
    """
    asking: dict[asyncio.Task[Address], Address] = {}
    for number, group in enumerate(groups):
        for address in group:
            if address not in asking.values():
                seed = _ask_seed(address, timeout, number * STAGGER, knock, names)
                asking[asyncio.create_task(seed)] = address
    try:
        pending = set(asking)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for asked in done:
                error = asked.exception()
                if error is None:
                    yield asked.result()
                else:
                    failed[asking[asked]] = str(error) or f"no answer within {timeout:g} s"
    finally:
        for asked in asking:
            asked.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _ask_seed(
    address: Address, timeout: float, delay: float, knock: Knock, names: MutableMapping[Address, str]
) -> Address:
    if delay:
        await asyncio.sleep(delay)
    async with asyncio.timeout(timeout):
        return await first_to_answer(address, lambda place: _first_word(place, timeout, knock), names)


async def _first_word(address: Address, timeout: float, knock: Knock) -> None:
    async with asyncio.timeout(timeout):
        reader, writer = await _connect(address)
        try:
            writer.write(knock.question)
            if not await _one_byte(reader, knock) and not knock.closing_counts:
                raise ConnectionError("the server closed the connection")
        finally:
            writer.transport.abort()


async def _one_byte(reader: asyncio.StreamReader, knock: Knock) -> bytes:
    try:
        return await reader.read(1)
    except ConnectionResetError:
        if knock.closing_counts:
            return b""
        raise


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


def fault(error: BaseException) -> Fault | None:
    """What an error of the connection itself means; None when the server or the caller's arguments speak."""
    if isinstance(error, asyncpg.exceptions.ConnectionDoesNotExistError):
        return Fault.LOST
    if isinstance(error, asyncpg.InterfaceError):
        return Fault.NOT_SENT if "connection is closed" in str(error) else None
    if isinstance(error, asyncpg.OutdatedSchemaCacheError):  # the answer came, and cannot be read
        return None
    if isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch to state"):
        return Fault.NOT_SENT  # the server has said goodbye, and the end of the connection is still to be read
    if isinstance(error, OSError | asyncpg.InternalClientError):
        return Fault.LOST
    return None
